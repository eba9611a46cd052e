"""Whether a Ray cluster can hold a launch: never, later, now."""

from __future__ import annotations

from typing import Any

from attuner.launchers.ray_room import Room, room


def nodes(*gpus: float, dead: int = 0) -> dict[str, Any]:
    rows = [{"state": "ALIVE", "resources_total": {"GPU": g, "CPU": 64.0}} for g in gpus]
    rows += [{"state": "DEAD", "resources_total": {"GPU": 8.0}}] * dead
    return {"data": {"result": {"result": rows}}}


def status(*used: tuple[float, float], **report: Any) -> dict[str, Any]:
    usage = {f"n{i}": {"GPU": list(u)} for i, u in enumerate(used)}
    return {"data": {"clusterStatus": {"loadMetricsReport": {"usageByNode": usage}, "autoscalerReport": report}}}


def found(n: dict[str, Any], s: dict[str, Any], gpus: int = 16) -> Room:
    return room(n, s, gpus=gpus, gpus_per_node=8, resource="GPU")


def test_too_few_whole_nodes_is_never_with_all_figures() -> None:
    said = found(nodes(8, 4, 4, dead=2), status()).never()
    assert said == "needs 2 nodes with 8 × GPU each; of its 3 nodes 1 have that (16 × GPU in all)"


def test_enough_nodes_that_are_taken_is_a_queue_and_no_refusal() -> None:
    busy = found(nodes(8, 8), status((8.0, 8.0), (0.0, 8.0)))
    assert (busy.never(), busy.busy()) == ("", "queued: 1 of 2 nodes with 8 × GPU are free")


def test_a_free_cluster_says_nothing() -> None:
    free = found(nodes(8, 8), status((0.0, 8.0), (0.0, 8.0)))
    assert (free.never(), free.busy()) == ("", "")


def test_a_part_of_a_node_is_enough_for_a_small_launch() -> None:
    assert found(nodes(8), status((6.0, 8.0)), gpus=2).busy() == ""


def test_a_cluster_that_grows_is_not_told_never() -> None:
    assert found(nodes(8), status(pendingNodes=[["10.0.0.3", "gpu-group", "waiting"]])).never() == ""
    assert room(nodes(), status(), gpus=16, gpus_per_node=8, resource="GPU", autoscaled=True).never() == ""
    assert found(nodes(8), status()).never()


def test_a_resource_is_found_as_the_dashboard_spells_it() -> None:
    rows = {"data": {"result": {"result": [{"state": "ALIVE", "resources_total": {"my_slot": 2.0}}]}}}
    used = {"data": {"clusterStatus": {"loadMetricsReport": {"usageByNode": {"n": {"mySlot": [2.0, 2.0]}}}}}}
    assert room(rows, used, gpus=2, gpus_per_node=2, resource="my_slot").free == 0


def test_answers_that_nobody_understands_are_no_queue() -> None:
    assert found(nodes(8, 8), {"data": None}).busy() == ""
