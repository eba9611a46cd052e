"""What a campaign leaves for the next one, as Markdown: its summary, and the candidate lessons that wait for a person."""

from __future__ import annotations

from attuner.core.lesson import CampaignSummary, Drafted, Lesson
from attuner.core.private import mask
from attuner.report.markdown_parts import block, code, esc

MAX_TRIED = 40
MAX_CITED = 8
MAX_SAID = 4000
"""Letters of a lesson: whoever accepts it must have read it whole."""


def render(campaign_id: str, summary: CampaignSummary | None, drafted: Drafted) -> str:
    """Return the page. Nothing on it is read by a proposer before a person accepted it."""
    parts = [f"# What {esc(campaign_id)} leaves", *_summary(summary), "## Candidate lessons", *_drafts(drafted)]
    return "\n\n".join(parts) + "\n"


def _summary(summary: CampaignSummary | None) -> list[str]:
    if summary is None:
        return ["It shipped nothing yet."]
    s = summary
    leader = ", ".join(f"{code(mask(k))} {_esc(str(v))}" for k, v in s.leader.items()) or "the baseline"
    facts = [
        f"- {_block(f'{s.model}, {s.gpus} × {s.hardware}, {s.stack} {s.version}')}",
        f"- baseline {s.baseline_tokens_per_s_per_gpu:,.0f} tokens/s per device, shipped {s.gain:+.1%}: {leader}",
        f"- {s.spent_gpu_hours:.4g} device-hours",
    ]
    moves = [f"{n}. {_block(move)}" for n, move in enumerate(s.moves[:MAX_TRIED], 1)]
    return ["\n".join(facts), *(["What was tried:", "\n".join(moves)] if moves else [])]


def _drafts(drafted: Drafted) -> list[str]:
    found = [_draft(x) for x in drafted.lessons]
    said = [f"{len(found)} drafted, {drafted.known} said already." if found or drafted.known else "None."]
    if drafted.said:
        said.append(_esc(drafted.said[0].upper() + drafted.said[1:]) + ".")
    command = code(mask(f"attuner lessons review {' '.join(drafted.files)} --as NAME --accept ID"))
    review = [f"Read by nobody until a person accepts them: {command}."]
    return [" ".join(said), *found, *(review if found else [])]


def _draft(lesson: Lesson) -> str:
    by = " The last words are the model's." if lesson.drafted == "model" else ""
    more = len(lesson.evidence) - MAX_CITED
    rests = ", ".join(lesson.evidence[:MAX_CITED]) + (f" and {more} more" if more > 0 else "")
    return f"**{_esc(lesson.id)}** · {lesson.effect}\n\n> {_block(lesson.text)}\n\nRests on {_esc(rests)}.{by}"


def _esc(text: str) -> str:
    # masked first: an escaped address is none that a mask knows
    return esc(mask(text), limit=MAX_SAID)


def _block(text: str) -> str:
    return block(mask(text), limit=MAX_SAID)
