"""Laws of the page's figures beyond the claim: each equals what a person works out by hand from the records."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from report_lab import CONTEXT, PRICE, SHAPE, spoken_events
from test_report_campaign import GPUS, campaign_events
from test_report_pages import EVIL, Page, answers, poisoned

from attuner.core.events import Event
from attuner.core.people import Invalidated
from attuner.report import claims, html, markdown, queries, said
from attuner.report.bars import bars, parts
from attuner.report.details import Context
from attuner.report.economy import payback, unit_of
from attuner.report.facts import ReportFacts, gather
from attuner.report.predictions import ESTIMATE, PROPOSER
from attuner.report.scatter import scatter
from attuner.report.setting import ranges
from attuner.report.style import _DARK, _LIGHT

BEFORE, AFTER = 1158.0, 3870.0


@pytest.fixture(scope="module")
def facts() -> ReportFacts:
    return gather(spoken_events(), CONTEXT)


def pages(facts: ReportFacts) -> tuple[str, str]:
    return Page(html.render(facts)).words, markdown.render(facts)


# --- what it is worth ---


def test_mfu_is_operations_times_speed_over_the_peak(facts: ReportFacts) -> None:
    h, f, v, layers, seq = SHAPE["hidden_size"], SHAPE["ffn_hidden_size"], SHAPE["vocab_size"], SHAPE["num_layers"], 256
    attention = 4 * h * h  # query, key, value, output
    scores = 2 * seq * h / 2  # queries with keys, weights with values; causal: half
    per_token = 6 * (layers * (attention + scores + 2 * h * f) + v * h)  # forward 2, backward 4, for each parameter
    e = facts.details.economy
    assert e.mfu_before == pytest.approx(per_token * BEFORE / 0.1e12)
    assert e.mfu_after == pytest.approx(per_token * AFTER / 0.1e12)


def test_dollars_per_million_tokens_are_price_over_speed(facts: ReportFacts) -> None:
    e = facts.details.economy
    assert e.usd_before == pytest.approx(2.0 / 3600 / BEFORE * 1e6)
    assert e.usd_after == pytest.approx(2.0 / 3600 / AFTER * 1e6)
    for words in pages(facts):
        assert "0.480 → 0.144" in words  # 2 $/h: 0.4797 and 0.1436
        assert "read 2026-10" in words
    assert PRICE.source in pages(facts)[0]


def test_without_a_price_it_says_so_and_prints_no_dollars() -> None:
    facts = gather(spoken_events())
    assert facts.details.economy.usd_after is None
    for words in pages(facts):
        assert "no price is stated for cpu (2 × 1 thread)" in words
    why = gather(spoken_events(), Context(no_prices="the price table can't be read (x.yaml: boom)")).details.economy.why_no_price
    assert "boom" in why


def test_the_tuning_is_paid_back_when_the_saved_device_hours_reach_its_charge(facts: ReportFacts) -> None:
    found, gain = claims.paid(facts), AFTER / BEFORE - 1
    assert found is not None
    saved = 1 - BEFORE / AFTER
    assert found.baseline_hours == pytest.approx(facts.total_gpu_hours / (GPUS * saved))
    assert found.hours == pytest.approx(found.baseline_hours / (1 + gain))
    # what was saved by then is what was charged
    assert GPUS * (found.baseline_hours - found.hours) == pytest.approx(facts.total_gpu_hours)
    assert found.low < found.hours < (found.high or 0)
    assert found.low == pytest.approx(facts.total_gpu_hours / (GPUS * (gain + 0.036)))
    (asked,) = answers(facts, spoken_events(), queries.worth(facts))
    assert asked == (GPUS, pytest.approx(facts.total_gpu_hours), pytest.approx(gain), pytest.approx(found.hours))


def test_a_gain_inside_the_band_may_never_be_paid_back() -> None:
    found = payback(10.0, 4, gain=0.02, band=0.03)
    assert found is not None
    assert (found.hours, found.high) == (pytest.approx(125.0), None)
    assert payback(10.0, 4, gain=0.0, band=0.03) is None


@pytest.mark.parametrize(
    ("unit", "value", "before", "after"),
    [
        ("tokens/s/GPU", 2000.0, BEFORE / 2000 - 1, AFTER / 2000 - 1),
        ("tok/s per device", 2000.0, BEFORE / 2000 - 1, AFTER / 2000 - 1),
        ("tokens/s", 4000.0, 2 * BEFORE / 4000 - 1, 2 * AFTER / 4000 - 1),
        # 16 rows of 256 tokens on two devices
        ("s/step", 1.0, 1.0 / (4096 / BEFORE / 2) - 1, 1.0 / (4096 / AFTER / 2) - 1),
    ],
)
def test_the_gap_to_the_published_figure_is_of_speed(unit: str, value: float, before: float, after: float) -> None:
    gap = gather(spoken_events(unit=unit, value=value), CONTEXT).details.economy.gap
    assert gap is not None
    assert (gap.gap_before, gap.gap_after) == (pytest.approx(before), pytest.approx(after))


def test_a_published_flop_rate_is_held_against_ours_with_the_caveat() -> None:
    facts = gather(spoken_events(unit="TFLOP/s/GPU", value=0.001), CONTEXT)
    e = facts.details.economy
    assert e.gap is not None
    assert e.gap.after == pytest.approx((e.mfu_after or 0) * 0.1)  # the peak is 0.1 TFLOP/s
    assert "their count may differ" in e.gap.note
    assert "their count may differ" in markdown.render(facts)


def test_a_unit_that_nobody_knows_has_no_gap() -> None:
    gap = gather(spoken_events(unit="samples/day"), CONTEXT).details.economy.gap
    assert gap is not None
    assert (gap.unit, gap.gap_before, gap.gap_after) == ("", None, None)
    assert "not stated" in gap.note


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        ("tokens/s/GPU", "tokens"),
        ("Tokens / sec / GPU", "tokens"),
        ("tok/gpu/s", "tokens"),
        ("TFLOPS/GPU", "flops"),
        ("model TFLOP/s/GPU", "flops"),
        ("TFLOPs/s/device", "flops"),
        ("s/step", "step"),
        ("seconds per iteration", "step"),
        ("tokens/s", "total"),
        ("% MFU", ""),
        ("ms/step", ""),
        ("PFLOP/s/GPU", ""),
        ("GFLOPS/GPU", ""),
    ],
)
def test_a_unit_is_known_however_it_is_spelled(words: str, unit: str) -> None:
    assert unit_of(words) == unit


# --- predicted against measured ---


def test_the_errors_of_predictions_are_measured_minus_predicted(facts: ReportFacts) -> None:
    by = {(a.by, a.what): a for a in facts.details.accuracy}
    h01, h03 = 1930 / 1160 - 1, 2480 / 1930 - 1
    gain = by[(ESTIMATE, "gain")]
    assert gain.num == 2
    assert gain.mean_error == pytest.approx((abs(h01 - 0.5) + abs(h03 - 0.3)) / 2)
    assert gain.bias == pytest.approx((h01 - 0.5 + h03 - 0.3) / 2)
    assert gain.num_inside == 2  # off by 0.164 of ±0.20, by 0.015 of ±0.05
    steps = [(4096 / 1930 / 2, 1.20), (4096 / 2480 / 2, 0.80)]
    time = by[(ESTIMATE, "step time")]
    assert time.mean_error == pytest.approx(sum(abs(m - p) / m for m, p in steps) / 2)
    assert time.num_inside == 2
    memory = by[(ESTIMATE, "peak memory")]
    assert memory.mean_error == pytest.approx((0.5 / 2.5 + 0.0) / 2)
    assert memory.num_inside == 1
    mine = [p for p in facts.details.predictions if p.by == PROPOSER]
    assert by[(PROPOSER, "gain")].mean_error == pytest.approx(sum(abs(p.miss) for p in mine) / len(mine))
    launched = {row[0]: row for row in answers(facts, spoken_events(), queries.predictions())}
    assert (float(launched["l06"][3]), float(launched["l06"][5])) == (0.5, pytest.approx(h01))


def test_every_prediction_is_a_mark_on_its_place(facts: ReportFacts) -> None:
    drawn = scatter(facts.details.predictions)
    told = re.findall(r"<title>(\w+), (\w+): predicted", drawn)
    assert sorted(told) == sorted((p.launch_id, p.by) for p in facts.details.predictions)
    exact = next(p for p in facts.details.predictions if p.by == PROPOSER)
    one = scatter([type(exact)("l01", PROPOSER, 0.5, 0.1, 0.5)])
    ((x0, y0, x1, y1),) = [
        tuple(map(float, m)) for m in re.findall(r'class="base" x1="(.*?)" y1="(.*?)" x2="(.*?)" y2="(.*?)"', one)
    ]
    ((x, y),) = [tuple(map(float, m)) for m in re.findall(r'class="m-leader" cx="(.*?)" cy="(.*?)"', one)]
    assert (x - x0) / (x1 - x0) == pytest.approx((y - y0) / (y1 - y0), abs=0.01)  # predicted exactly: on the line
    assert scatter([]) == ""


# --- the step ---


def test_the_bars_are_told_apart_without_colour(facts: ReportFacts) -> None:
    drawn = bars(facts.before, facts.after, css="wide", names=("before", "after"))
    found = parts(facts.before, facts.after)
    patterns = re.findall(r'<pattern id="wide-(p-\w+)"', drawn)
    assert len(patterns) == len(set(patterns))
    assert {p.css for p in found} - set(patterns) <= {"p-compute", "p-idle"}  # those two are plain: darkest and lightest
    assert "compute 35%" in drawn
    assert "exposed all-reduce 37%" in drawn


def test_the_query_beside_the_bars_gives_the_communication_in_them(facts: ReportFacts) -> None:
    asked = {(row[0], row[2]): row[3] for row in answers(facts, spoken_events(), queries.exposed(facts))}
    assert asked[("l05", "all_reduce")] == pytest.approx(0.37 * 3.62)
    shown = {p.name: (p.before_s, p.after_s) for p in parts(facts.before, facts.after)}
    assert shown["exposed all-to-all"] == (0.0, pytest.approx(asked[("l14", "all_to_all")]))


def test_text_on_every_colour_can_be_read() -> None:
    def light(colour: str) -> float:
        full = colour if len(colour) == 7 else "#" + "".join(c * 2 for c in colour[1:])
        rgb = [int(full[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        r, g, b = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b

    def contrast(a: str, b: str) -> float:
        high, low = sorted((light(a), light(b)), reverse=True)
        return (high + 0.05) / (low + 0.05)

    for sheet in (_LIGHT, _DARK):
        colours = dict(re.findall(r"--([\w-]+):(#[0-9a-f]{3,6})\b", sheet))
        pairs = [(k, k[3:]) for k in colours if k.startswith("on-")]
        pairs += [(ink, ground) for ink in ("ink", "soft", "blue", "red", "amber", "good") for ground in ("bg", "card", "faint")]
        assert {(a, b) for a, b in pairs if contrast(colours[a], colours[b]) < 4.5} == set()  # WCAG 2.2, 1.4.3


def test_the_diagnosis_of_the_baseline_bounds_what_a_launch_can_gain(facts: ReportFacts) -> None:
    (name, d), *_ = facts.details.diagnoses
    assert (name, d.launch_id) == ("baseline", "l05")
    exposed = sum(b.share for b in d.bottlenecks if b.name.startswith("exposed_comm"))
    assert exposed == pytest.approx(0.37 + 0.08 + 0.04)
    assert all(b.max_gain == pytest.approx(1 / (1 - b.share) - 1) for b in d.bottlenecks)
    for words in pages(facts):
        assert "What bounded the step" in words
        assert "exposed communication, whose group isn't told" in words


# --- verdicts, versions ---


def test_every_candidate_has_its_looks_with_the_measurement_that_decided(facts: ReportFacts) -> None:
    rows = {r.id: r for r in facts.details.verdicts}
    assert {"l06", "h02", "l13", "l14"} <= rows.keys()
    assert not {"l01", "l10", "l17"} & rows.keys()  # no candidates
    assert rows["h02"].config.decision == "refuse"
    assert "MCORE-OBJ-041 grad_reduce_in_bf16 False → True" in rows["h02"].config.said
    assert rows["h02"].forward.said == "not taken"
    wrong = rows["l13"].forward
    assert wrong.decision == "refuse"
    assert wrong.said.startswith("step-0 loss (6.271789 → 6.62")
    assert "off by 0.056, limit 0.05" in wrong.said
    assert said.verdict_counts(facts).startswith(f"{len(rows)} candidates: ")


def test_versions_that_differ_between_launches_name_the_launches(facts: ReportFacts) -> None:
    told = {r.name: r for r in facts.details.reported}
    torch = told["torch"]
    assert torch.differs
    assert next((v, ranges(ids)) for v, ids in torch.values) == ("2.12.0", "l01–l05")
    assert not told["framework"].differs
    assert told["devices"].values[0][0] == "2 × CPU <x>"
    assert told["hosts"].values[0][0] == "1"
    assert ranges(("l01", "l02", "l04", "h01")) == "l01, l02, l04, h01"
    asked = {(row[0], json.loads(row[1])): row[2] for row in answers(facts, spoken_events(), queries.versions())}
    assert asked[("torch", "2.12.0")] == [f"l0{n}" for n in range(1, 6)]


# --- people ---


def test_who_said_what_is_told_in_order_also_what_was_replaced(facts: ReportFacts) -> None:
    words = facts.details.words
    assert [(w.by, w.said.split(":")[0]) for w in words] == [
        ("Ada", "asked for"),
        ("Bob", "banned lever dp-overlap"),
        ("Bob", "set the budget to 54.00 device-minutes"),
        ("nobody", "did not answer in time"),
        ("Eve <b>", "refused 1 finding about l15"),
    ]
    assert words[0].followed == "h10, l15"
    assert "asked for by Ada" in pages(facts)[0]
    assert "asked for by Ada" in pages(facts)[1]
    assert claims.cost(facts).startswith("34.56 of 54.00 device-minutes")  # Bob's budget, not the campaign's 45
    for page in pages(facts):
        assert "set the budget to 54.00 device-minutes" in page
    assert "<b>" not in html.render(facts)
    asked = [row[2] for row in answers(facts, spoken_events(), queries.people())]
    assert asked == ["Ada", "Bob", "Bob", "Eve <b>", "Ada"]  # `mine` has the last answer about a launch


def test_a_persons_answer_decides_what_the_row_says(facts: ReportFacts) -> None:
    row = next(r for r in facts.rows if r.id == "l15")
    assert (row.verdict, row.reason) == ("refuse", "refused by Eve <b>: not <i>sure")
    verdict = next(r for r in facts.details.verdicts if r.id == "l15")
    assert (verdict.decision, verdict.answered) == ("refuse", "refused by Eve <b>")
    assert facts.other_reviews == ()


def test_a_rerun_says_who_why_what_was_set_aside_and_what_came_of_it(facts: ReportFacts) -> None:
    (again,) = facts.details.reruns
    assert (again.by, again.step, again.key, again.set_aside) == ("Ada", "launch", "l08", ("trial l08",))
    assert again.again == ("attempt l08#2 (ok)", "trial l08")
    row = next(r for r in facts.rows if r.id == "l08")
    assert (row.outcome, row.num_attempts) == ("ok", 2)
    assert row.gpu_hours == pytest.approx((9 + 36) * GPUS / 3600)  # both are charged
    for page in pages(facts):
        assert "a neighbour used the memory" in page


def test_what_a_rerun_set_aside_is_in_no_query(facts: ReportFacts) -> None:
    events = spoken_events()
    cut = next(n for n, e in enumerate(events) if e.kind == "invalidated")
    short = events[: cut + 1]
    rows = answers(gather(short, CONTEXT), short, queries.launches(gather(short, CONTEXT)))
    assert [row[3] for row in rows if row[0] == "l08"] == [None]
    assert next(r for r in gather(short).rows if r.id == "l08").outcome == "set aside"
    assert "set aside" in Page(html.render(gather(short))).words


def test_a_note_that_a_rerun_set_aside_is_not_said_any_more() -> None:
    events = campaign_events()
    word = Invalidated(step="remeasure", key="", by="Ada", why="again", hides=["note 1"])
    last = events[-1]
    more = {**last.model_dump(), "n": last.n + 1, "seq": last.n + 1, "kind": "invalidated", "key": "1", "record": word.data()}
    assert gather(events).notes
    assert gather([*events, Event.model_validate(more)]).notes == ()


def test_what_a_run_form_changed_is_pinned_and_said_with_the_command() -> None:
    events = campaign_events()
    change = {"key": "budget.gpu_hours", "before": 0.5, "after": 0.75}
    first = events[0].model_copy(update={"record": {**events[0].record, "changed": [change]}})
    for words in pages(gather([first, *events[1:]])):
        assert "budget.gpu_hours 0.5 → 0.75" in words
        assert "first set in the file what the run form set" in words


def test_every_page_can_be_read_at_every_moment(facts: ReportFacts) -> None:
    events: list[Any] = spoken_events()
    for n in range(1, len(events) + 1, 7):
        some = gather(events[:n], CONTEXT)
        assert html.render(some)
        assert markdown.render(some)
    assert facts.num_events == len(events)


def test_what_people_jobs_and_authors_wrote_never_becomes_markup(facts: ReportFacts) -> None:
    events = []
    for e in spoken_events():
        record = poisoned(e.record)
        if e.kind in ("directive", "review", "invalidated"):
            record |= {k: EVIL for k in ("by", "why", "lever") if record.get(k)}
        elif e.kind == "trial":
            record |= {"versions": {EVIL: EVIL}, "hardware": [EVIL]}
        elif e.kind == "breakdown":
            record["rank_steps"] = [{**r, "comm_by_kind": {EVIL: r["step_s"] / 10}} for r in record["rank_steps"]]
        elif e.kind == "campaign":
            record["published"] = {**record["published"], "source": EVIL, "unit": EVIL, "note": EVIL}
        events.append(e.model_copy(update={"record": record}))
    found, clean_page = gather(events, CONTEXT), Page(html.render(facts))
    page, reader = Page(html.render(found)), pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    assert page.tags <= clean_page.tags
    assert {k for k, _ in page.attributes} <= {k for k, _ in clean_page.attributes}
    assert page.words.count("<script>alert(1)</script>") > 20  # shown as text
    tokens = [t.type for top in reader.parse(markdown.render(found)) for t in (top, *(top.children or []))]
    assert not {"html_inline", "html_block", "link_open", "image"} & set(tokens)
