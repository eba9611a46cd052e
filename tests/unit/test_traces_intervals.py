"""Laws of interval arithmetic: it equals painting every nanosecond, on any input."""

from __future__ import annotations

import numpy as np
import pytest

from attuner.traces.intervals import EMPTY, Ints, Spans, joined, shared_out, union

END = 200


def some(rng: np.random.Generator, count: int) -> tuple[Ints, Ints]:
    start = rng.integers(0, END, count)
    return start, np.minimum(start + rng.integers(0, 25, count), END)


def painted(start: Ints, end: Ints) -> np.ndarray:
    out = np.zeros(END, dtype=bool)
    for a, b in zip(start, end, strict=True):
        out[a:b] = True
    return out


def paint(spans: Spans) -> np.ndarray:
    assert (spans.end > spans.start).all()
    assert (spans.start[1:] > spans.end[:-1]).all()
    return painted(spans.start, spans.end)


@pytest.mark.parametrize("seed", range(40))
def test_sets_of_instants_equal_painting_every_nanosecond(seed: int) -> None:
    rng = np.random.default_rng(seed)
    one, two = some(rng, int(rng.integers(0, 30))), some(rng, int(rng.integers(0, 30)))
    a, b = union(*one), union(*two)
    pa, pb = painted(*one), painted(*two)
    assert (paint(a) == pa).all()
    assert (paint(joined(a, b)) == (pa | pb)).all()
    assert (painted(a.and_(b).start, a.and_(b).end) == (pa & pb)).all()
    assert (painted(a.minus(b).start, a.minus(b).end) == (pa & ~pb)).all()
    assert a.total() == pa.sum()
    at = np.arange(END)
    assert (a.holds(at) == pa).all()
    assert (a.before(np.arange(END + 1)) == np.concatenate(([0], np.cumsum(pa)))).all()
    low, high = sorted(rng.integers(0, END, 2).tolist())
    window = np.zeros(END, dtype=bool)
    window[low:high] = True
    assert (paint(a.clip(low, high)) == (pa & window)).all()
    assert (painted(a.gaps(low, high).start, a.gaps(low, high).end) == (~pa & window)).all()
    assert a.within(np.array([low]), np.array([high]))[0] == (pa & window).sum()


@pytest.mark.parametrize("seed", range(20))
def test_overlapping_intervals_are_shared_out_to_the_one_that_began_first(seed: int) -> None:
    rng = np.random.default_rng(seed)
    start, end = some(rng, 20)
    owner = np.full(END, -1)
    for k in np.lexsort((end, start)):
        free = owner[start[k] : end[k]] == -1
        owner[start[k] : end[k]][free] = k
    # an interval inside an earlier one keeps nothing; one that outlasts it keeps what is left
    found = np.full(END, -1)
    a, b, of = shared_out(start, end)
    for low, high, k in zip(a, b, of, strict=True):
        assert (found[low:high] == -1).all()
        found[low:high] = k
    assert (found == owner).all()


def test_a_pause_up_to_the_gap_is_closed() -> None:
    start, end = np.array([0, 15, 30]), np.array([10, 20, 40])
    assert union(start, end, gap=5).start.tolist() == [0, 30]
    assert union(start, end, gap=10).end.tolist() == [40]
    assert len(union(start, end, gap=4)) == 3


def test_empty_and_reversed_intervals_are_nothing() -> None:
    assert len(union(np.array([5, 9]), np.array([5, 3]))) == 0
    assert EMPTY.total() == 0
    assert EMPTY.gaps(3, 3).total() == 0
    assert EMPTY.gaps(3, 7).total() == 4
