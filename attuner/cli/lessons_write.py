"""`attuner lessons export|review|audit`: drafts from records, a person's word on them, and what records say of every lesson."""

from __future__ import annotations

import argparse
import datetime as dt
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from attuner.core.base import digest_of
from attuner.core.errors import UserError
from attuner.core.events import History
from attuner.core.lesson import AuditResult, Lesson, LessonReview
from attuner.lessonfiles import as_yaml, lesson_files, load_audits, note_reviews, read_lessons, write_audits, write_drafts
from attuner.policy import lessons_audit
from attuner.policy.lessons import STANDING
from attuner.policy.lessons_draft import drafts, said_already
from attuner.policy.tried import Tried, counts, tried
from attuner.settings import Settings, load_settings

if TYPE_CHECKING:
    from attuner.ledgers.duckdb_file import DuckdbLedger

DRAFTS = "lessons"
"""Folder of drafts in ATTUNER_HOME."""
RESULTS: tuple[AuditResult, ...] = ("correct", "one campaign", "too broad", "wrong", "unsupported", "not checkable")


def _today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


def _histories(ledger: DuckdbLedger) -> tuple[list[History], list[str]]:
    """Return the campaigns that can be read, and the ids of those that another version of attuner wrote."""
    found, unread = [], []
    for name in ledger.campaigns():
        history = History(ledger.history(name))
        try:
            tried(history)
        except (ValueError, KeyError, IndexError):
            unread.append(name)
            continue
        found.append(history)
    return found, unread


def _records(histories: list[History]) -> list[Tried]:
    return [t for h in histories for t in tried(h)]


def _known(settings: Settings) -> dict[str, tuple[Path, Lesson]]:
    """Return every lesson of the project and every draft, by id; a lesson's place in the project goes before its draft's.

    Raises:
        UserError: a file is malformed.
    """
    folders = (settings.configs_dir() / "lessons", settings.home / DRAFTS)
    files = [f for folder in folders for f in lesson_files(folder)]
    found: dict[str, tuple[Path, Lesson]] = {}
    for file in files:
        for lesson in read_lessons(file):
            found.setdefault(lesson.id, (file, lesson))
    return found


def export(arguments: argparse.Namespace) -> int:
    """Write drafts of what campaigns showed, those left out that are lessons, drafts or rejected already."""
    from attuner.wiring import open_ledger

    settings = load_settings(project=arguments.project)
    ledger = open_ledger(settings)
    campaign = ledger.find(arguments.campaign) if arguments.campaign else ""
    histories, unread = _histories(ledger)
    if campaign in unread:
        raise UserError(f"{campaign}: was written by another version of attuner, which drafts its lessons")
    candidates = [x for x in drafts(_records(histories)) if not campaign or _rests_on(x, campaign)]
    known = [x for _, x in _known(settings).values()]
    new = [x for x in candidates if not said_already(x, known)]
    folder = Path(arguments.out) if arguments.out else settings.home / DRAFTS
    files = []
    for stack in sorted({x.scope.stack for x in new}):
        own = [x for x in new if x.scope.stack == stack]
        name = f"{campaign or 'all'}-{digest_of([x.data() for x in own])[:8]}.yaml"
        write_drafts(folder / stack / name, own)
        files.append(folder / stack / name)
    ended, shown = counts(h for h in histories if not campaign or h.campaign().id == campaign)
    told = {
        "files": [str(f) for f in files],
        "drafts": [x.data() for x in new],
        "known_already": len(candidates) - len(new),
        "search_launches": ended,
        "that_show_something": shown,
        "unreadable_campaigns": unread,
    }
    if arguments.json:
        print(json.dumps(told, indent=1, ensure_ascii=False))
        return 0
    for lesson in new:
        print(f"draft {lesson.id}\n   {lesson.text}\n   rests on {', '.join(lesson.evidence)}")
    print(f"{len(new)} drafts from {shown} of {ended} search launches ({told['known_already']} known already)")
    print("\n".join(f"wrote {f}" for f in files) or "nothing to write")
    if unread:
        print(f"not read, written by another version of attuner: {', '.join(unread)}")
    return 0


def _rests_on(lesson: Lesson, campaign: str) -> bool:
    return any(e.partition(":")[0] == campaign for e in lesson.evidence)


def review(arguments: argparse.Namespace) -> int:
    """Note who accepted or rejected which lessons; without ids list what waits for a person."""
    files = {Path(f): read_lessons(Path(f)) for f in arguments.files}
    asked = [*arguments.accept, *arguments.reject]
    if not asked:
        return _waiting(files, as_json=arguments.json)
    name, why = arguments.name.strip(), arguments.why.strip()
    if not name:
        raise UserError("lessons review: --as: say who reviews, for the record")
    if arguments.reject and not why:
        raise UserError("lessons review: --why: a rejection needs its reason")
    if twice := [x for x, n in Counter(asked).items() if n > 1]:
        raise UserError(f"lessons review: {twice[0]}: is named twice; accept or reject it once")
    homes = {x.id: file for file, own in files.items() for x in own}
    if lost := [x for x in asked if x not in homes]:
        raise UserError(f"lessons review: {lost[0]}: no such lesson in {', '.join(map(str, files))}")
    said = {x: _word(x, arguments.accept, name, why) for x in asked}
    done = []
    for file in files:
        own = {x: said[x] for x in asked if homes[x] == file}
        done += note_reviews(file, own) if own else []
    if arguments.json:
        print(json.dumps([x.data() for x in done], indent=1, ensure_ascii=False))
        return 0
    for lesson in done:
        print(f"{lesson.reviews[-1].decision} {lesson.id}, now {lesson.status}")
    print("accepted lessons are read by campaigns once their file is in configs/lessons/STACK/")
    return 0


def _word(lesson_id: str, accepted: list[str], name: str, why: str) -> LessonReview:
    return LessonReview(by=name, at=_today(), decision="accepted" if lesson_id in accepted else "rejected", why=why)


def _waiting(files: dict[Path, list[Lesson]], *, as_json: bool) -> int:
    waiting = [(file, x) for file, own in files.items() for x in own if x.status == "draft"]
    if as_json:
        print(json.dumps([{"file": str(file), **x.data()} for file, x in waiting], indent=1, ensure_ascii=False))
        return 0
    for file, lesson in waiting:
        print(f"{lesson.id}  {file}\n   {lesson.text}\n   rests on {', '.join([*lesson.evidence, *lesson.source])}")
    print(f"{len(waiting)} wait for a person: --as NAME --accept ID, or --as NAME --reject ID --why TEXT")
    return 0


def audit(arguments: argparse.Namespace) -> int:
    """Check every lesson and draft against all campaigns, and put on record which lessons of the project stand."""
    from attuner.wiring import open_ledger

    settings = load_settings(project=arguments.project)
    folder = settings.configs_dir() / "lessons"
    known = _known(settings)
    for file in map(Path, arguments.files):
        for lesson in read_lessons(file):
            known.setdefault(lesson.id, (file, lesson))
    histories, unread = _histories(open_ledger(settings))
    checked = lessons_audit.audit([x for _, x in known.values()], _records(histories), at=_today())
    ours = [c for c in checked if folder in known[c.lesson.id][0].parents]
    kept = lessons_audit.kept(load_audits(folder), ours)
    record = None if arguments.look else write_audits(folder, kept)
    held = {x.id: x for x in kept}
    found = [(c, held.get(c.lesson.id, c.audit)) for c in checked]
    tally = Counter(a.result for _, a in found)
    if arguments.json:
        lines = [
            {**a.data(), "file": str(known[c.lesson.id][0]), "narrower": c.narrower.data() if c.narrower else None}
            for c, a in found
        ]
        told = {"counts": {r: tally[r] for r in RESULTS}, "campaigns": len(histories), "unreadable_campaigns": unread}
        print(json.dumps({**told, "record": str(record or ""), "lessons": lines}, indent=1, ensure_ascii=False))
        return 0
    for one, result in sorted(found, key=lambda x: RESULTS.index(x[1].result)):
        old = "" if result is one.audit else f" (audit of {result.at}; this ledger has no record of it)"
        print(f"{result.result:13} {one.lesson.id}: {result.why}{old}")
        if one.narrower is not None and result is one.audit:
            print(
                "   narrower, as far as the records go:\n" + "".join(f"     {x}\n" for x in as_yaml(one.narrower).splitlines()),
                end="",
            )
    print(f"{len(found)} lessons against {len(histories)} campaigns: " + ", ".join(f"{tally[r]} {r}" for r in RESULTS))
    if unread:
        print(f"not read, written by another version of attuner: {', '.join(unread)}")
    print(
        f"proposers are given those that are {', '.join(STANDING)}; "
        + (f"on record in {record}" if record else "nothing put on record")
    )
    return 0
