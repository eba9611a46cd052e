"""`attuner lessons audit --model NAME`: asks a model, without showing it any lesson, what it knows of each, and marks them."""

from __future__ import annotations

import argparse
import datetime as dt
import json
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import get_args

from attuner.config import model_price
from attuner.core.campaign import ProposerSpec
from attuner.core.errors import UserError
from attuner.core.lesson import KnownResult, Lesson, LessonKnown
from attuner.core.private import mask
from attuner.lessonfiles import load_known, write_known
from attuner.policy.lessons_known import holds
from attuner.settings import Settings, load_settings
from attuner.steps import lessons_known as step
from attuner.steps.lessons_known import Asked
from attuner.steps.lessons_write import DRAFTS, known_lessons

MAX_USD = 5.0
ANSWERS = 3
"""To each question, as the ATTUNE paper asked."""
RESULTS: tuple[KnownResult, ...] = get_args(KnownResult)


def audit_knowledge(
    settings: Settings,
    spec: ProposerSpec,
    files: Iterable[Path] = (),
    *,
    answers: int = ANSWERS,
    again: bool = False,
    record: bool = True,
) -> tuple[Asked, list[Path]]:
    """Ask a model about every lesson and draft that it wasn't asked about yet, and mark them; return the files of marks too.

    Args:
        settings: whose ledger and lessons.
        spec: model, dollars that may be spent, server; its price is read from configs/prices/ if it has none.
        files: more drafts to ask about.
        answers: to each question.
        again: also ask about those that bear a mark of this model.
        record: write the marks; the calls are on record in any case.

    Raises:
        UserError: no price or no key is known, a lesson file is malformed, or the server refuses.
        Transient: contact with the model was lost; what it answered before is marked.
    """
    from attuner.wiring import adviser, open_ledger

    if spec.price is None:
        spec = spec.model_copy(update={"price": model_price(spec.model, settings.configs_dir(), "--model")})
    homes = known_lessons(_folders(settings), files)
    marked = {x.id: x for folder in _folders(settings) for x in load_known(folder) if x.model == spec.model}
    asked = [x for _, x in homes.values() if x.status != "rejected" and (again or not _marked(marked, x))]
    process = adviser()
    try:
        found = step.ask(open_ledger(settings), process, spec, asked, answers=answers, again=again, at=_today())
    finally:
        process.close()
    written: dict[Path, list[LessonKnown]] = defaultdict(list)
    for mark in found.marks if record else []:
        folder = next((f for f in _folders(settings) if f in homes[mark.id][0].parents), None)
        if folder is not None:
            written[folder].append(mark)
    where = [write_known(folder, marks) for folder, marks in written.items()]
    if found.lost is not None:
        raise found.lost
    return found, where


def _marked(marks: dict[str, LessonKnown], lesson: Lesson) -> bool:
    return lesson.id in marks and holds(marks[lesson.id], lesson)


def _folders(settings: Settings) -> list[Path]:
    return [settings.configs_dir() / "lessons", settings.home / DRAFTS]


def _today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


def _text(mark: LessonKnown) -> str:
    keep = "worth keeping; " if mark.result not in ("known", "no answer") else ""
    return f"{mark.result:13} {mark.id}: {keep}{mark.why} ({'; '.join(mark.answers)})"


def audit(arguments: argparse.Namespace) -> int:
    """Ask the model and print what it knew, what is worth keeping last."""
    if arguments.max_usd <= 0:
        raise UserError(f"lessons audit: --max-usd: {arguments.max_usd:g} buys no answer; name what the run may spend")
    if arguments.answers < 1:
        raise UserError(f"lessons audit: --answers: {arguments.answers} is none; ask at least once")
    if mask(arguments.base_url) != arguments.base_url:
        raise UserError("lessons audit: --base-url: holds a user, a password or a key; give the bare address")
    settings = load_settings(project=arguments.project)
    spec = ProposerSpec(name="claude", model=arguments.model, max_usd=arguments.max_usd, base_url=arguments.base_url)
    found, where = audit_knowledge(
        settings,
        spec,
        map(Path, arguments.files),
        answers=arguments.answers,
        again=arguments.again,
        record=not arguments.look,
    )
    counts = Counter(x.result for x in found.marks)
    if arguments.json:
        told = {
            "model": spec.model,
            "counts": {r: counts[r] for r in RESULTS},
            "lessons": [x.data() for x in found.marks],
            "claim_nothing": [x.id for x in found.silent],
            "not_asked": [x.id for x in found.left],
            "stopped": found.stopped,
            "spent_usd": found.spent_usd,
            "record": [str(f) for f in where],
        }
        print(json.dumps(told, indent=1, ensure_ascii=False))
        return 0
    for mark in sorted(found.marks, key=lambda x: RESULTS.index(x.result)):
        print(_text(mark))
    print(f"{len(found.marks)} lessons asked of {spec.model}: " + ", ".join(f"{counts[r]} {r}" for r in RESULTS))
    print(f"{len(found.silent)} claim nothing that an answer could be held against; whether to keep them is a person's to say")
    if found.stopped:
        print(f"stopped, {len(found.left)} not asked: {found.stopped}; the same command goes on")
    print(f"{found.spent_usd:.4f} US dollars; marks in {', '.join(map(str, where)) or 'no file'}; advice alone")
    return 0
