"""Event, one row of the ledger, and History: a campaign's past read as typed records (the last event of a key holds)."""

from __future__ import annotations

from typing import Any, TypeVar

from attuner.core.base import Record
from attuner.core.campaign import Campaign
from attuner.core.judgement import Calibration, ComponentTest, Remeasurement, Score, Shipment, Verdict
from attuner.core.people import HIDEABLE, Directive, Invalidated, ReviewAnswer
from attuner.core.recipe import EffectiveConfig, Recipe
from attuner.core.run import Attempt, Launch, Settlement, StepBreakdown, Trial
from attuner.core.search import Forecast, Hypothesis, Stop

R = TypeVar("R", bound=Record)
INVALIDATED = "invalidated"
"""Kind of the event that sets records aside: a rerun."""


class Event(Record):
    """One row of the ledger."""

    seq: int
    campaign_id: str
    n: int
    kind: str
    key: str
    at: float
    fence: int
    record: dict[str, Any]
    prev: str
    hash: str

    def read(self, model: type[R]) -> R:
        """Return the row's record, parsed once: it is frozen, and a trial with what the probe saw is long."""
        # kept beside the fields, as functools.cached_property would: no part of equality, of the data or of the digest
        of, known = self.__dict__.get("_parsed", (None, None))
        if of is not self.record or not isinstance(known, model):
            known = model.model_validate(self.record)
            self.__dict__["_parsed"] = (self.record, known)
        return known


def attempt_key(launch_id: str, attempt: int) -> str:
    """Return the ledger key of one attempt."""
    return f"{launch_id}#{attempt}"


def update_key(launch_id: str, attempt: int) -> str:
    """Return the ledger key of the third look's verdict on one attempt; the second look's is the attempt's own key."""
    return f"{launch_id}#{attempt}:update"


class History:
    """Typed reading of one campaign's events. Pure: it holds nothing but the events it was given.

    A record that a later `invalidated` event names does not hold any more; made again, it stands last among its kind.
    """

    def __init__(self, events: list[Event]) -> None:
        self.events = events
        self._last: dict[str, dict[str, Event]] = {}
        for event in events:
            if event.kind == INVALIDATED:
                self._set_aside(event)
            self._last.setdefault(event.kind, {})[event.key] = event

    def _set_aside(self, event: Event) -> None:
        for name in event.record.get("hides", ()):
            kind, _, key = str(name).partition(" ")
            if kind in HIDEABLE:  # also here, where a record wasn't read by its model: nothing that was charged may vanish
                self._last.get(kind, {}).pop(key, None)

    def find(self, kind: str, key: str, model: type[R]) -> R | None:
        """Return the record that holds for (kind, key), or None."""
        event = self._last.get(kind, {}).get(key)
        return event.read(model) if event else None

    def all(self, kind: str, model: type[R]) -> list[R]:
        """Return the records of a kind, in the order in which their keys first appeared."""
        return [e.read(model) for e in self._last.get(kind, {}).values()]

    def keys(self, kind: str) -> list[str]:
        """Return the keys of the records of a kind that hold."""
        return list(self._last.get(kind, {}))

    def campaign(self) -> Campaign:
        """Return the campaign as it was born."""
        return self.all("campaign", Campaign)[0]

    def recipe(self, digest: str) -> Recipe:
        """Return the recipe with this digest."""
        found = self.find("recipe", digest, Recipe)
        if found is None:
            raise KeyError(digest)
        return found

    def effective(self, digest: str) -> EffectiveConfig | None:
        """Return the final values of the recipe with this digest, if it was resolved."""
        return self.find("effective", digest, EffectiveConfig)

    def launches(self) -> list[Launch]:
        """Return the launches in the order in which they were decided."""
        return self.all("launch", Launch)

    def launch(self, launch_id: str) -> Launch | None:
        """Return one launch."""
        return self.find("launch", launch_id, Launch)

    def attempts(self, launch_id: str) -> list[Attempt]:
        """Return the attempts of a launch, first to last."""
        return sorted((a for a in self.all("attempt", Attempt) if a.launch_id == launch_id), key=lambda a: a.number)

    def settlements(self) -> list[Settlement]:
        """Return every charge."""
        return self.all("settled", Settlement)

    def settled(self, launch_id: str, attempt: int) -> Settlement | None:
        """Return the charge of one attempt, if it is closed."""
        return self.find("settled", attempt_key(launch_id, attempt), Settlement)

    def charge(self, launch_id: str) -> float:
        """Return the device-hours of all closed attempts of a launch."""
        return sum(s.gpu_hours for s in self.settlements() if s.launch_id == launch_id)

    def trial(self, launch_id: str) -> Trial | None:
        """Return what came of a launch, if it has ended."""
        return self.find("trial", launch_id, Trial)

    def breakdown(self, launch_id: str) -> StepBreakdown | None:
        """Return where the steps of a launch went, if it was profiled."""
        return self.find("breakdown", launch_id, StepBreakdown)

    def hypotheses(self) -> list[Hypothesis]:
        """Return the hypotheses in order."""
        return self.all("hypothesis", Hypothesis)

    def hypothesis(self, hypothesis_id: str) -> Hypothesis | None:
        """Return one hypothesis."""
        return self.find("hypothesis", hypothesis_id, Hypothesis)

    def forecast(self, hypothesis_id: str) -> Forecast | None:
        """Return what the estimate said of a hypothesis before its launch, if it could say anything."""
        return self.find("forecast", hypothesis_id, Forecast)

    def verdict(self, subject: str) -> Verdict | None:
        """Return the verdict on a hypothesis id, on `launch#attempt` (second look) or `launch#attempt:update` (third)."""
        return self.find("verdict", subject, Verdict)

    def looks(self, launch_id: str, attempt: int) -> list[Verdict]:
        """Return the verdicts of the second and the third look on one attempt, as far as they are on record."""
        found = (self.verdict(key) for key in (attempt_key(launch_id, attempt), update_key(launch_id, attempt)))
        return [v for v in found if v is not None]

    def score(self, launch_id: str) -> Score | None:
        """Return the score of a launch."""
        return self.find("score", launch_id, Score)

    def scores(self) -> list[Score]:
        """Return every score in order."""
        return self.all("score", Score)

    def calibration(self) -> Calibration | None:
        """Return the last round's calibration: the one that holds."""
        return max(self.all("calibration", Calibration), key=lambda x: x.round, default=None)

    def component_tests(self) -> list[ComponentTest]:
        """Return the component tests on record."""
        return self.all("component", ComponentTest)

    def stop(self) -> Stop | None:
        """Return why the search ended, if it did."""
        return self.find("stop", "final", Stop)

    def directives(self) -> list[Directive]:
        """Return what people said to the campaign, in order."""
        return self.all("directive", Directive)

    def reviews(self) -> list[ReviewAnswer]:
        """Return the answers that hold: of each launch the last one."""
        return self.all("review", ReviewAnswer)

    def reruns(self) -> list[Invalidated]:
        """Return every rerun, in order."""
        return self.all(INVALIDATED, Invalidated)

    def rerun_after(self, launch_id: str) -> int:
        """Return the number of the last attempt that a rerun of this launch leaves behind; 0 if it was never rerun."""
        return max((x.after for x in self.reruns() if x.step == "launch" and x.key == launch_id), default=0)

    def remeasurement(self) -> Remeasurement | None:
        """Return the final re-measurement."""
        return self.find("remeasurement", "final", Remeasurement)

    def shipment(self) -> Shipment | None:
        """Return what was shipped."""
        return self.find("shipment", "final", Shipment)

    def leader(self) -> str:
        """Return the launch id of the leader: the last score that took the lead, else the first calibration run."""
        leaders = [s.launch_id for s in self.scores() if s.new_leader]
        if leaders:
            return leaders[-1]
        calibration = self.calibration()
        return calibration.launches[0] if calibration else ""

    def leader_speed(self) -> float:
        """Return the leader's tokens/s per device; the baseline's is its calibration mean."""
        leaders = [s for s in self.scores() if s.new_leader]
        if leaders:
            return leaders[-1].tokens_per_s_per_gpu
        calibration = self.calibration()
        return calibration.mean if calibration else 0.0
