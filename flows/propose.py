"""A person's move for a campaign that runs, asked for by a form: first in line, under the same gate and budget as any other."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.runtime import flow_run

from attuner.core.search import Hypothesis
from attuner.settings import load_settings
from attuner.steps.people import queue
from attuner.wiring import open_ledger
from attuner.yamlfile import parse


@flow(name="propose", flow_run_name="propose {title} to {campaign}", persist_result=True)
def propose(
    campaign: str,
    group: str,
    title: str,
    by: str,
    arguments: dict[str, Any] | None = None,
    env: dict[str, str] | None = None,
    why: str = "",
    parent: str = "",
    predicted_gain: float = 0.0,
) -> str:
    """Put a move of yours first in line; return what was put on record.

    Args:
        campaign: The campaign's id, as `attuner status` or the board shows it.
        group: Lever group that the move changes (docs/levers.md), or `open` for any one argument or environment variable.
        title: Short name of the move, e.g. micro batch 1→4.
        by: Who proposes it; it goes on record.
        arguments: Arguments to set, in the framework's own names, as JSON.
        env: Environment variables to set, as JSON.
        why: What you expect and why; it goes on record.
        parent: Launch id that the move starts from; empty for the leader.
        predicted_gain: Your prediction, as a fraction of the leader's speed (0.2 is +20%); shown beside the outcome.
    """
    body = {
        **{"id": "", "parent": parent, "group": group, "title": title, "arguments": arguments or {}, "env": env or {}},
        **{"bottleneck": "a person's judgement", "mechanism": why or "not stated", "by": by},
        **{"predicted_gain": predicted_gain, "predicted_error": 1.0},
    }
    ledger = open_ledger(load_settings())
    try:
        name = ledger.find(campaign)
        queue(ledger, name, parse(Hypothesis, body, "propose"), by=by, why=why, request=flow_run.id or "")
    finally:
        ledger.close()
    return f"{name}: {title} is next in line"
