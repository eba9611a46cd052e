"""Law: a damaged, cut or empty trace file gives what is whole in it, or a reason; what is lost is counted."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
from kineto_lab import busy_step, document, event, kernel, launch, said, step, text, us

from attuner.core.errors import UserError
from attuner.traces.columns import read_events
from attuner.traces.kineto import breakdown
from attuner.traces.profile import profile


def test_negative_lengths_and_clocks_at_zero_are_dropped_and_counted() -> None:
    bad = [{**kernel("x", 5, 6), "dur": -3}, {**kernel("x", 5, 6), "ts": 0, "dur": 0}, {**kernel("x", 5, 6), "ts": None}]
    found = profile(document(*busy_step(), *bad))
    assert found.steps == profile(document(*busy_step())).steps
    assert said(found)["dropped"] == 3
    note = next(q.text for q in found.quirks if q.code == "dropped")
    assert note == (
        "dropped: 1 with a negative length (end never written, kineto PR 646), 1 at time 0 (kineto 109), "
        "1 without a proper time or name"
    )


def test_not_a_number_is_dropped_and_counted() -> None:
    raw = text(*busy_step(), kernel("x", 5, 6)).replace('"dur": 1,', '"dur": NaN,')
    found = profile(raw.encode())
    assert us(found.steps[0])["compute"] == 30.0
    assert "without a proper time" in next(q.text for q in found.quirks if q.code == "dropped")


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        ('operator""_kernel<"x">', 'operator""_kernel<"x">'),
        (r"C:\python\kernel.cu", r"C:\python\kernel.cu"),
        ("tab\there and \x01", "tab\there and \x01"),
    ],
)
def test_invalid_json_is_mended_event_by_event(broken: str, repaired: str) -> None:
    raw = text(*busy_step(), kernel("PLACE", 90, 95, 3000), launch(75, 3000)).replace("PLACE", broken)
    found = profile(raw.encode())
    assert us(found.steps[0])["compute"] == 35.0
    assert [k.name for k in found.kernels if k.total == 5_000] == [repaired]
    if "\t" not in broken:  # control characters are read as they are
        note = next(q.text for q in found.quirks if q.code == "invalid_json")
        assert "1 events of invalid JSON were mended, 0 lost, first at byte" in note
        at = int(note.split("at byte ")[1].split(" ")[0].replace(",", ""))
        assert raw.encode()[at : at + 80].lstrip().startswith(b'{"ph": "X", "cat": "kernel", "name": "' + broken[:3].encode())


def test_an_event_that_cannot_be_told_is_lost_and_counted() -> None:
    raw = text(*busy_step(), event("aten::lost", 1, 2, cat="cpu_op"), *busy_step(2, 100))
    raw = raw.replace('"name": "aten::lost"', '"name": aten"')
    found = profile(raw.encode())
    assert [us(s)["compute"] for s in found.steps] == [30.0, 30.0]
    assert "0 events of invalid JSON were mended, 1 lost, first at byte" in next(q.text for q in found.quirks)


def test_a_truncated_file_gives_its_complete_events() -> None:
    raw = text(*(e for n in range(5) for e in busy_step(n, 100 * n))).encode()
    whole = profile(raw)
    for cut in (raw[:-30], raw[: len(raw) * 2 // 3], raw[: raw.rindex(b"]")]):
        found = profile(cut)
        assert said(found)["truncated"] == 1
        assert found.steps[0] == whole.steps[0]
        with pytest.raises(UserError, match="ends early"):
            breakdown(cut, rank=0)
    packed = gzip.compress(raw)
    found = profile(packed[: len(packed) * 3 // 4])
    assert "the gzip data ends early" in next(q.text for q in found.quirks if q.code == "truncated")
    assert found.steps[0] == whole.steps[0]


def columns(source: Any, block_bytes: int) -> list[Any]:
    """Everything that is read of a trace's events."""
    e = read_events(source, block_bytes=block_bytes)
    names = [e.names[n] for n in e.name]
    return [e.start.tolist(), e.end.tolist(), names, e.cat.tolist(), [e.threads[t] for t in e.thread], e.correlation.tolist()]


def test_pieces_members_and_blocks_are_read_as_one_file() -> None:
    raw = text(*(e for n in range(40) for e in busy_step(n, 100 * n))).encode()
    whole = profile(raw)
    members = gzip.compress(raw[:5000]) + gzip.compress(raw[5000:])
    for source in (gzip.compress(raw), members):
        pieces = [source[k : k + 777] for k in range(0, len(source), 777)]
        assert profile(iter(pieces)).steps == whole.steps
    assert columns([raw[k : k + 999] for k in range(0, len(raw), 999)], 2000) == columns(raw, 1 << 20)
    bad = raw.replace(b"gemm1", b'ge"mm1')
    assert columns([bad[k : k + 999] for k in range(0, len(bad), 999)], 2000) == columns(bad, 1 << 20)
    assert [s.span for s in profile(bad).steps] == [s.span for s in whole.steps]
    assert said(profile(bad))["invalid_json"] == 40


def test_a_boundary_inside_a_string_or_a_nested_list_does_not_split_an_event() -> None:
    odd = [kernel('}, {"ph": "X"', 80, 85, 3), event("aten::x", 1, 2, cat="cpu_op", inner=[{"name": 1}, {"name": 2}])]
    raw = text(*busy_step(), *odd, *busy_step(2, 100)).encode()
    whole = profile(raw)
    assert us(whole.steps[0])["compute"] == 35.0
    pieces = [raw[k : k + 50] for k in range(0, len(raw), 50)]
    wanted = columns(raw, 1 << 20)
    for size in range(100, len(raw), 97):
        assert columns(pieces, size) == wanted


# --- nothing to break down ---


def test_a_lost_device_is_refused_and_not_called_idle() -> None:
    with pytest.raises(UserError, match="no kernel was recorded"):
        profile(document(step(1, 0, 100), launch(1, 1)))


def test_records_that_all_lie_outside_the_steps_are_refused() -> None:
    with pytest.raises(UserError, match="outside every profiled step"):
        profile(document(step(1, 0, 100), kernel("far", 5000, 6000)))


def test_an_empty_trace_and_one_of_bad_events_get_a_reason() -> None:
    with pytest.raises(UserError, match="nothing was recorded"):
        profile(document())
    with pytest.raises(UserError, match="none of its 1 events"):
        profile(document({**kernel("x", 1, 2), "dur": -1}))


def test_a_trace_without_step_marks_is_one_step_and_says_so() -> None:
    found = profile(document(launch(0, 1), kernel("a", 10, 20, 1), launch(30, 2), kernel("b", 40, 70, 2)), name="rank12.json")
    assert found.whole
    assert us(found.steps[0]) == {"compute": 40.0, "exposed": 0.0, "copy": 0.0, "host": 12.0, "idle": 8.0}
    assert {"no_steps"} <= set(said(found))
    assert (found.rank, found.rank_from) == (12, "file name")
    with pytest.raises(UserError, match="no ProfilerStep"):
        breakdown(document(launch(0, 1), kernel("a", 10, 20, 1)), rank=0)


def test_an_unknown_rank_is_said() -> None:
    assert said(profile(document(*busy_step())))["no_rank"] == 1
