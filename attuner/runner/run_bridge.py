"""Trains a Megatron-Bridge recipe, unedited, as one rank of a launch: its recipe function with the recipe's overrides, and around
Bridge's training loop what a launch of attuner needs: every step timed and written, the first ones watched by the probe, the
last ones profiled. `megatron.bridge.training.train.train_step` is looked up when the loop begins, so a wrapper needs no edit.
Run up to Bridge's own imports only: not on GPUs, not inside an image of it.
`python -m torch.distributed.run … -m attuner_runner.run_bridge RUN_DIR`.

The job says: `arguments` (recipe and dotted overrides), `set` (overrides that make a benchmark of it), `source` (a checkout, or
''), `steps`, `warmup_steps`, `profile_steps`."""

import functools
import importlib
import sys
import warnings
from pathlib import Path
from typing import Any

from . import files
from .bridge_config import build, facts, flat, import_bridge, step_function, versions
from .errors import ConfigError
from .rank import Rank, environment, leave
from .stepwise import Stepwise

LOOP = "megatron.bridge.training.train"


def main(run_dir: str) -> None:
    """Run the job of a run directory; ends the process with status 1 when it fails."""
    with Rank(run_dir) as rank:
        job = files.read_json(rank.run_dir / files.JOB)
        if rank.world_size != job["world_size"]:
            raise ConfigError(f"job wants {job['world_size']} ranks, torchrun gave {rank.world_size}")
        with rank.timed("imports"):
            import_runtime(job)
        rank.phase = "build"
        config = build({**job["arguments"], **job["set"]})
        if (config.train.train_iters or 0) < int(job["steps"]) + int(job.get("profile_steps") or 0):
            raise ConfigError(f"train.train_iters: {config.train.train_iters} is less than the steps of a launch")
        loop = Loop(rank, job, config)
        pretrain: Any = importlib.import_module("megatron.bridge.training.pretrain")
        try:
            pretrain.pretrain(config, step_function(str(job["arguments"].get("step_func") or "")))
        except SystemExit as ended:  # the way Bridge leaves its loop at exit_interval
            if ended.code not in (None, 0):
                raise RuntimeError(f"Bridge ended with exit status {ended.code}") from None
        loop.finish("Bridge")
    leave(0)


def import_runtime(job: dict[str, Any]) -> None:
    """Import Bridge; on a CPU the shim goes in first. Raises: ConfigError that names what the image lacks."""
    warnings.simplefilter("ignore")
    if job["device"]["kind"] == "cpu":
        from . import cpu_shim, memory

        memory.settle_allocator()
        cpu_shim.install()
    import_bridge(str(job.get("source") or ""))


class Loop(Stepwise):
    """Bridge's loop as one rank of a launch sees it. Making it puts the wrapper in place."""

    def __init__(self, rank: Rank, job: dict[str, Any], config: Any) -> None:
        super().__init__(rank, job)
        self.config = config
        self.probe: Any = None
        module: Any = importlib.import_module(LOOP)
        real = module.train_step

        @functools.wraps(real)
        def train_step(*args: Any, **kwargs: Any) -> Any:
            return self.step(real, args, kwargs)

        module.train_step = train_step

    def step(self, real: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one of Bridge's steps. args begin: forward_step, batches, model, optimizer, scheduler, state."""
        from .probe.megatron_lm import showing

        if self.done == 0:
            self._begin(args[2], args[3], args[5])
        watched = self.probe if self.probe is not None and self.probe.watching else None
        if watched is not None:
            watched.before_step()
        forward_step = args[0] if watched is None else showing(args[0], watched)
        result, seconds = self.timed(lambda: real(forward_step, *args[1:], **kwargs))
        self._after(result, seconds, watched)
        self.ended()
        return result

    def _begin(self, model: list[Any], optimizer: Any, state: Any) -> None:
        import torch.distributed as dist

        from .probe import Probe

        core: Any = importlib.import_module("megatron.core.utils")
        if self.rank.index == 0:
            self._describe(state.cfg)
        dist.barrier()
        watch = min(int(self.job.get("probe_steps", 2)), self.warmup)
        if self.job.get("probe", True) and watch:
            hooks = list(self.job.get("probe_hooks") or [])
            config = core.get_model_config(model[0])
            self.probe = Probe.attach(model, optimizer, config, self.rank.run_dir, steps=watch, hooks=hooks)

    def _describe(self, config: Any) -> None:
        """Write config.json: the container as it trains, facts, environment and versions."""
        arguments, _ = flat(config)
        own = {name: self.job["arguments"][name] for name in ("recipe", "step_func", "mode") if self.job["arguments"].get(name)}
        told = {
            "arguments": {**arguments, **own},
            "facts": facts(config, self.rank.world_size),
            "env": environment(self.job.get("env", {})),
            "versions": versions(),
        }
        files.write_json(self.rank.run_dir / files.CONFIG, told)

    def _after(self, result: Any, seconds: float, watched: Any) -> None:
        """Write the step's line on the rank that knows the loss, and show the probe what came of it."""
        from .probe.megatron_lm import LM_LOSS, tells_loss

        losses = {name: float(value) for name, value in (result[0] or {}).items()}
        loss = losses.pop(LM_LOSS, None)
        tokens = self.config.train.global_batch_size * self.config.model.seq_length
        told = {"lm_loss": loss, "aux": losses, "grad_norm": result[5], "loss_tokens": None, "tokens": tokens}
        self.write(seconds, self.peak_gib(), here=tells_loss(), told=told)
        if watched is not None:
            watched.after_step(loss=loss, aux=losses)
            if not watched.watching:
                watched.finish()
                self.probe = None


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
