"""The house's own laws: floors, sizes, where third parties live, and what the rules say of themselves."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attuner.config import file_digests, load_levers, load_register, read_lock
from attuner.policy.register import Rule, check_rule

ROOT = Path(__file__).resolve().parents[1]
STDLIB = sys.stdlib_module_names
FLOORS = {
    **{"attuner.core": 0, "attuner": 0},
    **{"attuner.policy": 1, "attuner.traces": 1, "attuner.estimate": 1, "attuner.logs": 1},
    **{
        "attuner.ports": 2,
        "attuner.config": 2,
        "attuner.lessonfiles": 2,
        "attuner.proposals": 2,
        "attuner.notify": 2,
        "attuner.settings": 2,
        "attuner.source": 2,
        "attuner.tables": 2,
        "attuner.watchfile": 2,
        "attuner.yamlfile": 2,
        "attuner.runs": 2,
        "attuner.child": 2,
        "attuner.benchmarking": 2,
    },
    **{"attuner.importing": 2, "attuner.failures": 2, "attuner.datatools": 2},
    **{"attuner.stacks": 3, "attuner.launchers": 3, "attuner.proposers": 3, "attuner.ledgers": 3},
    **{"attuner.steps": 4, "attuner.report": 4},
    **{"attuner.wiring": 5, "attuner.bench": 5},
    **{"attuner.cli": 6, "flows": 6, "tasks": 6},
}
ADAPTERS = {"attuner.stacks", "attuner.launchers", "attuner.proposers", "attuner.ledgers"}
HOMES = {
    "duckdb": {"attuner.ledgers"},
    "ray": {"attuner.launchers", "attuner.runner"},
    "kubernetes": {"attuner.launchers"},
    "torch": {"attuner.stacks", "attuner.runner"},
    "megatron": {"attuner.stacks", "attuner.runner"},
    "anthropic": {"attuner.proposers"},
    "optuna": {"attuner.proposers"},
    "isal": {"attuner.traces"},
    "boto3": {"attuner.launchers", "attuner.runner"},
    "prefect": {"flows", "tasks", "attuner.cli"},
}
FOLDERS = {
    *("flows", "tasks", "rules", "configs", "attuner", "tests", "docs", "bench", "tools", ".ci"),
    *("out", "dist", "build", "shared"),  # made by running or building; never in git
}
SOURCES = sorted(p for top in ("attuner", "flows", "tasks") for p in (ROOT / top).rglob("*.py"))
PURE = sorted(p for top in ("core", "policy", "traces", "estimate", "logs") for p in (ROOT / "attuner" / top).rglob("*.py"))


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def part_of(module: str) -> str:
    """Return the part of the house that a module belongs to."""
    words = module.split(".")
    return ".".join(words[:2]) if words[0] == "attuner" else words[0]


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, module) of every import, also inside functions; relative ones with their full name."""
    package = name_of(path).split(".") if path.name == "__init__.py" else name_of(path).split(".")[:-1]
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # `from attuner import x` and `from attuner.runner import files` name modules
            yield from (
                (node.lineno, f"{module}.{alias.name}" if (ROOT / module.replace(".", "/")).is_dir() else module)
                for alias in node.names
            )


def ours(module: str) -> bool:
    return module.split(".")[0] in ("attuner", "flows", "tasks")


def where(path: Path, line: int) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_an_import_goes_down_only() -> None:
    wrong = []
    for path in SOURCES:
        part = part_of(name_of(path))
        if part == "attuner.runner":
            continue
        for line, module in imports(path):
            target = part_of(module)
            if not ours(module) or target == part or target == "attuner.runner":
                continue
            if module == "attuner.__version__":
                continue
            assert target in FLOORS, f"{where(path, line)} imports {module}: no floor is named for it"
            level = FLOORS[target]
            if level > FLOORS[part] or (level == FLOORS[part] and {part, target} <= ADAPTERS):
                wrong.append(f"{where(path, line)} imports {module} (floor {level}, its own is {FLOORS[part]})")
    assert wrong == []


def test_every_module_stands_on_a_floor() -> None:
    assert [p for p in SOURCES if part_of(name_of(p)) not in {*FLOORS, "attuner.runner"}] == []


def test_adapters_never_see_each_other() -> None:
    wrong = []
    for path in SOURCES:
        part = part_of(name_of(path))
        for line, module in imports(path):
            target = part_of(module)
            if part in ADAPTERS and target in ADAPTERS and target != part:
                wrong.append(f"{where(path, line)} imports {module}")
            elif part in ADAPTERS and target == part and path.parent != ROOT / "attuner" / part.split(".")[1]:
                # stacks/mcore may use its own modules, never those of another stack
                own = ".".join(name_of(path).split(".")[:3])
                if not module.startswith(own):
                    wrong.append(f"{where(path, line)} imports {module}")
    assert wrong == []


def test_the_runner_ships_alone() -> None:
    allowed = {"torch", "ray", "boto3", "botocore", "megatron"}
    wrong = [
        f"{where(path, line)} imports {module}"
        for path in (ROOT / "attuner" / "runner").rglob("*.py")
        for line, module in imports(path)
        if (top := module.split(".")[0]) not in allowed and top not in STDLIB and not module.startswith("attuner.runner")
    ]
    assert wrong == []


def test_the_runner_names_itself_by_relative_imports_only() -> None:
    absolute = [
        where(path, node.lineno)
        for path in (ROOT / "attuner" / "runner").rglob("*.py")
        for node in ast.walk(tree(path))
        if (isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith("attuner"))
        or (isinstance(node, ast.Import) and any(a.name.startswith("attuner") for a in node.names))
    ]
    assert absolute == []


def test_of_the_runner_only_its_file_names_are_seen_outside() -> None:
    wrong = []
    for path in SOURCES:
        part = part_of(name_of(path))
        for line, module in imports(path):
            if part_of(module) != "attuner.runner" or part == "attuner.runner":
                continue
            if module != "attuner.runner.files" or part not in {"attuner.stacks", "attuner.launchers", "attuner.runs"}:
                wrong.append(f"{where(path, line)} imports {module}")
    assert wrong == []


def test_the_runners_file_names_need_the_standard_library_only() -> None:
    assert [m for _, m in imports(ROOT / "attuner" / "runner" / "files.py") if m.split(".")[0] not in STDLIB] == []


@pytest.mark.parametrize("third_party", HOMES)
def test_a_third_party_lives_in_its_home(third_party: str) -> None:
    wrong = [
        f"{where(path, line)} imports {module}"
        for path in SOURCES
        for line, module in imports(path)
        if module.split(".")[0] == third_party and part_of(name_of(path)) not in HOMES[third_party]
    ]
    assert wrong == []


def test_the_core_needs_pydantic_and_the_standard_library_only() -> None:
    found = {m.split(".")[0] for p in (ROOT / "attuner" / "core").glob("*.py") for _, m in imports(p)}
    assert found - STDLIB - {"pydantic", "attuner"} == set()


def test_no_file_is_longer_than_400_lines() -> None:
    long = {where(p, n): n for p in [*SOURCES, *(ROOT / "tests").rglob("*.py")] if (n := len(p.read_text().splitlines())) > 400}
    assert long == {}


def test_no_function_is_longer_than_60_lines() -> None:
    long = [
        f"{where(path, node.lineno)} {node.name}: {node.end_lineno - node.lineno + 1}"
        for path in [*SOURCES, *(ROOT / "tests").rglob("*.py")]
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno and node.end_lineno - node.lineno >= 60
    ]
    assert long == []


def test_every_module_opens_with_what_it_does() -> None:
    silent = [p.relative_to(ROOT) for p in SOURCES if p.read_text().strip() and not ast.get_docstring(tree(p))]
    assert silent == []


def calls(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)


def test_nothing_is_printed_outside_the_command_line() -> None:
    cli = ROOT / "attuner" / "cli"
    assert [where(p, n) for p in SOURCES if cli not in p.parents for n, what in calls(p) if what == "print"] == []


def test_the_pure_floors_touch_no_disk_no_clock_and_no_chance() -> None:
    modules = {"time", "random", "os", "secrets", "socket", "subprocess", "pathlib", "tempfile", "uuid", "urllib", "threading"}
    ends = (".open", ".read_text", ".write_text", ".read_bytes", ".write_bytes", ".now", ".today", ".utcnow")
    wrong = [f"{where(p, n)} imports {m}" for p in PURE for n, m in imports(p) if m.split(".")[0] in modules]
    wrong += [
        f"{where(p, n)} calls {c}"
        for p in PURE
        for n, c in calls(p)
        if c in ("open", "eval", "exec", "input") or c.endswith(ends)
    ]
    assert wrong == []


def test_nothing_is_evaluated_or_unpickled() -> None:
    bad = {"eval", "exec", "pickle.load", "pickle.loads", "yaml.unsafe_load", "os.system", "marshal.loads"}
    assert [f"{where(p, n)} {c}" for p in SOURCES for n, c in calls(p) if c in bad] == []


def test_every_error_of_ours_is_in_the_one_tree() -> None:
    classes = [
        (where(path, node.lineno), ast.unparse(base))
        for path in SOURCES
        if part_of(name_of(path)) != "attuner.runner"  # it ships alone, with two errors of its own
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
        for base in node.bases
        if ast.unparse(base).endswith(("Error", "Exception"))
    ]
    assert [c for c in classes if c[1] not in ("AttunerError", "UserError", "Refused") and "core/errors.py" not in c[0]] == []


def test_the_top_of_the_house_has_no_other_folder() -> None:
    hidden = {p.name for p in ROOT.iterdir() if p.is_dir() and p.name.startswith(".")}
    assert {p.name for p in ROOT.iterdir() if p.is_dir()} - hidden - FOLDERS == set()


STACKS = sorted(p.name for p in (ROOT / "rules").iterdir() if p.is_dir())
RULES = [rule for stack in STACKS for rule in load_register(ROOT / "rules", stack).rules]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.id)
def test_every_example_of_a_rule_comes_out(rule: Rule) -> None:
    assert check_rule(rule) == []


def test_the_lock_holds() -> None:
    locked, now = read_lock(ROOT / "rules"), file_digests(ROOT / "rules")
    assert {k for k in locked.keys() | now.keys() if locked.get(k) != now.get(k)} == set()


def test_every_lever_is_one_that_the_register_knows() -> None:
    for stack in STACKS:
        register = load_register(ROOT / "rules", stack)
        unknown = [k for lever in load_levers(ROOT / "rules", stack) for k in lever["changes"] if not register.covering(k)]
        assert unknown == []


def test_the_gate_and_the_rules_start_without_the_heavy_third_parties() -> None:
    heavy = ["prefect", "ray", "torch", "duckdb", "anthropic", "kubernetes", "megatron"]
    code = f"import json, sys, attuner.cli.gate, attuner.cli.rules\nprint(json.dumps([m for m in {heavy} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert json.loads(done.stdout) == []


def test_the_runner_is_importable_without_the_rest_of_attuner() -> None:
    code = (
        "import sys, importlib.util as u\n"
        f"spec = u.spec_from_file_location('attuner_runner', r'{ROOT}/attuner/runner/__init__.py')\n"
        "package = u.module_from_spec(spec); sys.modules['attuner_runner'] = package; spec.loader.exec_module(package)\n"
        "import attuner_runner.files, attuner_runner.errors\n"
        "print([m for m in sys.modules if m in ('pydantic', 'prefect', 'attuner')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd="/")
    assert done.stdout.strip() == "[]"


def test_every_long_test_exists() -> None:
    """A renamed one would come back into `make check`, and its name stay behind."""
    entries = [x for x in (ROOT / "tests" / "long.txt").read_text().splitlines() if x and not x.startswith("#")]
    assert entries
    for entry in entries:
        file, _, name = entry.partition("::")
        text = (ROOT / file).read_text()
        assert not name or f"def {name.rpartition('::')[2]}(" in text, entry
