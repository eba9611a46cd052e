"""May a proposer end the search? Its Stop must rest on evidence that fixed code can hold against the records: a proposer that
gives up without looking, or with figures that aren't so, is asked again."""

from __future__ import annotations

import re
from collections.abc import Iterator

from attuner.core.events import History
from attuner.core.judgement import Note
from attuner.core.search import Stop
from attuner.policy import dollars

TRIES = 3
"""Stops that don't hold, for one move, before the search ends all the same."""
_ID = re.compile(r"\b([hl]\d{2,})\b")
_GAIN = re.compile(r"\b(l\d{2,})\b[^.;,\n]*?([+−-]\d+(?:\.\d+)?)\s*%")
_BAND = re.compile(r"\bband (?:(?:is|of) )?(\d+(?:\.\d+)?)\s*%")
_MOVES = re.compile(r"^(\d+) moves played$")
_SEEN = re.compile(r"^(\d+) of (\d+) points seen$")
_POINTS = 0.5
"""Percentage points by which a quoted figure may differ from the record: people and models round."""


TALKED_OUT = 20
"""Answers of a model to one move, none of them a move, after which nobody expects one."""
CUT_OFF = ("refusal", "model_context_window_exceeded")
"""Why a model's last answer can end its conversation, in the API's words."""


def no_dollars(hypothesis_id: str) -> str:
    """Return the key of the note that says: no call was made for this move, the dollars don't allow it."""
    return f"dollars {hypothesis_id}"


def problems(history: History, stop: Stop, hypothesis_id: str) -> list[str]:
    """Return why a proposer's Stop, given instead of this move, doesn't hold; empty if it does."""
    if _conversation_ended(history, hypothesis_id):
        return []
    if not any(line.strip() for line in stop.evidence):
        return ["it gives no evidence"]
    told = [*stop.evidence, stop.reason]
    wrong = [x for line in told for x in _wrong(history, line)]
    if wrong:
        return wrong
    if not any(_checked(history, line) for line in told):
        return [
            "nothing of its evidence can be held against the records: name launches or hypotheses by id, with their gain, "
            "or the band that what is left stays inside of"
        ]
    return []


def _conversation_ended(history: History, hypothesis_id: str) -> bool:
    """Tell whether the records of the calls show that the model can't make this move."""
    if history.find("note", no_dollars(hypothesis_id), Note) is not None:
        return True
    replies = [reply for message, reply in dollars.calls(history) if message.hypothesis == hypothesis_id]
    return len(replies) >= TALKED_OUT or bool(replies and replies[-1] and replies[-1].stop_reason in CUT_OFF)


def _wrong(history: History, line: str) -> Iterator[str]:
    for name in dict.fromkeys(_ID.findall(line)):
        if not _known(history, name):
            yield f"{name}: no such {'launch' if name[0] == 'l' else 'hypothesis'} has ended on record"
    for name, percent in _GAIN.findall(line):
        score = history.score(name)
        if score is None:
            continue
        said = float(percent.replace("−", "-"))
        if all(abs(said - 100 * gain) > _POINTS for gain in (score.gain, score.gain_over_baseline)):
            yield f"{name}: {said:+g}% is not what was measured: {score.gain:+.1%} over the leader then"
    calibration = history.calibration()
    for percent in _BAND.findall(line):
        if calibration is not None and abs(float(percent) - 100 * calibration.band) > _POINTS:
            yield f"the band is {calibration.band:.1%}, not {percent}%"


def _known(history: History, name: str) -> bool:
    return history.trial(name) is not None if name[0] == "l" else history.verdict(name) is not None


def _checked(history: History, line: str) -> bool:
    """Tell whether a line holds something that was held against the records, and came out."""
    if _ID.search(line) or (_BAND.search(line) and history.calibration() is not None):
        return True
    if (found := _MOVES.match(line)) is not None:
        return int(found[1]) == sum(not h.by for h in history.hypotheses())
    if (found := _SEEN.match(line)) is not None:
        return len({x.recipe for x in history.launches() if x.kind == "search"}) <= int(found[1]) <= int(found[2])
    return False
