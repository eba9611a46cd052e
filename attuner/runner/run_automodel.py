"""Runs a NeMo AutoModel training recipe, unedited, as one rank of a launch: its own YAML loader and recipe class, and around its
training step what a launch of attuner needs: every step timed and written, the last ones profiled. The loop is left after the
last step, with max_steps and so the schedules as the recipe has them. There is no probe: AutoModel isn't megatron-core.
`python -m torch.distributed.run … -m attuner_runner.run_automodel RUN_DIR`.

The job says: `tree` (the recipe's YAML tree), `recipe` (class), `judged` (final values), `source` (a checkout, or '' for the
installed package), `steps`, `warmup_steps`, `profile_steps`, `tokens_per_update`."""

import importlib
import importlib.util
import json
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

from . import files
from .errors import ConfigError
from .rank import Rank, environment, leave
from .stepwise import Stepwise

FLOAT = re.compile(r"(?<![\w.\"])(-?\d+)(e[-+]?\d+)(?![\w\"])")
GIB = 1 << 30
HELD = {"step_scheduler": "step_scheduler", "lr_scheduler": "lr_scheduler", "checkpoint": "checkpoint"}
"""Sections whose typed objects hold what finally counts."""


HOSTED = ("nemo_automodel.recipes.llm.train_ft", "nemo_automodel._transformers.auto_model")
"""Modules that name a CUDA device without asking whether there is one, as of 36044ad3."""


class Finished(Exception):
    """The last step of the launch is done."""


def main(run_dir: str) -> None:
    """Run the job of a run directory; ends the process with status 1 when it fails."""
    with Rank(run_dir) as rank:
        job = files.read_json(rank.run_dir / files.JOB)
        if rank.world_size != job["world_size"]:
            raise ConfigError(f"job wants {job['world_size']} ranks, torchrun gave {rank.world_size}")
        with rank.timed("imports"):
            import_automodel(job)
        run = Run(rank, job)
        with rank.timed("build"):
            run.build()
        with rank.timed("steps"):
            run.train()
        run.finish("the recipe")
    leave(0)


def import_automodel(job: dict[str, Any]) -> None:
    """Import AutoModel, from the checkout that the job names or as installed; on a CPU what it asks of CUDA answers nothing.

    Raises: ConfigError that names what the image lacks.
    """
    warnings.simplefilter("ignore")
    if job.get("source"):
        sys.path.insert(0, str(Path(job["source"]).resolve()))
    if importlib.util.find_spec("nemo_automodel") is None:
        raise ConfigError("stack automodel: nemo_automodel isn't installed in this image, and stack.job_source names no checkout")
    cpu = job["device"]["kind"] == "cpu"
    try:
        if cpu:
            _without_cuda(int(job["device"].get("threads") or 1))
        importlib.import_module("nemo_automodel.recipes.llm.train_ft")
        if cpu:
            _on_host()
    except ImportError as error:
        raise ConfigError(f"stack automodel: nemo_automodel can't be imported in this image: {error}") from None


def _without_cuda(threads: int) -> None:
    """Let the recipe's questions about the current device and its memory be answered where there is none."""
    import torch

    torch.set_num_threads(threads)
    for name in ("reset_peak_memory_stats", "empty_cache", "synchronize", "max_memory_allocated", "memory_allocated"):
        setattr(torch.cuda, name, lambda *args, **kwargs: 0)
    torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment,return-value]


def _on_host() -> None:
    """Let the modules that build a model on `torch.device("cuda", …)`, whatever the machine, build it on the CPU."""
    import torch

    class Kind(type):
        def __instancecheck__(cls, value: object) -> bool:
            return isinstance(value, torch.device)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            return torch.device("cpu") if args and str(args[0]).startswith("cuda") else torch.device(*args, **kwargs)

    class Device(metaclass=Kind):
        """torch.device, but for CUDA devices."""

    class Torch:
        """torch, but for its devices."""

        device = Device

        def __getattr__(self, name: str) -> Any:
            return getattr(torch, name)

    for name in HOSTED:
        module: Any = importlib.import_module(name)
        module.torch = Torch()


def yaml_text(tree: Any) -> str:
    """Return a tree as YAML: JSON is YAML, but for numbers such as 1e-05, which YAML 1.1 takes for text without a point."""
    return FLOAT.sub(r"\1.0\2", json.dumps(tree, indent=1, allow_nan=False)) + "\n"


class Run(Stepwise):
    """One launch from the view of one rank."""

    def __init__(self, rank: Rank, job: dict[str, Any]) -> None:
        super().__init__(rank, job)
        self.recipe: Any = None

    def build(self) -> None:
        """Load the tree with AutoModel's own loader and build its recipe; wrap its training step."""
        tree = dict(self.job["tree"])
        tree.setdefault("checkpoint", {})["checkpoint_dir"] = str(self.rank.run_dir / "automodel")
        if self.kind == "cpu":
            tree.setdefault("dist_env", {})["backend"] = "gloo"
        path = self.rank.run_dir / f"automodel.rank{self.rank.index}.yaml"
        path.write_text(yaml_text(tree), encoding="utf-8")
        loader: Any = importlib.import_module("nemo_automodel.components.config.loader")
        names: Any = importlib.import_module("nemo_automodel.cli.utils")
        module, _, name = names.resolve_recipe_name(self.job["recipe"]).rpartition(".")
        self.recipe = getattr(importlib.import_module(module), name)(loader.load_yaml_config(str(path)))
        self.recipe.setup()
        if self.recipe.step_scheduler.max_steps < self.recipe.step_scheduler.step + self.total:
            raise ConfigError(
                f"step_scheduler.max_steps: {self.recipe.step_scheduler.max_steps} is less than the {self.total} steps of a "
                f"launch from step {self.recipe.step_scheduler.step} on; the schedule can't hold"
            )
        if self.rank.index == 0:
            self._describe()
        real = self.recipe._run_train_optim_step
        self.recipe._run_train_optim_step = lambda *args, **kwargs: self._step(real, args, kwargs)

    def train(self) -> None:
        """Run AutoModel's loop until the last step of the launch."""
        try:
            self.recipe.run_train_validation_loop()
        except Finished:
            return
        if self.done < self.total:
            raise RuntimeError(f"the recipe ended after {self.done} of {self.total} steps: its data are shorter than a launch")

    # ------------------------------------------------------------------------------------------ a step

    def _step(self, real: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.done >= self.total:
            raise Finished
        sample, seconds = self.timed(lambda: real(*args, **kwargs))
        metrics = sample.metrics
        told = {
            "lm_loss": metrics["loss"],
            "aux": {},
            "grad_norm": metrics.get("grad_norm"),
            "loss_tokens": int(metrics["num_label_tokens"]),
            "tokens": int(self.job["tokens_per_update"]),
        }
        peak = float(metrics.get("mem") or 0.0)
        self.write(seconds, peak or None, here=self.rank.index == 0, told=told)
        if self.ended():
            raise Finished
        return sample

    # ------------------------------------------------------------------------------------------ what holds

    def _describe(self) -> None:
        """Write config.json: the judged values as the built recipe holds them, environment and versions."""
        import torch

        told = {name: self._held(name, value) for name, value in self.job["judged"].items()}
        package: Any = importlib.import_module("nemo_automodel")
        versions = {"automodel": str(getattr(package, "__version__", "")), "torch": torch.__version__.split("+")[0]}
        files.write_json(
            self.rank.run_dir / files.CONFIG,
            {"arguments": told, "env": environment(self.job.get("env", {})), "versions": versions},
        )

    def _held(self, name: str, judged: Any) -> Any:
        """Return what the built recipe holds under a name; the judged value where it holds nothing of that name."""
        section, _, field = name.partition(".")
        recipe, sizes = self.recipe, ("tp_size", "pp_size", "cp_size", "ep_size")
        if section == "distributed" and field in sizes:
            return getattr(recipe.mesh_context, field)
        if name == "distributed.activation_checkpointing":  # the strategy's own field of that name stays as it was
            held = recipe.activation_checkpointing
            return judged if held is True and judged == "full" else _spelled(held, judged)
        if section == "distributed" and field.partition(".")[0] == "mp_policy":
            return _spelled(getattr(recipe.distributed_config.mp_policy, field.partition(".")[2], judged), judged)
        if section == "distributed" and "." not in field:
            return _spelled(getattr(recipe.distributed_config, field, judged), judged)
        if name.startswith("model.backend.") and name.count(".") == 2:
            backend = getattr(recipe.model_parts[0], "backend", None)
            return _spelled(getattr(backend, name.rpartition(".")[2], judged), judged)
        if name == "step_scheduler.local_batch_size":
            return recipe.cfg.get(name, judged)
        if section in HELD and field and "." not in field:
            return _spelled(getattr(getattr(recipe.cfg, section), field, judged), judged)
        if name == "clip_grad_norm.max_norm":
            return _spelled(recipe.max_grad_norm, judged)
        if name == "optimizer.lr":
            return _spelled(recipe.optimizer[0].defaults.get("lr", judged), judged)
        return judged


def _spelled(held: Any, judged: Any) -> Any:
    """Return a held value in the spelling of the judged one, where both mean the same; else as text."""
    if isinstance(held, tuple):
        held = list(held)
    if held == judged and isinstance(held, bool) == isinstance(judged, bool):
        return judged
    text = str(getattr(held, "value", held)).removeprefix("torch.")
    if text == str(judged) or [text] == judged or (isinstance(held, list) and held == [judged]):
        return judged
    return held if held is None or isinstance(held, bool | int | float | str) else text


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main(str(Path(sys.argv[1]).resolve()))
