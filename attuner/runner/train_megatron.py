"""Runs Megatron-LM's own training script, unedited, as one rank of a launch: its arguments from job.json in the words of its own
parser, and around its loop what a launch of attuner needs (`megatron_loop`). On CPUs with gloo through `pretrain_cpu`, which
was run on tag core_v0.16.1; on GPUs as it is, which was not run yet.
`python -m torch.distributed.run … -m attuner_runner.train_megatron RUN_DIR`.

The job says beside what every launch says: `source` (folder of the Megatron-LM checkout), `script` (in it, or anywhere),
`arguments` (of the recipe), `drop` (destinations that are taken out of them), `set` (arguments that stand in their place: what
makes a benchmark of a training run), `script_arguments` (words for a script's own options)."""

import time

_T0 = time.perf_counter()

import argparse  # noqa: E402
import importlib  # noqa: E402
import os  # noqa: E402
import runpy  # noqa: E402
import sys  # noqa: E402
import warnings  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from . import files  # noqa: E402
from .errors import ConfigError  # noqa: E402
from .rank import Rank, leave  # noqa: E402


def main(run_dir: str) -> None:
    """Run the job of a run directory; ends the process with status 1 when it fails (77 when out of memory on a CPU)."""
    with Rank(run_dir) as rank:
        job = files.read_json(rank.run_dir / files.JOB)
        if rank.world_size != job["world_size"]:
            raise ConfigError(f"job wants {job['world_size']} ranks, torchrun gave {rank.world_size}")
        script = script_of(job)
        with rank.timed("imports"):
            import_megatron(job, script)
            from .megatron_loop import Loop
        rank.seconds["imports"] = time.perf_counter() - _T0
        rank.phase = "init"
        sys.argv = [script.name, *words(job)]
        loop = Loop(rank, job, parsed=watched_parser())
        become(script)
        loop.finish("the training script")
    leave(0)


def script_of(job: dict[str, Any]) -> Path:
    """Return the training script. Raises: ConfigError when it isn't there."""
    script = Path(job["source"], job["script"])
    if not script.is_file():
        raise ConfigError(f"{script}: no such training script; stack.job_source names the checkout on the cluster's nodes")
    return script


def import_megatron(job: dict[str, Any], script: Path) -> None:
    """Import the checkout's megatron.training; on a CPU with the shim in place, and with fewer than all cores."""
    warnings.simplefilter("ignore")
    folders = [str(Path(job["source"]).resolve()), str(script.resolve().parent)]
    sys.path[:0] = list(dict.fromkeys(folders))
    # helpers that Megatron starts (data loading, checkpoint writers) find it too
    os.environ["PYTHONPATH"] = os.pathsep.join([*sys.path[:2], *filter(None, [os.environ.get("PYTHONPATH", "")])])
    if job["device"]["kind"] == "cpu":
        import torch

        from . import memory, pretrain_cpu

        memory.settle_allocator()
        pretrain_cpu.install()
        torch.set_num_threads(int(job["device"].get("threads") or 1))
    training: Any = importlib.import_module("megatron.training.training")
    if not Path(str(training.__file__)).is_relative_to(folders[0]):
        raise ConfigError(f"{folders[0]}: another Megatron-LM was imported: {training.__file__}")


def words(job: dict[str, Any]) -> list[str]:
    """Return the command line: the recipe's arguments without what is dropped, then what is set, then the script's own."""
    from .megatron_import import Framework
    from .megatron_tokens import Vocabulary

    arguments: Any = importlib.import_module("megatron.training.arguments")
    vocabulary = Vocabulary(Framework(arguments=arguments, training=None, slime=None, versions={}).parser())
    own = vocabulary.words(job["arguments"])
    known = {name: value for name, value in job["set"].items() if name in vocabulary.dests()}
    kept = vocabulary.without(own, {*job["drop"], *job["set"]})
    return [*kept, *vocabulary.words(known), *job.get("script_arguments", [])]


def watched_parser() -> set[str]:
    """Have the destinations of every parser that reads this process's command line collected; return the set that fills."""
    found: set[str] = set()
    parse = argparse.ArgumentParser.parse_known_args

    def parse_known_args(parser: argparse.ArgumentParser, *args: Any, **kwargs: Any) -> Any:
        found.update(action.dest for action in parser._actions)
        return parse(parser, *args, **kwargs)

    argparse.ArgumentParser.parse_known_args = parse_known_args  # type: ignore[assignment]
    return found


def become(script: Path) -> None:
    """Run the script to its end. Raises: RuntimeError when it exits with a status other than 0."""
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        # the way Megatron leaves its loop at exit_interval
        if ended.code not in (None, 0):
            raise RuntimeError(f"the training script ended with exit status {ended.code}") from None


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
