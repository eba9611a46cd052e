"""Tells what a source is, by its content, and imports it: `read_source(path, …)` is the whole importer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attuner.core.errors import UserError
from attuner.importing.files import Source, open_source, sized
from attuner.importing.flags import Vocabulary
from attuner.importing.megatron import from_dump, from_test_yaml, from_yaml_cfg
from attuner.importing.model import Imported, Notes
from attuner.importing.overrides import BRIDGE_PARTS, from_automodel_tree, from_bridge_tree, from_printed
from attuner.importing.private import without_secrets
from attuner.importing.rayjob import from_rayjob
from attuner.importing.script import Asked, from_script
from attuner.importing.trees import read_documents

FORMATS = ("script", "rayjob", "dump", "megatron-yaml", "bridge", "automodel")
_DUMP = re.compile(r"(?<!-)-{8,} ?[\w ]{0,40}?arguments ?-{8,}")
_SHELL = re.compile(r"#!.*\b(ba|z|da|k)?sh\b|\s*(#.*\n\s*)*(export |set -|source |\w+=\(|[A-Z_]+=|torchrun|srun )")
_KEY = re.compile(r"(?m)^[\w.-]+:(\s|$)")


def read_source(
    path: Path, vocabulary: Mapping[str, Vocabulary], *, form: str = "", root: str = "", asked: Asked | None = None
) -> Imported:
    """Return the recipe in a file.

    Args:
        path: the file.
        vocabulary: options by stack, `megatron` and `slime`.
        form: one of FORMATS; '' tells it by content.
        root: folder that the files it names must lie in.
        asked: the caller's variables and choice.

    Raises:
        UserError: it can't be read, or holds no recipe; one line.
    """
    source = open_source(path, root=root)
    choice = asked or Asked({})
    form = form or _kind(source)
    if form == "dump":
        return without_secrets(from_dump(source, vocabulary))
    if form == "script":
        return without_secrets(from_script(source, vocabulary, choice))
    text = sized(source)
    if form == "bridge" and not _is_tree(text):
        return without_secrets(from_printed(source, Notes()))
    found = [d for d in read_documents(text, source.name) if d is not None]
    if form == "rayjob" or (not form and any(isinstance(d, dict) and d.get("kind") == "RayJob" for d in found)):
        jobs = [d for d in found if isinstance(d, dict) and d.get("kind") == "RayJob"]
        if len(jobs) != 1:
            raise UserError(f"{source.name}: holds {len(jobs)} RayJobs; an import takes a file with one")
        return without_secrets(from_rayjob(jobs[0], source, vocabulary, choice))
    if len(found) != 1 or not isinstance(found[0], dict):
        raise UserError(f"{source.name}: holds no recipe that attuner knows; name its form: --format {'|'.join(FORMATS)}")
    return without_secrets(_tree(found[0], source, vocabulary, form))


def _kind(source: Source) -> str:
    """Return the form of a source, '' for YAML whose keys will tell."""
    suffix = Path(source.name).suffix
    if suffix in (".sh", ".bash", ".sbatch", ".slurm"):
        return "script"
    if suffix not in (".yaml", ".yml", ".json"):
        head = source.text[:4096]
        if head.startswith("#!") and _SHELL.match(head):
            return "script"
        if _DUMP.search(source.text):
            return "dump"
        if _is_printed(head):
            return "bridge"
        if _SHELL.match(head) or re.search(r"(?m)^\s*(torchrun|ray job submit|srun|python3?) ", source.text[:1_000_000]):
            return "script"
    return ""


def _is_printed(text: str) -> bool:
    lines = [x for x in text.split("\n") if x.strip() and not x.lstrip().startswith("#")][:20]
    dotted = sum(bool(re.match(r"\s*(?:[-*•]\s+)?\+{0,2}\w+(\.\w+)+\s*[=:]", x)) for x in lines)
    return bool(lines) and dotted * 2 > len(lines)


def _is_tree(text: str) -> bool:
    return not _is_printed(text) and bool(_KEY.search(text))


def _tree(tree: dict[str, Any], source: Source, vocabulary: Mapping[str, Vocabulary], form: str) -> Imported:
    keys, notes = {str(k) for k in tree}, Notes()
    if "arguments" in keys and "stack" in keys:
        raise UserError(f"{source.name}: is a recipe of attuner already")
    if form == "automodel" or (not form and _is_automodel(tree)):
        return from_automodel_tree(tree, source, notes)
    if "MODEL_ARGS" in keys or any(k.startswith("--") for k in keys):
        return from_test_yaml(tree, source, vocabulary, notes)
    if form == "megatron-yaml" or "language_model" in keys:
        return from_yaml_cfg(tree, source, vocabulary, notes)
    dotted = {k.partition(".")[0] for k in keys}
    if form == "bridge" or len(dotted & BRIDGE_PARTS) >= 2 or ("model" in keys and "_target_" in tree):
        return from_bridge_tree(tree, source, notes)
    raise UserError(f"{source.name}: no recipe that attuner knows by its keys; name its form: --format {'|'.join(FORMATS)}")


def _is_automodel(tree: dict[str, Any]) -> bool:
    model = tree.get("model")
    target = str(model.get("_target_", "")) if isinstance(model, dict) else ""
    return "step_scheduler" in tree or "nemo_automodel" in target
