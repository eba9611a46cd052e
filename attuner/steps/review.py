"""review: what waits for a person before a campaign ships, and what happens when nobody answers: it is not admitted."""

from __future__ import annotations

from attuner.core.base import Record
from attuner.core.events import History
from attuner.core.judgement import Score
from attuner.core.people import ReviewAnswer
from attuner.policy import leader, people
from attuner.ports import Kit
from attuner.report.markdown_parts import code, esc
from attuner.steps.common import past, put


class Question(Record):
    """One launch that is faster than anything that may ship, and waits for a person."""

    campaign_id: str
    launch_id: str
    title: str
    tokens_per_s_per_gpu: float
    gain_over_baseline: float
    instead: str
    """What ships if nobody admits it: a launch, or the baseline."""
    items: list[str]

    def text(self) -> str:
        """Return the question as a person reads it, Markdown."""
        lines = "\n".join(f"- {code(x)}" for x in self.items)
        return (
            f"**{self.campaign_id}: {self.launch_id}** ({esc(self.title)}) runs at {self.tokens_per_s_per_gpu:,.0f} tokens/s "
            f"per device, {self.gain_over_baseline:+.1%} over the baseline. Fixed code could not decide this:\n\n{lines}\n\n"
            f"Not admitted, {self.instead} ships."
        )


def question(kit: Kit, campaign_id: str) -> Question | None:
    """Return the fastest launch that would ship if a person admitted it; None if nothing waits, or nobody is to be asked."""
    return asked(past(kit, campaign_id))


def asked(history: History) -> Question | None:
    """Return what is asked of a person now; pure."""
    campaign = history.campaign()
    if campaign.gate.review != "before_ship" or people.cancelled(history) is not None:
        return None
    best = leader.shippable(history)
    beaten = best.tokens_per_s_per_gpu if best else 0.0
    for score in leader.waiting(history):
        if score.tokens_per_s_per_gpu > beaten and not _answered(history, score):
            return Question(
                campaign_id=campaign.id,
                launch_id=score.launch_id,
                title=_title(history, score),
                tokens_per_s_per_gpu=score.tokens_per_s_per_gpu,
                gain_over_baseline=score.gain_over_baseline,
                instead=best.launch_id if best else "the baseline",
                items=leader.open_reviews(history, score.launch_id),
            )
    return None


def unanswered(kit: Kit, campaign_id: str, launch_id: str, *, why: str) -> None:
    """Put on record that nobody answered in time: the launch is not admitted. A later answer still counts, once given."""
    history = past(kit, campaign_id)
    launch = history.launch(launch_id)
    known = people.answer_to(history, launch.recipe) if launch else None
    if launch is None or (known is not None and known.decision == "refuse") or people.left_open(history, launch_id):
        return
    waits = people.open_items(history, launch_id)
    said = ReviewAnswer(launch_id=launch_id, recipe=launch.recipe, decision="unanswered", why=why, items=waits)
    put(kit, campaign_id, "review", launch_id, said)


def _answered(history: History, score: Score) -> bool:
    """Tell whether nobody is to be asked again: refused, or not answered in time. New facts are asked about."""
    return leader.refused_by_person(history, score.launch_id) or people.left_open(history, score.launch_id)


def _title(history: History, score: Score) -> str:
    launch = history.launch(score.launch_id)
    hypothesis = history.hypothesis(launch.hypothesis) if launch else None
    return hypothesis.title if hypothesis else ""
