"""The steps of a launch inside somebody else's training loop: each timed between barriers and written as a line, the last ones
profiled. What a framework's step is, and what came of it, is the subclass's matter. torch is imported when the first step runs: a
framework may want its environment set before."""

import time
from collections.abc import Callable
from typing import Any

from . import files
from .rank import Rank, finite


class Stepwise:
    """One launch from the view of one rank, in a loop that isn't ours."""

    def __init__(self, rank: Rank, job: dict[str, Any]) -> None:
        self.rank, self.job = rank, job
        self.kind = job["device"]["kind"]
        self.steps, self.warmup = int(job["steps"]), int(job["warmup_steps"])
        self.total = self.steps + int(job.get("profile_steps") or 0)
        self.done = 0
        self.profiler: Any = None

    def timed(self, step: Callable[[], Any]) -> tuple[Any, float]:
        """Run one step and return what it returns, and its seconds; a collective over all ranks."""
        import torch.distributed as dist
        from torch.profiler import record_function

        if self.done == self.steps and self.total > self.steps:
            self._start_profile()
        self.rank.phase, self.rank.step = "step", self.done
        dist.barrier()
        self._synchronize()
        start = time.perf_counter()
        with record_function(f"ProfilerStep#{self.done}"):
            result = step()
            self._synchronize()
        seconds = time.perf_counter() - start
        self.rank.phase = "statistics"
        return result, seconds

    def write(self, seconds: float, peak_gib: float | None, *, here: bool, told: dict[str, Any]) -> None:
        """Write the step's line on the one rank that is `here`; a collective over all ranks.

        peak_gib: this rank's; None: not known. told: lm_loss, aux, grad_norm, loss_tokens, tokens. The slowest rank's seconds
        are the step's.
        """
        every = self._gathered(seconds, peak_gib)
        if not here:
            return
        peaks = [peak for _, peak in every if peak >= 0]
        line = {
            "step": self.done,
            "kind": "warmup" if self.done < self.warmup else "scored" if self.done < self.steps else "profiled",
            "t": time.time(),
            "step_s": max(x for x, _ in every),
            "rank_step_s": [x for x, _ in every],
            "peak_mem_gib": max(peaks) if peaks else None,
            **told,
            "lm_loss": finite("nan" if told["lm_loss"] is None else told["lm_loss"]),
            "aux": {name: finite(value) for name, value in told["aux"].items()},
            "grad_norm": finite(told["grad_norm"]),
        }
        files.append_jsonl(self.rank.run_dir / files.STEPS, line)

    def ended(self) -> bool:
        """Count the step; after the last one write the trace, and say so."""
        self.done += 1
        self.rank.step = None
        if self.profiler is not None and self.done == self.total:
            self._end_profile()
        return self.done >= self.total

    def finish(self, name: str) -> None:
        """Say that the run is done. Raises: RuntimeError when `name` ended before the last step."""
        if self.done < self.total:
            raise RuntimeError(f"{name} ended after {self.done} of {self.total} steps")
        if self.rank.index == 0:
            seconds = {phase: round(value, 4) for phase, value in self.rank.seconds.items()}
            files.write_json(self.rank.run_dir / files.DONE, {"t": time.time(), "seconds": seconds})

    def device(self) -> Any:
        """Return this rank's torch device."""
        import torch

        return torch.device("cuda", torch.cuda.current_device()) if self.kind == "cuda" else torch.device("cpu")

    def peak_gib(self) -> float | None:
        """Return the device memory that torch's allocator held at most, GiB; None on a CPU."""
        import torch

        return torch.cuda.max_memory_allocated() / (1 << 30) if self.kind == "cuda" else None

    def _gathered(self, seconds: float, peak: float | None) -> list[tuple[float, float]]:
        """Return every rank's seconds and peak memory (GiB; -1: not known), in the order of ranks."""
        import torch
        import torch.distributed as dist

        own = torch.tensor([seconds, -1.0 if peak is None else peak], dtype=torch.float64, device=self.device())
        found = [torch.empty_like(own) for _ in range(self.rank.world_size)]
        dist.all_gather(found, own)
        return [(float(x[0]), float(x[1])) for x in found]

    def _synchronize(self) -> None:
        if self.kind == "cuda":
            import torch

            torch.cuda.synchronize()

    def _start_profile(self) -> None:
        """Trace the extra steps and nothing else: no shapes, no stacks."""
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self.kind == "cuda" else [])]
        self.profiler = profile(activities=kinds, record_shapes=False, with_stack=False)
        self.profiler.__enter__()

    def _end_profile(self) -> None:
        self.rank.phase = "trace"
        self.profiler.__exit__(None, None, None)
        path = self.rank.run_dir / files.trace(self.rank.index)
        path.parent.mkdir(exist_ok=True)
        self.profiler.export_chrome_trace(str(path))
        self.profiler = None
