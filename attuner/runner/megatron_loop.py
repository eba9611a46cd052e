"""What a launch needs of Megatron-LM's training loop: every step timed and written, the first ones watched by the probe, the
last ones profiled. `megatron.training.training.train_step` is looked up on every call and begins alike from 0.16.1 to 0.20, so
a wrapper does it without an edit of Megatron."""

import functools
import importlib
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import record_function

from . import files
from .errors import ConfigError
from .memory import MemoryGuard
from .probe import Probe
from .probe.megatron_lm import LM_LOSS, auxiliary, describe, showing, tells_loss
from .rank import Rank, finite


class Loop:
    """Megatron's loop as one rank of a launch sees it. Making it puts the wrapper in place.

    parsed: filled with the destinations of the script's parser while it reads the command line.
    """

    def __init__(self, rank: Rank, job: dict[str, Any], *, parsed: set[str]) -> None:
        self.rank, self.job, self.parsed = rank, job, parsed
        self.kind = job["device"]["kind"]
        self.steps, self.warmup = int(job["steps"]), int(job["warmup_steps"])
        self.total = self.steps + int(job.get("profile_steps") or 0)
        self.done = 0
        self.probe: Probe | None = None
        self.profiler: Any = None
        if self.kind == "cuda":
            torch.cuda.set_device(rank.local)
        self.guard = MemoryGuard(job["device"].get("mem_gib"), lambda message: rank.write_failure("oom", message), self.kind)
        self.guard.start(rank.where)
        training: Any = importlib.import_module("megatron.training.training")
        self.training, real = training, training.train_step

        @functools.wraps(real)
        def train_step(*args: Any, **kwargs: Any) -> Any:
            return self.step(real, args, kwargs)

        training.train_step = train_step

    def step(self, real: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one of Megatron's steps. args begin: forward_step, batches, model, optimizer, scheduler, config."""
        if self.done == 0:
            self._begin(args[2], args[3], args[5])
        if self.done == self.steps and self.total > self.steps:
            self._start_profile()
        self.rank.phase, self.rank.step = "step", self.done
        watched = self.probe if self.probe is not None and self.probe.watching else None
        if watched is not None:
            watched.before_step()
        forward_step = args[0] if watched is None else showing(args[0], watched)
        self.guard.reset()
        dist.barrier()
        self._synchronize()
        start = time.perf_counter()
        with record_function(f"ProfilerStep#{self.done}"):
            result = real(forward_step, *args[1:], **kwargs)
            self._synchronize()
        self._after(result, time.perf_counter() - start, watched)
        self.done += 1
        if self.profiler is not None and self.done == self.total:
            self._end_profile()
        self.rank.step = None
        return result

    def _begin(self, model: list[Any], optimizer: Any, config: Any) -> None:
        """Describe the run and let the probe watch the first steps, never a scored one."""
        args = self.training.get_args()
        if args.train_iters < self.total:
            raise ConfigError(
                f"train_iters: {args.train_iters} is less than the {self.total} steps of a launch; the schedule can't hold"
            )
        if self.rank.index == 0:
            describe(self.training, self.rank.run_dir, args, model, optimizer, config, parsed=frozenset(self.parsed))
        dist.barrier()
        watch = min(int(self.job.get("probe_steps", 2)), self.warmup)
        if self.job.get("probe", True) and watch:
            hooks = list(self.job.get("probe_hooks") or [])
            self.probe = Probe.attach(model, optimizer, config, self.rank.run_dir, steps=watch, hooks=hooks)

    def _after(self, result: Any, seconds: float, watched: Probe | None) -> None:
        """Write the step's line, and show the probe what came of it."""
        self.rank.phase = "statistics"
        losses = {name: float(value) for name, value in (result[0] or {}).items()}
        loss = losses.pop(LM_LOSS, None)
        aux = {**losses, **auxiliary(self.training)}
        every = self._gathered(seconds, self.guard.peak_gib())
        if tells_loss():
            args = self.training.get_args()
            peaks = [peak for _, peak in every if peak >= 0]
            files.append_jsonl(
                self.rank.run_dir / files.STEPS,
                {
                    "step": self.done,
                    "kind": "warmup" if self.done < self.warmup else "scored" if self.done < self.steps else "profiled",
                    "t": time.time(),
                    "step_s": max(x for x, _ in every),
                    "rank_step_s": [x for x, _ in every],
                    "lm_loss": finite("nan" if loss is None else loss),
                    "aux": {name: finite(value) for name, value in aux.items()},
                    "grad_norm": finite(result[5]),
                    "loss_tokens": None,
                    "tokens": args.global_batch_size * args.seq_length,
                    "peak_mem_gib": max(peaks) if peaks else None,
                },
            )
        if watched is not None:
            watched.after_step(loss=loss, aux=aux)
            if not watched.watching:
                watched.finish()
                self.probe = None

    def _gathered(self, seconds: float, peak: float | None) -> list[tuple[float, float]]:
        """Return every rank's seconds and peak memory (GiB; -1: not known), in the order of ranks."""
        device = torch.device("cuda", self.rank.local) if self.kind == "cuda" else torch.device("cpu")
        own = torch.tensor([seconds, -1.0 if peak is None else peak], dtype=torch.float64, device=device)
        found = [torch.empty_like(own) for _ in range(self.rank.world_size)]
        dist.all_gather(found, own)
        return [(float(x[0]), float(x[1])) for x in found]

    def _synchronize(self) -> None:
        if self.kind == "cuda":
            torch.cuda.synchronize()

    # ------------------------------------------------------------------------------------------ profile and end

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

    def finish(self) -> None:
        """Say that the run is done. Raises: RuntimeError when the script ended before its last step."""
        if self.done < self.total:
            raise RuntimeError(f"the training script ended after {self.done} of {self.total} steps")
        if self.rank.index == 0:
            seconds = {name: round(value, 4) for name, value in self.rank.seconds.items()}
            files.write_json(self.rank.run_dir / files.DONE, {"t": time.time(), "seconds": seconds})
