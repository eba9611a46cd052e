"""What a model knows of a lesson by itself: a neutral question made from the lesson's scope and the values it speaks of, and
the model's answers held against the lesson's claim. Fixed code on both sides: the model sees neither the lesson's text nor what
came of the move, and doesn't judge its own answer.

A lesson that a model knows need not be kept for it; one that it doesn't know, or gets wrong, is worth keeping. Advice to a
person. Source: ATTUNE (October 2026), table G1: of 106 entries a model answered 19 fully, 59 in part, contradicted 27 and
didn't know 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal

from attuner.core.base import Value
from attuner.core.lesson import Belief, KnownResult, Lesson, LessonKnown
from attuner.policy.lessons import claim_digest
from attuner.policy.lessons_audit import claimed

Compared = Literal["right", "partly", "wrong", "unknown"]
FAILURES = (
    *("oom", "hang", "crash", "config", "nccl", "cuda", "checkpoint", "numeric", "hardware", "env", "launch", "storage"),
    *("scheduler", "rollout", "deepep", "data", "ray", "perf"),
)
"""First words of the classes in rules/failures.yaml: as fine as a model is asked to be."""
LOST = ("hurts", "fails", "refused")
"""Outcomes after which a move isn't kept."""
STACKS = {
    "megatron": "Megatron-LM (pretrain_gpt.py; arguments by their destination names)",
    "mcore": "a small training loop on megatron-core (fields of its TransformerConfig and optimizer configuration)",
    "slime": "slime, training with Megatron-LM",
    "bridge": "Megatron-Bridge",
    "automodel": "NeMo AutoModel",
}
KINDS = {"moe": "a mixture of experts", "dense": "a dense model"}
SYSTEM = """\
You are asked what happens to the throughput of a language model's training run when one thing is changed. Answer from what you
know; you have no tools to look anything up, and nobody's notes. Fill in the form `answer` once:
- outcome: helps (faster beyond noise of about 3%), hurts (slower beyond it), ties (no difference beyond it), fails (the run
  does not come through), refused (it runs, but what is trained is no longer the same: another objective, another batch, wrong
  gradients), or unknown. Say unknown rather than guess: a wrong answer costs more than none.
- gain_low, gain_high: of helps or hurts, the range of the change in tokens per second as fractions (0.1 is 10% faster), else
  null.
- failure: of fails, the class of the failure, else an empty text.
"""
NUMBER = {"type": ["number", "null"]}
FORM: dict[str, Any] = {
    "type": "object",
    "properties": {
        "outcome": {"type": "string", "enum": ["helps", "hurts", "ties", "fails", "refused", "unknown"]},
        "gain_low": NUMBER,
        "gain_high": NUMBER,
        "failure": {"type": "string", "enum": ["", *FAILURES]},
    },
    "required": ["outcome"],
    "additionalProperties": False,
}


def question(lesson: Lesson) -> str:
    """Return the question about a lesson's move; '' for a lesson that claims nothing an answer could be held against."""
    if not claimed(lesson):
        return ""
    claim = lesson.claim
    sets, before = (claim.sets, claim.before) if claim else (lesson.when, {})
    rest = {k: v for k, v in lesson.when.items() if k not in sets}
    moved = [f"- {k}: {_before(before, k)}{_word(v)}" for k, v in sets.items()]
    which = "The change sets:" if claim else "The change sets one of these or several, and after it all of them hold:"
    held = ["", "These hold before and after:", *(f"- {k}: {_word(v)}" for k, v in rest.items())] if rest else []
    asked = "Nothing else is changed. What happens to the training throughput, against the run before the change?"
    return "\n".join(["Where it runs:", *_where(lesson), "", which, *moved, *held, "", asked])


def _before(before: dict[str, Value], key: str) -> str:
    return f"from {_word(before[key])} to " if key in before else "to "


def _where(lesson: Lesson) -> list[str]:
    scope = lesson.scope
    models = [KINDS.get(m, m.strip("*")) for m in scope.models]
    said = {
        "framework": STACKS.get(scope.stack, scope.stack),
        "version": scope.versions,
        "model": " or ".join(models),
        "hardware": " or ".join(m.strip("*") for m in scope.hardware),
        "devices": scope.gpus,
    }
    return [f"- {k}: {v}" for k, v in said.items() if v] or ["- anywhere"]


def _word(value: Value) -> str:
    if isinstance(value, list):
        return "any of " + ", ".join(map(_word, value))
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def belief(form: dict[str, Any] | None) -> Belief | None:
    """Return a filled-in form as a belief; None for one that is none, or holds what can't be meant."""
    try:
        found = Belief.model_validate(form)
    except ValueError:
        return None
    if found.failure not in ("", *FAILURES):
        return None
    low, high = found.gain_low, found.gain_high
    return None if low is not None and high is not None and low > high else found


def compare(lesson: Lesson, found: Belief) -> Compared:
    """Hold one answer against what the lesson claims.

    Partly: the outcome is right and a figure or the class of failure is missed, or the move is lost for another reason.
    """
    wanted, claim = claimed(lesson), lesson.claim
    if found.outcome == "unknown":
        return "unknown"
    if found.outcome != wanted:
        if claim is None and (wanted, found.outcome) == ("fails", "refused"):
            return "right"  # without a claim `fails` covers what the looks refuse, as the audit of records reads it
        return "partly" if wanted in LOST and found.outcome in LOST else "wrong"
    if claim is None:
        return "right"
    if wanted == "fails":
        return "right" if claim.failure.split(".")[0] in ("", found.failure) else "partly"
    return "right" if _meet(claim.gain_low, claim.gain_high, found) else "partly"


def _meet(low: float | None, high: float | None, found: Belief) -> bool:
    """Tell whether the believed range meets the claimed one; an open end is open, and no figure meets no claimed one."""
    if low is None and high is None:
        return True
    if found.gain_low is None and found.gain_high is None:
        return False
    below = found.gain_high is not None and low is not None and found.gain_high < low
    above = found.gain_low is not None and high is not None and found.gain_low > high
    return not below and not above


def judged(lesson: Lesson, model: str, answers: Sequence[Belief | None], *, at: str) -> LessonKnown:
    """Return what a model knew of a lesson, by all its answers; None is an answer that could not be read.

    Known only if every answer is right; contradicted or not known if more than half of them say so; else partly.
    """
    came = [compare(lesson, x) if x is not None else "unread" for x in answers]
    tally, half = Counter(came), len(came) / 2
    result: KnownResult = "partly known"
    if tally["unread"] == len(came):
        result = "no answer"
    elif tally["right"] == len(came):
        result = "known"
    elif tally["wrong"] > half:
        result = "contradicted"
    elif tally["unknown"] > half:
        result = "not known"
    counted = ", ".join(f"{n} {word}" for word, n in tally.items())
    why = f"it claims {_claim_words(lesson)}; of {len(came)} answers {counted}"
    said = [x.said() if x is not None else "unread" for x in answers]
    return LessonKnown(id=lesson.id, model=model, claimed=claim_digest(lesson), result=result, why=why, answers=said, at=at)


def _claim_words(lesson: Lesson) -> str:
    claim = lesson.claim
    if claim is None:
        return claimed(lesson)
    return Belief(outcome=claim.outcome, gain_low=claim.gain_low, gain_high=claim.gain_high, failure=claim.failure).said()


def holds(mark: LessonKnown, lesson: Lesson) -> bool:
    """Tell whether a mark still speaks of what the lesson claims."""
    return mark.id == lesson.id and mark.claimed == claim_digest(lesson)
