"""The breakdown of profiler traces as lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from attuner.traces.ranks import Comparison
from attuner.traces.records import PARTS, LaunchStats, RankProfile, StepParts

WORDS = {"compute": "compute", "exposed": "exposed comm", "copy": "copies", "host": "host-bound", "idle": "other wait"}
"""What the parts of a step are called."""
_MAX_NAME = 68
_MAX_STEPS = 12


def duration(ns: float) -> str:
    """Return a length of time, three or four digits with its unit."""
    for unit, size in (("s", 1e9), ("ms", 1e6), ("µs", 1e3)):
        if abs(ns) >= size:
            return f"{ns / size:.{2 if abs(ns) < 10 * size else 1}f} {unit}"
    return f"{ns:.0f} ns"


def max_gain(share: float) -> str:
    """Return the most that removing a part of the step can give: 1/(1 - share) - 1."""
    return f"{1 / (1 - share) - 1:+.1%}" if share < 0.999 else "no bound"


def lines(result: Comparison, *, top: int = 8) -> Iterator[str]:
    """Yield the whole answer, line by line."""
    for p in result.ranks:
        yield from _rank(p, top=top)
        yield ""
    yield from _stragglers(result)


def _rank(p: RankProfile, *, top: int) -> Iterator[str]:
    where = ", ".join(x for x in (p.device, p.hardware, p.backend, f"world of {p.world_size}" if p.world_size else "") if x)
    yield f"rank {p.rank}: {p.source} ({where}; {p.events:,} events)"
    yield "  " + f"{'step':>8} {'length':>10}" + "".join(f"{WORDS[x]:>14}" for x in PARTS) + f"{'hidden comm':>14}"
    for s in p.steps[:_MAX_STEPS]:
        yield (
            "  "
            + f"{s.number:>8} {duration(s.span):>10}"
            + "".join(_cell(getattr(s, x), s) for x in (*PARTS, "hidden"))
            + ("  in doubt" if s.doubt else "")
        )
    if len(p.steps) > _MAX_STEPS:
        yield f"  {'…':>8} {len(p.steps) - _MAX_STEPS} more steps (--json has all)"
    yield from _means(p)
    if p.launches is not None:
        yield f"  launches: {launch_words(p.launches)}"
    if p.kernels:
        whole = sum(s.span for s in p.counted()) or 1
        yield f"  longest {'kernels' if p.launches else 'operators'}:"
        for use in p.kernels[:top]:
            name = use.name if len(use.name) <= _MAX_NAME else use.name[: _MAX_NAME - 1] + "…"
            yield f"    {use.total / whole:>6.1%} {duration(use.total):>10} {use.count:>7,}×  {printable(name)}"
    for q in p.quirks:
        yield f"  note: {printable(q.text)}"


def printable(text: str) -> str:
    """Return foreign text without what a terminal would act on."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def _cell(ns: int, s: StepParts) -> str:
    return f"{ns / s.span if s.span else 0:>14.2%}"


def _means(p: RankProfile) -> Iterator[str]:
    steps = p.counted()
    whole = sum(s.span for s in steps)
    if not whole:
        return
    count = f"{len(steps)} step{'' if len(steps) == 1 else 's'}"
    yield f"  mean of {count}, {duration(whole / len(steps))}; last column: the most that removing a part can give"
    rows = [(WORDS[x], sum(getattr(s, x) for s in steps)) for x in PARTS if x != "exposed"]
    rows += [(f"exposed {g}", n) for g, n in summed(steps, "exposed_by_group").items()]
    for name, ns in sorted(rows, key=lambda r: -r[1]):
        if ns:
            yield f"    {name:<20} {duration(ns / len(steps)):>10} {ns / whole:>8.2%} {max_gain(ns / whole):>9}"
    kinds = summed(steps, "exposed_by_kind")
    if kinds:
        yield "  exposed by collective: " + ", ".join(f"{k} {n / whole:.2%}" for k, n in kinds.items())
    hidden = summed(steps, "hidden_by_group")
    if hidden:
        yield "  hidden by computation: " + ", ".join(f"{k} {n / whole:.2%}" for k, n in hidden.items())
    detail = summed(steps, "detail")
    if detail:
        yield "  inside compute: " + ", ".join(f"{k} {n / whole:.2%}" for k, n in detail.items())


def summed(steps: list[StepParts], what: str) -> dict[str, int]:
    """Return a mapping of lengths summed over steps, the longest first; empty ones are left out."""
    out: dict[str, int] = {}
    for s in steps:
        for k, n in getattr(s, what).items():
            out[k] = out.get(k, 0) + n
    return dict(sorted(((k, n) for k, n in out.items() if n), key=lambda kn: (-kn[1], kn[0])))


def launch_words(stats: LaunchStats) -> str:
    """Return launch statistics in one line."""
    return (
        f"{stats.records:,} records on the device, {stats.matched:,} with their launch; delay median "
        f"{duration(stats.median_delay)}, mean {duration(stats.mean_delay)}; longest queue {stats.max_queue:,}"
    )


def _stragglers(result: Comparison) -> Iterator[str]:
    if len(result.ranks) < 2:
        return
    if not result.stragglers:
        yield "stragglers: the ranks share no step that counts"
        return
    yield f"stragglers, over {len(result.steps)} common steps and {result.matched:,} collectives that all ranks have:"
    yield f"  {'rank':>6} {'own work':>10} {'to the mean':>12} {'came last':>10} {'others waited':>14}"
    for s in result.stragglers:
        yield f"  {s.rank:>6} {duration(s.own):>10} {s.behind:>+12.1%} {s.last:>10,} {duration(s.caused):>14}"
    if result.unmatched:
        yield f"  note: steps in which the ranks' collectives differ in number or kind, not matched: {result.unmatched}"
