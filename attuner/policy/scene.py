"""Two runs side by side, as the signatures of faults read them: what differs, by which factors, in which families."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attuner.core.fingerprint import Batch, Family, Fingerprint, FirstStep
from attuner.core.judgement import Finding
from attuner.core.run import Evidence

DATA, WEIGHTS, FORWARD, GRADIENT, CLIP, UPDATE, LATER = range(7)
EXPERTS = frozenset({"expert_fc1", "expert_fc2"})
TIED = frozenset({"embedding", "output"})
MICRO = "micro-batches"
MOVED = {"fp32": 1.0e-6}
"""Relative change of the first loss from which on a cause may speak of it; elsewhere 4e-4, the limit of mcore in bf16."""
SMALL = 0.02
"""Gradients of an fp32 run that are all off, and all by less than this, are rounded somewhere."""
CLOSE = 0.02
"""How near a ratio must be to a clean factor, relative."""


@dataclass(frozen=True)
class Cause:
    """A likely cause: the stage it acts at, what to say, what to do, and which findings it names by their key's beginning."""

    stage: int
    text: str
    todo: str
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Scene:
    """Two runs side by side: the first step that the probe saw of both, and which families' gradients are off."""

    base: Evidence
    candidate: Evidence
    old: FirstStep
    new: FirstStep
    off: tuple[str, ...]
    """Families with a gradient finding that doesn't admit."""
    keys: tuple[str, ...]
    """Keys of all findings that don't admit."""

    @classmethod
    def of(cls, base: Evidence, candidate: Evidence, findings: Sequence[Finding]) -> Scene:
        """Return the scene; a run without a fingerprint has an empty first step."""
        keys = tuple(f.key for f in findings if f.decision != "admit")
        off = {k.rsplit(" ", 1)[1] for k in keys if k.startswith(("gradient norm ", "gradient projection "))}
        return cls(base, candidate, _first(base.fingerprint), _first(candidate.fingerprint), tuple(sorted(off)), keys)

    @property
    def batches(self) -> tuple[Batch, Batch] | None:
        """Return both batches, where both were seen."""
        return (self.old.batch, self.new.batch) if self.old.batch and self.new.batch else None

    @property
    def same_batch(self) -> bool:
        """Tell whether both runs are known to have consumed the same rows."""
        found = self.batches
        return found is not None and found[0] == found[1]

    def families(self) -> dict[str, tuple[Family, Family]]:
        """Return the families that both runs have."""
        return {name: (f, self.new.families[name]) for name, f in self.old.families.items() if name in self.new.families}

    def ratios(self) -> dict[str, float]:
        """Return candidate's over baseline's gradient norm by family."""
        pairs = ((name, a.grad_norm, b.grad_norm) for name, (a, b) in self.families().items())
        return {name: b / a for name, a, b in pairs if a and b is not None}

    def deviations(self) -> dict[str, float]:
        """Return how far each family's gradient is off, in size or direction, as a share of its norm."""
        found = {}
        for name, (a, b) in self.families().items():
            if a.grad_norm and b.grad_norm is not None:
                turned = abs((b.grad_projection or 0.0) - (a.grad_projection or 0.0)) if a.grad_projection is not None else 0.0
                found[name] = max(abs(b.grad_norm - a.grad_norm), turned) / a.grad_norm
        return found

    def mainly(self, families: frozenset[str], times: float) -> bool:
        """Tell whether some of these families are off, and by so many times more than any other."""
        found = self.deviations()
        inside = max((d for n, d in found.items() if n in families and n in self.off), default=0.0)
        return inside > times * max((d for n, d in found.items() if n not in families), default=0.0)

    @property
    def loss_moved(self) -> bool:
        """Tell whether the first loss is another one."""
        a, b = self.base.step(0), self.candidate.step(0)
        limit = MOVED.get(self.candidate.precision, 4.0e-4)
        return a is not None and b is not None and not abs(b.lm_loss - a.lm_loss) <= limit * abs(a.lm_loss)

    @property
    def rounded(self) -> bool:
        """Tell whether an fp32 run's gradients are all off by as little as rounding to bf16 makes."""
        found = self.deviations()
        return self.candidate.precision == "fp32" and bool(found) and all(1e-6 < d < SMALL for d in found.values())

    def factors(self, *prefer: str) -> dict[int, str]:
        """Return sizes of process groups above 1 with their names, of both layouts, and the number of rows of one replica."""
        names: dict[int, list[str]] = {}
        for run in (self.candidate, self.base):
            layout = run.fingerprint.layout if run.fingerprint else {}
            for name in ("tp", "cp", "dp", "ep", "pp", "etp", "edp"):
                size = layout.get(name, 1)
                if size > 1 and name.upper() not in names.setdefault(size, []):
                    names[size].append(name.upper())
            rows = self.new.batch.rows // max(layout.get("dp", 1), 1) if self.new.batch else 0
            if rows > 1 and MICRO not in names.setdefault(rows, []):
                names[rows].append(MICRO)
        return {size: _named(given, prefer) for size, given in names.items() if given}

    def clean(self, ratio: float, *prefer: str) -> tuple[str, str] | None:
        """Return (factor as text, the group sizes it equals) if a ratio is a clean factor; `prefer` names come first."""
        factors = self.factors(*prefer)
        for size in sorted({*factors, 2}):
            for value, text in ((size, "{}"), (1 / size, "1/{}"), (math.sqrt(size), "√{}"), (1 / math.sqrt(size), "1/√{}")):
                if abs(ratio / value - 1) < CLOSE:
                    name = factors.get(size, "")
                    return text.format(size), text.format(f"({name})" if "=" in name else name) if name else ""
        return None


def _named(given: list[str], prefer: tuple[str, ...]) -> str:
    """Return the preferred one of several names of a size, else all; the number of micro-batches only if there is no other."""
    wanted = [name for name in prefer if name in given]
    return wanted[0] if wanted else " = ".join([n for n in given if n != MICRO] or given)


def _first(seen: Fingerprint | None) -> FirstStep:
    return seen.steps[0] if seen and seen.steps else FirstStep(step=0)


def said(names: Iterable[str]) -> str:
    """Return up to four names, and how many more there are."""
    found = sorted(names)
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")
