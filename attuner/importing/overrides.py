"""Imports what is told as dotted names: Megatron-Bridge's configuration and overrides, AutoModel's tree."""

from __future__ import annotations

import re
from typing import Any

from attuner.core.base import Value
from attuner.core.errors import UserError
from attuner.importing.files import Beside, Source, sized
from attuner.importing.model import Imported, Notes
from attuner.importing.private import kept_arguments, kept_env
from attuner.importing.trees import flat, read_documents, yaml_value

BRIDGE_PARTS = {
    *(
        "model",
        "train",
        "optimizer",
        "scheduler",
        "ddp",
        "dataset",
        "checkpoint",
        "logger",
        "tokenizer",
        "rng",
        "dist",
        "comm_overlap",
    ),
    *(
        "mixed_precision",
        "rerun_state_machine",
        "profiling",
        "peft",
        "ft",
        "straggler",
        "nvrx_straggler",
        "validation",
        "env_vars",
    ),
    *("inprocess_restart", "tensor_inspect"),
}
AUTOMODEL_ASIDE = ("ci", "wandb", "mlflow", "comet")
_LINE = re.compile(r"\s*(?:[-*•]\s+)?\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)\s*(?:=|:)\s*(.*?)\s*,?")
_RECIPE = re.compile(r"\s*-*recipe(?:[-_]name)?\s*[:= ]\s*['\"]?([\w.-]+)['\"]?\s*")
_WORD = re.compile(r"\+{0,2}([A-Za-z_][\w-]*(?:\.[\w-]+)*)=(.*)", re.DOTALL)


def from_bridge_tree(tree: dict[str, Any], source: Source, notes: Notes) -> Imported:
    """Return a recipe from a dump of Bridge's ConfigContainer, or from a file of overrides of it."""
    body = dict(tree)
    env = body.pop("env_vars", None) or {}
    arguments = flat(body, source.name, notes)
    targets = [n for n in arguments if n.endswith("_target_") and n.rsplit(".", 1)[0] not in ("model", "dataset")]
    for name in targets:
        del arguments[name]
    if targets:
        notes.add("left_out", f"{len(targets)} names of classes that ConfigContainer implies (_target_)")
    if "recipe" not in arguments and not any(n.startswith("model.num_layers") for n in arguments):
        notes.add("undecided", "no recipe is named and no model described: overrides alone; add `recipe: NAME` to the arguments")
    return _dotted("bridge", "bridge", arguments, {str(k): str(v) for k, v in env.items()}, source, notes)


def from_printed(source: Source, notes: Notes) -> Imported:
    """Return a recipe from printed overrides, `a.b=c` or `a.b: c` one a line, with a line `recipe: NAME`."""
    arguments: dict[str, Value] = {}
    for number, line in enumerate(sized(source).split("\n"), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        recipe, entry = _RECIPE.fullmatch(line), _LINE.fullmatch(line)
        if entry and entry[1].split(".")[0] in BRIDGE_PARTS - {"env_vars"}:
            _take(arguments, entry[1], yaml_value(entry[2], entry[1]), notes)
        elif recipe:
            _take(arguments, "recipe", recipe[1], notes)
        else:
            notes.add("unparsed", f"line {number}: {line.strip()[:100]}")
    if not arguments:
        raise UserError(f"{source.name}: holds no line like model.tensor_model_parallel_size=2")
    if "recipe" not in arguments:
        notes.add("undecided", "no line names the recipe: add `recipe: NAME` to the arguments")
    return _dotted("bridge", "bridge", arguments, {}, source, notes)


def bridge_command(words: list[str], notes: Notes) -> dict[str, Value]:
    """Return the arguments of Bridge's recipe runner: `--recipe NAME a.b=c …`."""
    arguments: dict[str, Value] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        found = _WORD.fullmatch(word)
        if name in ("--recipe", "--recipe_name", "--recipe-name"):
            _take(arguments, "recipe", value if equals else rest.pop(0) if rest else "", notes)
        elif found and "." in found[1]:
            _take(arguments, found[1], yaml_value(found[2], found[1]), notes)
        elif word.startswith("-"):
            value = f" {rest.pop(0)}" if not equals and rest and not rest[0].startswith("-") and "=" not in rest[0] else ""
            notes.add("unparsed", f"{word}{value}: an option of the runner, no value of the configuration")
        else:
            notes.add("unparsed", word)
    return arguments


def from_automodel_tree(tree: dict[str, Any], source: Source, notes: Notes) -> Imported:
    """Return a recipe from an AutoModel YAML."""
    arguments, env = automodel_tree(tree, source.name, notes)
    benchmark = tree.get("benchmark")
    nodes = benchmark.get("num_nodes") if isinstance(benchmark, dict) else None
    found = _dotted("automodel", "automodel", arguments, env, source, notes)
    if isinstance(nodes, int) and nodes > 0:
        notes.add("note", f"the file speaks of {nodes} nodes, not of the devices on each: --gpus is not checked against it")
    return found.model_copy(update={"notices": notes.all()})


def automodel_tree(tree: dict[str, Any], name: str, notes: Notes) -> tuple[dict[str, Value], dict[str, str]]:
    """Return arguments and environment of an AutoModel tree; what only its CI or its trackers read is left out."""
    ci = tree.get("ci")
    env = ci.get("env_vars") if isinstance(ci, dict) else None
    if isinstance(env, dict) and env:
        notes.add("note", f"environment from ci.env_vars, with which its authors run it: {', '.join(map(str, env))}")
    aside = [k for k in AUTOMODEL_ASIDE if k in tree]
    if aside:
        notes.add("left_out", f"sections that train nothing: {', '.join(aside)}")
    arguments = flat({k: v for k, v in tree.items() if k not in aside}, name, notes)
    return arguments, {str(k): str(v) for k, v in env.items()} if isinstance(env, dict) else {}


def automodel_command(words: list[str], source: Source, beside: Beside, notes: Notes) -> tuple[dict[str, Value], dict[str, str]]:
    """Return arguments and environment of AutoModel's command: its YAML, read beside the script, and what the words override."""
    rest, path = list(words), ""
    overrides: dict[str, Value] = {}
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if name in ("-c", "--config"):
            path = value if equals else rest.pop(0) if rest else ""
        elif not word.startswith("-") and word.endswith((".yaml", ".yml")):
            path = word
        elif word.startswith("--") and ("." in name or not equals) and name not in ("--nproc-per-node", "--nproc_per_node"):
            value = value if equals else rest.pop(0) if rest and not rest[0].startswith("--") else "true"
            _take(overrides, name.lstrip("-"), yaml_value(value, name), notes)
        elif word.startswith("--nproc"):
            rest = rest if equals else rest[1:]
        elif not path and word in ("finetune", "pretrain", "llm", "vlm", "benchmark", "kd"):
            notes.add("note", f"AutoModel's command {word}")
        else:
            notes.add("unparsed", word)
    found = beside(path, source.place.rsplit("/", 1)[0]) if path else None
    if found is None:
        raise UserError(
            f"{source.name}: {path or 'the configuration'}: no such file beside it; import the YAML, or name --root DIR"
        )
    trees = read_documents(found[1], path)
    tree = trees[0] if trees and isinstance(trees[0], dict) else {}
    arguments, env = automodel_tree(tree, path, notes)
    for key, new in overrides.items():
        if key in arguments and arguments[key] != new:
            notes.add("overridden", f"--{key} {new} wins over {arguments[key]} of {path}")
        arguments[key] = new
    return arguments, env


def _take(arguments: dict[str, Value], name: str, value: Value, notes: Notes) -> None:
    if name in arguments:
        notes.add("overridden", f"{name}={value} comes later than {arguments.pop(name)} and wins")
    arguments[name] = value


def _dotted(stack: str, form: str, arguments: dict[str, Value], env: dict[str, str], source: Source, notes: Notes) -> Imported:
    variables = kept_env(env, notes)
    kept = kept_arguments(arguments, notes)
    return Imported(source=source.name, format=form, stack=stack, arguments=kept, env=variables, notices=notes.all())
