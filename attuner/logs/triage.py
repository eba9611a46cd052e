"""Triage: from the logs of one run, of one rank or of many, to what failed first, where, and what to change next.

Rules (`signatures`) find lines. What a machine or a scheduler says outranks a cause, a cause outranks its effects, and an
effect (a watchdog's timeout) outranks the echoes of a job that falls apart. Inside a level the first in time holds, unless a more
specific rule speaks of the same place. What no line establishes is `undetermined`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from attuner.core.failure import UNDETERMINED, EvidenceLine, Failure
from attuner.logs import unexplained
from attuner.logs.lines import shown
from attuner.logs.scan import Hit, LogScan
from attuner.logs.signatures import LEVELS, ROOT_CAUSE, Book, Phase, Variant

NEAR = 40
"""Lines within which a more specific rule speaks of the same thing."""
LOOK_BACK = 14
"""Lines before a hit without a stack that may tell its phase."""
MAX_EVIDENCE = unexplained.MAX_EVIDENCE
_FRAME = re.compile(r'^\s{0,12}File "|^\s{2,16}\S')
_TABLE_RANK = re.compile(r"\s{0,8}rank {1,12}: (\d{1,7})\b")
_WORDS = re.compile(r"[a-z][a-z -]{0,30}")
_RANK_MS = re.compile(r"Rank (\d{1,7}): (\d{1,12}(?:\.\d{1,6})?) ?ms")
_OWN_PHASES = {
    "forward": "forward",
    "backward": "backward",
    "optimizer": "optimizer step",
    **dict.fromkeys(("imports", "init", "build", "ray", "resolving"), "start-up"),
    "load": "checkpoint load",
    "save": "checkpoint save",
    "rows": "data loading",
}
"""Phases as our own runner names them."""


def diagnose(scans: Sequence[LogScan], book: Book, *, catalog: Iterable[str] | None = None, phase: str = "") -> Failure:
    """Return what the logs tell.

    Args:
        scans: the logs, each read to its end, with this very book.
        book: the rules and phases.
        catalog: ids of the stack's lever groups; levers that it doesn't have are left out. None: all are named.
        phase: what the run itself said of its phase.
    """
    return _Case(scans, book, None if catalog is None else frozenset(catalog), phase).failure()


def triage(logs: Iterable[tuple[str, bytes]], book: Book, *, catalog: Iterable[str] | None = None) -> Failure:
    """Return what some logs tell that are in memory; see `diagnose`."""
    scans = []
    for name, data in logs:
        scan = LogScan(book, name)
        scan.feed(data)
        scan.close()
        scans.append(scan)
    return diagnose(scans, book, catalog=catalog)


class _Case:
    """One run's logs on the table."""

    def __init__(self, scans: Sequence[LogScan], book: Book, catalog: frozenset[str] | None, phase: str) -> None:
        self._scans, self._book, self._catalog, self._told = scans, book, catalog, phase
        self._met = set().union(*(s.met for s in scans)) if scans else set()
        self._steps = sum(s.progress.num_steps for s in scans)
        self._file = {s.name: i for i, s in enumerate(scans)}
        self._hits = [h for s in scans for h in s.hits if self._speaks(h)]

    def failure(self) -> Failure:
        """Return the diagnosis."""
        level = max((LEVELS.index(h.rule.level) for h in self._hits), default=-1)
        if level < LEVELS.index("effect") and (found := unexplained.by_steps(self._scans)) is not None:
            return found
        if level < 0:
            return unexplained.unknown(self._scans)
        return self._of(self._first([h for h in self._hits if LEVELS.index(h.rule.level) == level]))

    def _speaks(self, hit: Hit) -> bool:
        rule = hit.rule
        if any(id(p) not in self._met for p in rule.all) or any(id(p) in self._met for p in rule.unless):
            return False
        if rule.stalled and self._steps:
            return False
        if not rule.around:
            return True
        near = [t for _, t in (*hit.context, *hit.after)]
        return any(p.match(t) for p in rule.around for t in (hit.text, *near))

    # ---- which hit
    def _first(self, hits: list[Hit]) -> Hit:
        files = {h.file for h in hits}
        timed = len(files) > 1 and all(h.time_s is not None for h in hits)
        ordered = sorted(hits, key=lambda h: (h.time_s or 0.0) if timed else 0.0) if timed else sorted(hits, key=self._place)
        first = ordered[0]
        same = [
            h
            for h in ordered
            if h.file == first.file
            and abs(h.line - first.line) <= NEAR
            and (h.rank == first.rank or h.rank is None or first.rank is None or h.rule.specific > first.rule.specific)
        ]
        best = max(h.rule.specific for h in same)
        return next(h for h in same if h.rule.specific == best)

    def _place(self, hit: Hit) -> tuple[int, int]:
        return self._file[hit.file], hit.line

    # ---- what it means
    def _of(self, hit: Hit) -> Failure:
        rule = hit.rule
        phase, told_by = self._phase(hit)
        variant = next((v for v in rule.variants if phase in v.phases), None)
        kind = variant.kind if variant else rule.kind
        levers = variant.levers if variant and variant.levers is not None else rule.levers
        also = dict.fromkeys(h.rule.kind for h in self._hits if h.rule.kind not in (rule.kind, kind))
        return Failure(
            kind=UNDETERMINED if rule.undetermined else kind,
            seen=kind if rule.undetermined else "",
            phase=phase,
            rank=self._rank(hit),
            node=hit.node,
            rule=rule.id,
            why=self._why(hit, variant),
            evidence=self._evidence(hit, told_by),
            levers=[x for x in levers if self._catalog is None or x in self._catalog],
            retry=variant.retry if variant and variant.retry is not None else rule.retry,
            action=(variant.action if variant else "") or rule.action,
            open=rule.open if variant is None else "",
            also=list(also),
        )

    def _why(self, hit: Hit, variant: Variant | None) -> str:
        rule = hit.rule
        why = (variant.why if variant else "") or rule.why
        scan = self._scans[self._file[hit.file]]
        if rule.rankless and (waiting := sorted(set().union(*(s.ranks.get(rule.id, set()) for s in self._scans)))):
            named = ", ".join(str(r) for r in waiting[:16]) + (" …" if len(waiting) > 16 else "")
            why += f"; it is said by rank{'s' if len(waiting) > 1 else ''} {named}"
        if scan.progress.skipped and scan.progress.skipped == scan.progress.num_steps and rule.kind.startswith("oom"):
            why += "; no step before it made an update (loss scaling), so their memory says nothing of the optimizer's"
        return why

    def _rank(self, hit: Hit) -> int | None:
        if hit.rule.slowest:
            times = [(float(m[2]), int(m[1])) for _, t in hit.after if (m := _RANK_MS.search(t))]
            return max(times)[1] if times else None
        if hit.rule.rankless:
            return None
        if hit.rank is not None:
            return hit.rank
        told = set().union(*(s.ranks.get(hit.rule.id, set()) for s in self._scans))
        if len(told) == 1:
            return min(told)
        effects = [
            h
            for h in self._hits
            if h.file == hit.file
            and h.rank is not None
            and 0 <= h.line - hit.line <= LOOK_BACK
            and not h.rule.rankless
            and LEVELS.index(h.rule.level) >= LEVELS.index("effect")
        ]
        return min(effects, key=lambda h: h.line).rank if effects else _torchruns_word(hit)

    # ---- phase
    def _phase(self, hit: Hit) -> tuple[str, tuple[int, str] | None]:
        """Return what the run was doing and the line that tells it: the stack of the hit, else the lines before it."""
        stack: list[tuple[int, str]] = []
        for number, text in reversed(hit.context):
            if not _FRAME.match(text):
                break
            stack.append((number, text))  # up to its own `Traceback`: before that stands another rank's, or another error's
        own = (hit.line, hit.text)
        tries = [[own, *stack]] if stack else [[own, *reversed(hit.context[-LOOK_BACK:])], [own, *reversed(hit.recent)]]
        for lines in tries:
            for phase in self._book.phases:
                told = _tells(phase, lines)
                if told is not None:
                    return phase.id, told
        own_word = self._told.split(",")[0].strip()
        said = _OWN_PHASES.get(own_word, own_word if _WORDS.fullmatch(own_word) else "")
        return said or hit.rule.phase or ("training" if self._scans[self._file[hit.file]].progress.num_steps else ""), None

    def _evidence(self, hit: Hit, told_by: tuple[int, str] | None) -> list[EvidenceLine]:
        found = [EvidenceLine(file=hit.file, line=hit.line, text=shown(hit.text), rank=hit.rank)]
        if told_by is not None and told_by[0] != hit.line:
            found.append(EvidenceLine(file=hit.file, line=told_by[0], text=shown(told_by[1]), rank=hit.rank))
        known = {(e.file, e.line) for e in found}
        for other in sorted(self._hits, key=lambda h: (-LEVELS.index(h.rule.level), self._place(h))):
            if len(found) < MAX_EVIDENCE and (other.file, other.line) not in known:
                known.add((other.file, other.line))
                found.append(EvidenceLine(file=other.file, line=other.line, text=shown(other.text), rank=other.rank))
        return found


def _torchruns_word(hit: Hit) -> int | None:
    """Return the rank that torchrun's table names as the first that failed, where a hit stands in that table."""
    texts = [t for _, t in hit.recent]
    if not any(ROOT_CAUSE in t for t in texts):
        return None
    told = next((m for t in reversed(texts) if (m := _TABLE_RANK.match(t))), None)
    return int(told[1]) if told else None


def _tells(phase: Phase, lines: list[tuple[int, str]]) -> tuple[int, str] | None:
    """Return the latest line that tells a phase which no later one ends; `lines` has the latest first."""
    for number, text in lines:
        if any(p.match(text) for p in phase.ends):
            return None
        if any(p.match(text) for p in phase.any):
            return number, text
    return None
