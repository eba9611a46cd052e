"""A past written by hand, for laws that are pure functions of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lab import HOUR, ID, LEVERS, campaign, resolved

from attuner.core.base import Record, Value
from attuner.core.campaign import Campaign
from attuner.core.events import Event, History
from attuner.core.judgement import Verdict
from attuner.core.run import Attempt, Launch, Settlement, StepRecord, Trial
from attuner.core.search import Hypothesis
from attuner.ports import Brief


@dataclass
class Book:
    """Writes a past by hand, for laws that are pure functions of it."""

    campaign: Campaign = field(default_factory=campaign)
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.put("campaign", self.campaign.id, self.campaign)
        self.recipe()

    def put(self, kind: str, key: str, record: Record) -> None:
        n = len(self.events) + 1
        given = {"seq": n, "n": n, "campaign_id": ID, "kind": kind, "key": key, "at": float(n), "fence": 1}
        self.events.append(Event.model_validate({**given, "record": record.data(), "prev": "", "hash": ""}))

    def recipe(self, **arguments: Value) -> str:
        made = self.campaign.baseline.changed(arguments)
        self.put("recipe", made.digest(), made)
        self.put("effective", made.digest(), resolved(made))
        return made.digest()

    def launch(self, launch_id: str, *, kind: str = "search", recipe: str = "", hypothesis: str = "", **more: Any) -> None:
        recipe = recipe or self.campaign.baseline.digest()
        given = {"id": launch_id, "kind": kind, "recipe": recipe, "hypothesis": hypothesis, "purpose": launch_id}
        self.put("launch", launch_id, Launch.model_validate({**given, "reserve_gpu_hours": 1.0, "time_limit_s": 60.0, **more}))

    def settle(self, launch_id: str, hours: float, *, number: int = 1, **more: Any) -> None:
        key = f"{launch_id}#{number}"
        made = {"launch_id": launch_id, "number": number, "submission_id": key, "folder": "/nowhere", "submitted_at": 0.0}
        self.put("attempt", key, Attempt.model_validate(made))
        span = {"allocated_at": 0.0, "released_at": hours * HOUR / 2, "gpu_hours": hours, "how": "released"}
        self.put(
            "settled", key, Settlement.model_validate({"launch_id": launch_id, "attempt": number, "gpus": 2, **span, **more})
        )

    def trial(self, launch_id: str, status: str = "ok", *, hours: float = 1.0) -> None:
        self.put("trial", launch_id, trial(launch_id=launch_id, status=status, gpu_hours=hours))

    def ran(self, launch_id: str, *, status: str = "ok", hours: float = 1.0, **more: Any) -> None:
        self.launch(launch_id, **more)
        self.settle(launch_id, hours)
        self.trial(launch_id, status, hours=hours)

    def suppose(self, hypothesis_id: str, *, parent: str = "l01", **more: Any) -> Hypothesis:
        made = hypothesis(id=hypothesis_id, parent=parent, **more)
        self.put("hypothesis", hypothesis_id, made)
        return made

    def verdict(self, subject: str, decision: str, recipe: str = "", *findings: dict[str, Any]) -> None:
        look = "update" if subject.endswith(":update") else "forward" if "#" in subject else "config"
        given = {"look": look, "subject": subject, "recipe": recipe, "decision": decision, "findings": list(findings)}
        self.put("verdict", subject, Verdict.model_validate(given))

    @property
    def history(self) -> History:
        return History(list(self.events))

    def brief(self, levers: list[dict[str, Any]] | None = None, next_id: str = "h01") -> Brief:
        levers = LEVERS if levers is None else levers
        return Brief(campaign=self.campaign, levers=levers, remaining_gpu_hours=9.0, next_id=next_id, history=self.history)


def hypothesis(**changes: Any) -> Hypothesis:
    given = {
        "id": "h01",
        "parent": "l01",
        "group": "micro-batch",
        "arguments": {"micro_batch_size": 4},
        "title": "micro batch ×4",
    }
    said = {"bottleneck": "host", "mechanism": "fewer operators", "predicted_gain": 0.2, "predicted_error": 0.1}
    return Hypothesis.model_validate({**given, **said, **changes})


def steps(count: int = 4, *, warmup: int = 1, step_s: float = 1.0, loss: float = 5.0, tokens: int = 128) -> list[StepRecord]:
    return [
        StepRecord(
            step=n,
            kind="warmup" if n < warmup else "scored",
            t=float(n),
            step_s=step_s,
            lm_loss=loss,
            loss_tokens=tokens,
            tokens=tokens,
        )
        for n in range(count)
    ]


def trial(**changes: Any) -> Trial:
    given = {"launch_id": "l01", "attempt": 1, "status": "ok", "steps": steps(), "gpu_hours": 1.0, "gpus": 2}
    return Trial.model_validate({**given, **changes})
