"""The budget: reserved before a launch, settled after it; what remains is computed from the records, never stored."""

from __future__ import annotations

import math

from attuner.core.campaign import Campaign
from attuner.core.errors import BudgetExceeded, UserError
from attuner.core.events import History
from attuner.core.run import Launch, LaunchKind, Trial
from attuner.policy import people, rounds

AUTO_LAUNCHES = 30
AUTO_ROUND = 10.0
"""`auto`: 30 × one unprofiled launch, rounded up to 10 device-hours. Source: ATTUNE, appendix D."""


RESERVE = 1.5
"""What a launch sets aside, as a multiple of its expected charge: a slower candidate must not overdraw the budget."""
ENDING_S = 5.0
"""What it takes to end a job at its limit, seconds: the signal, three seconds of grace, the release."""
NO_MORE = "the budget pays for no more"


def fixed_launches(campaign: Campaign) -> int:
    """Return how many launches every campaign makes: the checkpoint, calibration and re-measurement."""
    return bool(campaign.prepare.steps) + campaign.noise.calibration_runs + 2 * campaign.remeasure.pairs


def total(history: History) -> float:
    """Return the campaign's budget in device-hours, a person's last word included; infinite while `auto` waits for a measure."""
    campaign, stated = history.campaign(), people.stated_budget(history)
    if stated is not None:
        return stated
    if campaign.budget.gpu_hours != "auto":
        return float(campaign.budget.gpu_hours)
    runs = _baseline_runs(history)
    return math.ceil(AUTO_LAUNCHES * runs[0].own_gpu_hours() / AUTO_ROUND) * AUTO_ROUND if runs else math.inf


def _baseline_runs(history: History) -> list[Trial]:
    """Return the trials of calibration that ended well and were not profiled: what one launch costs can be read from them."""
    runs = [history.trial(x.id) for x in history.launches() if x.kind == "calibrate" and not x.profile_steps]
    return [t for t in runs if t is not None and t.status == "ok"]


def spent(history: History) -> float:
    """Return device-hours of every closed attempt: failures, checks and lost allocations included."""
    return sum(s.gpu_hours for s in history.settlements())


def reserved(history: History) -> float:
    """Return what launches that have not ended hold: their whole reserve, whatever their closed attempts cost."""
    return sum(x.reserve_gpu_hours for x in history.launches() if _is_open(history, x.id))


def _is_open(history: History, launch_id: str) -> bool:
    """Tell whether a launch may still be charged: it has no trial yet, or its fresh attempt is not closed."""
    attempts = history.attempts(launch_id)
    return history.trial(launch_id) is None or any(history.settled(launch_id, a.number) is None for a in attempts)


def launch_cost(history: History) -> float:
    """Return the expected charge of one baseline launch, device-hours: measured, else declared, else the limit."""
    campaign = history.campaign()
    calibration = history.calibration()
    if calibration is not None:
        return calibration.launch_gpu_hours
    return declared_cost(campaign)


def declared_cost(campaign: Campaign) -> float:
    """Return what a person declared one launch to cost, device-hours."""
    seconds = campaign.launch.expected_s or campaign.launch.max_s
    return campaign.workload.gpus * seconds / 3600.0


def round_reserve(history: History) -> float:
    """Return what a whole re-measurement reserves, device-hours."""
    return 2 * history.campaign().remeasure.pairs * reserve(history)


def remeasure_reserve(history: History) -> float:
    """Return what the final re-measurement still needs, device-hours; set aside from birth on, whole while the search is open."""
    if people.cancelled(history) is not None:
        return 0.0
    if history.stop() is None:
        return round_reserve(history)  # a search that was taken up again may change the leader
    return max(0, 2 * history.campaign().remeasure.pairs - len(rounds.launches(history))) * reserve(history)


def remaining(history: History, *, for_remeasure: bool = False) -> float:
    """Return what may still be reserved, device-hours; search may not touch the re-measurement's share."""
    left = total(history) - spent(history) - reserved(history)
    return left if for_remeasure else left - remeasure_reserve(history)


def left_for(history: History, kind: LaunchKind) -> float:
    """Return what a launch of this kind may reserve, device-hours.

    A search launch leaves a whole re-measurement, for it may bring another leader; a check that a look asks for, also while the
    re-measurement runs, leaves what is still missing of it.
    """
    if kind == "search" and people.cancelled(history) is None:
        return remaining(history, for_remeasure=True) - round_reserve(history)
    return remaining(history, for_remeasure=kind == "remeasure")


def require(history: History, gpu_hours: float, *, kind: LaunchKind = "search") -> None:
    """Raise BudgetExceeded unless `gpu_hours` fit into what is left for a launch of this kind."""
    left = left_for(history, kind)
    if gpu_hours > left + 1e-9:
        raise BudgetExceeded(f"budget: this launch reserves {gpu_hours:.4f} device-hours, {max(left, 0):.4f} are left")


def check_at_birth(campaign: Campaign, *, source: str) -> None:
    """Raise UserError when a stated budget can't pay for preparation, calibration and re-measurement."""
    if campaign.budget.gpu_hours == "auto":
        return
    launches = fixed_launches(campaign)
    need = launches * RESERVE * declared_cost(campaign)
    if campaign.budget.gpu_hours < need:
        raise UserError(
            f"{source}: budget.gpu_hours: {campaign.budget.gpu_hours:g} is less than calibration and re-measurement need: "
            f"{launches} launches reserve {RESERVE:g} × {declared_cost(campaign):.4f} each, {need:.3f} device-hours; "
            f"raise it, or state launch.expected_s"
        )


def time_limit_s(history: History) -> float:
    """Return how long a launch may hold its devices, seconds: the stated limit, or 4 × a measured baseline launch."""
    campaign = history.campaign()
    calibration = history.calibration()
    if calibration is None:
        return campaign.launch.max_s
    measured = calibration.launch_gpu_hours * 3600.0 / campaign.workload.gpus
    return min(campaign.launch.max_s, max(4.0 * measured, campaign.launch.hang_s))


def reserve(history: History) -> float:
    """Return what one launch sets aside, device-hours: 1.5 × its expected charge."""
    return RESERVE * launch_cost(history)


def attempt_limit_s(history: History, launch: Launch) -> float:
    """Return how long the next attempt of a launch may hold its devices, seconds: its limit, or less if the budget pays for less.

    A search or check launch leaves the re-measurement's share alone. The charge so ends within the budget, whatever hangs.
    """
    pays = _payable(history, launch) * 3600.0 / history.campaign().workload.gpus - ENDING_S
    return min(launch.time_limit_s, max(pays, 1.0))


def why_no_attempt(history: History, launch: Launch) -> str:
    """Return why the budget does not pay for an attempt of a decided launch, in one line; empty if it does.

    The budget may have shrunk since the launch was decided: by its own lost attempt, by a person's word, or because the first
    calibration run cost more than was declared.
    """
    left = total(history) - spent(history)
    if left * 3600.0 / history.campaign().workload.gpus < ENDING_S + 1.0:
        return f"{spent(history):.4f} of {total(history):g} device-hours are spent"
    if launch.kind == "calibrate":
        return _why_no_calibration(history, left)
    payable, cost = _payable(history, launch), launch_cost(history)
    if launch.kind in ("search", "check") and payable < cost - 1e-9:
        return f"{NO_MORE}: {max(payable, 0):.4f} device-hours are left for it, one launch costs {cost:.4f}"
    return ""


def _payable(history: History, launch: Launch) -> float:
    """Return what an attempt of this launch may cost now, device-hours."""
    if launch.kind not in ("search", "check"):
        return total(history) - spent(history)
    return left_for(history, launch.kind) + (launch.reserve_gpu_hours if _is_open(history, launch.id) else 0.0)


def _why_no_calibration(history: History, left: float) -> str:
    """Return why calibration need not go on: at the least measured cost, what must still run is more than what is left."""
    runs, trials = [x for x in history.launches() if x.kind == "calibrate"], _baseline_runs(history)
    if not trials:
        return ""
    cost = min(t.own_gpu_hours() for t in trials)
    pairs = 2 * history.campaign().remeasure.pairs - len(rounds.launches(history))
    need = cost * (sum(history.trial(x.id) is None for x in runs) + max(0, pairs))
    if need <= left + 1e-9:
        return ""
    return (
        f"{NO_MORE}: a launch of the baseline cost {cost:.4f} device-hours ({declared_cost(history.campaign()):.4f} declared), "
        f"calibration and re-measurement need {need:.4f} more, {left:.4f} are left"
    )
