"""`attuner lessons list`: what was learnt, its scope, and how sure it is; read by people here, and by proposers in a campaign."""

from __future__ import annotations

import argparse
import json
from fnmatch import fnmatchcase

from attuner.config import load_lessons
from attuner.core.lesson import Lesson
from attuner.policy.lessons import KINDS
from attuner.settings import load_settings

MARKS = {"helps": "+", "hurts": "-", "fails": "x", "condition": "?"}


def list_lessons(arguments: argparse.Namespace) -> int:
    """List the lessons of one stack or of all, those that may hold for a model or speak of a lever group."""
    folder = load_settings(project=arguments.project).configs_dir() / "lessons"
    stacks = [arguments.stack] if arguments.stack else sorted(p.name for p in folder.glob("*") if p.is_dir())
    found = {lesson.id: lesson for stack in stacks for lesson in load_lessons(folder, stack)}
    shown = [x for x in found.values() if _may_hold(x, arguments.model) and arguments.lever in ("", *x.levers)]
    if arguments.json:
        print(json.dumps([x.data() for x in shown], indent=1))
        return 0
    for lesson in shown:
        print(_text(lesson))
    print(f"{len(shown)} of {len(found)} lessons; + helps, - hurts, x fails, ? read before use")
    return 0


def _may_hold(lesson: Lesson, model: str) -> bool:
    """Tell whether a lesson may hold for a model's name, or for `dense` or `moe`; a name alone doesn't say which it is."""
    names = lesson.scope.models
    if not model or not names:
        return True
    if model in KINDS:
        return not {*KINDS} & {*names} or model in names
    return any(name in KINDS or fnmatchcase(model.lower(), name.lower()) for name in names)


def _text(lesson: Lesson) -> str:
    scope = lesson.scope
    where = [
        scope.stack,
        scope.versions,
        "/".join(scope.models),
        "/".join(scope.hardware),
        f"gpus {scope.gpus}" if scope.gpus else "",
    ]
    when = ", ".join(f"{k} {v}" for k, v in lesson.when.items())
    return "\n".join(
        [
            f"{MARKS[lesson.effect]} {lesson.id}  {lesson.status}  {', '.join(lesson.levers)}",
            f"   {lesson.text}",
            f"   holds for {' · '.join(x for x in where if x) or 'everything'}" + (f"; when {when}" if when else ""),
            f"   rests on {'; '.join([*lesson.evidence, *lesson.source])}",
        ]
    )
