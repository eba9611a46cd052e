"""Permutation tests between arms: exact where all permutations can be counted, and block-stratified.

Both ask, one-sided: could chance alone have put the first arm's gains this far above the other's? `exact` deals the campaigns
of a table anew between the two arms. `blocks` swaps them only inside a block, the campaigns of one table and seed, so that a
block's difficulty favours neither. Source: ATTUNE (October 2026), tables 2 and 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import Field
from scipy.stats import permutation_test

from attuner.bench.outcome import Outcome
from attuner.core.base import Record

LIMIT = 200_000
"""Up to so many permutations all are counted; beyond, so many are drawn, with a fixed seed."""
SEED = 20_261_130


class Test(Record):
    """One test of the first arm against another one."""

    table: str = Field(description="'' for all tables together")
    arm: str
    other: str
    kind: Literal["exact", "blocks"]
    p: float
    lowest: float = Field(description="the lowest p that this test can give with so many campaigns")
    permutations: int
    counted: bool = Field(description="all permutations were counted; else so many were drawn")
    difference: float = Field(description="of the mean gains, a fraction")


def tests(outcomes: Sequence[Outcome], arm: str) -> list[Test]:
    """Return the tests of one arm against every other: per table, and over all tables where there are several."""
    tables = list(dict.fromkeys(o.table for o in outcomes))
    others = [x for x in dict.fromkeys(o.arm for o in outcomes) if x != arm]
    found = []
    for other in others:
        for table in tables:
            mine, theirs = (_gains(outcomes, name, [table]) for name in (arm, other))
            if min(len(mine), len(theirs)) > 1:  # a single campaign says nothing of chance
                found.append(_exact(table, arm, other, list(mine.values()), list(theirs.values())))
                found += _blocks(table, arm, other, mine, theirs)
        if len(tables) > 1:
            mine, theirs = (_gains(outcomes, name, tables) for name in (arm, other))
            found += _blocks("", arm, other, mine, theirs)
    return found


def _gains(outcomes: Sequence[Outcome], arm: str, tables: Sequence[str]) -> dict[tuple[str, int], float]:
    return {(o.table, o.seed): o.gain for o in outcomes if o.arm == arm and o.table in tables}


def _difference(x: np.ndarray, y: np.ndarray, axis: int = -1) -> np.ndarray:
    return np.asarray(np.mean(x, axis=axis) - np.mean(y, axis=axis))


def _exact(table: str, arm: str, other: str, mine: list[float], theirs: list[float]) -> Test:
    total = math.comb(len(mine) + len(theirs), len(mine))
    p, number = _p(mine, theirs, "independent", total)
    lowest = 1.0 / total if total <= LIMIT else 1.0 / (LIMIT + 1)
    return Test(
        table=table,
        arm=arm,
        other=other,
        kind="exact",
        p=p,
        lowest=lowest,
        permutations=number,
        counted=total <= LIMIT,
        difference=float(np.mean(mine) - np.mean(theirs)),
    )


def _blocks(
    table: str, arm: str, other: str, mine: dict[tuple[str, int], float], theirs: dict[tuple[str, int], float]
) -> list[Test]:
    blocks = sorted(mine.keys() & theirs.keys())
    if len(blocks) < 2:
        return []
    total = 2 ** len(blocks)
    x, y = [mine[b] for b in blocks], [theirs[b] for b in blocks]
    p, number = _p(x, y, "samples", total)
    lowest = 1.0 / total if total <= LIMIT else 1.0 / (LIMIT + 1)
    difference = float(np.mean(x) - np.mean(y))
    return [
        Test(
            table=table,
            arm=arm,
            other=other,
            kind="blocks",
            p=p,
            lowest=lowest,
            permutations=number,
            counted=total <= LIMIT,
            difference=difference,
        )
    ]


def _p(x: Sequence[float], y: Sequence[float], kind: str, total: int) -> tuple[float, int]:
    """Return the one-sided p and how many permutations it rests on."""
    resamples = np.inf if total <= LIMIT else LIMIT
    result = permutation_test(
        (np.asarray(x), np.asarray(y)),
        _difference,
        permutation_type=kind,
        vectorized=True,
        n_resamples=resamples,
        batch=20_000,
        alternative="greater",
        rng=np.random.default_rng(SEED),
    )
    return float(result.pvalue), min(total, LIMIT)


def text(found: Sequence[Test]) -> str:
    """Return the tests as lines for a person."""
    out = []
    for t in found:
        how = f"{t.permutations:,} permutations, {'all of them' if t.counted else 'drawn'}"
        what = f"{t.arm} over {t.other} on {t.table or 'all tables'}: {t.difference:+.1%} of the baseline"
        out.append(f"{what}, {t.kind} p = {t.p:.2g} (lowest {t.lowest:.2g}; {how})")
    return "\n".join(out)
