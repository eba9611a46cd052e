"""Triage over the logs of a run: the cause before the loudest line, the rank where it began, nothing claimed that isn't told."""

from __future__ import annotations

import functools
import random
import tracemalloc
from pathlib import Path

import pytest

from attuner.core.failure import Failure
from attuner.failures import load_failures
from attuner.logs.scan import LogScan
from attuner.logs.signatures import Book
from attuner.logs.triage import diagnose, triage

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = (
    "[rank{r}]:[E321 00:{m:02}:00 ProcessGroupNCCL.cpp:607] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=1580, OpType=ALLREDUCE, NumelIn=466119168, NumelOut=466119168, Timeout(ms)=600000) ran for 600004 ms"
)
PIPE = "[rank{r}]:[W000 00:00:00 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=93): Broken pipe"
OOM = (
    "[rank{r}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 720.00 MiB. GPU 0 has a total capacity of 79.11 GiB"
)
STEP = (
    " [2026-02-11 08:40:07] iteration {i:8}/     100 | consumed samples: {s:12} | elapsed time per iteration (ms): {ms} | "
    "learning rate: 1.500000E-04 | global batch size:     8 | {loss}loss scale: 1.0 | grad norm: {norm} | "
    "number of skipped iterations: {skipped:3} | number of nan iterations:   0 |"
)


@functools.cache
def book() -> Book:
    return load_failures(ROOT / "rules")


def step(i: int, *, loss: float | None = 6.5, ms: float = 2000.0, norm: str = "0.500", skipped: int = 0) -> str:
    told = f"lm loss: {loss:.6E} | " if loss is not None else ""
    return STEP.format(i=i, s=i * 8, ms=ms, loss=told, norm=norm, skipped=skipped)


def stack(rank: int, *frames: str) -> list[str]:
    out = [f"[rank{rank}]: Traceback (most recent call last):"]
    for frame in frames:
        name, _, code = frame.partition(": ")
        out += [f'[rank{rank}]:   File "{name}.py", line 7, in {name}', f"[rank{rank}]:     {code or 'pass'}"]
    return out


def read(*logs: list[str]) -> Failure:
    return triage([(f"log{i}", "\n".join(lines).encode()) for i, lines in enumerate(logs)], book())


def test_a_cause_on_any_rank_beats_every_effect_and_echo_whatever_file_comes_first() -> None:
    effects = [TIMEOUT.format(r=r, m=1) for r in range(3)] + [PIPE.format(r=r) for r in range(3)]
    cause = [*stack(5, "train_step", "forward_step", "forward"), OOM.format(r=5)]
    for found in (read(effects, cause), read(cause, effects), read(effects + cause)):
        assert (found.kind, found.rank, found.phase) == ("oom.forward", 5, "forward")
        assert {"nccl.timeout", "launch.store_lost"} <= set(found.also)


def test_the_first_in_time_is_the_root_where_several_ranks_fail() -> None:
    early = ["2026-01-01 10:00:05.000 [rank9]: RuntimeError: CUDA error: an illegal memory access was encountered"]
    late = ["2026-01-01 10:00:07.000 [rank2]: RuntimeError: CUDA error: an illegal memory access was encountered"]
    assert read(late, early).rank == 9
    assert read(early, late).rank == 9


def test_what_the_machine_says_beats_what_the_program_says() -> None:
    program = ["[rank4]: RuntimeError: CUDA error: an illegal memory access was encountered"]
    kernel = ["[100.1] NVRM: Xid (PCI:0000:02:00): 79, GPU has fallen off the bus."]
    assert read(program, kernel).kind == "hardware.xid79"


def test_who_waits_is_no_root() -> None:
    found = read([TIMEOUT.format(r=0, m=1), TIMEOUT.format(r=4, m=1)])
    assert (found.kind, found.rank) == ("nccl.timeout", None)
    assert "ranks 0, 4" in found.why
    assert found.open


@pytest.mark.parametrize(
    ("frames", "kind", "phase"),
    [
        (["train_step", "optimizer_step: optimizer.step()"], "oom.optimizer_step", "optimizer step"),
        (["backward_step", "_engine_run_backward", "checkpoint", "forward"], "oom.backward", "backward"),
        (["forward_step", "loss: vocab_parallel_cross_entropy(x)"], "oom.forward_loss", "forward (loss)"),
        (["forward_backward_no_pipelining", "forward_step", "mlp"], "oom.forward", "forward"),
        (["load_checkpoint", "load_state_dict"], "oom.checkpoint_load", "checkpoint load"),
        (["save_checkpoint", "gather"], "oom.checkpoint_save", "checkpoint save"),
        (["somewhere"], "oom.device", ""),
    ],
)
def test_the_stack_tells_the_phase_and_the_phase_the_levers(frames: list[str], kind: str, phase: str) -> None:
    found = read([*stack(1, *frames), OOM.format(r=1)])
    assert (found.kind, found.phase, found.rank) == (kind, phase, 1)


def test_the_first_update_and_a_forward_ask_for_other_levers() -> None:
    update = read([*stack(1, "train_step", "step: optimizer.step()"), OOM.format(r=1)])
    forward = read([*stack(1, "forward_step", "forward"), OOM.format(r=1)])
    assert update.levers[0] == "optimizer-offload"
    assert "micro-batch" not in update.levers
    assert forward.levers[:2] == ["recompute", "micro-batch"]
    assert "optimizer-offload" not in forward.levers


def test_levers_are_those_of_the_catalog() -> None:
    lines = "\n".join([*stack(1, "forward_step", "forward"), OOM.format(r=1)]).encode()
    assert triage([("log", lines)], book(), catalog=["recompute", "layout"]).levers == ["recompute", "layout"]


def test_stacks_of_two_ranks_between_each_other_are_kept_apart() -> None:
    one, two = stack(1, "train", "optimizer_step: optimizer.step()"), stack(2, "forward_step", "forward")
    mixed = [line for pair in zip(one, two, strict=True) for line in pair]
    found = read([*mixed, OOM.format(r=2), OOM.format(r=1)])
    assert (found.kind, found.rank) == ("oom.forward", 2)


def test_another_ranks_stack_before_it_does_not_tell_the_phase() -> None:
    plain = [
        x.split("]: ", 1)[1] for x in [*stack(1, "backward_step", "_engine_run_backward"), *stack(2, "forward_step", "forward")]
    ]
    assert read([*plain, OOM.format(r=2).split("]: ")[1]]).kind == "oom.forward"


def test_a_checkpoint_that_was_saved_is_no_phase_any_more() -> None:
    saving = "saving checkpoint at iteration     100 to /c in torch_dist format"
    assert read([saving, OOM.format(r=0)]).kind == "oom.checkpoint_save"
    assert read([saving, "  successfully saved checkpoint from iteration 100", OOM.format(r=0)]).kind == "oom.device"


def test_steps_that_made_no_update_are_no_witnesses_of_memory() -> None:
    skipped = [step(i, loss=None, skipped=1) for i in (1, 2)]
    found = read([*skipped, *stack(0, "train", "optimizer_step: optimizer.step()"), OOM.format(r=0)])
    assert "no step before it made an update" in found.why
    assert "no step before it" not in read([step(1), *stack(0, "f: optimizer.step()"), OOM.format(r=0)]).why


def test_guesses_of_a_launcher_are_no_evidence() -> None:
    text = "Worker exit type: SYSTEM_ERROR detail: (1) The process is killed by SIGKILL by OOM killer due to high memory usage."
    found = read([text, "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task."])
    assert found.undetermined
    assert (found.seen, found.levers, found.retry) == ("worker_died.unknown", [], "unknown")


def test_an_unknown_error_is_shown_and_nothing_claimed() -> None:
    found = read([*stack(3, "f"), "[rank3]: mylib.WeirdError: the moon is full"])
    assert found.undetermined
    assert (found.seen, found.rank) == ("crash.unknown_error", 3)
    assert "the moon is full" in found.evidence[0].text


def test_a_healthy_log_and_an_empty_one_are_undetermined() -> None:
    assert read([step(1), step(2)]).seen == "nothing"
    assert read([]).seen == "nothing"
    assert diagnose([], book()).undetermined


def test_a_loss_that_is_left_out_is_a_nan() -> None:
    found = read([step(1), step(2, loss=None, norm="nan"), step(3, loss=None, norm="nan")])
    assert (found.kind, found.evidence[0].line) == ("numeric.nan", 2)
    assert "before iteration 2" in found.action


def test_a_nan_is_not_the_cause_of_a_timeout() -> None:
    assert read([step(1, loss=None, norm="nan"), TIMEOUT.format(r=0, m=1)]).kind == "nccl.timeout"


def test_one_iteration_with_two_losses_and_two_speeds_is_two_runs() -> None:
    assert read([step(5, ms=2874.5), step(5, loss=6.4, ms=4900.0)]).kind == "perf.regression"
    assert read([step(5, ms=2874.5), step(5, loss=6.4, ms=2900.0)]).undetermined
    assert read([step(5, ms=2874.5), step(5, ms=4900.0)]).undetermined


def test_evidence_names_file_line_and_rank_and_holds_no_control_codes() -> None:
    evil = "[rank7]: torch.OutOfMemoryError: CUDA out of memory. \x1b]0;owned\x07\x1b[2J\u202e Tried"
    found = read([step(1)], ["noise", evil])
    assert (found.evidence[0].file, found.evidence[0].line, found.evidence[0].rank) == ("log1", 2, 7)
    assert all(c.isprintable() for e in found.evidence for c in e.text)
    assert "owned" not in found.evidence[0].text


def test_pieces_of_any_size_and_skipped_parts_keep_line_numbers() -> None:
    lines = [step(i) for i in range(1, 40)] + [OOM.format(r=2)]
    data = "\n".join(lines).encode()
    for size in (7, 64, 4096):
        scan = LogScan(book(), "log")
        for at in range(0, len(data), size):
            scan.feed(data[at : at + size])
        scan.close()
        assert diagnose([scan], book()).evidence[0].line == 40
    scan = LogScan(book(), "log")
    scan.feed(f"{step(1)}\n".encode())
    scan.skip(1000)
    scan.feed(f"{OOM.format(r=2)}\n".encode())
    scan.close()
    assert diagnose([scan], book()).evidence[0].line == 1002


def test_memory_is_bounded_by_writers_and_hits_not_by_the_log() -> None:
    chance = random.Random(1)
    scan = LogScan(book(), "log")
    tracemalloc.start()
    peaks = []
    for part in range(2):
        for i in range(12):
            ranks = [chance.randrange(10**6) for _ in range(300)]
            lines = [f"{TIMEOUT.format(r=r, m=1)} {'z' * 500} {part}{i}" for r in ranks]
            scan.feed(("\n".join(lines) + "\n").encode())
        peaks.append(tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    scan.close()
    assert len(scan.hits) <= 32
    assert peaks[1] < 40_000_000


def test_garbage_of_every_kind_is_read_without_harm() -> None:
    chance = random.Random(7)
    for _ in range(30):
        data = bytes(chance.randrange(256) for _ in range(2000)) + b"\nCUDA out of memory\xff\xfe" + chance.randbytes(500)
        assert triage([("noise", data)], book()).data()["kind"] == "oom.device"
