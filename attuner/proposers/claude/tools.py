"""The tools that the model is offered, by arm: their names, what they do, and the form of their input."""

from __future__ import annotations

from typing import Any

from attuner.ports import Brief
from attuner.proposers.claude.arms import KNOB_ARGUMENTS, KNOBS, Arm

MOVES = ("submit_hypothesis", "submit_stop")

_TEXT = {"type": "string"}
_NUMBER = {"type": "number"}
_COUNT = {"type": "integer", "minimum": 1}
_VALUES = {"type": "object", "description": 'argument name → value (true, 4, 0.1, "full", null, or a list)'}
_ENV = {"type": "object", "description": "environment variable → value as text"}
_LAUNCH = {"type": "string", "description": "launch id, as l03; left out: the leader"}
_PARENT = {"type": "string", "description": "launch id of the trial it starts from, as l01; `leader` is the leader"}


def tools(brief: Brief, arm: Arm, *, moves: bool = True) -> list[dict[str, Any]]:
    """Return the tools of an arm; without `moves` those of a role that only reads and talks."""
    found = [*(_source() if brief.source else []), *(_diagnosis() if arm.diagnosis else []), _estimate()]
    if arm.catalog:
        found.append(_tool("levers", "The lever catalog: what each group changes, eases and needs.", {"group": _TEXT}))
    if arm.guide:
        found.append(_tool("guide", "A summary of what public Megatron guides recommend.", {}))
    if arm.lessons:
        what = "Lessons in scope and summaries of earlier campaigns like this one."
        found.append(_tool("lessons", what, {}))
    found += [_query(), _tool("dry_run", _DRY_RUN, {**_change(brief, arm)}, ["parent", "group"])]
    return [*found, _person(), *_moves(brief, arm)] if moves else found


def _tool(name: str, description: str, properties: dict[str, Any], required: list[str] | None = None) -> dict[str, Any]:
    form = {"type": "object", "properties": properties, "required": required or [], "additionalProperties": False}
    return {"name": name, "description": description, "input_schema": form}


def _source() -> list[dict[str, Any]]:
    read = {"file": _TEXT, "first_line": _COUNT, "num_lines": {**_COUNT, "maximum": 400}}
    grep = {
        "pattern": {"type": "string", "description": "a regular expression of Python"},
        "under": {"type": "string", "description": "part of the path, as pipeline_parallel/"},
        "limit": {**_COUNT, "maximum": 200},
    }
    return [
        _tool("read_source", "Numbered lines of a file of the framework's pinned source.", read, ["file"]),
        _tool(
            "grep_source", "Lines of the framework's pinned source that a pattern fits, as file:line: text.", grep, ["pattern"]
        ),
    ]


def _diagnosis() -> list[dict[str, Any]]:
    breakdown = "Where the profiled steps of a launch went, as fractions of the step; `ranks` for each rank."
    return [
        _tool("breakdown", breakdown, {"launch": _LAUNCH, "ranks": {"type": "boolean"}}),
        _tool("diagnosis", "Ranked bottlenecks of a launch with the most that easing each can give.", {"launch": _LAUNCH}),
    ]


def _estimate() -> dict[str, Any]:
    what = "Predicted step time, memory and gain of a change on top of a parent, each with its band; costs nothing."
    return _tool("estimate", what, {"parent": _PARENT, "arguments": _VALUES})


def _query() -> dict[str, Any]:
    what = (
        "One SELECT (DuckDB) over this campaign's records. Views: launches, trials, hypotheses, verdicts, scores, attempts, "
        "spend, spend_usd, notes; the table events(kind, key, record) has everything. At most 200 rows."
    )
    return _tool("query_ledger", what, {"sql": _TEXT}, ["sql"])


_DRY_RUN = "What citations, conduct, layout and the gate's first look would say of a move; nothing is recorded or launched."


def _person() -> dict[str, Any]:
    form = {"question": _TEXT, "default": {"type": "string", "description": "what you do if nobody answers"}}
    return _tool(
        "ask_person", "Ask a person. Nobody is there: your default is taken and recorded.", form, ["question", "default"]
    )


def groups(brief: Brief, arm: Arm) -> str:
    """Return the lever groups with the arguments that each may change: the rule of conduct, told in every arm."""
    known = {x["id"]: [c for c in x["changes"] if not arm.knobs or c in KNOB_ARGUMENTS] for x in brief.levers}
    named = "; ".join(f"{name}: {', '.join(changes)}" for name, changes in known.items() if changes)
    return f"{named}; open: any one argument or environment variable, with what it forces"


def _change(brief: Brief, arm: Arm) -> dict[str, Any]:
    place = {
        "type": "object",
        "properties": {
            "file": _TEXT,
            "line": _COUNT,
            "mentions": {"type": "string", "description": "the changed argument that stands within five lines"},
        },
        "required": ["file", "line", "mentions"],
    }
    cited = {"citations": {"type": "array", "items": place}} if brief.source else {}
    group = {"type": "string", "description": f"one of: {groups(brief, arm)}"}
    return {
        "parent": _PARENT,
        "group": group,
        "arguments": _VALUES,
        "env": _ENV,
        "title": {"type": "string", "description": "short, as: micro batch 1→4"},
        "bottleneck": _TEXT,
        "mechanism": {"type": "string", "description": "why it should be faster, in a sentence or two"},
        "predicted_gain": {"type": "number", "description": "over the leader, a fraction: 0.2 is +20%"},
        "predicted_error": {"type": "number", "minimum": 0, "description": "half width, a fraction"},
        **cited,
    }


def _moves(brief: Brief, arm: Arm) -> list[dict[str, Any]]:
    abort = {
        "type": "object",
        "description": "end the run when the median goes beyond this",
        "properties": {
            "metric": {"type": "string", "enum": ["step_s", "peak_mem_gib", "lm_loss"]},
            "above": _NUMBER,
            "after_step": {**_COUNT, "description": "scored steps that must have been seen"},
        },
        "required": ["metric", "above"],
    }
    lessons = {"lessons": {"type": "array", "items": _TEXT, "description": "ids of lessons it rests on"}} if arm.lessons else {}
    form = {**_change(brief, arm), "abort": abort, **lessons}
    needed = ["parent", "group", "title", "bottleneck", "mechanism", "predicted_gain", "predicted_error"]
    only = f" Only these knobs: {', '.join(KNOBS)}." if arm.knobs else ""
    stop = {"reason": _TEXT, "evidence": {"type": "array", "items": _TEXT, "minItems": 1}}
    return [
        _tool("submit_hypothesis", f"Your move: one change against its parent. It ends your turn.{only}", form, needed),
        _tool(
            "submit_stop", "Your move: end the search, with figures as evidence. It ends your turn.", stop, ["reason", "evidence"]
        ),
    ]
