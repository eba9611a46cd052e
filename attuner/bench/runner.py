"""Plays many campaigns in a few processes, in a fixed order; one that fails is named and does not stop the others."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
from collections.abc import Callable, Sequence
from pathlib import Path

from attuner.bench.outcome import Outcome
from attuner.bench.play import Entry, play
from attuner.core.errors import AttunerError


def play_all(
    entries: Sequence[Entry],
    *,
    rules: Path,
    configs: Path | None = None,
    jobs: int = 1,
    told: Callable[[Outcome | str], None] = lambda _: None,
) -> tuple[list[Outcome], list[str]]:
    """Play every entry; return outcomes in the order of the entries, and one line for each that failed.

    Args:
        entries: what to play.
        rules: the folder of the register.
        configs: the folder of the cluster files; None: the one above the table's.
        jobs: processes.
        told: hears of each campaign as it ends.
    """
    found: dict[int, Outcome | str] = {}
    if jobs <= 1:
        for number, entry in enumerate(entries):
            found[number] = _played(entry, rules, configs)
            told(found[number])
    else:
        context = multiprocessing.get_context("spawn")  # a fork would copy the threads of whoever asks
        with concurrent.futures.ProcessPoolExecutor(jobs, mp_context=context) as pool:
            asked = {pool.submit(_played, entry, rules, configs): number for number, entry in enumerate(entries)}
            for done in concurrent.futures.as_completed(asked):
                found[asked[done]] = done.result()
                told(found[asked[done]])
    ordered = [found[i] for i in range(len(entries))]
    return [x for x in ordered if isinstance(x, Outcome)], [x for x in ordered if isinstance(x, str)]


def _played(entry: Entry, rules: Path, configs: Path | None) -> Outcome | str:
    try:
        return play(entry, rules=rules, configs=configs)
    except AttunerError as error:
        return f"{entry.table.stem} {entry.arm.name} seed {entry.seed}: {error}"
