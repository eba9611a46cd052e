"""Trains a megatron-core GPT model for a few steps as one rank of a launch and records every step; on GPUs with NCCL, or
on CPUs with gloo through `cpu_shim`. Reads RUN_DIR/job.json, leaves the files named in `files`. Run it as
`python -m torch.distributed.run --nproc-per-node N -m attuner_runner.train_mcore RUN_DIR`."""

import time

_T0 = time.perf_counter()

import datetime  # noqa: E402
import platform  # noqa: E402
import sys  # noqa: E402
import warnings  # noqa: E402
from importlib import metadata  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from . import files  # noqa: E402
from .rank import Rank, environment, finite, leave  # noqa: E402


def main(run_dir: str) -> None:
    """Run the job of a run directory; ends the process with status 1 when it fails (77 when out of memory on a CPU)."""
    with Rank(run_dir) as rank:
        job = files.read_json(rank.run_dir / files.JOB)
        with rank.timed("imports"):
            import_megatron(job["device"])
        rank.seconds["imports"] = time.perf_counter() - _T0
        run = Run(rank, job)
        run.build()
        run.train()
        run.finish()


def import_megatron(device: dict[str, Any]) -> None:
    """Import torch and megatron; on a CPU the shim goes in between, and fewer than all cores are used."""
    warnings.simplefilter("ignore")
    import torch

    if device["kind"] == "cpu":
        from . import cpu_shim, memory

        memory.settle_allocator()
        cpu_shim.install()
        torch.set_num_threads(int(device.get("threads") or 1))
    from . import mcore_model  # noqa: F401


class Run:
    """One launch from the view of one rank: build, train, finish, in this order."""

    def __init__(self, rank: Rank, job: dict[str, Any]) -> None:
        import torch

        from . import mcore_config, mcore_layout
        from .errors import ConfigError
        from .memory import MemoryGuard

        self.rank, self.job = rank, job
        self.kind = job["device"]["kind"]
        self.device = torch.device("cuda", rank.local) if self.kind == "cuda" else torch.device("cpu")
        self.steps, self.warmup = int(job["steps"]), int(job["warmup_steps"])
        self.profile_steps = int(job.get("profile_steps") or 0)
        self.configs = mcore_config.build_configs(job["arguments"], self.kind)
        self.described = mcore_config.describe(self.configs)
        self.facts = mcore_layout.derive(self.configs, rank.world_size)
        if rank.world_size != job["world_size"]:
            raise ConfigError(f"job wants {job['world_size']} ranks, torchrun gave {rank.world_size}")
        self.probe: Any = None
        self.guard = MemoryGuard(job["device"].get("mem_gib"), lambda message: rank.write_failure("oom", message), self.kind)

    # ------------------------------------------------------------------------------------------ build

    def build(self) -> None:
        """Start process groups, build the model, load its weights and verify the rows."""
        from . import mcore_model
        from .rows import Rows

        rank, trainer = self.rank, self.configs.trainer
        with rank.timed("init"):
            self._start_processes()
            mcore_model.start_parallel(self.configs)
            self.guard.start(rank.where)
        with rank.timed("build"):
            chunks = mcore_model.build_chunks(self.configs, self.facts["padded_vocab_size"], self.kind)
        with rank.timed("load"):
            if self.job.get("load"):
                mcore_model.load_weights(chunks, self.job["load"])
        with rank.timed("build"):
            self.built = mcore_model.prepare(self.configs, chunks, self.steps)
            parameters = mcore_model.count_parameters(chunks, self.configs.transformer)
        with rank.timed("rows"):
            self.rows = Rows(self.job["rows"], trainer.seq_length, trainer.vocab_size, self.device)
            total = (self.steps + self.profile_steps) * trainer.global_batch_size
            self.rows.need(int(self.job["first_row"]), total)
        if rank.index == 0:
            files.write_json(
                rank.run_dir / files.CONFIG,
                {
                    "arguments": self.described,
                    "facts": self.facts,
                    "env": environment(self.job.get("env", {})),
                    "versions": versions(),
                    "host": platform.node(),
                    "parameters": parameters,
                },
            )

        with rank.timed("probe"):
            self._attach_probe()

    def _attach_probe(self) -> None:
        """Let the probe watch the first steps, never a scored one; the job can switch it off."""
        steps = min(int(self.job.get("probe_steps", 2)), self.warmup)
        if not self.job.get("probe", True) or steps < 1:
            return
        from .probe import Probe

        built, hooks = self.built, list(self.job.get("probe_hooks") or [])
        self.probe = Probe.attach(
            built.model, built.optimizer, self.configs.transformer, self.rank.run_dir, steps=steps, hooks=hooks
        )

    def _start_processes(self) -> None:
        import torch
        import torch.distributed as dist

        if self.kind == "cuda":
            torch.cuda.set_device(self.device)
        backend = "nccl" if self.kind == "cuda" else "gloo"
        # A stuck peer is the driver's matter, which sees that no step is written; this only bounds an orphan.
        dist.init_process_group(backend, timeout=datetime.timedelta(minutes=30))

    # ------------------------------------------------------------------------------------------ train

    def train(self) -> None:
        """Run warm-up, scored and profiled steps; rank 0 writes each as it happens."""
        with self.rank.timed("steps"):
            for step in range(self.steps):
                self._one(step, "warmup" if step < self.warmup else "scored")
        if not self.profile_steps:
            return
        with self.rank.timed("trace"):
            self._profile()

    def _profile(self) -> None:
        """Trace the extra steps and nothing else: no shapes, no stacks."""
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU]
        if self.kind == "cuda":
            activities.append(ProfilerActivity.CUDA)
        with profile(activities=activities, record_shapes=False, with_stack=False) as profiler:
            for step in range(self.steps, self.steps + self.profile_steps):
                self._one(step, "profiled")
        path = self.rank.run_dir / files.trace(self.rank.index)
        path.parent.mkdir(exist_ok=True)
        self.rank.phase = "trace"
        profiler.export_chrome_trace(str(path))

    def _one(self, step: int, kind: str) -> None:
        """Time one step, then gather what it left and write its line."""
        import torch.distributed as dist
        from torch.profiler import record_function

        from . import drills, mcore_step

        self.rank.step = step
        batches = self._batches(step)
        drills.rehearse(
            self.job.get("inject"),
            step,
            self.rank.index == self.rank.world_size - 1,
            self.built.chunks,
            self.guard.limit_gib,
        )
        watching = self.probe is not None and self.probe.watching
        if watching:
            self.probe.before_step()
        self.guard.reset()
        dist.barrier()
        self._synchronize()
        show = self.probe.see_loss if watching else None
        start = time.perf_counter()
        with record_function(f"ProfilerStep#{step}"):
            outcome = mcore_step.update(self.configs, self.facts, self.built, batches, self._enter, show)
            self._synchronize()
        seconds = time.perf_counter() - start
        self.rank.phase = "statistics"
        statistics = mcore_step.gather(self.configs, self.facts, outcome, seconds, self.guard.peak_gib(), self.device)
        if self.rank.index == 0:
            self._write(step, kind, statistics)
        if watching:
            self._probed(statistics)
        self.rank.step = None

    def _probed(self, statistics: dict[str, Any]) -> None:
        """End the probe's step, and its work after its last one."""
        with self.rank.timed("probe"):
            self.probe.after_step(loss=statistics["lm_loss"], aux=statistics["aux"], loss_tokens=statistics["loss_tokens"])
            if not self.probe.watching:
                self.probe.finish()
                self.probe = None

    def _batches(self, step: int) -> Any:
        from megatron.core import parallel_state

        from .rows import iterators

        trainer = self.configs.trainer
        batches = self.rows.update(
            int(self.job["first_row"]) + step * trainer.global_batch_size,
            trainer.global_batch_size,
            trainer.micro_batch_size,
            self.facts["data_parallel_size"],
            parallel_state.get_data_parallel_rank(),
        )
        return iterators(batches, len(self.built.model))

    def _enter(self, phase: str) -> None:
        self.rank.phase = phase

    def _synchronize(self) -> None:
        import torch

        if self.kind == "cuda":
            torch.cuda.synchronize()

    def _write(self, step: int, kind: str, statistics: dict[str, Any]) -> None:
        line = {"step": step, "kind": kind, "t": time.time(), "tokens": self.facts["tokens_per_update"], **statistics}
        for name in ("lm_loss", "grad_norm", "peak_mem_gib"):
            line[name] = finite(line[name])
        line["aux"] = {name: finite(value) for name, value in line["aux"].items()}
        files.append_jsonl(self.rank.run_dir / files.STEPS, line)

    # ------------------------------------------------------------------------------------------ finish

    def finish(self) -> None:
        """Save if asked, say that the run is done and leave."""
        import torch.distributed as dist

        from . import mcore_model

        if self.job.get("save"):
            with self.rank.timed("save"):
                mcore_model.save_weights(self.built, self.job["save"])
        self.rank.phase = "finish"
        dist.barrier()
        if self.rank.index == 0:
            seconds = {name: round(value, 4) for name, value in self.rank.seconds.items()}
            files.write_json(self.rank.run_dir / files.DONE, {"t": time.time(), "seconds": seconds})
        dist.destroy_process_group()
        leave(0)


def versions() -> dict[str, str]:
    """Return the versions that bear on a run."""
    return {
        "python": platform.python_version(),
        "torch": metadata.version("torch"),
        "megatron_core": metadata.version("megatron-core"),
    }


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
