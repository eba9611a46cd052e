"""On what the launches ran: versions as the jobs themselves reported them, devices, number of hosts. What differs between
launches is named with the launches, because their speeds may not be comparable."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attuner.core.events import History
from attuner.core.run import Trial

RESOLVER = "the resolver's"
"""Prefix of what the resolver reported, where no job did."""


@dataclass(frozen=True)
class Reported:
    """One thing that launches reported, and each value with its launches; untrusted text."""

    name: str
    values: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def differs(self) -> bool:
        """Tell whether launches reported different values."""
        return len(self.values) > 1


def reported(history: History, versions: Sequence[tuple[str, str]]) -> tuple[Reported, ...]:
    """Return versions and devices over all launches; `versions` are the final configuration's, told by the resolver."""
    trials = [t for x in history.launches() if (t := history.trial(x.id)) is not None]
    told: dict[str, dict[str, list[str]]] = {}
    for t in trials:
        for name, value in {**t.versions, **_machine(t)}.items():
            if value:
                told.setdefault(name, {}).setdefault(value, []).append(t.launch_id)
    found = [Reported(name, tuple((v, tuple(ids)) for v, ids in values.items())) for name, values in sorted(told.items())]
    known = {r.name for r in found}
    return (*found, *(Reported(f"{RESOLVER} {k}", ((v, ()),)) for k, v in versions if k not in known))


def _machine(trial: Trial) -> dict[str, str]:
    counts = {kind: trial.hardware.count(kind) for kind in sorted(set(trial.hardware))}
    devices = ", ".join(kind if n == 1 else f"{n} × {kind}" for kind, n in counts.items())
    hosts = len(set(trial.hosts))
    return {"devices": devices, "hosts": f"{hosts}" if hosts else ""}


def ranges(ids: Sequence[str], *, shown: int = 6) -> str:
    """Return launches shortly: runs of numbers that follow one another as `l01–l05`."""
    parts: list[list[str]] = []
    for name in ids:
        if parts and _next(parts[-1][-1]) == name:
            parts[-1].append(name)
        else:
            parts.append([name])
    words = [p[0] if len(p) == 1 else f"{p[0]}–{p[-1]}" if len(p) > 2 else ", ".join(p) for p in parts]
    more = f" and {len(words) - shown} more" if len(words) > shown else ""
    return ", ".join(words[:shown]) + more


def _next(name: str) -> str:
    digits = name.lstrip("lh")
    return f"{name[: len(name) - len(digits)]}{int(digits) + 1:0{len(digits)}d}" if digits.isascii() and digits.isdigit() else ""
