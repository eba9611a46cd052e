"""Reads what people write: campaign, recipe and cluster files, the register, the lever catalog, and the register's lock.

YAML is data here: safe_load, unknown keys are errors, no templating, no environment. Every problem is one line that names
the file, the key and how to mend it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from attuner.core.base import Record, Value, canonical_json
from attuner.core.campaign import OBSERVED_STEPS, Adaptation, Campaign, Cluster, Published
from attuner.core.errors import UserError
from attuner.core.lesson import Lesson
from attuner.core.message import ModelPrice
from attuner.core.private import masked, secret_in
from attuner.core.recipe import Change, Recipe
from attuner.lessonfiles import RECORDS, read_lessons
from attuner.policy.conditions import check_condition
from attuner.policy.inherit import Inherits, inherited
from attuner.policy.register import Register, build_register
from attuner.policy.zones import Limits, Tolerance, build_limits
from attuner.yamlfile import is_file, parse, read_yaml

POLICY = Path(__file__).parent / "policy"
ALSO_JUDGE = (
    *("core/recipe.py", "core/fingerprint.py", "core/judgement.py", "core/run.py"),
    *("steps/common.py", "steps/gate.py", "steps/looks.py", "steps/score.py", "steps/remeasure.py", "steps/ship.py"),
)
"""Judging code outside policy/: what counts as a difference, and the steps that apply the looks."""
AT_BIRTH = ("id", "register_lock", "source_file", "changed", "retunes")
"""Keys of a campaign that no file sets."""
LEVERS = "levers.yaml"
TOLERANCES = "tolerances.yaml"
FAILURES = "failures.yaml"
"""Signatures of failures: read by attuner/failures.py; they judge nothing."""
INHERITS = "inherits.yaml"
ARGUMENTS = "arguments.txt"
LOCK = "LOCK"
PRICES = "prices"
REPLAY = "replay"
"""Stack and launcher that play a table; nothing is trained then."""


def _find(name: str, near: Path, roots: list[Path]) -> Path:
    """Return the file that a campaign names: beside it, in its configs/ folder, or in one of the roots."""
    tried = [near.parent / name, near.parent.parent / name, *(r / name for r in roots)]
    found = next((p for p in tried if is_file(p)), None)
    if found is None:
        raise UserError(f"{near}: {name}: no such file; looked in {', '.join(sorted({str(p.parent) for p in tried}))}")
    return found


class RecipeFile(Record):
    """A recipe as it stands in a file: beside what is trained, where it is from. Only the recipe itself has a digest."""

    stack: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    published: Published | None = None
    adaptations: list[Adaptation] = Field(default_factory=list)

    def recipe(self) -> Recipe:
        """Return what is trained."""
        return Recipe(stack=self.stack, arguments=self.arguments, env=self.env)


def load_recipe(path: Path) -> Recipe:
    """Read a recipe file: stack, arguments, env."""
    return parse(Recipe, load_recipe_file(path).recipe().data(), path)


def load_recipe_file(path: Path) -> RecipeFile:
    """Read a recipe file with what its authors published and what was adapted."""
    return parse(RecipeFile, read_yaml(path), path)


def load_cluster(path: Path) -> Cluster:
    """Read a cluster file: devices, and the figures that the estimate starts from."""
    return parse(Cluster, read_yaml(path), path)


def load_campaign(path: Path, *, configs: Path | None = None, changes: Mapping[str, Value] | None = None) -> Campaign:
    """Read a campaign file with the recipe and the cluster it names; ids and digests come at birth.

    Args:
        path: the file.
        configs: the folder of recipes, clusters and prices.
        changes: what holds instead of what the file says, by key (`budget.gpu_hours`); the campaign's record names it.

    Raises:
        UserError: one line on the first problem.
    """
    data = read_yaml(path)
    if not isinstance(data, dict):
        raise UserError(f"{path}: expected keys and values; see configs/campaigns/quickstart.yaml")
    roots = [configs] if configs else []
    for key in ("baseline", "launcher", "stack", "workload"):
        if key not in data:
            raise UserError(f"{path}: {key}: is missing; add it")
    for key in AT_BIRTH:
        if key in data:
            raise UserError(f"{path}: {key}: is set by attuner at birth; take it out")
    body = dict(data)
    changed = [masked(x.data()) for x in (_change(body, k, v) for k, v in (changes or {}).items()) if x.before != x.after]
    if isinstance(body["baseline"], str):
        found = load_recipe_file(_find(body["baseline"], path, roots))
        body["baseline"] = found.recipe().data()
        body.setdefault("published", found.published)
        body.setdefault("adaptations", found.adaptations)
    launcher = body["launcher"]
    if isinstance(launcher, dict) and isinstance(launcher.get("cluster"), str):
        file = _find(launcher["cluster"], path, roots)
        launcher = body["launcher"] = {**launcher, "cluster": load_cluster(file).data()}
    if isinstance(launcher, dict) and isinstance(launcher.get("table"), str) and launcher["table"]:
        body["launcher"] = {**launcher, "table": str(_find(launcher["table"], path, roots).resolve())}
    campaign = _priced(parse(Campaign, {**body, "source_file": str(path), "changed": changed}, path), path, configs)
    _check_probe(campaign, path)
    _check_private(campaign, path)
    return campaign


def _change(body: dict[str, Any], key: str, value: Value) -> Change:
    """Set `section.name` of a campaign file's data, and return what it was before."""
    section, _, name = key.partition(".")
    old = body.get(section) or {}
    if not isinstance(old, dict):
        raise UserError(f"{section}: expected keys and values, found {type(old).__name__}")
    body[section] = {**old, name: value}
    return Change(key=key, before=old.get(name), after=value)


def _priced(campaign: Campaign, path: Path, configs: Path | None) -> Campaign:
    """Return the campaign with the price of its model, which stays what it was at birth.

    Raises:
        UserError: nobody says what the model costs.
    """
    spec = campaign.proposer
    if spec.name != "claude" or spec.price is not None or configs is None:
        return campaign
    price = model_price(spec.model, configs, f"{path}: proposer.model")
    return campaign.model_copy(update={"proposer": spec.model_copy(update={"price": price})})


def model_price(model: str, configs: Path, where: str) -> ModelPrice:
    """Return what a model costs by configs/prices/. Raises UserError, with `where` it was named, if nobody says."""
    prices = {
        name: price for file in sorted((configs / PRICES).glob("*.yaml")) for name, price in (read_yaml(file) or {}).items()
    }
    if model not in prices:
        raise UserError(
            f"{where}: {model or 'none'}: its price is not known; add it to {configs / PRICES}, or write "
            f"proposer.price; known: {', '.join(sorted(prices))}"
        )
    return parse(ModelPrice, prices[model], f"{configs / PRICES}: {model}")


def _check_probe(campaign: Campaign, path: Path) -> None:
    """Raise UserError if the third look could not be taken. Not part of the record: campaigns on record stay readable."""
    if (campaign.stack.name == REPLAY) != (campaign.launcher.name == REPLAY):
        raise UserError(
            f"{path}: launcher.name: stack {REPLAY} and launcher {REPLAY} play a table together; name both or neither"
        )
    if campaign.launcher.name == REPLAY and campaign.gate.probe != "optional":
        raise UserError(f"{path}: gate.probe: a replayed table has no gradients to look at; make it optional")
    if campaign.gate.probe == "optional":
        if campaign.launcher.name != REPLAY:
            raise UserError(
                f"{path}: gate.probe: optional is for replayed tables, which hold no gradients; "
                f"launcher {campaign.launcher.name} runs real training: take it out"
            )
    elif campaign.workload.warmup_steps < OBSERVED_STEPS:
        raise UserError(
            f"{path}: workload.warmup_steps: {campaign.workload.warmup_steps}, but the probe looks at steps 0 and 1, "
            f"which can't be scored then; make it {OBSERVED_STEPS} or more"
        )


def _check_private(campaign: Campaign, path: Path) -> None:
    """Raise UserError if the file holds a secret: a campaign is on record for ever. Campaigns on record stay readable."""
    where = secret_in(campaign.data()).removeprefix(".")
    if where:
        raise UserError(
            f"{path}: {where}: looks like a secret, and a campaign goes on record with all it holds; put it into the "
            "nodes' environment, the image or a Kubernetes Secret, and write addresses without user and password"
        )


def _register_files(rules_dir: Path, stack: str) -> list[Path]:
    folder = rules_dir / stack
    files = sorted(p for p in folder.glob("*.yaml") if p.name not in (LEVERS, TOLERANCES, INHERITS, FAILURES))
    if not files and not (folder / INHERITS).is_file():
        raise UserError(f"{folder}: stack {stack} has no register; a stack without a register launches nothing")
    return files


def load_inherits(rules_dir: Path, stack: str) -> Inherits | None:
    """Return from whom a stack's register inherits, or None if it stands alone.

    Raises:
        UserError: the file is malformed, or names a stack that inherits itself.
    """
    file = rules_dir / stack / INHERITS
    if not file.is_file():
        return None
    found = parse(Inherits, read_yaml(file), file)
    if (rules_dir / found.stack / INHERITS).is_file():
        raise UserError(f"{file}: stack: {found.stack} inherits too; name the register that it inherits from")
    return found


def load_register(rules_dir: Path, stack: str) -> Register:
    """Return the register of a stack, with the common rules and those that it inherits.

    Raises:
        UserError: there is none, or an entry is malformed.
    """
    common, inherits = rules_dir / "common.yaml", load_inherits(rules_dir, stack)
    entries = _entries([common] if common.is_file() else [], rules_dir)
    if inherits is not None:
        entries += inherited(_entries(_register_files(rules_dir, inherits.stack), rules_dir), inherits)
    return build_register(stack, [*entries, *_entries(_register_files(rules_dir, stack), rules_dir)])


def _entries(files: list[Path], rules_dir: Path) -> list[tuple[str, dict[str, Any]]]:
    found = []
    for file in files:
        data = read_yaml(file)
        if not isinstance(data, list):
            raise UserError(f"{file}: expected a list of rules")
        found += [(file.relative_to(rules_dir).as_posix(), entry) for entry in data]
    return found


def load_arguments(rules_dir: Path, stack: str) -> dict[str, list[str]]:
    """Return the framework's arguments with their flags, from the stack's `arguments.txt`; empty if it keeps no list.

    The list judges nothing: it says what a register must cover, and by which flags a person may ask for an argument.
    """
    file = rules_dir / stack / ARGUMENTS
    if not file.is_file():
        return {}
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    if any(len(row) != 3 for row in rows):
        raise UserError(f"{file}: each line is `destination TAB flags TAB versions`")
    return {name: flags.split() for name, flags, _ in rows}


def load_levers(rules_dir: Path, stack: str) -> list[dict[str, Any]]:
    """Return the lever catalog of a stack; empty if there is none (the catalog is a help, not a fence)."""
    file = rules_dir / stack / LEVERS
    if not file.is_file():
        return []
    levers = read_yaml(file)
    needed = {"id", "changes", "eases", "idea", "options", "source"}
    for lever in levers:
        missing = needed - set(lever)
        if missing:
            raise UserError(f"{file}: lever {lever.get('id', '?')}: {', '.join(sorted(missing))}: is missing; add it")
        forces = lever.get("forces", {})
        if not isinstance(forces, dict) or not all(isinstance(x, list) and x for x in forces.values()):
            raise UserError(f"{file}: lever {lever['id']}: forces: is an argument with the list of those that it forces")
        _check_space(lever, file)
        for option in lever["options"]:
            foreign = set(option["set"]) - set(lever["changes"])
            if foreign:
                raise UserError(f"{file}: lever {lever['id']}: {', '.join(sorted(foreign))} is set but not among `changes`")
            for condition in option.get("when", []):
                try:
                    check_condition(condition)
                except ValueError as error:
                    raise UserError(f"{file}: lever {lever['id']}: {error}") from None
    return list(levers)


def load_lessons(lessons_dir: Path, stack: str) -> list[Lesson]:
    """Return the lessons written for a stack, those for every stack first; empty if there are none.

    Raises:
        UserError: an entry is malformed, or two share an id; the line names file, lesson and key.
    """
    found: dict[str, Lesson] = {}
    for file in [*sorted(lessons_dir.glob("*.yaml")), *sorted((lessons_dir / stack).glob("*.yaml"))]:
        for lesson in read_lessons(file) if file.name not in RECORDS else []:
            if lesson.id in found:
                raise UserError(f"{file}: lesson {lesson.id} stands twice; give one another id")
            found[lesson.id] = lesson
    return list(found.values())


def _check_space(lever: dict[str, Any], file: Path) -> None:
    """Raise UserError for a lever whose `space` (values to try) or `follows` (what is set with them) can't be meant."""
    where = f"{file}: lever {lever['id']}"
    space, follows = lever.get("space", {}), lever.get("follows", [])
    if not isinstance(space, dict) or not all(isinstance(x, list) and x for x in space.values()):
        raise UserError(f"{where}: space: is an argument with the list of its values")
    if not isinstance(follows, list) or not all(isinstance(x, dict) and set(x) == {"when", "set"} for x in follows):
        raise UserError(f"{where}: follows: is a list of entries with `when` and `set`")
    foreign = {*space, *(name for x in follows for name in x["set"])} - set(lever["changes"])
    if foreign:
        raise UserError(f"{where}: {', '.join(sorted(foreign))}: in space or follows, but not among `changes`")
    for entry in follows:
        try:
            check_condition(entry["when"])
        except ValueError as error:
            raise UserError(f"{where}: follows: {error}") from None


def load_tolerances(rules_dir: Path, stack: str) -> Limits:
    """Return the limits of the second and the third look: the stack's own, and the general ones behind them.

    Raises:
        UserError: the general ones are missing, or an entry is malformed; the line names file, entry and key.
    """
    general = rules_dir / TOLERANCES
    if not general.is_file():
        raise UserError(f"{general}: no such file; without tolerances no run can be judged")
    own = rules_dir / stack / TOLERANCES
    return build_limits(stack, _tolerances(own, rules_dir) if own.is_file() else [], _tolerances(general, rules_dir))


def _tolerances(file: Path, rules_dir: Path) -> list[Tolerance]:
    entries = read_yaml(file)
    if not isinstance(entries, list):
        raise UserError(f"{file}: expected a list of tolerances")
    where = file.relative_to(rules_dir).as_posix()
    return [parse(Tolerance, x, f"{where}: {x.get('id', '?') if isinstance(x, dict) else '?'}") for x in entries]


def file_digests(rules_dir: Path) -> dict[str, str]:
    """Return sha256 of every rules file that judges or guides, and of the judging code, by path."""
    rules = {f"rules/{p.relative_to(rules_dir).as_posix()}": p for p in rules_dir.rglob("*.yaml") if p.name != FAILURES}
    package = POLICY.parent
    judges = [*POLICY.glob("*.py"), *(package / name for name in ALSO_JUDGE)]
    policy = {f"attuner/{p.relative_to(package).as_posix()}": p for p in judges}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in sorted({**rules, **policy}.items())}


def register_lock(rules_dir: Path, stack: str) -> str:
    """Return one digest of the stack's rules, the common rules and the judging code, as they are on disk now."""
    return hashlib.sha256(canonical_json(_judging(rules_dir, stack)).encode()).hexdigest()


def rules_digest(rules_dir: Path, stack: str) -> str:
    """Return one digest of the stack's rules and the common ones alone, without the code that applies them."""
    rules = {name: digest for name, digest in _judging(rules_dir, stack).items() if name.startswith("rules/")}
    return hashlib.sha256(canonical_json(rules).encode()).hexdigest()


def _judging(rules_dir: Path, stack: str) -> dict[str, str]:
    inherits = load_inherits(rules_dir, stack)
    folders = [f"rules/{name}/" for name in (stack, *([inherits.stack] if inherits else []))]
    return {
        name: digest
        for name, digest in file_digests(rules_dir).items()
        if name.startswith(("attuner/", *folders)) or name in ("rules/common.yaml", f"rules/{TOLERANCES}")
    }


def read_lock(rules_dir: Path) -> dict[str, str]:
    """Return the digests that rules/LOCK records; empty if it is missing."""
    file = rules_dir / LOCK
    return dict(read_yaml(file) or {}) if file.is_file() else {}


def write_lock(rules_dir: Path) -> Path:
    """Write rules/LOCK from the files as they are and return its path. Raises UserError where it can't be written."""
    text = (
        "# sha256 of every rules file and of attuner/policy; written by `attuner rules lock`, checked by `attuner rules check`\n"
    )
    body = yaml.safe_dump(file_digests(rules_dir), sort_keys=True)
    try:
        (rules_dir / LOCK).write_text(text + body)
    except OSError as error:
        raise UserError(f"{rules_dir / LOCK}: {error.strerror}; rules are locked by whoever may change them") from None
    return rules_dir / LOCK


@functools.cache
def project_root() -> Path | None:
    """Return the checkout that this package lies in, or None for an installed one."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "flows" / "campaign.py").is_file() and (root / "rules").is_dir() else None
