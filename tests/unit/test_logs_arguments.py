"""The argument dump in a log: read whatever launchers put before its lines, and however many processes write at once."""

from __future__ import annotations

import pytest

from attuner.logs.arguments import read_arguments

VALUES = {
    "tensor_model_parallel_size": 8,
    "lr": 1e-4,
    "data_path": ["0.3", "/a b", "x"],
    "rampup_batch_size": None,
    "moe_layer_freq": "[0]*3+[1]*89",
    "a_name_of_more_than_forty_eight_characters_has_no_dots_at_all": True,
    "load": "",
}


def dump(values: dict[str, object], prefix: str = "") -> list[str]:
    """Return lines as Megatron prints them: dots fill a name up to 48 characters."""
    body = [f"{prefix}  {k} {'.' * (48 - len(k))} {v}" for k, v in values.items()]
    return [f"{prefix}{'-' * 24} arguments {'-' * 24}", *body, f"{prefix}{'-' * 20} end of arguments {'-' * 21}"]


def printed(values: dict[str, object]) -> dict[str, str]:
    return {k: str(v) for k, v in values.items()}


@pytest.mark.parametrize(
    "prefix",
    [
        "",
        "[rank0]: ",
        "[default0]:",
        "0: ",
        "(MegatronTrainRayActor pid=12, ip=10.0.0.1) ",
        "\x1b[36m(TrainActor pid=16292)\x1b[0m ",
        "2026-01-01T00:00:00.123Z ",
        "[pod/job-worker-0/trainer] ",
    ],
)
def test_a_dump_is_read_behind_every_prefix_and_between_foreign_lines(prefix: str) -> None:
    lines = dump(VALUES, prefix)
    lines.insert(3, "[rank3]:[W101 00:00:00 socket.cpp:1] Warning: x ....... y")
    lines.insert(5, "node-1:2:3 [0] NCCL INFO a . b")
    assert read_arguments(["using world size: 8", *lines, "  not_one ............ of them"]) == printed(VALUES)


def test_the_last_whole_dump_holds() -> None:
    again = {**VALUES, "lr": 3e-4}
    cut = dump({**VALUES, "lr": 9.0})[:4]
    assert read_arguments([*dump(VALUES), *dump(again), *cut]) == printed(again)


def test_a_dump_that_ends_with_its_log_gives_what_it_has() -> None:
    assert read_arguments(dump(VALUES)[:3]) == {"tensor_model_parallel_size": "8", "lr": "0.0001"}


def test_two_processes_at_once_do_not_mix() -> None:
    one, two = dump({"lr": 1.0, "seed": 1}, "(A pid=1) "), dump({"lr": 2.0, "seed": 2}, "(A pid=2) ")
    mixed = [line for pair in zip(one, two, strict=True) for line in pair]
    assert read_arguments(mixed) == {"lr": "2.0", "seed": "2"}


def test_a_value_of_several_lines_is_one_value() -> None:
    lines = dump({"spec": "X(a=[1,\n   2])", "tp": 1})
    assert read_arguments("\n".join(lines).splitlines()) == {"spec": "X(a=[1, 2])", "tp": "1"}


@pytest.mark.parametrize("text", ["", "arguments", "-------- end of arguments --------", "  lr ........ 1"])
def test_a_text_without_a_dump_has_no_arguments(text: str) -> None:
    assert read_arguments([text]) == {}
