"""Runs slime's own train.py, unedited, on rollouts that were saved before: once, on the driver's node. slime reserves the devices
itself and trains in Ray actors; in each of them `slime_actor` is attached by slime's own hook. Not run on GPUs yet.
`python -m attuner_runner.run_slime RUN_DIR`.

The job says: `slime_source` and `source` (folders of slime's and Megatron-LM's checkouts in the image), `script` (in slime's, or
anywhere), `arguments` (of the recipe), `drop` (destinations that are taken out of them), `set` (arguments in their place)."""

import importlib
import importlib.util
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

from . import files
from .errors import ConfigError
from .rank import Rank

EARLY = ("debug_train_only", "debug_rollout_only", "load_debug_rollout_data", "train_backend")
"""Options that slime reads before all others, so that its parser doesn't know them."""
RUN_DIR = "ATTUNER_RUN_DIR"
"""Tells the actors where they write."""


def main(run_dir: str) -> None:
    """Run the job of a run directory; ends the process with status 1 when it fails."""
    with Rank(run_dir) as rank:
        job = files.read_json(rank.run_dir / files.JOB)
        script = prepare(job)
        words = command_line(job)
        rank.phase = "ray"
        connect(job, rank.run_dir)
        rank.phase = "training"
        sys.argv = [script.name, *words]
        become(script)
        finish(job, rank.run_dir)


def prepare(job: dict[str, Any]) -> Path:
    """Put the checkouts on the path and return the script.

    Raises: ConfigError that names what the image lacks.
    """
    script = Path(job["slime_source"] or ".", job["script"])
    if not script.is_file():
        raise ConfigError(f"{script}: no such script; stack.slime_source names slime's checkout in the image")
    folders = [str(script.resolve().parent), *([str(Path(job["source"]).resolve())] if job.get("source") else [])]
    sys.path[:0] = list(dict.fromkeys(folders))
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *filter(None, [os.environ.get("PYTHONPATH", "")])])
    for name in ("megatron.training", "sglang", "transformers", "torch_memory_saver", "slime"):
        try:
            found = importlib.util.find_spec(name) is not None
        except ImportError:
            found = False
        if not found:
            raise ConfigError(f"stack slime: {name} isn't installed in this image, and slime's train.py needs it")
    return script


def command_line(job: dict[str, Any]) -> list[str]:
    """Return the recipe's words without what is dropped, then what is set, in the vocabulary of slime's own parser."""
    import argparse

    from .megatron_tokens import Vocabulary

    arguments: Any = importlib.import_module("megatron.training.arguments")
    options: Any = importlib.import_module("slime.utils.arguments")
    parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
    vocabulary = Vocabulary(options.get_slime_extra_args_provider()(parser))
    replaced = {*job["drop"], *job["set"]}
    given = {name: value for name, value in job["arguments"].items() if name.lstrip("-").replace("-", "_") not in replaced}
    own = vocabulary.without(vocabulary.words(given, strict=False), replaced)
    later = {name: value for name, value in job["set"].items() if name in vocabulary.dests() or name in EARLY}
    return [*own, *vocabulary.words(later, strict=False)]


def connect(job: dict[str, Any], run_dir: Path) -> None:
    """Join the cluster so that every actor gets the job's variables, and knows where the run writes."""
    import ray

    env = {**job.get("env", {}), RUN_DIR: str(run_dir.resolve())}
    if os.environ.get("PYTHONPATH"):
        env["PYTHONPATH"] = os.environ["PYTHONPATH"]
    os.environ["RAY_OVERRIDE_JOB_RUNTIME_ENV"] = "1"  # the submission set some of the same variables
    runtime: dict[str, Any] = {"env_vars": env}
    kept = json.loads(os.environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")).get("runtime_env", {})
    if kept.get("working_dir"):
        runtime["working_dir"] = kept["working_dir"]
    ray.init(runtime_env=runtime, log_to_driver=True)


def become(script: Path) -> None:
    """Run the script to its end. Raises: RuntimeError when it exits with a status other than 0."""
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise RuntimeError(f"{script.name} ended with exit status {ended.code}") from None


def finish(job: dict[str, Any], run_dir: Path) -> None:
    """Say that the run is done. Raises: RuntimeError when it wrote fewer steps than the job asked for."""
    wanted = int(job["steps"]) + int(job.get("profile_steps") or 0)
    done = len(files.read_jsonl(run_dir / files.STEPS))
    if done < wanted:
        raise RuntimeError(f"slime ended after {done} of {wanted} steps: fewer rollouts were saved than the launch needs")
    files.write_json(run_dir / files.DONE, {"steps": done})


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
