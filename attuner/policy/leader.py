"""Who may ship: the best launch whose looks admit it, under the campaign's rule for open review items."""

from __future__ import annotations

from attuner.core.events import History
from attuner.core.judgement import Score
from attuner.policy import people


def open_reviews(history: History, launch_id: str) -> list[str]:
    """Return what waits for a person before this launch's recipe may ship: lines of its verdicts' review findings."""
    return [item.line for item in people.open_items(history, launch_id)]


def refused_by_person(history: History, launch_id: str) -> bool:
    """Tell whether a person refused this launch's recipe."""
    launch = history.launch(launch_id)
    answer = people.answer_to(history, launch.recipe) if launch else None
    return answer is not None and answer.decision == "refuse"


def waiting(history: History) -> list[Score]:
    """Return the launches that beat the baseline by more than the band and wait for a person, fastest first."""
    calibration = history.calibration()
    if calibration is None:
        return []
    floor = calibration.mean * (1 + calibration.band)
    found = [
        s
        for s in history.scores()
        if s.valid
        and s.decision != "refuse"
        and s.tokens_per_s_per_gpu > floor
        and open_reviews(history, s.launch_id)
        and not refused_by_person(history, s.launch_id)
    ]
    return sorted(found, key=lambda s: -s.tokens_per_s_per_gpu)


def shippable(history: History) -> Score | None:
    """Return the fastest leader that may be re-measured and shipped, or None to keep the baseline.

    With `gate.review: before_ship` a leader with an open review item is passed over; leaders below the band of the
    baseline are never considered, and neither is what a person refused. A launch that the looks left to a person never led the
    search; it is considered once a person admitted all that they left open. A refusal that doesn't hold any more waits for a
    person whatever the rule: run until it passes, a recipe would else ship past it.
    """
    campaign = history.campaign()
    calibration = history.calibration()
    if calibration is None:
        return None
    floor = calibration.mean * (1 + calibration.band)
    candidates = [
        s
        for s in history.scores()
        if s.valid
        and s.tokens_per_s_per_gpu > floor
        and ((s.decision == "admit" and s.new_leader) or (s.decision == "review" and people.looks_stand(history, s.launch_id)))
        and not refused_by_person(history, s.launch_id)
    ]
    for score in sorted(candidates, key=lambda s: -s.tokens_per_s_per_gpu):
        launch = history.launch(score.launch_id)
        if launch is None or launch.kind != "search":
            continue
        verdict = history.verdict(launch.hypothesis)
        if verdict is None or verdict.decision == "refuse" or verdict.recipe != launch.recipe:
            continue
        waits = people.open_items(history, score.launch_id)
        if any(campaign.gate.review == "before_ship" or x.rule.startswith(people.RERUN) for x in waits):
            continue
        return score
    return None
