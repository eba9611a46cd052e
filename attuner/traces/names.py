"""What profilers call things: categories of events, and what a name says, read once for each different name."""

from __future__ import annotations

import re
from enum import IntEnum, IntFlag

import numpy as np

from attuner.traces.intervals import Ints

STEP = "ProfilerStep#"


class Cat(IntEnum):
    """Categories of events. Device records come first, so that `<= MEMSET` finds them."""

    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2
    RUNTIME = 3
    CPU_OP = 4
    NOTE = 5
    GPU_NOTE = 6
    OTHER = 7


CODES = {
    "kernel": Cat.KERNEL,
    "gpu_memcpy": Cat.MEMCPY,
    "memcpy": Cat.MEMCPY,
    "gpu_memset": Cat.MEMSET,
    "memset": Cat.MEMSET,
    "cuda_runtime": Cat.RUNTIME,
    "cuda_driver": Cat.RUNTIME,
    "hip_runtime": Cat.RUNTIME,
    "hip_driver": Cat.RUNTIME,
    "xpu_runtime": Cat.RUNTIME,
    "privateuse1_runtime": Cat.RUNTIME,
    "runtime": Cat.RUNTIME,
    "cpu_op": Cat.CPU_OP,
    "operator": Cat.CPU_OP,
    "user_annotation": Cat.NOTE,
    "gpu_user_annotation": Cat.GPU_NOTE,
}
"""By category in small letters: older recorders write `Kernel` and `Operator`."""


class Says(IntFlag):
    """What a name says of its event."""

    STEP = 1
    AUTOGRAD = 2
    ATEN = 4
    STARTS_COMM = 8
    """A host operator that launches or awaits a collective."""
    WORKS_COMM = 16
    """A CPU backend's collective at work."""
    NCCL = 32
    """A kernel or an annotation of NCCL or RCCL."""
    SYNC = 64
    LAUNCH = 128
    """A runtime call that launches kernels, and so should leave a record on the device."""
    GRAPH = 256
    """A launch of many kernels at once."""
    CHECKPOINT = 512
    """Backward of a checkpointed block, or a mark that names recompute."""
    OPTIMIZER = 1024
    PARAMS = 2048
    """`record_param_comms`: carries what a collective is."""


_TESTS: tuple[tuple[Says, re.Pattern[str]], ...] = (
    (Says.STEP, re.compile(re.escape(STEP))),
    (Says.AUTOGRAD, re.compile(r"autograd::engine::")),
    (Says.ATEN, re.compile(r"aten::")),
    (Says.STARTS_COMM, re.compile(r"_?c10d(_functional)?::")),
    (Says.WORKS_COMM, re.compile(r"(gloo|mpi|ucc):")),
    (Says.NCCL, re.compile(r".*[nr]ccl", re.IGNORECASE | re.DOTALL)),
    (Says.SYNC, re.compile(r"(cuda|hip|cu|xpu|ze)\w*Synchronize", re.IGNORECASE)),
    # copies and fills aren't among them: empty ones, and those on the host's side, leave no record
    (Says.LAUNCH, re.compile(r"(cuda|hip|cu)\w*(Launch(Cooperative)?Kernel|GraphLaunch)")),
    (Says.GRAPH, re.compile(r"(cuda|hip|cu)GraphLaunch")),
    (Says.CHECKPOINT, re.compile(r".*(CheckpointFunctionBackward|CheckpointWithoutOutput|recompute)", re.DOTALL)),
    (Says.OPTIMIZER, re.compile(r"Optimizer\.step#")),
    (Says.PARAMS, re.compile(r"record_param_comms$")),
)


def says(names: list[str]) -> Ints:
    """Return the flags (`Says`) of each name."""
    return np.array([sum(flag for flag, test in _TESTS if test.match(n)) for n in names] or [0], dtype=np.int64)


def step_number(name: str) -> int | None:
    """Return N of `ProfilerStep#N`; None for anything else."""
    digits = name.removeprefix(STEP)
    return int(digits) if name.startswith(STEP) and digits.isascii() and digits.isdigit() and len(digits) < 16 else None
