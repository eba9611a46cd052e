"""Law: every known fault of a trace is counted and said; nothing odd passes for a figure."""

from __future__ import annotations

from decimal import Decimal

from kineto_lab import COMM_STREAM, STREAM, busy_step, document, event, kernel, launch, said, step, us

from attuner.traces.columns import read_events
from attuner.traces.kineto import breakdown
from attuner.traces.profile import profile
from attuner.traces.records import PARTS


def test_every_part_of_a_step_is_told_apart() -> None:
    found = profile(
        document(
            step(4, 0, 100),
            launch(1, 1),
            kernel("gemm", 10, 30, 1),
            event("nccl:all_to_all", 20, 30, cat="user_annotation"),
            launch(22, 2),
            kernel("ncclDevKernel_SendRecv(x)", 25, 50, 2, stream=COMM_STREAM),
            launch(48, 3, name="cudaMemcpyAsync"),
            event("Memcpy HtoD", 50, 55, cat="gpu_memcpy", pid=0, tid=STREAM, stream=STREAM, correlation=3),
            launch(70, 4, took=5),
            kernel("gemm", 78, 90, 4),
        )
    )
    (parts,) = found.steps
    # host: 0-3 and 55-75, until the launch of what comes next returns; waiting: 3-10 and 75-78; no more work at 90-100
    assert us(parts) == {"compute": 32.0, "exposed": 20.0, "copy": 5.0, "host": 23.0, "idle": 20.0}
    assert parts.exposed_by_kind == {"all_to_all": 20_000}
    assert parts.exposed_by_group == {"expert": 20_000}
    assert parts.hidden_by_group == {"expert": 5_000}
    assert parts.span == sum(getattr(parts, p) for p in PARTS)


def test_waiting_in_a_synchronize_is_not_the_host_lagging() -> None:
    sync = event("cudaStreamSynchronize", 20, 60, cat="cuda_runtime", correlation=9)
    found = profile(document(step(1, 0, 100), launch(0, 1), kernel("a", 5, 20, 1), sync, launch(70, 2), kernel("b", 80, 100, 2)))
    # 20-72 passes before the next launch returns; 20-60 of it the host waits
    assert us(found.steps[0])["host"] == 2.0 + 12.0


def test_phases_of_computation_are_told_by_where_a_kernel_was_launched() -> None:
    backward = "autograd::engine::evaluate_function: "
    found = profile(
        document(
            step(1, 0, 100),
            launch(1, 1),
            kernel("forward", 4, 10, 1),
            event(backward + "CheckpointFunctionBackward", 20, 60, cat="cpu_op", tid=101),
            event("CheckpointFunctionBackward", 21, 59, cat="cpu_op", tid=101),
            launch(22, 2, tid=101),
            kernel("again", 25, 32, 2),
            event(backward + "MmBackward0", 40, 55, cat="cpu_op", tid=101),
            launch(42, 3, tid=101),
            kernel("backward", 45, 55, 3),
            event("Optimizer.step#AdamW.step", 70, 90, cat="user_annotation"),
            launch(72, 4),
            kernel("adam", 76, 80, 4),
        )
    )
    assert found.steps[0].detail == {"recompute": 7_000, "backward": 10_000, "optimizer": 4_000, "forward": 6_000}
    assert sum(found.steps[0].detail.values()) == found.steps[0].compute


# --- clocks and units ---


def test_nanoseconds_survive_every_clock() -> None:
    for base in ("1712195495849420.123", "5140572207284.658", "1712195495849420", "4203669603187.439"):
        later = Decimal(base) + Decimal("0.001")
        lines = [
            f'{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": {base}, "dur": 1e3}}',
            f'{{"ph": "X", "cat": "kernel", "name": "a", "pid": 0, "tid": 7, "ts": {later}, "dur": 7.003}}',
        ]
        for raw in ('{"traceEvents": [' + ",".join(lines) + "]}", "[" + ",\n".join(lines) + "]"):
            events = read_events(raw.encode())
            assert events.start.tolist() == [int(Decimal(base) * 1000), int(Decimal(base) * 1000) + 1]
            assert (events.end - events.start).tolist() == [1_000_000, 7_003]
            assert profile(raw.encode()).steps[0].compute == 7_003


def test_display_unit_changes_nothing_and_a_clock_of_nanoseconds_is_told() -> None:
    plain = profile(document(*busy_step()))
    assert profile(document(*busy_step(), displayTimeUnit="ns")).steps == plain.steps
    in_ns = [{**e, "ts": round(e["ts"] * 1000) + 1_700_000_000 * 10**9, "dur": e["dur"] * 1000} for e in busy_step()]
    found = profile(document(*in_ns))
    assert us(found.steps[0]) == us(plain.steps[0])
    assert said(found)["ns_clock"] == 1


def test_records_before_their_launch_are_clamped_and_counted() -> None:
    found = profile(document(*busy_step(kernels=4), launch(95, 77), kernel("early", 94, 96, 77)))
    assert found.launches is not None
    assert (found.launches.clamped, found.launches.clock_shift) == (1, 0)
    assert said(found)["clamped"] == 1
    assert found.launches.median_delay == 8_000


def test_a_device_clock_that_runs_behind_is_moved_and_said() -> None:
    good = [e for n in range(4) for e in busy_step(n, 100 * n, kernels=4)]
    behind = [{**e, "ts": e["ts"] - 50} if e["cat"] == "kernel" else e for e in good]
    found = profile(document(*behind))
    assert found.launches is not None
    assert found.launches.clock_shift == 42_000  # the shortest delay was 8 µs
    assert said(found)["clock_shift"] == 1
    assert found.launches.clamped == 0


# --- launches ---


def test_orphans_lost_launches_and_graphs_are_counted() -> None:
    found = profile(
        document(
            *busy_step(),
            kernel("orphan", 70, 71, 555),
            launch(80, 666),
            launch(60, 42, name="cudaGraphLaunch"),
            *(kernel("in graph", 62 + k, 63 + k, 42) for k in range(4)),
            launch(76, 43),
            kernel("first", 85, 86, 43),
            kernel("second", 86, 87, 43),
        )
    )
    stats = found.launches
    assert stats is not None
    assert (stats.records, stats.matched, stats.lost, stats.graph, stats.graph_launches, stats.shared) == (10, 9, 1, 4, 1, 1)
    assert {k: said(found)[k] for k in ("orphans", "lost", "graphs", "shared_id")} == {
        "orphans": 1,
        "lost": 1,
        "graphs": 4,
        "shared_id": 1,
    }


def test_the_longest_queue_is_counted() -> None:
    events = [
        step(1, 0, 100),
        *(launch(k, 10 + k, took=1) for k in range(5)),
        *(kernel("k", 20 + k, 21 + k, 10 + k) for k in range(5)),
    ]
    found = profile(document(*events))
    assert found.launches is not None
    assert found.launches.max_queue == 5


def test_overlaps_on_one_stream_count_once_in_time() -> None:
    found = profile(document(step(1, 0, 100), launch(0, 1), kernel("a", 10, 30, 1), kernel("b", 20, 40, 1)))
    assert us(found.steps[0])["compute"] == 30.0
    assert said(found)["overlaps"] == 1


def test_a_step_that_lost_its_records_does_not_count() -> None:
    whole = [e for n in range(4) for e in busy_step(n, 100 * n)]
    gone = {1001, 1002}
    cut = [e for e in whole if e["cat"] != "kernel" or e["args"]["correlation"] not in gone]
    found = profile(document(*cut))
    assert [bool(s.doubt) for s in found.steps] == [False, True, False, False]
    assert "2 of 3 kernel launches" in found.steps[1].doubt
    assert [r.step for r in breakdown(document(*cut), rank=0)] == [0, 2, 3]


def test_a_first_step_that_is_short_of_kernels_does_not_count() -> None:
    events = [*busy_step(0, 0, kernels=1), *(e for n in range(1, 4) for e in busy_step(n, 100 * n))]
    found = profile(document(*events))
    assert [s.number for s in found.counted()] == [1, 2, 3]
    assert "lost at the start" in found.steps[0].doubt


# --- ROCm ---


def test_rocm_collectives_without_id_and_type_are_told_by_time() -> None:
    generic = "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)"
    found = profile(
        document(
            step(1, 0, 100),
            event("hipLaunchKernel", 1, 2, cat="cuda_runtime", correlation=5),
            kernel("gemm", 3, 10, 5),
            event("nccl:all_reduce", 11, 12, cat="user_annotation"),
            event("nccl:_all_gather_base", 30, 31, cat="user_annotation"),
            kernel(generic, 20, 40, 0, stream=COMM_STREAM),
            kernel(generic, 50, 70, 0, stream=COMM_STREAM),
        )
    )
    assert found.device == "rocm"
    assert found.steps[0].exposed_by_kind == {"all_gather": 20_000, "all_reduce": 20_000}
    assert said(found)["by_time"] == 2


def test_a_generic_kernel_without_any_mark_is_of_kind_other_and_said() -> None:
    found = profile(document(*busy_step(), kernel("ncclDevKernel_Generic(x)", 80, 90, stream=COMM_STREAM)))
    assert found.steps[0].exposed_by_kind == {"other": 10_000}
    assert said(found)["unnamed"] == 1


def test_missing_streams_are_said() -> None:
    records = [kernel("gemm", 10, 20, 1), kernel("ncclKernel_AllReduce_RING_LL_Sum_float", 15, 30, 2)]
    for r in records:
        del r["args"]["stream"]
    assert said(profile(document(step(1, 0, 100), launch(0, 1), launch(3, 2), *records)))["streams"] == 2


# --- process groups ---

WORLD = {
    "backend": "nccl",
    "rank": 3,
    "world_size": 8,
    "pg_config": [
        {"pg_name": "0", "pg_desc": "default_pg", "pg_size": 8},
        {"pg_name": "1", "pg_desc": "DATA_PARALLEL_GROUP", "pg_size": 2},
        {"pg_name": "7", "pg_desc": "TENSOR_MODEL_PARALLEL_GROUP", "pg_size": 4},
        {"pg_name": "9", "pg_desc": "EXPERT_MODEL_PARALLEL_GROUP", "pg_size": 2},
        {"pg_name": "11", "pg_desc": "CONTEXT_PARALLEL_GROUP", "pg_size": 1},
    ],
}


def test_a_collectives_group_is_told_by_its_process_group_before_its_kind() -> None:
    reduce = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)"
    params = event("record_param_comms", 60, 64, cat="cpu_op", **{"Collective name": "allreduce", "Process Group Name": "1"})
    found = profile(
        document(
            step(1, 0, 100),
            kernel(reduce, 0, 10, 1, **{"Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP", "Process Group Name": "7"}),
            kernel(reduce, 10, 30, 2, **{"Process Group Name": "7"}),
            params,
            launch(61, 3),
            kernel(reduce, 65, 70, 3),
            kernel("ncclDevKernel_SendRecv(x)", 70, 77, 4, **{"Collective name": "all_to_allv"}),
            kernel(reduce, 80, 83, 5),
            distributedInfo=WORLD,
        )
    )
    assert found.steps[0].exposed_by_group == {"data": 5_000, "expert": 7_000, "tensor": 30_000, "unknown": 3_000}
    assert found.groups_from == {"description": 3, "only_group": 1, "kind": 0, "untold": 1}
    assert (found.rank, found.world_size, found.backend) == (3, 8, "nccl")
    assert {"group_deduced", "group_untold"} <= set(said(found))
