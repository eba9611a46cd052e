"""`attuner lessons export|review|audit`: drafts from records, a person's word on them, and what records say of every lesson."""

from __future__ import annotations

import argparse
import datetime as dt
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from attuner.core.base import digest_of
from attuner.core.errors import UserError
from attuner.core.lesson import AuditResult, Lesson, LessonAudit, LessonReview
from attuner.lessonfiles import as_yaml, load_audits, note_reviews, read_lessons, write_audits, write_drafts
from attuner.policy import lessons_audit
from attuner.policy.lessons import STANDING, live, standing
from attuner.policy.lessons_audit import Checked
from attuner.policy.lessons_draft import drafts, said_already
from attuner.policy.tried import num_ended
from attuner.settings import Settings, load_settings
from attuner.steps.lessons_write import DRAFTS, known_lessons, rests_on
from attuner.steps.lessons_write import pasts as all_pasts

MAX_CITED = 8
"""Trials that a line names."""
RESULTS: tuple[AuditResult, ...] = ("correct", "one campaign", "not checkable", "too broad", "wrong", "unsupported")


def _today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


def _known(settings: Settings, files: Iterable[Path] = ()) -> dict[str, tuple[Path, Lesson]]:
    """Return every lesson of the project and every draft, by id; a lesson's place in the project goes before its draft's.

    Raises:
        UserError: a file is malformed.
    """
    return known_lessons([settings.configs_dir() / "lessons", settings.home / DRAFTS], files)


@dataclass(frozen=True)
class Exported:
    """What an export drafted."""

    files: list[Path]
    drafts: list[Lesson]
    known: int
    """Drafts left out: they are lessons, drafts or rejected already."""
    ended: int
    """Search launches that ended."""
    shown: int
    """Those that show something of their change."""
    unread: list[str]


def draft_lessons(settings: Settings, campaign: str = "", *, out: str = "") -> Exported:
    """Write drafts of what campaigns showed, those left out that are lessons, drafts or rejected already.

    Args:
        settings: whose ledger and lessons.
        campaign: id, or the start of it: only drafts that rest on this campaign too; '' for all.
        out: folder; default ATTUNER_HOME/lessons.

    Raises:
        UserError: no such campaign, a lesson file is malformed, or a file can't be written.
    """
    from attuner.wiring import open_ledger

    ledger = open_ledger(settings)
    campaign = ledger.find(campaign) if campaign else ""
    past = all_pasts(ledger)
    if campaign in past.unread:
        raise UserError(f"{campaign}: was written by another version of attuner; draft its lessons with that one")
    candidates = [x for x in drafts(past.records) if not campaign or rests_on(x, campaign)]
    known = [x for _, x in _known(settings).values()]
    new = [x for x in candidates if not said_already(x, known)]
    folder = Path(out) if out else settings.home / DRAFTS
    files = []
    for stack in sorted({x.scope.stack for x in new}):
        own = [x for x in new if x.scope.stack == stack]
        files.append(folder / stack / f"{campaign or 'all'}-{digest_of([x.data() for x in own])[:8]}.yaml")
        write_drafts(files[-1], own)
    asked = [h for h in past.histories if not campaign or h.campaign().id == campaign]
    shown = sum(1 for t in past.records if not campaign or t.campaign.id == campaign)
    return Exported(files, new, len(candidates) - len(new), sum(map(num_ended, asked)), shown, past.unread)


def export(arguments: argparse.Namespace) -> int:
    """Draft lessons and print them."""
    done = draft_lessons(load_settings(project=arguments.project), arguments.campaign, out=arguments.out)
    if arguments.json:
        told = {
            "files": [str(f) for f in done.files],
            "drafts": [x.data() for x in done.drafts],
            "known_already": done.known,
            "search_launches": done.ended,
            "that_show_something": done.shown,
            "unreadable_campaigns": done.unread,
        }
        print(json.dumps(told, indent=1, ensure_ascii=False))
        return 0
    for lesson in done.drafts:
        print(f"draft {lesson.id}\n   {lesson.text}\n   rests on {_cited(lesson.evidence)}")
    print(f"{len(done.drafts)} drafts from {done.shown} of {done.ended} search launches ({done.known} known already)")
    print("\n".join(f"wrote {f}" for f in done.files) or "nothing to write")
    _say_unread(done.unread)
    return 0


def _cited(evidence: list[str]) -> str:
    more = len(evidence) - MAX_CITED
    return ", ".join(evidence[:MAX_CITED]) + (f" and {more} more" if more > 0 else "")


def _say_unread(unread: list[str]) -> None:
    if unread:
        print(f"not read, written by another version of attuner: {', '.join(unread)}")


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
        print(f"{lesson.id}  {file}\n   {lesson.text}\n   rests on {_cited([*lesson.evidence, *lesson.source])}")
    print(f"{len(waiting)} wait for a person: --as NAME --accept ID, or --as NAME --reject ID --why TEXT")
    return 0


@dataclass(frozen=True)
class Audited:
    """What an audit found."""

    lessons: list[tuple[Checked, LessonAudit]]
    """Each lesson with what this ledger's records say of it, and the audit that holds."""
    homes: dict[str, Path]
    campaigns: int
    unread: list[str]
    record: Path | None
    unwritten: str = ""
    """Why the record could not be written."""
    still_read: tuple[str, ...] = ()
    """Lessons that don't stand and are given to campaigns all the same, because the record could not be written."""

    def counts(self) -> dict[AuditResult, int]:
        """Return how many lessons came out as what."""
        tally = Counter(a.result for _, a in self.lessons)
        return {r: tally[r] for r in RESULTS}


def audit_lessons(settings: Settings, files: Iterable[Path] = (), *, record: bool = True) -> Audited:
    """Check every lesson and draft against all campaigns.

    Args:
        settings: whose ledger and lessons.
        files: more drafts to check.
        record: put on record, beside the project's lessons, which of them stand.

    Raises:
        UserError: a lesson file is malformed.
    """
    from attuner.wiring import open_ledger

    folder = settings.configs_dir() / "lessons"
    known = _known(settings, files)
    past = all_pasts(open_ledger(settings))
    checked = lessons_audit.audit([x for _, x in known.values()], past.records, at=_today())
    ours = [c for c in checked if folder in known[c.lesson.id][0].parents]
    before = load_audits(folder)
    kept = lessons_audit.kept(before, ours, {h.campaign().id for h in past.histories})
    held = {x.id: x for x in kept}
    written, unwritten = None, ""
    try:
        written = write_audits(folder, kept) if record else None
    except UserError as error:  # a worker's user that can't write the checkout audits all the same
        unwritten = str(error)
    return Audited(
        lessons=[(c, held.get(c.lesson.id, c.audit)) for c in checked],
        homes={x: file for x, (file, _) in known.items()},
        campaigns=len(past.histories),
        unread=past.unread,
        record=written,
        unwritten=unwritten,
        still_read=_still_read([c.lesson for c in ours], before, held) if unwritten else (),
    )


def _still_read(lessons: list[Lesson], before: dict[str, LessonAudit], now: dict[str, LessonAudit]) -> tuple[str, ...]:
    read, stand = ({x.id for x in standing(filter(live, lessons), audits)} for audits in (before, now))
    return tuple(sorted(read - stand))


def audit(arguments: argparse.Namespace) -> int:
    """Audit the lessons and print what came of it, what doesn't stand last; with --model ask what it knows of them."""
    if arguments.model:
        from attuner.cli import lessons_known

        return lessons_known.audit(arguments)
    settings = load_settings(project=arguments.project)
    done = audit_lessons(settings, map(Path, arguments.files), record=not arguments.look)
    if arguments.json:
        told = {"counts": done.counts(), "campaigns": done.campaigns, "unreadable_campaigns": done.unread}
        print(json.dumps({**told, "record": str(done.record or ""), "lessons": _rows(done)}, indent=1, ensure_ascii=False))
        if done.unwritten:
            raise UserError(done.unwritten)
        return 0
    for one, result in sorted(done.lessons, key=lambda x: RESULTS.index(x[1].result)):
        old = "" if result is one.audit else f" (audit of {result.at}; this ledger has no record of it)"
        print(f"{result.result:13} {one.lesson.id}: {result.why}{old}")
        if one.narrower is not None and result is one.audit:
            lines = as_yaml(one.narrower).splitlines()
            print("\n".join(["   narrower, as far as the records go:", *(f"     {x}" for x in lines)]))
    counts = ", ".join(f"{n} {r}" for r, n in done.counts().items())
    print(f"{len(done.lessons)} lessons against {done.campaigns} campaigns: {counts}")
    _say_unread(done.unread)
    where = f"on record in {done.record}" if done.record else "nothing put on record"
    print(f"proposers are given those that are {', '.join(STANDING)}; {where}")
    if done.unwritten:
        raise UserError(done.unwritten)
    return 0


def _rows(done: Audited) -> list[dict[str, object]]:
    return [
        {**a.data(), "file": str(done.homes[c.lesson.id]), "narrower": c.narrower.data() if c.narrower else None}
        for c, a in done.lessons
    ]
