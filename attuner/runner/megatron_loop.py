"""What a launch needs of Megatron-LM's training loop: every step timed and written, the first ones watched by the probe, the
last ones profiled. `megatron.training.training.train_step` is looked up on every call and begins alike from 0.16.1 to 0.20, so
a wrapper does it without an edit of Megatron."""

import functools
import importlib
from typing import Any

import torch
import torch.distributed as dist

from .errors import ConfigError
from .memory import MemoryGuard
from .probe import Probe
from .probe.megatron_lm import LM_LOSS, auxiliary, describe, showing, tells_loss
from .rank import Rank
from .stepwise import Stepwise


class Loop(Stepwise):
    """Megatron's loop as one rank of a launch sees it. Making it puts the wrapper in place.

    parsed: filled with the destinations of the script's parser while it reads the command line.
    """

    def __init__(self, rank: Rank, job: dict[str, Any], *, parsed: set[str]) -> None:
        super().__init__(rank, job)
        self.parsed = parsed
        self.probe: Probe | None = None
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
        watched = self.probe if self.probe is not None and self.probe.watching else None
        if watched is not None:
            watched.before_step()
        forward_step = args[0] if watched is None else showing(args[0], watched)
        self.guard.reset()
        result, seconds = self.timed(lambda: real(forward_step, *args[1:], **kwargs))
        self._after(result, seconds, watched)
        self.ended()
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
        losses = {name: float(value) for name, value in (result[0] or {}).items()}
        loss = losses.pop(LM_LOSS, None)
        aux = {**losses, **auxiliary(self.training)}
        tokens = self.training.get_args().global_batch_size * self.training.get_args().seq_length
        told = {"lm_loss": loss, "aux": aux, "grad_norm": result[5], "loss_tokens": None, "tokens": tokens}
        self.write(seconds, self.guard.peak_gib(), here=tells_loss(), told=told)
        if watched is not None:
            watched.after_step(loss=loss, aux=aux)
            if not watched.watching:
                watched.finish()
                self.probe = None
