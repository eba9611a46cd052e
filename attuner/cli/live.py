"""The terminal while a campaign runs: finished facts as lines, and one live line for what is going on now."""

from __future__ import annotations

import math
import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from attuner.core.base import Record
from attuner.core.campaign import Campaign
from attuner.core.events import Event, History
from attuner.core.judgement import Calibration, ComponentTest, Remeasurement, Score, Verdict
from attuner.core.run import Settlement, StepBreakdown, Trial
from attuner.core.search import Stop
from attuner.policy import budget
from attuner.report.terminal import bar

LABEL = 16


class LiveWatch:
    """Implements ports.Watch: keeps the records it hears of, prints a line per fact, and keeps one block alive."""

    def __init__(self, console: Console, *, quiet: bool) -> None:
        self._console, self._quiet = console, quiet
        self._events: list[Event] = []
        self._now = "starting"
        self._standing = ""
        self._live: Live | None = None
        self._started = time.monotonic()

    def __enter__(self) -> LiveWatch:
        """Begin the live block, on a terminal only."""
        if self._console.is_terminal and not self._quiet:
            self._live = Live(console=self._console, refresh_per_second=2, transient=True, get_renderable=self._block)
            self._live.__enter__()
        return self

    def __exit__(self, *args: Any) -> None:
        """End the live block."""
        if self._live is not None:
            self._live.__exit__(*args)

    def load(self, events: list[Event]) -> None:
        """Take over the past of a resumed campaign."""
        self._events = list(events)
        self._standing = self._stand()

    def event(self, kind: str, key: str, record: Record) -> None:
        """Hear of one record; see ports.Watch."""
        data = record.data()
        at = time.time()
        self._events.append(
            Event(seq=0, campaign_id="", n=len(self._events), kind=kind, key=key, at=at, fence=0, record=data, prev="", hash="")
        )
        self._standing = self._stand()
        line = self._line(record)
        if line:
            self.say(*line)

    def progress(self, launch_id: str, phase: str, steps: int) -> None:
        """Hear how far a launch is; see ports.Watch."""
        self._now = f"{launch_id} {phase}, step {steps}" if steps else f"{launch_id} {phase}"

    def campaign_id(self) -> str:
        """Return the campaign that is being watched, or ''."""
        found = History(self._events).all("campaign", Campaign)
        return found[0].id if found else ""

    def say(self, label: str, text: str) -> None:
        """Print one fact."""
        if not self._quiet:
            self._console.print(Text(f"  {label:{LABEL}}{text}"), soft_wrap=True, highlight=False)

    def _block(self) -> Text:
        minutes = (time.monotonic() - self._started) / 60.0
        return Text(f"  {'now':{LABEL}}{self._now} · {self._standing}{minutes:.1f} min")

    def _stand(self) -> str:
        """Return best so far and budget left; made when a record arrives, not when the block is drawn: that costs cores."""
        history = History(self._events)
        if not history.all("campaign", Campaign):
            return ""
        total, spent = budget.total(history), budget.spent(history)
        left = (
            f"{max(total - spent, 0) * 60:.1f} of {total * 60:.1f} device-minutes left" if math.isfinite(total) else "budget auto"
        )
        best = history.leader_speed()
        lead = f"best {best:,.0f} tok/s/device" if best else "calibrating"
        return f"{lead} · {left} · "

    def _line(self, record: Record) -> tuple[str, str] | None:
        history = History(self._events)
        if isinstance(record, Campaign):
            return "campaign", _campaign_line(record)
        if isinstance(record, Calibration):
            busy = "; the machine is busy, the band is wide" if record.busy else ""
            noise = f"({len(record.launches)} runs, σ {record.sigma:.1%}, band {record.band:.1%})"
            text = f"{record.mean:,.0f} tok/s/device  {noise}{busy}"
            return "baseline", text
        if isinstance(record, StepBreakdown):
            return _breakdown_line(record, history)
        if isinstance(record, Verdict) and record.look == "config" and record.decision == "refuse":
            first = record.refusals()[0]
            hypothesis = history.hypothesis(record.subject)
            return record.subject, f"{hypothesis.title if hypothesis else ''}  refused  {first.rule}: {first.reason}"
        if isinstance(record, Trial) and record.status != "ok":
            return (
                record.launch_id,
                f"{_title(history, record.launch_id)}  {record.status}: {record.cause} · {record.gpu_hours * 60:.2f} device-min"
                + (f" · {record.failure.said()}" if record.failure else ""),
            )
        if isinstance(record, Settlement) and record.lost:
            losses = sum(s.lost for s in history.settlements() if s.launch_id == record.launch_id)
            again = "; one new attempt" if losses < 2 else "; lost twice, given up"
            return (
                record.launch_id,
                f"allocation lost ({record.detail}), charged {record.gpu_hours * 60:.2f} device-min{again}",
            )
        if isinstance(record, Score):
            return self._score_line(record, history)
        if isinstance(record, ComponentTest):
            return (
                record.launch_id,
                f"component test {record.argument} {record.old}→{record.new}: {record.why}",
            )
        return _end_line(record)

    def _score_line(self, score: Score, history: History) -> tuple[str, str] | None:
        launch = history.launch(score.launch_id)
        if launch is None or (launch.kind != "search" and score.valid):
            return None
        if not score.valid:
            return score.launch_id, f"{_title(history, score.launch_id)}  not a valid measurement: {score.why_invalid}"
        hypothesis = history.hypothesis(launch.hypothesis)
        verdict = history.verdict(launch.hypothesis)
        predicted = f"predicted {hypothesis.predicted_gain:+.0%} (±{hypothesis.predicted_error:.0%})" if hypothesis else ""
        gate = {"admit": "admitted", "review": "to review"}.get(verdict.decision if verdict else "", "")
        lead = "new leader" if score.new_leader else _held_back(score, history)
        title = _title(history, score.launch_id)
        return (
            score.launch_id,
            f"{title:44} {predicted:24} {gate:10} {score.tokens_per_s_per_gpu:7,.0f}  {score.gain:+.0%}  {lead}",
        )


def _held_back(score: Score, history: History) -> str:
    """Return which look stands between a launch and the lead, or ''."""
    for verdict in history.looks(score.launch_id, score.attempt):
        if verdict.decision != "admit":
            name = {"forward": "second", "update": "third"}[verdict.look]
            first = verdict.findings[0]
            word = "refused by" if verdict.decision == "refuse" else "to review by"
            return f"{word} the {name} look: {first.key}" + (f" ({first.cause})" if first.cause else "")
    return ""


def _title(history: History, launch_id: str) -> str:
    launch = history.launch(launch_id)
    hypothesis = history.hypothesis(launch.hypothesis) if launch and launch.hypothesis else None
    return hypothesis.title if hypothesis else (launch.purpose if launch else "")


def _campaign_line(campaign: Campaign) -> str:
    work = campaign.workload
    hours = campaign.budget.gpu_hours
    money = "budget auto" if hours == "auto" else f"{hours * 60:.1f} device-minutes of budget"
    return f"{campaign.id} · {work.model}, {work.gpus} devices ({campaign.launcher.cluster.device.kind}), {money}"


def _breakdown_line(breakdown: StepBreakdown, history: History) -> tuple[str, str] | None:
    launch = history.launch(breakdown.launch_id)
    if launch is None or launch.kind != "calibrate":
        return None
    shares = {k.replace("_", " "): v for k, v in breakdown.shares().items()}
    return "where time goes", "  ".join(f"{k} {v:.0%} {bar(v, 12)}" for k, v in shares.items() if v > 0 or k != "copy")


def _end_line(record: Record) -> tuple[str, str] | None:
    if isinstance(record, Stop):
        return "stop", f"{record.reason} ({'; '.join(record.evidence)})"
    if isinstance(record, Remeasurement):
        kept = f"  baseline kept: {record.reason}" if record.kept_baseline else ""
        pairs = len(record.leader_launches)
        speeds = f"baseline {record.baseline_mean:,.0f} · leader {record.leader_mean:,.0f}"
        text = f"{speeds} ({pairs} interleaved pairs)  {record.gain:+.0%}{kept}"
        return "remeasure", text
    return None
