"""A step in parts that add up to it, each by one name: what a diagnosis ranks and what levers say they ease.

compute, recompute, optimizer   of the time in which the device computes; the last two where the source or the layout tells
exposed_comm:GROUP              communication that nothing hides: tensor, data, expert, pipeline, context, or unknown
bubble, straggler, idle         waiting: for the pipeline, for a slower rank, for anything else
host, copy                      the device waits for the host; memory copies with nothing else under way

A lever's `eases` may use these names, and coarser ones for sources that tell less: `compute` and `idle` for all of theirs,
`exposed_comm`, and `exposed_comm:KIND` (all_gather, reduce_scatter, all_reduce, all_to_all, send_recv).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from attuner.core.base import Value
from attuner.core.run import StepBreakdown
from attuner.traces.schedule import bubble_of, number, recomputed_share

COMM = "exposed_comm"
KINDS = frozenset({"all_gather", "reduce_scatter", "all_reduce", "all_to_all", "send_recv", "broadcast", "other"})
COARSE = {"recompute": "compute", "optimizer": "compute", "bubble": "idle", "straggler": "idle"}
"""Parts that are inside a coarser one."""
TENSOR_EXPERT = "tensor_expert"


@dataclass(frozen=True)
class Parts:
    """Shares of one step, with what they were told from."""

    shares: Mapping[str, float]
    """Part → fraction of the step; they add up to it."""
    kinds: Mapping[str, float] = field(default_factory=dict)
    """Exposed communication by collective, the same time as the groups'."""
    told: Mapping[str, str] = field(default_factory=dict)
    """Where a share is from, if it was not measured as such."""
    notes: tuple[str, ...] = ()

    def of(self, name: str) -> float:
        """Return the share that a lever's word stands for; a coarse word covers what is inside it."""
        if name == COMM:
            return sum(v for k, v in self.shares.items() if k.startswith(f"{COMM}:"))
        kind = name.removeprefix(f"{COMM}:")
        if name != kind and kind in KINDS:
            return self.kinds.get(kind, 0.0)
        return self.shares.get(name, 0.0) + sum(self.shares.get(k, 0.0) for k, coarse in COARSE.items() if coarse == name)

    def words(self) -> dict[str, float]:
        """Return the shares under every word that a lever may use."""
        coarse = {*COARSE.values(), COMM, *(f"{COMM}:{k}" for k in self.kinds)}
        return {**self.shares, **{name: self.of(name) for name in sorted(coarse)}}


def parts_of(breakdown: StepBreakdown, arguments: Mapping[str, Value], facts: Mapping[str, Value]) -> Parts:
    """Split a profiled step into parts that add up to it; the launch's final values fill in what its source doesn't tell."""
    measured, detail = breakdown.shares(), breakdown.detail_shares()
    told: dict[str, str] = {}
    notes: list[str] = []
    shares = {"host": measured["host"], "copy": measured["copy"]}
    shares |= _compute(measured["compute"], detail, arguments, facts, told, notes)
    groups = _groups(breakdown, measured[COMM], arguments)
    shares |= _waiting(measured["idle"], detail, arguments, facts, groups, told, notes)
    shares |= {f"{COMM}:{group}": share for group, share in groups.items()}
    if groups.get("unknown", 0.0) > 0.005:
        notes.append("the trace doesn't tell whose group a part of the communication belongs to")
    return Parts({k: v for k, v in shares.items() if v > 0}, breakdown.comm_shares(), told, tuple(notes))


def layout_parts(arguments: Mapping[str, Value], facts: Mapping[str, Value]) -> Parts:
    """Return what the layout alone says of a step that nobody profiled: bubble and recompute; the rest counts as compute."""
    told: dict[str, str] = {}
    notes = ["no profiled step: only what the layout says"]
    shares = _waiting(1.0, {}, arguments, facts, {}, told, notes)
    busy = shares.pop("idle", 0.0)
    shares |= _compute(busy, {}, arguments, facts, told, notes)
    return Parts({k: v for k, v in shares.items() if v > 0}, {}, told, tuple(notes))


def _compute(
    whole: float,
    detail: Mapping[str, float],
    arguments: Mapping[str, Value],
    facts: Mapping[str, Value],
    told: dict[str, str],
    notes: list[str],
) -> dict[str, float]:
    optimizer = min(detail.get("optimizer", 0.0), whole)
    again = detail.get("recompute")
    if again is None:
        share = recomputed_share(arguments, facts)
        if share is None:
            notes.append("selective recompute: its share takes a trace that tells it")
        elif share:
            told["recompute"] = "full recompute is one more forward pass, about a quarter of the compute"
        again = (share or 0.0) * (whole - optimizer)
    again = min(again, whole - optimizer)
    return {"compute": whole - optimizer - again, "recompute": again, "optimizer": optimizer}


def _groups(breakdown: StepBreakdown, whole: float, arguments: Mapping[str, Value]) -> dict[str, float]:
    """Return exposed communication by group; what a source lumps together is told apart where only one of the two can be."""
    groups = breakdown.group_shares()
    both = groups.pop(TENSOR_EXPERT, 0.0)
    if both:
        tensor = number(arguments, "tensor_model_parallel_size") or 1
        spread = (number(arguments, "expert_model_parallel_size") or 1) * (number(arguments, "expert_tensor_parallel_size") or 1)
        name = "expert" if tensor == 1 and spread > 1 else "tensor" if tensor > 1 and spread == 1 else TENSOR_EXPERT
        groups[name] = groups.get(name, 0.0) + both
    rest = whole - sum(groups.values())
    if rest > 1e-9:
        groups["unknown"] = groups.get("unknown", 0.0) + rest
    return groups


def _waiting(
    idle: float,
    detail: Mapping[str, float],
    arguments: Mapping[str, Value],
    facts: Mapping[str, Value],
    groups: dict[str, float],
    told: dict[str, str],
    notes: list[str],
) -> dict[str, float]:
    """Return bubble, straggler and other idle time. A bubble that isn't told is looked for in idle time, then in the waits
    of the pipeline's own communication, where a stage that receives nothing yet shows it."""
    straggler = min(detail.get("straggler", 0.0), idle)
    lost = detail.get("bubble")
    if lost is None:
        expected = bubble_of(arguments, facts)
        if expected is None:
            notes.append("the number of micro-batches is not told, so the bubble isn't either")
        lost = expected or 0.0
        sends = min(max(lost - (idle - straggler), 0.0), groups.get("pipeline", 0.0))
        if sends:
            groups["pipeline"] -= sends
        if lost:
            told["bubble"] = "the schedule's (pp-1)/(m·vp + pp-1), as far as the step has waits for it"
        inside = min(lost, idle - straggler)
        return {"bubble": inside + sends, "straggler": straggler, "idle": idle - straggler - inside}
    lost = min(lost, idle - straggler)
    return {"bubble": lost, "straggler": straggler, "idle": idle - straggler - lost}


def eased(eases: Mapping[str, float], parts: Parts) -> float:
    """Return the share of the step that a lever's `eases` takes away from it; negative: it adds to the step.

    Of words for the same time only the finest that the source tells counts: `recompute` before `compute`, a group before a
    collective. What can't be told apart (`tensor_expert`) is eased by whichever of its two words says more.
    """
    return sum(share * fraction for _, share, fraction in _heard(eases, parts))


def eased_of(eases: Mapping[str, float], parts: Parts, part: str) -> float:
    """Return what of one part's share a lever's `eases` takes away: fractions of the step, as `eased`."""
    return sum(_inside(word, part, parts) * fraction for word, _, fraction in _heard(eases, parts))


def _heard(eases: Mapping[str, float], parts: Parts) -> list[tuple[str, float, float]]:
    """Return (word, share, fraction) of the words that count."""
    fine = {COARSE[w] for w in eases if w in COARSE and w in parts.shares}
    grouped = {k.removeprefix(f"{COMM}:") for k in parts.shares if k.startswith(f"{COMM}:")} - {"unknown"}
    words = {w: f for w, f in eases.items() if w not in fine}
    named = {w for w in words if w.startswith(f"{COMM}:") and w.removeprefix(f"{COMM}:") not in KINDS}
    if named and grouped:
        words = {w: f for w, f in words.items() if not w.startswith(COMM) or w in named}
    elif named:
        words = {w: f for w, f in words.items() if w not in named}
    heard = [(w, parts.of(w), f) for w, f in words.items()]
    lumped = parts.shares.get(f"{COMM}:{TENSOR_EXPERT}", 0.0)
    if lumped and f"{COMM}:{TENSOR_EXPERT}" not in words:
        of_both = [f for w, f in words.items() if w in (f"{COMM}:tensor", f"{COMM}:expert")]
        if of_both:
            heard.append((f"{COMM}:{TENSOR_EXPERT}", lumped, max(of_both, key=abs)))
    return heard


def _inside(word: str, part: str, parts: Parts) -> float:
    """Return how much of a part a word covers, as a fraction of the step."""
    share = parts.shares.get(part, 0.0)
    if word in (part, COARSE.get(part)) or (word == COMM and part.startswith(f"{COMM}:")):
        return share
    kind = word.removeprefix(f"{COMM}:")
    if word != kind and kind in KINDS and part.startswith(f"{COMM}:"):
        group = part.removeprefix(f"{COMM}:")
        return min(share, parts.kinds.get(kind, 0.0)) if kind in CARRIED.get(group, KINDS) else 0.0
    return 0.0


CARRIED: Mapping[str, frozenset[str]] = {
    "tensor": frozenset({"all_gather", "reduce_scatter", "all_reduce"}),
    "data": frozenset({"all_gather", "reduce_scatter", "all_reduce"}),
    "expert": frozenset({"all_to_all", "all_gather", "reduce_scatter"}),
    "pipeline": frozenset({"send_recv"}),
    "context": frozenset({"send_recv", "all_to_all", "all_gather"}),
}
"""Collectives that a group's communication is made of."""
