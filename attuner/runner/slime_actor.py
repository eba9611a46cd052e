"""What a launch needs of slime's training processes: every update timed and written, the first ones watched by the probe, the
last ones profiled. slime calls `attach` in each of its Ray actors once Megatron is initialized (--custom-megatron-init-path); its
`train_one_step` is looked up on every call, so a wrapper does the rest without an edit. Not run on GPUs yet.

slime packs rows of several lengths into one, and how many depends on the layout: the probe doesn't compare the batch here."""

import functools
import importlib
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.profiler import record_function

from . import files
from .megatron_import import Framework, Slime
from .megatron_values import final_values
from .probe import Probe
from .probe.megatron_lm import tells_loss
from .rank import environment, finite
from .run_slime import RUN_DIR

MODEL = "slime.backends.megatron_utils.model"
LOSS = "loss"
"""slime's name of the loss that is minimized."""
PACKED = "slime packs rows of several lengths, and the layout decides how many: they are the file's rows, not compared one by one"


class PackedProbe(Probe):
    """The probe on packed rows: gradients, weights and the update as everywhere, no batch."""

    def _see_forward(self, core: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._missing.setdefault("batch", PACKED)


def attach(args: Any) -> None:
    """Wrap slime's train_one_step in this process. args: slime's namespace; unused, the job says what to do."""
    run_dir = Path(os.environ[RUN_DIR])
    module: Any = importlib.import_module(MODEL)
    loop = Loop(run_dir, files.read_json(run_dir / files.JOB))
    real = module.train_one_step

    @functools.wraps(real)
    def train_one_step(*given: Any, **named: Any) -> Any:
        return loop.step(real, given, named)

    module.train_one_step = train_one_step


class Loop:
    """slime's updates as one rank of a launch sees them."""

    def __init__(self, run_dir: Path, job: dict[str, Any]) -> None:
        self.run_dir, self.job = run_dir, job
        self.steps, self.warmup = int(job["steps"]), int(job["warmup_steps"])
        self.total = self.steps + int(job.get("profile_steps") or 0)
        self.done = 0
        self.probe: Probe | None = None
        self.profiler: Any = None

    def step(self, real: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one update. args begin: args, rollout, step, batches, model, optimizer, scheduler, micro-batches, rows."""
        if self.done >= self.total:
            return real(*args, **kwargs)
        if self.done == 0:
            self._begin(args[0], list(args[4]), args[5])
        if self.done == self.steps:
            self._start_profile()
        watched = self.probe if self.probe is not None and self.probe.watching else None
        if watched is not None:
            watched.before_step()
        self._reset_peak()
        dist.barrier()
        self._synchronize()
        start = time.perf_counter()
        with record_function(f"ProfilerStep#{self.done}"):
            losses, grad_norm = real(*args, **kwargs)
            self._synchronize()
        self._after(losses, grad_norm, time.perf_counter() - start, watched)
        self.done += 1
        if self.profiler is not None and self.done == self.total:
            self._end_profile()
        return losses, grad_norm

    def _begin(self, args: Any, model: list[Any], optimizer: Any) -> None:
        core: Any = importlib.import_module("megatron.core.utils")
        config = core.get_model_config(model[0])
        if dist.get_rank() == 0:
            describe(self.run_dir, self.job, args, model, optimizer, config)
        dist.barrier()
        watch = min(int(self.job.get("probe_steps", 2)), self.warmup)
        if self.job.get("probe", True) and watch:
            self.probe = PackedProbe.attach(model, optimizer, config, self.run_dir, steps=watch)

    def _after(self, losses: dict[str, Any], grad_norm: Any, seconds: float, watched: Probe | None) -> None:
        values = {name: float(torch.as_tensor(v).float().mean()) for name, v in (losses or {}).items()}
        loss = values.pop(LOSS, None)
        own = torch.tensor([seconds, self._peak_gib()], dtype=torch.float64, device=self._device())
        every = [torch.empty_like(own) for _ in range(dist.get_world_size())]
        dist.all_gather(every, own)
        if tells_loss():
            times = [float(x[0]) for x in every]
            files.append_jsonl(
                self.run_dir / files.STEPS,
                {
                    "step": self.done,
                    "kind": "warmup" if self.done < self.warmup else "scored" if self.done < self.steps else "profiled",
                    "t": time.time(),
                    "step_s": max(times),
                    "rank_step_s": times,
                    "lm_loss": finite("nan" if loss is None else loss),
                    "aux": {name: finite(v) for name, v in values.items()},
                    "grad_norm": finite(grad_norm),
                    "loss_tokens": None,
                    "tokens": int(self.job["tokens_per_update"]),
                    "peak_mem_gib": max(float(x[1]) for x in every),
                },
            )
        if watched is not None:
            watched.after_step(loss=loss, aux=values)
            if not watched.watching:
                watched.finish()
                self.probe = None

    # ------------------------------------------------------------------------------------------ device and profile

    def _device(self) -> torch.device:
        return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")

    def _synchronize(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def _reset_peak(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def _peak_gib(self) -> float:
        return torch.cuda.max_memory_allocated() / (1 << 30) if torch.cuda.is_available() else 0.0

    def _start_profile(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
        self.profiler = profile(activities=kinds, record_shapes=False, with_stack=False)
        self.profiler.__enter__()

    def _end_profile(self) -> None:
        self.profiler.__exit__(None, None, None)
        path = self.run_dir / files.trace(dist.get_rank())
        path.parent.mkdir(exist_ok=True)
        self.profiler.export_chrome_trace(str(path))
        self.profiler = None


def describe(run_dir: Path, job: dict[str, Any], args: Any, model: list[Any], optimizer: Any, config: Any) -> None:
    """Write config.json: final arguments as the resolver spells them, environment and versions."""
    arguments: Any = importlib.import_module("megatron.training.arguments")
    options: Any = importlib.import_module("slime.utils.arguments")
    slime = Slime(arguments=arguments, provider=options.get_slime_extra_args_provider(), mode=options._pre_parse_mode)
    parser = Framework(arguments=arguments, training=None, slime=slime, versions={}).parser()
    dests = {action.dest for action in parser._actions}
    core: Any = importlib.import_module("megatron.core")
    told = {
        "arguments": final_values(args, dests, transformer=config, ddp=model[0].ddp_config, optimizer=optimizer.config),
        "env": environment(job.get("env", {})),
        "versions": {"megatron_core": str(core.__version__), "torch": torch.__version__.split("+")[0]},
    }
    files.write_json(run_dir / files.CONFIG, told)
