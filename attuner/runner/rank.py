"""One rank's conduct: it dies with its torchrun parent, knows which phase it is in, times its phases, and when it fails
says why in its run directory. Standard library only, so that failures of later imports are told too."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from . import files
from .errors import ConfigError

_ENVIRONMENT = ("NCCL_", "NVTE_", "CUDA_", "TORCH_", "OMP_", "GLOO_", "MKL_", "PYTORCH_", "MALLOC_")
_ENVIRONMENT_NAMES = ("PYTHONPATH", "LD_PRELOAD")
_NO_MEMORY = ("can't allocate memory", "out of memory", "not enough memory", "Cannot allocate memory")


class Rank:
    """This process as one rank of a launch. As a context manager it ends the process when an exception escapes:
    the failure is written, the traceback goes to stderr, and the exit status is 1.
    """

    def __init__(self, run_dir: str) -> None:
        self.run_dir = Path(run_dir)
        self.index = int(os.environ.get("RANK", "0"))
        self.local = int(os.environ.get("LOCAL_RANK", "0"))
        self.world_size = int(os.environ.get("WORLD_SIZE", "1"))
        self.phase = "imports"
        self.step: int | None = None
        self.seconds: dict[str, float] = {}

    def __enter__(self) -> "Rank":
        """Ask the kernel to end this process with its parent."""
        die_with_parent()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Write a failure and leave at once: an orderly exit could wait for peers that are gone."""
        if not isinstance(error, Exception):
            return
        self.write_failure(classify(error), last_line(error))
        traceback.print_exception(kind, error, trace)
        leave(1)

    def where(self) -> str:
        """Say the phase in words: 'forward, step 0'."""
        return self.phase if self.step is None else f"{self.phase}, step {self.step}"

    def write_failure(self, kind: str, message: str) -> None:
        """Leave failure.rank{r}.json; kind is 'oom', 'config' or 'crash'. The first of a rank stands."""
        path = self.run_dir / files.failure(self.index)
        if path.exists():
            return
        files.write_json(path, {"kind": kind, "phase": self.phase, "step": self.step, "message": message, "t": time.time()})

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Make `name` the current phase and add its seconds."""
        self.phase = name
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start


def leave(status: int) -> None:
    """End this process at once, and the helpers that it started; the interpreter's own way costs half a second.

    megatron's checkpoint writer leaves a manager process, which would outlive us and keep our output open.
    """
    for child in multiprocessing.active_children():
        child.terminate()
        child.join(5)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def classify(error: Exception) -> str:
    """Tell a failure's kind: 'config' (no retry mends it), 'oom' or 'crash'."""
    if isinstance(error, ConfigError):
        return "config"
    named = type(error).__name__ == "OutOfMemoryError" or isinstance(error, MemoryError)
    return "oom" if named or any(words in str(error) for words in _NO_MEMORY) else "crash"


def last_line(error: Exception) -> str:
    """Return the line a traceback would end with, cut to 2,000 characters."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    text = lines[-1].strip() if lines else ""
    if not isinstance(error, ConfigError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text[:2000]


def die_with_parent() -> None:
    """On Linux, have the kernel kill this process when its parent (torchrun) ends, however that ends."""
    if not sys.platform.startswith("linux"):
        return
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)
    if os.getppid() == 1 and os.environ.get("TORCHELASTIC_RUN_ID"):
        os._exit(1)  # the parent was gone before we asked


def environment(asked: Iterable[str] = ()) -> dict[str, str]:
    """Return the environment variables that bear on a run's speed or numbers, and those that the job itself asked for."""
    names = {*_ENVIRONMENT_NAMES, *asked}
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(_ENVIRONMENT) or name in names}


def finite(value: Any) -> Any:
    """Return a number for strict JSON: 'nan', 'inf' and '-inf' as strings, None as it is."""
    if value is None:
        return None
    number = float(value)
    return number if number - number == 0.0 else str(number)
