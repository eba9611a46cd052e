"""The report's campaign with what people said to it, a rerun, forecasts, versions, a published figure. Figures are invented."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_report_campaign import CAMPAIGN_ID, GPUS, TOKENS, campaign_events

from attuner.config import load_levers
from attuner.core.base import Record
from attuner.core.campaign import Figure, Published
from attuner.core.events import Event
from attuner.core.judgement import Score
from attuner.core.people import Directive, Invalidated, ReviewAnswer, ReviewItem
from attuner.core.run import Attempt, Settlement, StepRecord, Trial
from attuner.core.search import Forecast, Hypothesis
from attuner.report.details import Context
from attuner.report.spend import DevicePrice

ROOT = Path(__file__).resolve().parents[1]
PRICE = DevicePrice(usd_per_hour=2.0, source="a <price> list", read="2026-10")
CONTEXT = Context(prices={"cpu": PRICE}, levers=tuple(load_levers(ROOT / "rules", "mcore")))
OLD, NEW = {"torch": "2.12.0", "framework": "0.16.1"}, {"torch": "2.13.0", "framework": "0.16.1"}
# by hypothesis: predicted gain, its error, step and range, memory and range
FORECASTS = {
    "h01": (0.50, 0.20, 1.20, 1.0, 1.4, 2.0, 1.8, 2.2),
    "h03": (0.30, 0.05, 0.80, 0.7, 0.9, 2.5, 2.4, 2.6),
}
SHAPE = {
    "num_layers": 2,
    "hidden_size": 64,
    "ffn_hidden_size": 256,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "padded_vocab_size": 1000,
}


class Pen:
    """Writes on at the end of a past."""

    def __init__(self, events: list[Event]) -> None:
        self.events = list(events)

    def put(self, kind: str, key: str, record: Record) -> None:
        n, last = len(self.events) + 1, self.events[-1]
        at = {"seq": n, "n": n, "at": last.at + 60.0, "prev": last.hash, "hash": f"{n:064x}"}
        self.events.append(Event.model_validate({**last.model_dump(), **at, "kind": kind, "key": key, "record": record.data()}))

    def say(self, key: str, **said: Any) -> None:
        self.put("directive", key, Directive.model_validate(said))

    def again(self, launch_id: str, number: int, *, speed: float, leader: float) -> None:
        """One more attempt of a launch, which runs well."""
        key, step_s, begun = f"{launch_id}#{number}", TOKENS / speed / GPUS, self.events[-1].at
        made = {"launch_id": launch_id, "number": number, "submission_id": key, "folder": "/runs", "submitted_at": begun}
        self.put("attempt", key, Attempt.model_validate(made))
        span = {"gpus": GPUS, "allocated_at": begun, "released_at": begun + 36, "gpu_hours": 36 * GPUS / 3600, "how": "released"}
        self.put("settled", key, Settlement.model_validate({"launch_id": launch_id, "attempt": number, **span}))
        one = {"kind": "scored", "step_s": step_s, "lm_loss": 6.2, "loss_tokens": 3600, "tokens": TOKENS, "peak_mem_gib": 2.0}
        steps = [StepRecord.model_validate({**one, "step": n, "t": float(n)}) for n in range(4)]
        ran = {"launch_id": launch_id, "attempt": number, "status": "ok", "gpu_hours": 0.02, "gpus": GPUS, "steps": steps}
        self.put("trial", launch_id, Trial.model_validate(ran))
        gains = {"gain": speed / leader - 1, "gain_over_baseline": speed / 1160 - 1, "tokens_per_s_per_gpu": speed}
        scored = {"launch_id": launch_id, "attempt": number, "valid": True, "decision": "admit", "step_s": step_s, **gains}
        self.put("score", launch_id, Score.model_validate(scored))


def spoken_events(*, unit: str = "tokens/s/GPU", value: float = 2000.0) -> list[Event]:
    """Return the campaign with forecasts, versions that differ, a published figure, and then people who speak."""
    published = Published(value=value, unit=unit, source="their <page>", note="on H100").model_dump()
    out = []
    for e in campaign_events():
        record = dict(e.record)
        if e.kind == "campaign":
            record |= {"published": published, "adaptations": [{"change": "mock rows", "why": "theirs can't be had"}]}
            record["launcher"] = with_figures(record["launcher"])
        elif e.kind == "effective":
            record["arguments"] = {**SHAPE, **record["arguments"]}
        elif e.kind == "trial":
            early = int(e.key.removeprefix("l")) <= 5
            record |= {"versions": OLD if early else NEW, "hardware": ["CPU <x>"] * GPUS, "hosts": ["a", "a"]}
        elif e.kind == "hypothesis" and e.key == "h10":
            record |= {"by": "Ada", "asked": "d1"}
        out.append(e.model_copy(update={"record": record}))
        if e.kind == "hypothesis" and e.key in FORECASTS:
            pen = Pen(out)
            pen.put("forecast", e.key, forecast(e.key))
            out = pen.events
    # numbers follow one another again after what was put between
    return spoken([e.model_copy(update={"n": n, "seq": n}) for n, e in enumerate(out, start=1)])


def with_figures(launcher: dict[str, Any]) -> dict[str, Any]:
    told = {"peak_tflops": 0.1, "mem_gb_s": 10.0, "intra_gb_s": 5.0}
    figures = {k: Figure(value=v, source="a test").model_dump() for k, v in told.items()}
    return {**launcher, "cluster": {**launcher["cluster"], "figures": figures}}


def forecast(hypothesis: str) -> Forecast:
    gain, error, *rest = FORECASTS[hypothesis]
    names = ("step_s", "step_low_s", "step_high_s", "peak_mem_gib", "mem_low_gib", "mem_high_gib")
    given = dict(zip(names, rest, strict=True))
    return Forecast.model_validate({"hypothesis": hypothesis, "recipe": "x", "gain": gain, "gain_error": error, **given})


def spoken(events: list[Event]) -> list[Event]:
    """Return a past to which Ada, Bob and Eve have spoken: a queued move, a ban, a budget, two answers, and a rerun of l08."""
    pen = Pen(events)
    wish = next(e for e in events if e.kind == "hypothesis" and e.key == "h10").read(Hypothesis)
    pen.say("d1", act="queue", by="Ada", why="worth a look", hypothesis=wish.model_copy(update={"by": "", "asked": ""}))
    pen.say("d2", act="ban", by="Bob", why="known to hang", lever="dp-overlap")
    pen.say("d3", act="budget", by="Bob", gpu_hours=0.9)
    item = ReviewItem(look="config", rule="uncovered", key="bucket_size", line="review  uncovered  bucket_size: no rule")
    recipe = next(e for e in events if e.kind == "launch" and e.key == "l15").record["recipe"]
    told = {"launch_id": "l15", "recipe": recipe, "items": [item]}
    pen.put("review", "l15", ReviewAnswer.model_validate({**told, "decision": "unanswered"}))
    pen.put("review", "l15", ReviewAnswer.model_validate({**told, "decision": "refuse", "by": "Eve <b>", "why": "not <i>sure"}))
    hides = ["trial l08"]
    again = {"step": "launch", "key": "l08", "by": "Ada", "why": "a neighbour used the memory", "hides": hides, "after": 1}
    pen.put("invalidated", "1", Invalidated.model_validate(again))
    pen.again("l08", 2, speed=2600.0, leader=2480.0)
    return pen.events


__all__ = ["CAMPAIGN_ID", "CONTEXT", "PRICE", "spoken_events"]
