"""`attuner lessons list`: what was learnt, its scope, and how sure it is; read by people here, and by proposers in a campaign."""

from __future__ import annotations

import argparse
import json
from fnmatch import fnmatchcase

from attuner.config import load_lessons
from attuner.core.lesson import Lesson, LessonAudit, LessonKnown
from attuner.lessonfiles import load_audits, load_known
from attuner.policy.lessons import KINDS, live, standing
from attuner.policy.lessons_known import holds
from attuner.settings import load_settings

MARKS = {"helps": "+", "hurts": "-", "fails": "x", "condition": "?"}


def list_lessons(arguments: argparse.Namespace) -> int:
    """List the lessons of one stack or of all, those that may hold for a model or speak of a lever group."""
    folder = load_settings(project=arguments.project).configs_dir() / "lessons"
    stacks = [arguments.stack] if arguments.stack else sorted(p.name for p in folder.glob("*") if p.is_dir())
    found = {lesson.id: lesson for stack in stacks for lesson in load_lessons(folder, stack)}
    shown = [x for x in found.values() if _may_hold(x, arguments.model) and arguments.lever in ("", *x.levers)]
    audits = load_audits(folder)
    marks = load_known(folder)
    if arguments.json:
        rows = [{**x.data(), "read": _why_not(x, audits) == "", "known_by": _known_by(x, marks)} for x in shown]
        print(json.dumps(rows, indent=1))
        return 0
    for lesson in shown:
        why_not = _why_not(lesson, audits)
        known = _known_by(lesson, marks)
        print(
            _text(lesson)
            + (f"\n   not read: {why_not}" if why_not else "")
            + (f"\n   known by {', '.join(known)}" if known else "")
        )
    print(f"{len(shown)} of {len(found)} lessons; + helps, - hurts, x fails, ? read before use")
    return 0


def _known_by(lesson: Lesson, marks: list[LessonKnown]) -> list[str]:
    """Return the models that know a lesson by themselves, with the day on which they were asked."""
    return [f"{m.model} {m.at}" for m in marks if m.result == "known" and holds(m, lesson)]


def _why_not(lesson: Lesson, audits: dict[str, LessonAudit]) -> str:
    """Return why no campaign is given a lesson, or ''."""
    if not live(lesson):
        return f"it is {lesson.status}" if lesson.status not in ("confirmed", "tentative") else "no person accepted the draft"
    if standing([lesson], audits):
        return ""
    return f"the audit of {audits[lesson.id].at} found it {audits[lesson.id].result}; {audits[lesson.id].why}"


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
