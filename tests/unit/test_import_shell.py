"""A launch script is followed as bash would run it, and nothing of it is run; what can't be told stays marked and is said."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from attuner.core.errors import UserError
from attuner.importing.files import Beside, open_source
from attuner.importing.shell.heard import Heard
from attuner.importing.shell.run import Walker
from attuner.importing.shell.values import shown

BASH = shutil.which("bash")


def followed(tmp_path: Path, text: str, **preset: str) -> tuple[list[list[str]], Heard]:
    """Return the commands named `run` that a script would start, and all that was heard."""
    script = tmp_path / "job.sh"
    script.write_text(text)
    heard, source = Heard(), open_source(script)
    walker = Walker(Beside(source), heard, preset)
    walker.script(source.place, source.text)
    return [[shown(w) for w in s.words[1:]] for s in heard.started if s.words[0] == "run"], heard


SNIPPETS = {
    "plain words": "run a 'b c' \"d $HOME_OF_NOTHING\" e\\ f \"g\\\"h\" 'i'\\''j'",
    "lists": 'A=(a \'b c\' $(echo d e))\nA+=(--f)\nrun ${A[@]} "${A[@]}" "${A[*]}" ${#A[@]} ${A[1]}',
    "a list in a list": 'A=(x "y z")\nB=("${A[@]}" --w)\nrun "${B[@]}"',
    "comments in a list": "A=(\n  a # --no\n  #b\n  c\n)\nrun ${A[@]}",
    "continued lines": "run a \\\n  b \\\n\n run c",
    "splitting": 'X=" a  b "\nrun $X "$X" x$X x"$X"y ${X}${X}',
    "an empty variable vanishes": 'X=\nrun a $X b "$X" c',
    "defaults": 'Y=1\nrun ${X:-d} ${Y:-e} ${X-f} ${Y:+g} ${X:+h} "${X:-"a b"}" ${X:-$Y}',
    "assigning defaults": ": ${X:=4}\nrun $X",
    "arithmetic": "A=3 B=4\nrun $((A+B*2)) $(( (A + $B) % 5 )) $((A<B?10:20)) $((2**10)) $((-7/2)) $((A==3&&B!=3))",
    "bases": "run $((010)) $((0x1f)) $((-1)) $((5%3))",
    "counting": "N=0\n((N++))\nlet N=N+5\nN=$((N*2))\nrun $N",
    "a counting loop": "A=()\nfor ((i=0; i<6; i++)); do if ((i < 2)); then A+=(0); else A+=(1); fi; done\nrun ${A[@]}",
    "printf and IFS": 'A=(0 0 1)\nprintf -v F "[%s]" "$(IFS=\', \'; echo "${A[*]}")"\nrun $F',
    "a loop over words": "for x in a b 'c d'; do run --$x; done",
    "a loop over numbers": "for i in $(seq 1 3); do run $i; done",
    "trimming": "P=/a/b/c.tar.gz\nrun ${P##*/} ${P%/*} ${P%.*} ${P%%.*} ${P#*/} ${P/b/X} ${P//\\//_} ${P: -2} ${P:1:3}",
    "case of letters": "X=aBc\nrun ${X^^} ${X,,} ${X^}",
    "functions": 'f() { local a=$1; run "$a" "$#" $@; }\nf x "y z"\nfunction g { f 1; }\ng',
    "if and elif": 'X=b\nif [ "$X" = a ]; then run 1; elif [[ $X == b* ]]; then run 2; else run 3; fi',
    "tests": 'X=5\n[ $X -gt 3 ] && run gt\n[[ -z $Y ]] || run set\n[[ $X =~ 5 ]] || run no\n[ -n "$X" -a $X -le 5 ] && run and',
    "plain expressions": "[[ ab =~ ^a ]] && run 1\n[[ ab =~ ^a$ ]] && run 2\n[[ ab =~ b$ ]] && run 3",
    "case": "X=glm-4.5\ncase $X in\n  llama*|qwen*) run a;;\n  glm-[0-9]*) run b;;\n  *) run c;;\nesac",
    "a here-document": 'V=1\nJ=$(cat <<EOF\n{"a": "${V}", "b": "\\$x"}\nEOF\n)\nrun "$J"',
    "a quoted here-document": "J=$(cat <<'EOF'\n$V `x`\nEOF\n)\nrun \"$J\"",
    "an indented here-document": 'J=$(cat <<-EOF\n\t\ta\n\tEOF\n)\nrun "$J"',
    "eval": 'X=\'run a "b c"\'\neval "$X --d"',
    "bash -c": "export X=1\nbash -c 'run $X a'",
    "subshells keep their variables": "X=1\n(X=2; run $X)\nrun $X",
    "groups don't": "X=1\n{ X=2; }\nrun $X",
    "not and chains": "X=1\n! [ $X = 2 ] && run yes\n[ $X = 2 ] && run no || run other",
    "paths": 'D="$(cd -- "$(dirname -- "/a/b/../b/x.sh")" 2>/dev/null || echo /q)"\nrun $(basename /a/b.sh .sh)',
    "read": "IFS=',' read -r TP PP EP <<< \"2,4,8\"\nrun $TP $PP $EP",
    "set --": "set -- a 'b c' d\nshift\nrun \"$@\" $#",
    "redirections": "run a >out.txt 2>&1 b </dev/null c &>/dev/null",
    "ansi quotes": "run $'a\\tb' $'it\\'s'",
    "a dollar alone": "run $ a$ \"$\" '$x'",
    "nested substitutions": 'run "$(echo "$(echo "a b")" c)" `echo d`',
    "unset": "X=1\nunset X\nrun ${X:-gone}",
    "indexed": "A=(a b c)\nA[1]=x\nrun ${A[@]:1} ${A[@]:0:2} ${A[-1]}",
    "an assignment of a substitution with spaces": 'X=$(echo a   b)\nrun $X "$X"',
}


@pytest.mark.skipif(BASH is None, reason="needs bash to compare with")
@pytest.mark.parametrize("name", SNIPPETS)
def test_a_script_is_read_as_bash_runs_it(name: str, tmp_path: Path) -> None:
    said = tmp_path / "said"
    prelude = f'run() {{ printf "%s\\0" "$@" >>"{said}"; printf "\\1\\0" >>"{said}"; }}\nexport -f run\n'
    subprocess.run(
        [str(BASH), "-c", prelude + SNIPPETS[name]], check=False, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, timeout=20
    )
    real = [c.split("\0")[:-1] for c in said.read_text().split("\1\0")[:-1]]
    mine, _ = followed(tmp_path, SNIPPETS[name], HOME_OF_NOTHING="")
    assert mine == real


def test_what_the_caller_sets_stays_marked_inside_the_value(tmp_path: Path) -> None:
    runs, _ = followed(tmp_path, 'run $BASE/model "$1" $((N * 2)) $(nvidia-smi -L | wc -l)')
    assert runs == [["${BASE}/model", "${1}", "$((N * 2))", "$(nvidia-smi -L | wc -l)"]]


def test_a_caller_can_be_given(tmp_path: Path) -> None:
    assert followed(tmp_path, "run $BASE/model $1 $((N * 2))", BASE="/b", N="4", **{"1": "first"})[0] == [
        ["/b/model", "first", "8"]
    ]


def test_what_is_given_holds_against_the_scripts_own_value_and_that_is_said(tmp_path: Path) -> None:
    runs, heard = followed(tmp_path, "IMAGE=\nrun $IMAGE", IMAGE="x")
    assert runs == [["x"]]
    assert any("--set holds" in text for _, text in heard.notes)


def test_a_default_that_is_taken_is_said(tmp_path: Path) -> None:
    _, heard = followed(tmp_path, "run ${NODES:-8}")
    assert ("default", "NODES is not set here: its default 8 is taken") in heard.notes


def test_an_undecided_branch_is_named_with_what_it_sets(tmp_path: Path) -> None:
    runs, heard = followed(tmp_path, 'N=$(nvidia-smi | wc -l)\nif [ "$N" -gt 0 ]; then V=1; else V=0; fi\nrun $V')
    [text] = [t for k, t in heard.notes if k == "undecided"]
    assert runs == [["0"]]
    assert "job.sh:2" in text
    assert "other branch" in text
    assert "sets V" in text
    assert heard.started[-1].doubts == ["V (job.sh:2)"]


def test_of_an_undecided_branch_the_one_that_only_leaves_is_not_taken(tmp_path: Path) -> None:
    runs, heard = followed(tmp_path, 'if [ -z "$ADDR" ]; then echo needed; exit 1; fi\n[ -f x ] || exit 2\nrun a')
    assert runs == [["a"]]
    assert len([k for k, _ in heard.notes if k == "undecided"]) == 2


def test_a_decided_exit_ends_the_script_and_is_said(tmp_path: Path) -> None:
    runs, heard = followed(tmp_path, 'X=""\nif [ -z "$X" ]; then exit 1; fi\nrun a')
    assert runs == []
    assert any(k == "skipped" and "exit 1" in t for k, t in heard.notes)


def test_a_loop_that_cannot_be_counted_is_not_followed_and_what_it_sets_is_unknown(tmp_path: Path) -> None:
    runs, heard = followed(tmp_path, "X=1\nwhile read line; do X=2; done\nfor f in *.bin; do Y=$f; done\nrun $X $Y")
    assert runs == [["${X}", "${Y}"]]
    assert sum("not followed" in t for _, t in heard.notes) == 2


def test_a_sourced_script_is_read_from_beside_it_or_from_the_end_of_its_authors_path(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "m.sh").write_text("ARGS=(--num-layers 4)\n")
    here = 'DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" &>/dev/null && pwd)"\nsource "$DIR/models/m.sh"\nrun ${ARGS[@]}'
    assert followed(tmp_path, here)[0] == [["--num-layers", "4"]]
    assert followed(tmp_path, "source /opt/slime/models/m.sh\nrun ${ARGS[@]}")[0] == [["--num-layers", "4"]]


def test_a_sourced_script_that_is_missing_is_said(tmp_path: Path) -> None:
    _, heard = followed(tmp_path, "source nowhere.sh\nrun a")
    assert any("nowhere.sh could not be read" in t for _, t in heard.notes)


def test_exports_and_prefixes_make_a_commands_environment(tmp_path: Path) -> None:
    _, heard = followed(tmp_path, "export A=1 B=2\nC=3\nexport C\nunset B\nD=4 run x\n")
    assert heard.started[-1].env == {"A": "1", "C": "3", "D": "4"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("run 'a", "a single quote is never closed"),
        ('run "a', "a double quote is never closed"),
        ("A=(a\nrun", "the list of A is never closed"),
        ("if true; then run", "'fi' is missing"),
        ("for x in a; do run", "'done' is missing"),
        ("run $(echo a", "')' is missing"),
        ("run ${X", "an expansion is never closed"),
        ("cat <<EOF\na", "here-document EOF is never closed"),
        ("run a )", "')' where a command should begin"),
        ("[[ a", "'[[' is never closed"),
    ],
)
def test_what_is_no_shell_is_one_line_with_its_place(text: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^job\.sh:\d") as error:
        followed(tmp_path, text)
    assert what in str(error.value)
    assert "\n" not in str(error.value)
