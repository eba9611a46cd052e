"""Megatron-LM's own log, as far as the looks use it: what is printed, what is not printed, and lines that others broke.

The lines are those of real logs, 2020 to 2026.
"""

from __future__ import annotations

import math

import pytest

from attuner.stacks.megatron.log import read_log

END = "loss scale: 1.0 | grad norm: 1.300 | number of skipped iterations:   0 | number of nan iterations:   0 |"
Y2020 = (
    " iteration      200/   20000 | elapsed time per iteration (ms): 313.1 | learning rate 2.020E-06 | lm loss 9.444483E+00 | "
    "nsp loss 2.486780E-01 |"
)
Y2021 = (
    " iteration       12/  500000 | consumed samples:        18432 | elapsed time per iteration (ms): 14874.2 | learning rate: "
    "3.600E-07 | global batch size:  1536 | lm loss: 1.093412E+01 | loss scale: 65536.0 | grad norm: 11.482 | num zeros: 0.0 | "
    "params norm: 238.117 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
EXPERTS = (
    " [2026-02-11] iteration      310/   20000 | consumed samples:       634880 | elapsed time per iteration (ms): 21004.7 "
    "| throughput (TFLOP/s/GPU): 398.4 | learning rate: 9.300000E-05 | global batch size:  2048 | lm loss: 3.402117E+00 | "
    "seq_load_balancing_loss: 1.021933E+00 | z_loss: 2.104411E-02 | mtp_1 loss: 4.118802E+00 | loss scale: 1.0 | grad norm: 0.412"
    " | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
PRIMUS = (
    " [2026-07-10] iteration       30/     100 | consumed samples:        15360 | elapsed time per iteration (ms): 6120.5 "
    "| compute per GPU (TFLOP/s/GPU): 601.3 (avg 598.7) | tokens/s/GPU inst/harmonic mean: 10707.5/10655.1 | learning rate: "
    "1.000000E-05 | global batch size:   512 | lm loss: 2.904331E+00 | loss scale: 1.0 | grad norm: 0.733 | number of skipped "
    "iterations:   0 | number of nan iterations:   0 |"
)
FORK = (
    " [2025-02-20 11:18:36] iteration        1/250000000 | consumed samples:            4 | elapsed time per iteration (ms): "
    "10585.1 | learning rate: 1.000000E-05 | global batch size:     4 | lm loss: 6.612992E+00 | dummy loss: 6.612992E+00 | "
    "loss scale: 1.0 | grad norm: 111.173 | number of skipped iterations:   0 | number of nan iterations:   0 |"
)
NAN = (
    " [2025-03-02] iteration     1841/   50000 | consumed samples:      1885184 | elapsed time per iteration (ms): 10422.8 "
    "| learning rate: 2.941000E-04 | global batch size:  1024 | loss scale: 1.0 | grad norm: nan "
    "| number of skipped iterations: 0 | number of nan iterations:   1 |"
)
SKIPPED = (
    " iteration       10/   80000 | consumed samples:         2560 | elapsed time per iteration (ms): 4985.7 | learning rate: "
    "0.000E+00 | global batch size:   256 | loss scale: 8388608.0 | "
    "number of skipped iterations:  10 | number of nan iterations: 0 |"
)
BROKEN = (
    " [2026-01-05] iteration       41/    1000 | consumed samples:        10496 | elapsed time per iteration (ms): 2210.2 "
    "| learning rate: 1.0000[rank12]:[W105 12:20:31.000000001 ProcessGroupNCCL.cpp:1250] Warning: WARNING: destroyed\n"
    "00E-06 | global batch size:   256 | lm loss: 1.118230E+00 | loss scale: 1.0 | grad norm: 0.219 |"
)
GERMAN = (
    " [2026-01-05] iteration      100/    1000 | consumed samples:        25600 | elapsed time per iteration (ms): 1.843,9 "
    "| global batch size:   256 | lm loss: 4,117302E+00 | grad norm: 0,871 | number of skipped iterations:   0 | "
    "number of nan iterations:   0 |"
)


def line(iteration: int, loss: float, *, prefix: str = "", batch: int = 8) -> str:
    start = f"{prefix} [2026-02-11 08:40:07] iteration {iteration:8}/     100 | consumed samples: {iteration * batch:12} | "
    middle = f"elapsed time per iteration (ms): 2004.7 | learning rate: 1.000000E-04 | global batch size: {batch:5} | "
    return f"{start}{middle}lm loss: {loss:.6E} | load_balancing_loss: 1.013377E+00 | {END}"


@pytest.mark.parametrize(
    ("text", "loss", "aux", "norm", "batch"),
    [
        (Y2020, 9.444483, {"nsp loss": 0.248678}, None, None),
        (Y2021, 10.93412, {}, 11.482, 1536),
        (
            EXPERTS,
            3.402117,
            {"seq_load_balancing_loss": 1.021933, "z_loss": 0.02104411, "mtp_1 loss": 4.118802},
            0.412,
            2048,
        ),
        (PRIMUS, 2.904331, {}, 0.733, 512),
        (FORK, 6.612992, {"dummy loss": 6.612992}, 111.173, 4),
    ],
)
def test_a_line_of_every_age_is_read(
    text: str, loss: float, aux: dict[str, float], norm: float | None, batch: int | None
) -> None:
    found = read_log(text)
    assert [(s.step, s.lm_loss, s.aux, s.grad_norm) for s in found.steps] == [(0, loss, aux, norm)]
    assert found.global_batch == ({0: batch} if batch else {})


def test_a_loss_that_is_not_printed_was_no_number() -> None:
    found = read_log(NAN).steps[0]
    assert math.isnan(found.lm_loss)
    assert found.grad_norm is not None
    assert math.isnan(found.grad_norm)


def test_a_step_without_an_update_has_no_loss_and_is_named() -> None:
    found = read_log(SKIPPED)
    assert found.steps == []
    assert found.skipped == [0]


@pytest.mark.parametrize("text", [BROKEN, GERMAN])
def test_half_a_number_is_no_number(text: str) -> None:
    found = read_log(text)
    assert found.steps == []
    assert found.broken == 1


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "7: ", "(MegatronTrainRayActor pid=38610) ", "worker-3: 2026-01-01 INFO "])
def test_the_first_printed_iteration_is_step_zero_whatever_a_launcher_puts_before_it(prefix: str) -> None:
    text = "\n".join(["using world size: 2", *(line(n, 6.0 - n / 10, prefix=prefix) for n in (1, 2, 3)), "saving checkpoint"])
    found = read_log(text)
    assert [(s.step, s.lm_loss) for s in found.steps] == [(0, 5.9), (1, 5.8), (2, 5.7)]
    assert found.steps[0].step_s == pytest.approx(2.0047)
    assert (found.first_iteration, found.notes()) == (1, [])


def test_a_memory_report_on_the_same_line_does_no_harm() -> None:
    text = line(1, 5.9) + "[Rank 0] (after 1 iterations) memory (MB) | allocated: 2048.5 | max allocated: 4096.25"
    assert read_log(text).steps[0].lm_loss == 5.9


def test_a_restart_that_prints_an_iteration_again_holds() -> None:
    assert [s.lm_loss for s in read_log("\n".join([line(1, 5.9), line(2, 5.8), line(2, 5.7)])).steps] == [5.9, 5.7]


def test_a_resumed_run_and_a_printing_interval_are_said() -> None:
    found = read_log("\n".join(line(n, 6.0 - n / 100) for n in (101, 110, 120)))
    assert [s.step for s in found.steps] == [0, 9, 19]
    assert found.notes() == [
        "one line in 10 iterations: losses after the first are means over as many",
        "begins at iteration 101: step 0 is that one",
    ]


@pytest.mark.parametrize("text", ["", "no such line", "iteration 3 of 4", "step: 4 loss: 7.6"])
def test_another_text_is_no_run(text: str) -> None:
    assert read_log(text).steps == []
