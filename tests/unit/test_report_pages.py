"""Laws of the pages: nothing untrusted becomes markup, nothing comes from outside, SQL checks every figure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import pytest
from test_report_campaign import CAMPAIGN_ID, campaign_events

from attuner.core.events import Event
from attuner.core.recipe import Recipe
from attuner.report import board, claims, html, markdown, queries
from attuner.report.curve import curve
from attuner.report.facts import ReportFacts, gather
from attuner.report.recipe_yaml import recipe_yaml
from attuner.report.svg import Box, Canvas, ticks
from attuner.report.terminal import bar, device_minutes, pct, share_pct
from attuner.report.words import clean, number, span, units_for, when

EVIL = "<script>alert(1)</script>\"'&`|</pre>](http://x) ![i](//y) \u202e\x00\n# h"
FREE_TEXT = {
    *(
        "model",
        "dataset",
        "hardware",
        "title",
        "mechanism",
        "bottleneck",
        "reason",
        "cause",
        "phase",
        "purpose",
        "text",
    ),
    *(
        "rule",
        "why",
        "component",
        "argument",
        "folder",
        "source_file",
        "version",
        "precision",
        "register_lock",
        "name_",
    ),
}


@pytest.fixture(scope="module")
def facts() -> ReportFacts:
    return gather(campaign_events())


class Page(HTMLParser):
    """Reads a page strictly: every element closed in order, and remembers elements and attributes."""

    void = frozenset({"meta", "br", "wbr"})
    drawn = frozenset({"rect", "line", "path", "circle"})

    def __init__(self, source: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += attrs
        if tag not in self.void:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.drawn
        self.tags.add(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def poisoned(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: EVIL if k in FREE_TEXT and isinstance(v, str) else poisoned(v) for k, v in data.items()}
    if isinstance(data, list):
        return [poisoned(x) for x in data]
    return data


def hostile_events() -> list[Event]:
    out = []
    for e in campaign_events():
        record = poisoned(e.record)
        if e.kind == "effective":
            record = {**record, "arguments": {**record["arguments"], EVIL: EVIL + e.key}, "versions": {EVIL: EVIL}}
        if e.kind == "shipment":
            record = {**record, "open_reviews": [EVIL]}
        out.append(e.model_copy(update={"record": record, "hash": EVIL, "campaign_id": EVIL}))
    return out


def test_the_page_is_whole_and_asks_for_nothing_from_outside(facts: ReportFacts) -> None:
    source = html.render(facts)
    page = Page(source)
    assert "script" not in page.tags
    named = {f"#{v}" for k, v in page.attributes if k == "id"}
    assert {
        v for k, v in page.attributes if k in ("href", "src", "xlink:href")
    } <= named  # places on this page, and they are there
    assert not any(k.startswith("on") for k, _ in page.attributes)
    assert "http" not in re.sub(r"http-equiv", "", source)
    assert set(re.findall(r"url\(([^)]*)\)", source)) <= named  # the patterns of the bars
    assert "@import" not in source


def test_untrusted_text_never_becomes_markup_in_html() -> None:
    clean_page, page = Page(html.render(gather(campaign_events()))), Page(html.render(gather(hostile_events())))
    assert page.tags <= clean_page.tags
    assert {k for k, _ in page.attributes} <= {k for k, _ in clean_page.attributes}
    assert {v for k, v in page.attributes if k == "href"} <= {f"#{v}" for k, v in page.attributes if k == "id"}
    assert "<script>alert(1)</script>" in page.words  # shown as text
    assert "\u202e" not in page.words
    assert "\x00" not in page.words


def test_untrusted_text_never_becomes_markup_in_markdown() -> None:
    text = markdown.render(gather(hostile_events()))
    assert "\u202e" not in text
    fenced = re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$", "", text)
    bare = re.sub(r"(?<!\\)(`+)(?!`).*?(?<!`)\1(?!`)", "", fenced)
    assert not re.search(r"(?<!\\)<", bare)
    assert not re.search(r"(?<!\\)\]\(", bare)
    for block in text.split("\n\n"):
        lines = block.split("\n")
        if lines[0].startswith("| "):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1


def test_a_markdown_reader_finds_only_the_markup_that_is_ours() -> None:
    reader = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")

    def kinds(events: list[Event]) -> tuple[set[str], int]:
        tokens = [t for top in reader.parse(markdown.render(gather(events))) for t in (top, *(top.children or []))]
        return {t.type for t in tokens}, sum(t.type == "heading_open" for t in tokens)

    assert kinds(hostile_events()) == kinds(campaign_events())
    assert not kinds(hostile_events())[0] & {"html_inline", "html_block", "link_open", "image"}


@pytest.mark.parametrize("page", [html.render, markdown.render])
def test_a_campaign_can_be_read_at_every_moment_of_its_life(page: Any) -> None:
    events = campaign_events()
    for n in range(1, len(events) + 1, 3):
        assert page(gather(events[:n]))


def test_the_page_says_what_a_signer_needs(facts: ReportFacts) -> None:
    for words in (Page(html.render(facts)).words, markdown.render(facts)):
        for needed in (
            "+234%",
            "1,158 → 3,870 tokens/s/device",
            "±3.6%",
            "MCORE-PLC-011",
            "6.271789",
            "expert bias",
            "+70% ±20%",
            "out of memory",
            "optimizer_cpu_offload",
            "MCORE-OBJ-041",
            "33.36",
            "UTC",
            "attuner ledger verify",
            "noise.floor not given",
        ):
            assert needed in words


def test_nothing_is_claimed_when_the_baseline_was_kept() -> None:
    events = campaign_events()
    kept = {"kept_baseline": True, "reason": "the gain did not repeat"}
    changed = [
        e.model_copy(update={"record": {**e.record, **kept}}) if e.kind in ("remeasurement", "shipment") else e for e in events
    ]
    facts = gather(changed)
    assert (facts.state, claims.headline(facts)) == ("baseline kept", "Baseline kept")
    assert "the gain did not repeat" in claims.evidence(facts)
    assert facts.recipe == facts.campaign.baseline
    assert claims.payback(facts) == ""
    assert "The baseline&#x27;s recipe" in html.render(facts)


def test_cuda_hardware_is_called_gpu() -> None:
    events = campaign_events()
    data = json.loads(json.dumps(events[0].record))
    data["launcher"]["cluster"]["device"]["kind"] = "cuda"
    words = Page(html.render(gather([events[0].model_copy(update={"record": data}), *events[1:]]))).words
    assert "tokens/s/GPU" in words
    assert "2 GPUs" in words
    assert "tokens/s/device" not in words


def test_a_machine_too_busy_to_measure_is_said_on_top() -> None:
    busy = {"busy": True, "sigma": 0.21, "band": 0.63}
    events = [e.model_copy(update={"record": {**e.record, **busy}}) if e.kind == "calibration" else e for e in campaign_events()]
    facts = gather(events)
    assert "too busy to measure well" in Page(html.render(facts)).words
    assert "too busy to measure well" in markdown.render(facts)


# --- every figure can be checked ---


def answers(facts: ReportFacts, events: Sequence[Event], query: str) -> list[tuple[Any, ...]]:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect(":memory:") as db:
        db.execute('CREATE TABLE events (campaign_id VARCHAR, n BIGINT, kind VARCHAR, key VARCHAR, "at" DOUBLE, record JSON)')
        rows = [(e.campaign_id, e.n, e.kind, e.key, e.at, json.dumps(e.record)) for e in events]
        db.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?)", [*rows, ("other", 1, "settled", "l01#1", 0.0, "{}")])
        db.execute(queries.view(facts))
        return [tuple(row) for row in db.execute(query).fetchall()]


def test_the_printed_queries_give_the_printed_figures(facts: ReportFacts) -> None:
    events = campaign_events()

    def ask(query: str) -> list[tuple[Any, ...]]:
        return answers(facts, events, query)

    assert ask(queries.claim(facts))[0][:2] == ("1158.0", "3870.0")
    total = {kind: minutes for kind, _, minutes in ask(queries.spend(facts))}
    assert total["total"] == pytest.approx(facts.total_gpu_hours * 60)
    assert {s.kind: pytest.approx(s.gpu_hours * 60) for s in facts.spend} == {k: v for k, v in total.items() if k != "total"}
    names = [row[0] for row in ask(queries.changes(facts))]
    assert names == [c.change.key for c in facts.changes if not c.change.key.startswith("fact:")]
    launches = ask(queries.launches(facts))
    assert [row[0] for row in launches] == [r.id for r in facts.rows if r.id.startswith("l")]
    assert sum(row[-1] for row in launches) == pytest.approx(facts.total_gpu_hours * 60)
    looks = ask(queries.looks(facts))
    assert [row[1] for row in looks if row[2] == "step-0 loss"] == ["l14#1", "l18#1", "l20#1", "l22#1"]
    assert dict((row[0], round(row[1], 9)) for row in ask(queries.breakdown(facts))) == {"l05": 3.62, "l14": 1.12}
    assert {row[2] for row in ask(queries.reviews())} >= {"optimizer_cpu_offload"}
    assert Recipe.model_validate(json.loads(ask(queries.recipe(facts))[0][0])) == facts.recipe


def test_a_campaign_id_cannot_leave_its_query() -> None:
    facts = gather([e.model_copy(update={"campaign_id": "x' OR '1'='1"}) for e in campaign_events()])
    assert answers(facts, campaign_events(), "SELECT count(*) FROM mine") == [(0,)]


def test_a_recipe_reads_back_as_it_was() -> None:
    yaml = pytest.importorskip("yaml")
    hard = [
        "no",
        "1e5",
        "1e-05",
        "",
        " x",
        "a: b",
        "#c",
        "~",
        "null",
        "\u2028\x7f\U0001f600é",
        '"',
        "0x1F",
        "1_000",
        "=",
    ]
    values = {f"k{n}": v for n, v in enumerate([*hard, 1e-05, 1.5e300, -0.0, 3, True, None, 0.1, [1, "no", None, 2.5e-7], []])}
    recipe = Recipe.model_validate({"stack": "mcore", "arguments": {**values, "on": 1, "a b": 2}, "env": {"X": "1", "Y": "yes"}})
    back = yaml.safe_load(recipe_yaml(recipe))
    assert back == recipe.model_dump()
    assert Recipe.model_validate(back).digest() == recipe.digest()


# --- board, terminal, drawing ---


def test_the_board_has_one_line_per_campaign_the_last_moved_first() -> None:
    events = campaign_events()
    early = [e.model_copy(update={"campaign_id": "older-0001"}) for e in events[:40]]
    found = board.rows([early, events])
    assert [r["campaign"] for r in found] == [CAMPAIGN_ID, "older-0001"]
    assert (found[0]["num_launches"], found[0]["num_failed"], found[0]["num_reviews"]) == (22, 3, 1)
    assert found[0]["gain"] == pytest.approx(3870 / 1158 - 1)
    lines = board.text(found).splitlines()
    assert "1,158 → 3,870" in lines[1]
    assert "+66%?" in lines[2]
    assert lines[3].startswith("?")
    assert json.loads(json.dumps(found)) == found
    assert board.text([]) == "no campaign in this ledger yet\n"


@pytest.mark.parametrize(
    ("x", "said"),
    [
        (0.66, "+66%"),
        (2.3419, "+234%"),
        (0.011, "+1.1%"),
        (-0.031, "−3.1%"),
        (0.0, "0%"),
        (-0.0001, "0%"),
        (math.nan, "not finite"),
    ],
)
def test_a_gain_has_a_sign(x: float, said: str) -> None:
    assert pct(x) == said


def test_a_bar_shows_whatever_is_above_zero() -> None:
    assert [len(bar(x, 10)) for x in (0, 0.001, 0.49, 1, 7, -1, math.nan)] == [0, 1, 5, 10, 10, 0, 0]
    assert bar(0.5, 0) == ""


def test_figures_carry_their_units() -> None:
    assert device_minutes(0.005) == "0.3 device-min"
    assert device_minutes(2.5, device="GPU") == "150 GPU-min"
    assert [share_pct(x) for x in (0.487, 0.036, 0.05, 1.0)] == ["49%", "3.6%", "5%", "100%"]
    assert units_for("cuda", 340.0).spent(12.5) == "12.50 GPU-hours"
    assert units_for("cpu", 0.5).spent(0.005) == "0.30 device-minutes"
    assert [number(x) for x in (1234.5, 99.94, 1.007, 0.04, 0.0)] == ["1,234", "99.9", "1.01", "0.0400", "0"]
    assert when(0) == "1970-01-01 00:00 UTC"
    assert when(1e300) == "unknown"
    assert span(0, 60) == "1970-01-01 00:00–00:01 UTC"
    assert clean("a\n b\x1b[31m\u202e") == "a b\ufffd[31m\ufffd"
    assert len(clean("x" * 10_000)) == 600


@pytest.mark.parametrize(("low", "high"), [(0, 4250), (0.97, 1.04), (0, 1e-3), (-5, 5), (0, 7)])
def test_ticks_are_round_and_inside(low: float, high: float) -> None:
    found = ticks(low, high, 5)
    assert 3 <= len(found) <= 8
    assert all(low - 1e-9 <= t <= high + 1e-9 for t in found)
    assert ticks(1, 1, 5) == []
    assert ticks(0, math.inf, 5) == []


def test_labels_never_lie_on_one_another() -> None:
    canvas = Canvas(Box(0, 0, 100, 100))
    assert canvas.label([(10, 50, "start")], "first", "")
    assert canvas.label([(12, 52, "start")], "second", "") == ""
    assert canvas.label([(12, 52, "start"), (12, 90, "start")], "second", "")
    assert canvas.label([(90, 20, "start")], "outside the frame", "") == ""


def test_every_charged_launch_is_a_mark_with_its_story(facts: ReportFacts) -> None:
    drawn = curve(facts)
    told = re.findall(r"<title>(\S+) ", drawn)
    assert sorted(told) == sorted(r.id for r in facts.rows if r.gpu_hours > 0)
    assert "out of memory" in drawn
    assert "device-minutes charged" in drawn
