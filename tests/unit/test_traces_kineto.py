"""Laws of the trace accounting: parts that add up, each instant in one part, nothing trusted in the file."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from attuner.core.errors import UserError
from attuner.core.run import RankStep
from attuner.traces.collectives import KINDS, group_of, kind_of
from attuner.traces.columns import read_events
from attuner.traces.kineto import breakdown

T0 = 5_140_572_207_284.658  # a real trace's clock: microseconds since boot, so that rounding is the real one

MAIN, AUTOGRAD, WORKER = 100, 101, 102


Json = dict[str, Any]


def event(name: str, start: float, end: float, *, tid: int | str = MAIN, cat: str = "cpu_op", **args: Any) -> Json:
    """One complete event; times in milliseconds of the step."""
    times = {"ts": T0 + start * 1e3, "dur": (end - start) * 1e3}
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, **times, "args": args}


def step(number: int, start: float, end: float) -> Json:
    return event(f"ProfilerStep#{number}", start, end, cat="user_annotation")


def trace(*events: Any) -> Json:
    return {"schemaVersion": 1, "traceEvents": list(events)}


def one(*events: Any) -> RankStep:
    (only,) = breakdown(trace(*events), rank=3)
    return only


def parts_ms(r: RankStep) -> tuple[float, ...]:
    return tuple(round(x * 1e3, 6) for x in (r.compute_s, r.exposed_comm_s, r.host_s, r.idle_s))


def cpu_step() -> list[Json]:
    """100 ms: forward on the main thread, backward on an autograd thread, an all-to-all and a hidden all-reduce."""
    return [
        step(7, 0, 100),
        event("aten::linear", 0, 20),
        event("aten::addmm", 1, 19),
        event("A2A", 20, 50),
        event("c10d::alltoall_base_", 20, 21),
        event("gloo:all_to_all", 21, 50, tid=WORKER, cat="user_annotation"),
        event("aten::copy_", 30, 31, tid=WORKER),
        event("autograd::engine::evaluate_function: AddmmBackward0", 50, 80, tid=AUTOGRAD),
        event("aten::mm", 55, 75, tid=AUTOGRAD),
        event("gloo:all_reduce", 60, 85, tid=WORKER, cat="user_annotation"),
    ]


def test_a_cpu_step_is_split_by_who_works() -> None:
    r = one(*cpu_step())
    assert (r.rank, r.step) == (3, 7)
    # compute 0-20 and 55-75; communication 20-50 and 75-85; autograd's wrapper alone 50-55; nothing 85-100
    assert parts_ms(r) == (40.0, 40.0, 5.0, 15.0)
    assert {k: round(v * 1e3, 6) for k, v in r.comm_by_kind.items()} == {"all_reduce": 10.0, "all_to_all": 30.0}
    assert round(r.overlapped_comm_s * 1e3, 6) == 15.0


def test_the_parts_add_up_to_the_step_and_the_kinds_to_the_exposed_time() -> None:
    r = one(*cpu_step())
    assert abs(r.compute_s + r.exposed_comm_s + r.host_s + r.idle_s - r.step_s) < 1e-9
    assert abs(sum(r.comm_by_kind.values()) - r.exposed_comm_s) < 1e-9
    assert abs(r.step_s - 0.1) < 1e-8


def test_operators_on_a_gloo_worker_are_not_compute() -> None:
    gather = event("gloo:all_gather", 0, 9, tid=WORKER, cat="user_annotation")
    r = one(step(1, 0, 10), gather, event("aten::copy_", 1, 8, tid=WORKER))
    assert parts_ms(r) == (0.0, 9.0, 0.0, 1.0)


def test_a_collective_inside_an_operator_is_not_compute() -> None:
    r = one(step(1, 0, 10), event("aten::reduce_thing", 0, 10), event("_c10d_functional::wait_tensor", 2, 9))
    assert parts_ms(r) == (3.0, 7.0, 0.0, 0.0)


def test_a_short_pause_is_python_and_a_long_one_is_idle() -> None:
    short = one(step(1, 0, 10), event("aten::mm", 0, 5), event("aten::mm", 5.9, 10))
    assert parts_ms(short) == (9.1, 0.0, 0.9, 0.0)
    long = one(step(1, 0, 10), event("aten::mm", 0, 5), event("aten::mm", 6.1, 10))
    assert parts_ms(long) == (8.9, 0.0, 0.0, 1.1)


def test_an_annotation_around_everything_does_not_hide_idle_time() -> None:
    r = one(step(1, 0, 10), event("load batch", 0, 10, cat="user_annotation"), event("aten::mm", 0, 2))
    assert parts_ms(r) == (2.0, 0.0, 0.0, 8.0)


def test_work_is_clipped_to_its_step() -> None:
    first, second = breakdown(trace(step(2, 10, 20), step(1, 0, 10), event("aten::mm", 8, 13)), rank=0)
    assert (first.step, second.step) == (1, 2)
    assert round(first.compute_s * 1e3, 6) == 2.0
    assert round(second.compute_s * 1e3, 6) == 3.0


def test_two_collectives_at_once_count_once_and_the_earlier_one_has_the_time() -> None:
    r = one(
        step(1, 0, 10),
        event("gloo:all_reduce", 0, 6, tid=WORKER, cat="user_annotation"),
        event("gloo:broadcast", 4, 10, tid=WORKER + 1, cat="user_annotation"),
    )
    assert {k: round(v * 1e3, 6) for k, v in r.comm_by_kind.items()} == {"all_reduce": 6.0, "broadcast": 4.0}
    assert parts_ms(r) == (0.0, 10.0, 0.0, 0.0)


def test_a_reduce_scatter_that_gloo_carries_out_as_all_reduces_keeps_its_name() -> None:
    def at_work(start: float, end: float, *, tid: int = WORKER) -> Json:
        return event("gloo:all_reduce", start, end, tid=tid, cat="user_annotation")

    r = one(
        step(1, 0, 20),
        at_work(0.0, 1.0),
        event("c10d::reduce_scatter_", 5, 5.1),
        at_work(5.1, 8.0),
        at_work(5.2, 9.0, tid=WORKER + 1),
        event("c10d::allreduce_", 10, 10.1),
        at_work(10.1, 13.0),
    )
    assert {k: round(v * 1e3, 3) for k, v in r.comm_by_kind.items()} == {"all_reduce": 4.0, "reduce_scatter": 4.0}


def gpu(name: str, start: float, end: float, *, cat: str = "kernel", stream: int = 7, **args: Any) -> Json:
    return event(name, start, end, tid=stream, cat=cat, **args)


def cuda_step() -> list[Json]:
    return [
        step(1, 0, 100),
        event("aten::mm", 0, 40),
        event("cudaLaunchKernel", 1, 2, cat="cuda_runtime", correlation=11),
        event("nccl:all_to_all", 30, 33, cat="user_annotation"),
        event("cudaLaunchKernelExC", 31, 32, cat="cuda_runtime", correlation=12),
        event("cudaStreamSynchronize", 60, 100, cat="cuda_runtime", correlation=13),
        gpu("gemm", 10, 40, correlation=11),
        gpu("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", 35, 55, stream=9, correlation=12),
        gpu("Memcpy HtoD (Pinned -> Device)", 70, 72, cat="gpu_memcpy", stream=8),
    ]


def test_a_cuda_step_is_split_by_what_the_gpu_does() -> None:
    r = one(*cuda_step())
    # compute 10-40; NCCL alone 40-55; host 0-2 until the launch returns; the copy 70-72; the rest is launched or awaited
    assert parts_ms(r) == (30.0, 15.0, 2.0, 51.0)
    assert round(r.copy_s * 1e3, 6) == 2.0
    assert {k: round(v * 1e3, 6) for k, v in r.comm_by_kind.items()} == {"all_to_all": 15.0}
    assert round(r.overlapped_comm_s * 1e3, 6) == 5.0


@pytest.mark.parametrize(
    ("args", "kernel", "expected"),
    [
        ({"Collective name": "_allgather_base"}, "ncclDevKernel_Generic(x)", "all_gather"),
        ({}, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "all_reduce"),
        ({}, "ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send_recv"),
        ({"correlation": [1]}, "rcclGeneric_1", "other"),
    ],
)
def test_a_gpu_collective_is_named_by_the_best_evidence(args: Json, kernel: str, expected: str) -> None:
    r = one(step(1, 0, 10), event("cudaLaunchKernel", 0, 1, cat="cuda_runtime"), gpu(kernel, 2, 8, **args))
    assert list(r.comm_by_kind) == [expected]


def test_a_step_without_a_kernel_is_left_out_of_a_cuda_run() -> None:
    found = breakdown(trace(step(1, 0, 10), step(2, 10, 11), gpu("gemm", 1, 5)), rank=0)
    assert [r.step for r in found] == [1]


def test_a_cuda_run_without_any_kernel_is_not_called_idle() -> None:
    with pytest.raises(UserError, match="no kernel was recorded"):
        breakdown(trace(step(1, 0, 10), event("cudaLaunchKernel", 1, 2, cat="cuda_runtime")), rank=0)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("gloo:all_to_all", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("nccl:_all_gather_base", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32", "reduce_scatter"),
        ("gloo:send", "send_recv"),
        ("c10d::recv_any_source_", "send_recv"),
        ("c10d::monitored_barrier_", "barrier"),
        ("gloo:broadcast", "broadcast"),
        ("gloo:reduce", "other"),
        ("c10d::scatter_", "other"),
    ],
)
def test_one_exchange_has_one_name(name: str, kind: str) -> None:
    assert kind_of(name) == kind
    assert kind in KINDS


@pytest.mark.parametrize(
    ("description", "group"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tensor"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "data"),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO", "data"),
        ("EXPERT_DATA_PARALLEL_GROUP", "data"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "expert"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "tensor"),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "unknown"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", "unknown"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"),
        ("POSITION_EMBEDDING_GROUP", "pipeline"),
        ("CONTEXT_PARALLEL_GROUP", "context"),
        ("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1", "context"),
        ("MODEL_PARALLEL_GROUP", "unknown"),
        ("mesh_tp", "tensor"),
        ("mesh_dp_shard", "data"),
        ("mesh_ep", "expert"),
        ("mesh_dp_shard_cp", "data"),
        ("mesh_dp_tp", "unknown"),
        ("default_pg", "unknown"),
        ("undefined", "unknown"),
    ],
)
def test_a_process_group_says_between_whom(description: str, group: str) -> None:
    assert group_of(description) == group


# --- the file is untrusted ---


def test_plain_gzip_and_parsed_traces_are_read_alike() -> None:
    document = trace(*cpu_step())
    raw = json.dumps(document).encode()
    assert breakdown(document, rank=0) == breakdown(raw, rank=0) == breakdown(gzip.compress(raw), rank=0)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "ends early"),
        (b"PK\x03\x04 a zip file", "not valid JSON"),
        (json.dumps(trace(*cpu_step())).encode()[:-40], "ends early"),
        (gzip.compress(json.dumps(trace(*cpu_step())).encode())[:-12], "ends early"),
        (b"\x1f\x8b\x08garbage", "gzip"),
        (b"[" * 200_000, "nested too deep"),
        (b'{"traceEvents": {}}', "no list under traceEvents"),
        (b"3", "no list under traceEvents"),
        (b'{"traceEvents": []}', "no ProfilerStep"),
    ],
)
def test_a_malformed_trace_is_one_line_for_a_person(data: bytes, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        breakdown(data, rank=0)
    assert "\n" not in str(caught.value)


def test_odd_events_are_left_out() -> None:
    good = [step(1, 0, 10), event("aten::mm", 0, 4)]
    odd: list[Any] = [
        None,
        [],
        "x",
        {},
        {"ph": "X"},
        {**event("aten::mm", 4, 9), "ts": "4"},
        {**event("aten::mm", 4, 9), "dur": None},
        {**event("aten::mm", 4, 9), "dur": -5.0},
        {**event("aten::mm", 4, 9), "dur": float("nan")},
        {**event("aten::mm", 4, 9), "ts": float("inf")},
        {**event("aten::mm", 4, 9), "name": 5},
        {**event("aten::mm", 4, 9), "tid": [1]},
        {**event("aten::mm", 4, 9), "pid": {}},
        {**event("aten::mm", 4, 9), "ph": ["X"]},
        {**event("aten::mm", 4, 9), "cat": 9, "args": []},
        event("ProfilerStep#x", 0, 3),
        event("ProfilerStep#" + "9" * 5000, 0, 3),
        event("ProfilerStep#²", 0, 3),
        {**event("aten::mm", 4, 9), "ts": True},
    ]
    assert breakdown(trace(*good, *odd), rank=0) == breakdown(trace(*good), rank=0)


def test_bytes_that_are_not_utf8_and_control_characters_do_not_cost_the_trace() -> None:
    raw = json.dumps(trace(*cpu_step(), event("kernel?", 1, 2))).encode().replace(b"kernel?", b"\xff\x01\x02")
    assert len(read_events(raw)) == len(cpu_step()) + 1
