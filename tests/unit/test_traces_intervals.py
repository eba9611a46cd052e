"""Law: interval arithmetic equals counting the instants one by one."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from attuner.traces.intervals import Interval, clip, length, subtract, union


def ticks(intervals: list[Interval]) -> set[int]:
    return {t for a, b in intervals for t in range(int(a), int(b))}


def drawn(rng: random.Random) -> list[Interval]:
    starts = [rng.randrange(60) for _ in range(rng.randrange(12))]
    return [(float(a), float(a + rng.randrange(-2, 9))) for a in starts]


@pytest.mark.parametrize("seed", range(200))
def test_every_operation_equals_counting_instants(seed: int) -> None:
    rng = random.Random(seed)
    pairs, holes = drawn(rng), drawn(rng)
    a, b = union(pairs), union(holes)
    assert ticks(a) == ticks(pairs)
    assert ticks(subtract(a, b)) == ticks(a) - ticks(b)
    low, high = sorted((rng.randrange(60), rng.randrange(60)))
    assert ticks(clip(a, low, high)) == ticks(a) & set(range(low, high))
    assert length(a) == len(ticks(pairs))
    for result in (a, b, subtract(a, b), clip(a, low, high)):
        assert all(x < y for x, y in result)
        assert all(left[1] < right[0] for left, right in pairwise(result))


def test_a_gap_of_exactly_the_tolerance_is_joined_and_a_longer_one_is_not() -> None:
    assert union([(0, 1), (3, 4)], gap=2) == [(0, 4)]
    assert union([(0, 1), (3.5, 4)], gap=2) == [(0, 1), (3.5, 4)]


def test_nothing_gives_nothing() -> None:
    assert union([]) == []
    assert subtract([], [(0, 1)]) == []
    assert clip([], 0, 1) == []
    assert length([]) == 0
