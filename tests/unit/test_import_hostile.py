"""Hostile sources: nothing is executed, nothing outside the root is read, and each ends soon with one clear line."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import yaml

from attuner.core.errors import UserError
from attuner.importing.recipe_text import recipe_text
from attuner.importing.shell.patterns import matches
from tests.unit.importing import imported
from tests.unit.test_import_cli import SCRIPT
from tests.unit.test_import_forms import AUTOMODEL, DUMP, PRINTED, RAYJOB

RUN = "torchrun pretrain_gpt.py --num-layers 4 --hidden-size 8 "
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]\n" for old, new in zip("abcdefg", "bcdefgh", strict=True)
)
HOSTILE = {
    "a script that sources itself": ("job.sh", "source job.sh\n" + RUN, "sources itself"),
    "a function that calls itself": ("job.sh", "f() { f; }\nf\n", "inside each other"),
    "eval of itself": ("job.sh", 'X=\'eval "$X"\'\neval "$X"\n', "inside each other"),
    "a line of ten million characters": ("job.sh", "run " + "x" * 10_000_000, "more than 1 MiB"),
    "a long line": ("job.sh", "run " + "x" * 500_000, "a line of more than"),
    "a value that doubles": ("job.sh", "a=x\n" + "a=$a$a\n" * 60, "more than 1000000 characters"),
    "a list that doubles": ("job.sh", "a=(x)\n" + 'a+=("${a[@]}")\n' * 60, "more than 50000 words"),
    "loops in loops": ("job.sh", "for a in 1 2 3 4 5 6 7 8; do " * 12 + "x=1;" + "done;" * 12, "more than 50000 commands"),
    "substitutions in substitutions": ("job.sh", "echo " + "$(echo " * 5000, "inside each other"),
    "brackets in brackets": ("job.sh", "((" * 50_000, "inside each other"),
    "ifs in ifs": ("job.sh", "if true; then\n" * 30_000, "inside each other"),
    "unbalanced quotes": ("job.sh", RUN + "'--lr 1e-4\n", "a single quote is never closed"),
    "anchors that multiply": ("r.yaml", BOMB + "model: *h\ntrain: 1\n", "unfolded"),
    "sequences without end": ("r.yaml", "\n".join("- " * 1000 for _ in range(90)), "deeper, larger or more folded"),
    "brackets without end": ("r.yaml", "a: " + "[" * 150_000, "exceeded maximum nesting depth"),
    "a key twice": ("r.yaml", "model: {a: 1}\ntrain: {b: 1}\nmodel: {a: 2}\n", "key 'model' stands twice"),
    "a key twice, deep inside": ("r.yaml", "model: {a: 1, a: 2}\ntrain: {b: 1}\n", "key 'a' stands twice"),
    "a tag that makes objects": ("r.yaml", "model: !!python/object/apply:os.system ['true']\ntrain: 1\n", "not YAML"),
    "a runtime environment that is no YAML": (
        "r.yaml",
        "kind: RayJob\nspec: {entrypoint: x, runtimeEnvYAML: '[' }\n",
        "not YAML",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_source_ends_with_one_line(name: str, tmp_path: Path) -> None:
    file, text, what = HOSTILE[name]
    start = time.process_time()
    with pytest.raises(UserError) as error:
        imported(tmp_path, text, file)
    assert what in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500
    assert time.process_time() - start < 20


def test_nothing_of_a_script_is_executed(tmp_path: Path) -> None:
    trap = tmp_path / "trap"
    text = f"""$(touch {trap}); `touch {trap}`; touch {trap}; eval "touch {trap}"; bash -c 'touch {trap}'
X=$(rm -rf {tmp_path}); (touch {trap}); touch {trap} && touch {trap} | tee {trap}
echo $(touch {trap}) > {trap}
cat <(touch {trap})
[ "$(touch {trap})" ] && touch {trap}
exec 3>{trap}
{RUN} --lr $(touch {trap})
"""
    found = imported(tmp_path, text)
    assert not trap.exists()
    assert (tmp_path / "job.sh").exists()
    assert found.arguments["lr"].startswith("$(touch")


@pytest.mark.parametrize(
    "path",
    [
        "../outside.sh",
        "/etc/hostname",
        "$(dirname ${BASH_SOURCE[0]})/../outside.sh",
        "link.sh",
        "../../../../../../etc/hostname",
        "x" * 5000,
        "$'a\\nb'",
    ],
)
def test_what_lies_outside_the_root_is_not_read(path: str, tmp_path: Path) -> None:
    (tmp_path / "outside.sh").write_text("ARGS=(--seed 666)\n")
    inside = tmp_path / "repo"
    inside.mkdir()
    (inside / "link.sh").symlink_to(tmp_path / "outside.sh")
    found = imported(inside, f"source {path}\n{RUN} ${{ARGS[@]}}")
    assert "seed" not in found.arguments
    assert any("could not be read" in t for t in found.of("undecided"))


def test_a_source_outside_the_root_that_is_named_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(UserError, match="does not lie in it"):
        imported(tmp_path, RUN, root=str(tmp_path / "other"))


def test_more_files_than_a_launch_script_has_are_refused(tmp_path: Path) -> None:
    for number in range(70):
        (tmp_path / f"m{number}.sh").write_text(f"A{number}=1\n")
    with pytest.raises(UserError, match="names more than 64 files"):
        imported(tmp_path, "".join(f"source m{n}.sh\n" for n in range(70)) + RUN)


def test_control_characters_cannot_break_out_of_a_comment(tmp_path: Path) -> None:
    found = imported(tmp_path, RUN + "--load $'/x\\u2028stack: y\\r\\nstack: evil' --save '/a\x1b[31m'")
    text = recipe_text(found)
    assert not any("\x1b" in n.text or "\n" in n.text for n in found.notices)
    program = imported(tmp_path, "torchrun $'p.py\\nstack: evil' --num-layers 4 --hidden-size 8\n")
    assert recipe_text(program).split("\n")[1] == "stack: megatron"
    assert "\nstack: evil" not in text.split("\narguments:")[0]
    assert "\x1b" not in text


def test_a_binary_file_is_no_source(tmp_path: Path) -> None:
    (tmp_path / "x.sh").write_bytes(b"\x7fELF\x00\x00")
    from attuner.importing.files import open_source

    with pytest.raises(UserError, match="is no text file"):
        open_source(tmp_path / "x.sh")


def test_no_pattern_takes_long() -> None:
    start = time.process_time()
    assert not matches("*a" * 50 + "b", "a" * 4096)
    assert matches("*a*b?[0-9]*", "xxaxxbz5yy")
    assert time.process_time() - start < 5


FRAGMENTS = [
    "$(",
    "${",
    "))",
    "((",
    '"',
    "'",
    "`",
    "<<EOF\n",
    "\\",
    "fi\n",
    "[[ ",
    "|",
    "&a ",
    "*a",
    "- - -",
    "!!x ",
    "\x00",
    "\u2028",
]
SOURCES = [("j.sh", SCRIPT), ("j.yaml", RAYJOB), ("a.yaml", AUTOMODEL), ("t.log", DUMP), ("p.txt", PRINTED)]


@pytest.mark.parametrize("seed", range(4))
def test_however_a_source_is_torn_it_ends_in_a_recipe_or_in_one_line(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    said, recipes = [], 0
    for _ in range(60):
        name, text = chance.choice(SOURCES)
        for _ in range(chance.randint(1, 6)):
            at = chance.randrange(len(text) + 1)
            torn = text[:at] + text[at + chance.randint(1, 30) :]
            text = chance.choice([torn, text[:at] + chance.choice(FRAGMENTS) + text[at:]])
        try:
            found = imported(tmp_path, text, name)
        except UserError as error:
            said.append(str(error))
        else:
            assert yaml.safe_load(recipe_text(found))["stack"] == found.stack
            recipes += 1
    assert recipes
    assert said
    assert not any("\n" in line for line in said)
