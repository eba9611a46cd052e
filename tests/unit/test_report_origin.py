"""Laws of what is said of a recipe's origin: the published figure stands beside ours only where the unit is the same."""

from __future__ import annotations

from typing import Any

from test_report_campaign import campaign_events

from attuner.core.events import Event
from attuner.report import html, markdown, origin
from attuner.report.facts import ReportFacts, gather

ADAPTED = {"change": "mock tokens for <b>released</b> data", "why": "the data can't leave the cluster"}


def facts(published: dict[str, Any] | None) -> ReportFacts:
    events: list[Event] = []
    for event in campaign_events():
        record = {**event.record, "published": published, "adaptations": [ADAPTED]}
        events.append(event.model_copy(update={"record": record}) if event.kind == "campaign" else event)
    return gather(events)


def test_the_gap_is_said_for_the_baseline_and_for_what_is_shipped() -> None:
    found = facts({"value": 2000.0, "source": "their page"})
    claim = found.claim
    assert claim is not None
    said = origin.published(found)
    assert said.startswith("2,000 tokens/s/GPU (their page); the baseline here ")
    assert "the leader +" in said or "the leader −" in said


def test_a_unit_that_nothing_here_can_be_held_against_is_not_compared() -> None:
    said = origin.published(facts({"value": 455.0, "unit": "samples/s", "source": "their page", "note": "on H100"}))
    assert said == "455 samples/s (their page; on H100); another unit than this campaign's, so the gap is not stated"


def test_operations_are_compared_only_where_the_models_shape_is_known() -> None:
    said = origin.published(facts({"value": 455.0, "unit": "TFLOP/s/GPU", "source": "their page"}))
    assert said == "455 TFLOP/s/GPU (their page); the model's shape isn't known here, so the gap is not stated"


def test_without_a_published_figure_nothing_is_said() -> None:
    assert origin.published(facts(None)) == ""


def test_both_pages_say_it_and_escape_it() -> None:
    found = facts({"value": 2000.0, "source": "<i>their</i> page"})
    for page in (html.render(found), markdown.render(found)):
        assert "2,000 tokens/s/GPU" in page
        assert "leave the cluster" in page
        assert "<b>released</b>" not in page
        assert "<i>their</i>" not in page
