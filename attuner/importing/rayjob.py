"""Imports a KubeRay RayJob manifest: its entrypoint is a command line, its runtime environment and containers hold variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from attuner.core.errors import UserError
from attuner.importing.files import Beside, Source
from attuner.importing.flags import Vocabulary
from attuner.importing.launches import aside, launches
from attuner.importing.model import Imported, Notes
from attuner.importing.script import Asked, from_launch
from attuner.importing.shell.heard import Heard
from attuner.importing.shell.run import Walker
from attuner.importing.shell.values import shown
from attuner.importing.trees import read_documents

Tree = dict[str, Any]


def from_rayjob(document: Tree, source: Source, vocabulary: Mapping[str, Vocabulary], asked: Asked) -> Imported:
    """Return the recipe that a RayJob trains.

    Raises:
        UserError: it has no entrypoint, or that starts no training that attuner knows.
    """
    notes = Notes()
    spec = _map(document.get("spec"))
    entrypoint = spec.get("entrypoint")
    if not isinstance(entrypoint, str) or not entrypoint.strip():
        raise UserError(f"{source.name}: spec.entrypoint: is missing; a RayJob without one trains nothing")
    env = {**_container_env(spec, notes), **_runtime_env(spec, source, notes)}
    heard, beside = Heard(), Beside(source)
    walker = Walker(beside, heard, {**env, **asked.preset})
    walker.state.exported.update(env)
    walker.state.script = source.place
    walker.place = f"{source.name} spec.entrypoint"
    walker.string(entrypoint)
    for kind, line in heard.notes:
        if not (kind == "default" and "--set holds" in line):
            notes.add("undecided" if kind == "undecided" else "default" if kind == "default" else "note", shown(line))
    aside(heard.started, notes)
    found = launches(heard.started)
    if not found:
        raise UserError(
            f"{source.name}: spec.entrypoint: starts no training that attuner knows: {' '.join(entrypoint.split())[:120]}; "
            "if it runs a script of the image, import that script"
        )
    if len(found) > 1:
        notes.add(
            "undecided",
            f"the entrypoint starts {len(found)} trainings: number {asked.launch or 1} is taken; --launch N for another",
        )
    launch = found[min(asked.launch or 1, len(found)) - 1]
    return from_launch(launch, source, "rayjob", vocabulary, notes, beside=beside, gpus=_gpus(spec, notes))


def _map(value: Any) -> Tree:
    return value if isinstance(value, dict) else {}


def _runtime_env(spec: Tree, source: Source, notes: Notes) -> dict[str, str]:
    text = spec.get("runtimeEnvYAML")
    if not isinstance(text, str):
        return {}
    found = read_documents(text, f"{source.name}: spec.runtimeEnvYAML")
    tree = _map(found[0] if found else None)
    others = sorted(str(k) for k in tree if k != "env_vars")
    if others:
        notes.add("left_out", f"of the runtime environment: {', '.join(others)}; the launcher has its own")
    return {str(k): str(v) for k, v in _map(tree.get("env_vars")).items()}


def _templates(spec: Tree) -> list[tuple[str, Tree, int]]:
    """Return the pod templates of head and workers with how many pods each stands for."""
    cluster = _map(spec.get("rayClusterSpec"))
    head = _map(_map(cluster.get("headGroupSpec")).get("template"))
    found = [("head", head, 1)] if head else []
    groups = cluster.get("workerGroupSpecs")
    for group in groups if isinstance(groups, list) else []:
        replicas = _map(group).get("replicas", 1)
        count = replicas if isinstance(replicas, int) and not isinstance(replicas, bool) else 1
        found.append((str(_map(group).get("groupName", "workers")), _map(_map(group).get("template")), max(0, count)))
    return found


def _container(template: Tree) -> Tree:
    containers = _map(template.get("spec")).get("containers")
    return _map(containers[0]) if isinstance(containers, list) and containers else {}


def _container_env(spec: Tree, notes: Notes) -> dict[str, str]:
    """Return the variables of the worker's container (the head's where there is none), and note the images."""
    found: dict[str, str] = {}
    for name, template, _ in _templates(spec):
        container = _container(template)
        image = container.get("image")
        if isinstance(image, str):
            digest = re.search(r"@(sha256:[0-9a-f]{64})", image)
            pinned = "" if digest else "; pinned by no digest, so it may change under its name"
            notes.add("note", f"image of {name}: {image}{pinned}")
        entries = container.get("env")
        for entry in map(_map, entries if isinstance(entries, list) else []):
            key = str(entry.get("name", ""))
            if "valueFrom" in entry:
                kind = next(iter(_map(entry["valueFrom"])), "valueFrom")
                notes.add("left_out", f"environment {key} of {name} comes from {kind}")
            elif key:
                found[key] = str(entry.get("value", ""))
        if container.get("envFrom"):
            notes.add("left_out", f"environment of {name} that comes from config maps or secrets (envFrom)")
    return found


def _gpus(spec: Tree, notes: Notes) -> int:
    total = 0
    for name, template, count in _templates(spec):
        limits = _map(_map(_container(template).get("resources")).get("limits"))
        each = next((v for k, v in limits.items() if str(k).endswith("/gpu")), 0)
        if isinstance(each, int | str) and str(each).isdigit() and int(each):
            total += int(each) * count
            notes.add("note", f"{name}: {count} pods of {each} GPUs")
    return total
