"""The log reader as a stream: pieces of any size, other writers between and inside lines, and what it keeps in memory."""

from __future__ import annotations

import math
import tracemalloc

import pytest

from attuner.logs.blocks import Blocks
from attuner.logs.lines import MAX_LINE, opened, shown
from attuner.logs.reader import LogReader, read
from attuner.logs.record import LogRecord, steady

TAIL = "loss scale: 1.0 | grad norm: 0.500 | number of skipped iterations:   0 | number of nan iterations:   0 |"


def line(iteration: int, *, loss: float = 6.5, ms: float = 2004.7, prefix: str = "") -> str:
    """Return a step line as Megatron-LM prints it."""
    return (
        f"{prefix} [2026-02-11 08:40:07] iteration {iteration:8}/     100 | consumed samples: {iteration * 8:12} | "
        f"elapsed time per iteration (ms): {ms:.1f} | learning rate: 1.500000E-04 | global batch size:     8 | "
        f"lm loss: {loss:.6E} | {TAIL}"
    )


def feed(data: bytes, size: int, **known: int) -> list[LogRecord]:
    reader, out = LogReader(**known), []
    for at in range(0, len(data), size):
        out += reader.feed(data[at : at + size])
    return out + reader.close()


def test_pieces_of_any_size_give_the_same_records() -> None:
    text = "\n".join([line(1), "noise", line(2) + line(3), "x" * 300, line(4, loss=5.0) + "\r", "\x1b[36mcolour\x1b[0m", line(5)])
    data = text.encode()
    whole = feed(data, len(data), seq_length=16)
    assert [r.iteration for r in whole] == [1, 2, 3, 4, 5]
    assert [r.line for r in whole] == [1, 3, 3, 5, 7]
    for size in (1, 7, 64, 1000):
        assert [repr(r) for r in feed(data, size, seq_length=16)] == [repr(r) for r in whole]


@pytest.mark.parametrize(
    ("prefix", "rank", "writer"),
    [
        ("[rank3]: ", 3, ""),
        ("[default1]:", 1, "[default1]"),
        ("7: ", 7, ""),
        ("  7: [rank12]: ", 12, ""),
        ("(MegatronTrainRayActor pid=38610) ", None, "MegatronTrainRayActor pid=38610"),
        ("\x1b[36m(Trainer pid=9, ip=10.0.0.2)\x1b[0m ", None, "Trainer pid=9, ip=10.0.0.2"),
        ("[pod/job-worker-0/trainer] 2026-01-01T00:00:00.5Z ", None, "job-worker-0/trainer"),
        ("2026-01-01T00:00:00.5Z stdout F [rank5]: ", 5, ""),
        ("node-2: [rank16]: ", 16, "node-2"),
        ("worker-1  | ", None, "worker-1"),
    ],
)
def test_prefixes_of_launchers_are_taken_off_and_tell_the_writer(prefix: str, rank: int | None, writer: str) -> None:
    record = read([line(3, prefix=prefix)])[0]
    assert (record.iteration, record.rank, record.writer) == (3, rank, writer)


@pytest.mark.parametrize("at", range(60, 330, 9))
@pytest.mark.parametrize(
    "foreign",
    [
        "[rank12]:[W105 12:20:31.000000001 ProcessGroupNCCL.cpp:1250] Warning: process group has NOT been destroyed",
        "node-3:3485:3487 [0] NCCL INFO Channel 00/0 : 1[1] -> 2[2] via P2P",
        "(Trainer pid=77) Compiling",
    ],
)
def test_a_line_that_another_writer_broke_is_rejoined_or_partial_and_never_wrong(at: int, foreign: str) -> None:
    text = line(41)
    broken = f"{text[:at]}{foreign}\nnode-1:1:2 [0] NCCL INFO x\n{text[at:]}"
    found = feed(broken.encode(), 50)
    truth = read([text])[0]
    assert len(found) <= 1
    for record in found:
        told = {k: getattr(record, k) for k in ("elapsed_ms", "learning_rate", "global_batch_size", "lm_loss", "grad_norm")}
        assert {k: v for k, v in told.items() if v is not None}.items() <= {k: getattr(truth, k) for k in told}.items()
        assert not record.whole or None not in told.values()


def test_a_rest_that_never_comes_leaves_a_partial_record_without_a_loss() -> None:
    text = line(41)
    found = read([text[: text.index("lm loss")] + "[rank1]: boo", *["[rank1]: boo"] * 20, line(42)])
    assert [(r.iteration, r.whole, r.lm_loss) for r in found] == [(41, False, None), (42, True, 6.5)]


def test_a_log_that_ends_inside_a_line_is_partial_there() -> None:
    text = line(7)
    record = feed(text[: text.index("E-04") + 2].encode(), 10)[0]
    assert (record.whole, record.elapsed_ms, record.learning_rate) == (False, 2004.7, None)


def test_a_missing_loss_is_nan_only_where_an_update_was_made() -> None:
    gone = line(1).replace("lm loss: 6.500000E+00 | ", "")
    assert math.isnan(read([gone])[0].lm_loss or 0.0)
    skipped = read([gone.replace("skipped iterations:   0", "skipped iterations:   1").replace("grad norm: 0.500 | ", "")])[0]
    assert (skipped.lm_loss, skipped.stepped) == (None, False)


def test_half_a_number_and_pythons_own_spellings_are_no_numbers() -> None:
    odd = line(1).replace("6.500000E+00", "6_5").replace("0.500", "0.5.1")
    record = read([odd])[0]
    assert (record.lm_loss, record.grad_norm, record.whole) == (None, None, False)


def test_bridges_own_time_line_is_given_to_the_step_of_that_time_whichever_comes_first() -> None:
    after = [line(1, ms=1000.0), line(2, ms=2000.0), "Step Time : 2.00s GPU utilization: 10.5MODEL_TFLOP/s/GPU", line(3, ms=9.0)]
    before = ["Step Time : 1.00s GPU utilization: 20.5MODEL_TFLOP/s/GPU", *after]
    assert [r.tflops_per_gpu for r in read(before)] == [20.5, 10.5, None]


def test_a_line_that_every_rank_prints_is_one_step_and_a_restart_is_another() -> None:
    titan = (
        "[titan] 2026-02-24 19:46:17,508 - root - INFO - step: {}  loss:  7.6  grad_norm: 2.6  memory: 6.9GiB(3%)  tps: 10,050"
    )
    lines = [f"[rank{r}]:{titan.format(s)}" for s in (4, 5) for r in (0, 1, 2)] + [f"[rank0]:{titan.format(4)}"]
    found = read(lines, world_size=3)
    assert [(r.iteration, r.tokens_per_s) for r in found] == [(4, 30150.0), (5, 30150.0), (4, 30150.0)]


def test_the_first_step_of_every_start_says_nothing_of_speed() -> None:
    found = read([line(n, ms=9.0) for n in (1, 2, 3, 1, 2)])
    assert [r.iteration for r in steady(found)] == [2, 3, 2]


def test_a_progress_bar_is_one_step_a_count_however_often_it_is_painted() -> None:
    bar = "Epoch 0:   6%|6   | {}/500150 [6:28:43<94:39:17,  {}, loss=2.6, reduced_train_loss=2.590, global_step=3.2e+4]"
    data = "\r".join([bar.format(1, "1.25it/s"), bar.format(1, "1.25it/s"), bar.format(2, "1.5s/it")]).encode()
    assert [(r.iteration, r.elapsed_ms, r.lm_loss) for r in feed(data, 40)] == [(1, 800.0, 2.59), (2, 1500.0, 2.59)]


def test_a_critics_step_and_a_dictionary_of_objects_do_no_harm() -> None:
    actor = "(A pid=1) [t] model.py:918 - step 3: {'train/loss': np.float64(-0.5), 'train/grad_norm': tensor(0.25)}"
    found = read([actor.replace("step 3", "critic-step 3"), actor])
    assert [(r.iteration, r.lm_loss, r.grad_norm) for r in found] == [(3, -0.5, 0.25)]


def test_automodels_lines_are_steps_and_its_validation_is_none() -> None:
    train = (
        "2026-08-10 16:01:02 | INFO | root | step 7 | epoch 0 | loss 1.2500 | grad_norm 0.5000 | lr 1.00e-05 | mem 12.50 GiB | "
    )
    lines = [train + "tps 800.00(100.00/gpu) | num_label_tokens 4096", train.replace("step 7", '[val] name "x" | step 7')]
    found = read(lines)
    assert [(r.iteration, r.lm_loss, r.tokens_per_s, r.tokens_per_s_per_gpu, r.peak_mem_gib) for r in found] == [
        (7, 1.25, 800.0, 100.0, 12.5)
    ]
    bench = "Rank 0 | Iteration 3 | num_label_tokens=4096 | Max Memory Allocated: 20.25 GB | loss=2.5000"
    assert [(r.iteration, r.lm_loss, r.peak_mem_gib, r.rank) for r in read([bench])] == [(3, 2.5, 20.25, 0)]


def test_facts_beside_the_steps_are_kept() -> None:
    reader = LogReader()
    lines = [
        "using world size: 4, data-parallel size: 2, ",
        "  seq_length ...................................... 128",
        " > number of parameters on (tensor, pipeline) model parallel rank (1, 0): 1234",
        line(1) + "[Rank 2] (after 1 iterations) memory (MB) | allocated: 2048.0 | max allocated: 4096.0 | max reserved: 5120.0",
        "[Rank 3] (after 2 iterations) memory (GB) | mem-max-allocated-gigabytes: 10.737 | mem-alloc-retires: 0",
        "[Rank 1] Memory-Usage after train: {'gpu': '0', 'total_GB': 80.0, 'used_GB': 41.5, 'allocated_GB': 40.0}",
        "perf 5: {'perf/actor_train_time': 2.5, 'perf/actor_train_tflops': 300.0}",
    ]
    records = reader.feed("\n".join(lines).encode()) + reader.close()
    facts = reader.facts
    assert (facts.world_size, facts.seq_length, facts.parameters) == (4, 128, {(1, 0): 1234})
    assert records[0].tokens_per_s == pytest.approx(8 * 128 / 2.0047)
    assert (facts.memory[2].max_allocated_gib, facts.memory[2].max_reserved_gib) == (4.0, 5.0)
    assert facts.memory[3].max_allocated_gib == pytest.approx(10.737e9 / 2**30)
    assert (facts.memory[1].used_gib, facts.memory[1].total_gib) == (41.5, 80.0)
    assert reader.rollouts[5].elapsed_ms == 2500.0


def test_nuls_and_sixteen_bit_text_are_read() -> None:
    assert [r.iteration for r in feed(("\0" * 5000 + line(1) + "\n" + line(2)).encode(), 999)] == [1, 2]
    assert [r.iteration for r in feed((line(1) + "\n").encode("utf-16-le"), 77)] == [1]


def test_a_line_without_end_costs_no_memory_and_hides_nothing_behind_it() -> None:
    blocks, lines = Blocks(), []
    tracemalloc.start()
    for _ in range(300):
        block = blocks.feed(b"y" * 100_000)
        lines += [] if block is None else [block.data]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4_000_000
    assert len(lines) == 1
    assert len(lines[0]) == MAX_LINE + 1
    reader = LogReader()
    for _ in range(30):
        reader.feed(b"y" * 100_000)
    rest = reader.feed(f"\n{line(1)}\n".encode()) + reader.close()
    assert [(r.iteration, r.line) for r in rest] == [(1, 2)]


def test_a_log_that_is_still_written_is_read_without_waiting() -> None:
    reader = LogReader()
    assert reader.feed(f"{line(1)}\n{line(2)[:90]}".encode()) == []
    assert [r.iteration for r in reader.flush()] == [1]
    assert [r.iteration for r in reader.feed(line(2)[90:].encode()) + reader.close()] == [2]


@pytest.mark.parametrize(
    "text",
    [
        "\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m \x9b31m\u202eevil",
        "a\tb\rc\x08\x7f",
    ],
)
def test_what_is_shown_to_a_person_holds_no_control_codes(text: str) -> None:
    assert all(c.isprintable() for c in shown(text))
    assert "\x1b" not in opened(text, 1).text


def test_what_is_shown_is_one_line_of_bounded_length() -> None:
    assert len(shown("word \n" * 5000)) < 260
