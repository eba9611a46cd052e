"""Several ranks' traces side by side: do they belong together, and who do the others wait for.

Ranks on different hosts have clocks of their own, so nothing here compares instants of two ranks, only lengths. The rank
that comes last to a collective is in its kernel for the shortest time: everyone else is there already, waiting.
"""

from __future__ import annotations

from dataclasses import dataclass

from attuner.core.errors import UserError
from attuner.traces.profile import renamed
from attuner.traces.records import RankProfile, StepParts


@dataclass
class Straggling:
    """What one rank makes the others wait, over the steps that all ranks have."""

    rank: int
    own: float
    """Mean ns of a step that aren't waiting: neither exposed communication nor idle."""
    behind: float
    """That, over the mean of all ranks, minus one."""
    last: int
    """Collectives it came last to."""
    caused: float
    """Mean ns a step that each other rank waited for it in those."""


@dataclass
class Comparison:
    """Several ranks of one job."""

    ranks: list[RankProfile]
    stragglers: list[Straggling]
    """The worst first; empty where the ranks share no step."""
    steps: list[int]
    matched: int
    """Collectives found on all ranks of a step in the same order."""
    unmatched: int
    """Steps in which the ranks' collectives don't line up."""


def together(found: list[RankProfile]) -> list[RankProfile]:
    """Return the ranks in order, each with a number of its own.

    Raises:
        UserError: they aren't of one job: hardware, world size or backend differ, or two say they are the same rank.
    """
    if len(found) > 1:
        for what, values in (
            ("device", [p.device for p in found]),
            ("hardware", [p.hardware for p in found]),
            ("world size", [str(p.world_size or "") for p in found]),
            ("backend", [p.backend for p in found]),
        ):
            told = [(v, p.source) for v, p in zip(values, found, strict=True) if v]
            other = next(((v, s) for v, s in told if v != told[0][0]), None)
            if other:
                raise UserError(
                    f"traces of different jobs can't be compared: {what} {told[0][0]} in {told[0][1]}, "
                    f"{other[0]} in {other[1]}; give the ranks of one job"
                )
    taken: dict[int, str] = {}
    out = []
    for p in found:
        if p.rank_from:
            if p.rank in taken:
                raise UserError(f"two traces of rank {p.rank}: {taken[p.rank]} and {p.source}; give each rank once")
            taken[p.rank] = p.source
    for p in found:
        rank = p.rank if p.rank_from else next(n for n in range(len(found) + 1) if n not in taken)
        taken.setdefault(rank, p.source)
        out.append(p if p.rank_from else renamed(p, rank))
    return sorted(out, key=lambda p: p.rank)


def compare(ranks: list[RankProfile]) -> Comparison:
    """Return who the others wait for; `ranks` are of one job (`together`)."""
    by_step = [{s.number: s for s in p.counted()} for p in ranks]
    common = sorted(set.intersection(*(set(s) for s in by_step))) if len(ranks) > 1 else []
    steps = [[s[n] for s in by_step] for n in common]
    last, caused, matched, unmatched = [0] * len(ranks), [0.0] * len(ranks), 0, 0
    for row in steps:
        lines = [s.collectives for s in row]
        if not lines[0] or any([k for k, _ in line] != [k for k, _ in lines[0]] for line in lines):
            unmatched += bool(any(lines))
            continue
        for one in zip(*lines, strict=True):
            lengths = [length for _, length in one]
            late = lengths.index(min(lengths))
            matched += 1
            last[late] += 1
            caused[late] += (sum(lengths) - len(lengths) * lengths[late]) / (len(lengths) - 1)
    found = []
    if steps:
        own = [sum(_own(row[k]) for row in steps) / len(steps) for k in range(len(ranks))]
        mean = sum(own) / len(own) or 1.0
        found = [Straggling(p.rank, own[k], own[k] / mean - 1, last[k], caused[k] / len(steps)) for k, p in enumerate(ranks)]
        found.sort(key=lambda s: (-s.caused, -s.own, s.rank))
    return Comparison(ranks, found, common, matched, unmatched)


def _own(step: StepParts) -> int:
    return step.compute + step.copy + step.host
