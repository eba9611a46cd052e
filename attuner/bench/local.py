"""Compares arms on the cluster that a campaign file names: real campaigns, one after the other, at the same device-hours.

Arms take turns, and every other round in the opposite order, so that a drift of the machine favours none of them. Every
campaign is an ordinary one: in the ledger, with its report, and one that was cut off goes on with `attuner resume`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from attuner.bench.arms import Arm
from attuner.bench.outcome import Outcome, outcome_of
from attuner.bench.play import steps
from attuner.core.base import Record, Value
from attuner.core.campaign import Budget, Campaign
from attuner.core.errors import AttunerError
from attuner.core.events import History
from attuner.settings import Settings
from attuner.steps.ship import ship
from attuner.wiring import new_kit, read_campaign


class Round(Record):
    """One campaign of a comparison on a real cluster."""

    arm: Arm
    number: int


def rounds(arms: Sequence[Arm], number: int, *, first: int = 0) -> Iterator[Round]:
    """Yield who runs when: every arm once a round, the order turned around each time."""
    for i in range(first, first + number):
        for arm in arms if i % 2 == 0 else reversed(arms):
            yield Round(arm=arm, number=i)


def campaign_of(file: Path, turn: Round, settings: Settings, *, gpu_hours: float | None) -> Campaign:
    """Return the file's campaign with the arm's proposer; everything else is as the file says."""
    read = read_campaign(str(file), settings)
    space: dict[str, list[Value]] = read.proposer.space
    budget = Budget(gpu_hours=gpu_hours) if gpu_hours else read.budget
    update = {"proposer": turn.arm.spec(turn.number, space), "estimate": turn.arm.estimate(), "budget": budget}
    return read.model_copy(update=update)


def run_all(
    file: Path,
    turns: Sequence[Round],
    settings: Settings,
    *,
    gpu_hours: float | None = None,
    told: Callable[[Outcome | str], None] = lambda _: None,
) -> tuple[list[Outcome], list[str]]:
    """Run the campaigns in this order; return what came of each, and one line for each that failed."""
    found: list[Outcome] = []
    failed: list[str] = []
    for turn in turns:
        try:
            outcome = run_one(campaign_of(file, turn, settings, gpu_hours=gpu_hours), turn, name=file.stem)
        except AttunerError as error:
            failed.append(f"{file.stem} {turn.arm.name} round {turn.number}: {error}")
            told(failed[-1])
            continue
        found.append(outcome)
        told(outcome)
    return found, failed


def run_one(campaign: Campaign, turn: Round, *, name: str) -> Outcome:
    """Run one campaign to its shipment."""
    began = time.monotonic()
    with new_kit(campaign) as kit:
        steps(kit, campaign)
        ship(kit, campaign.id)
        history = History(kit.ledger.history(campaign.id))
    return outcome_of(None, history, arm=turn.arm.name, seed=turn.number, real_s=time.monotonic() - began, name=name)
