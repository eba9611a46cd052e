"""The proposer `claude` on a replayed table, in its own process: a whole campaign in seconds, with all that it may meet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from claude_lab import MODEL, PRICE, STOP, heard, last_heard, move
from messages_server import KEY, MessagesServer, scripted, serving, use
from paper_cluster import LAYOUT, born, played

from attuner.core.campaign import Campaign, ProposerSpec
from attuner.core.search import Stop
from attuner.policy import dollars
from attuner.proposers.apart import Apart


@pytest.fixture
def apart() -> Iterator[Apart]:
    found = Apart("attuner.proposers.claude.proposer:Claude", network=True, env={"ANTHROPIC_API_KEY": KEY})
    yield found
    found.close()


def searched_by(server: MessagesServer, **spec: object) -> Campaign:
    given = {"name": "claude", "model": MODEL, "max_usd": 20.0, "price": PRICE.data(), "base_url": server.url, **spec}
    return born().model_copy(update={"proposer": ProposerSpec.model_validate(given)})


def test_a_scripted_model_tunes_a_replayed_campaign_and_meets_everything(tmp_path: Path, apart: Apart) -> None:
    layout = LAYOUT["arguments"]
    script = [
        [use("diagnosis"), use("breakdown"), use("estimate", parent="leader", arguments=layout), use("lessons")],
        [move("layout", layout, citations=[{"file": "megatron/core/parallel_state.py", "line": 1, "mentions": "x"}])],
        [move("layout", {**layout, "recompute_granularity": None})],
        [
            use("ask_person", question="May tensor parallelism shrink?", default="yes"),
            use("dry_run", group="layout", parent="leader"),
        ],
        [move("layout", layout)],
        [move("open", {"recompute_granularity": None})],
        [use("query_ledger", sql="SELECT h.id, s.gain FROM hypotheses h JOIN launches l ON l.hypothesis = h.id, scores s")],
        *([use("levers")] for _ in range(20)),
    ]
    with serving(scripted(*script)) as server:
        history = played(tmp_path, searched_by(server, max_usd=0.62), apart)
    rules = {h.id: [f.rule for f in v.refusals()] for h in history.hypotheses() if (v := history.verdict(h.id))}
    assert rules == {"h01": ["citation"], "h02": ["conduct"], "h03": [], "h04": []}
    assert "no pinned source to look it up in" in heard(server, 2)
    assert "is not part of lever group layout: one group at a time" in heard(server, 3)
    assert history.hypotheses()[2].assumptions == ["May tensor parallelism shrink? → yes"]
    launched = [x for x in history.launches() if x.kind == "search"]
    assert [x.hypothesis for x in launched] == ["h03", "h04"]
    scores = [history.score(x.id) for x in launched]
    assert [s.new_leader for s in scores if s] == [True, True]
    again = history.remeasurement()
    assert again is not None
    assert again.gain > 0.1
    stop = history.stop()
    assert stop is not None
    assert stop.reason == "the dollar limit is reached"
    assert stop.evidence[0].startswith("dollar limit: ")
    assert dollars.spent_usd(history) < 0.62
    assert server.refused == []
    estimated = last_heard(server, 1)
    assert '"gain_over_parent"' in estimated
    assert '"surely_out_of_memory": "no"' in estimated
    assert '"bottlenecks"' in estimated


def test_a_stop_of_the_model_ends_the_campaign_with_its_evidence(tmp_path: Path, apart: Apart) -> None:
    with serving(scripted([STOP])) as server:
        history = played(tmp_path, searched_by(server), apart)
    assert history.stop() == Stop(reason="nothing is left", evidence=["the band is 3%"])
    shipment = history.shipment()
    assert shipment is not None
    assert shipment.kept_baseline
