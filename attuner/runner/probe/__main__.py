"""Runs a Megatron-LM training script with the probe attached, in a job that attuner did not launch:

    torchrun ... -m attuner.runner.probe [--out DIR] [--steps N] [--hook PACKAGE.MODULE:FUNCTION] pretrain_gpt.py ARGS...

in place of `torchrun ... pretrain_gpt.py ARGS...`. Needs this package's `runner` folder on the path and nothing else of attuner.
DIR (default: probe-run, or ATTUNER_PROBE_DIR) must be a folder that all ranks share. ATTUNER_CPU=1 runs the script on CPUs with
gloo, for checks."""

import argparse
import os
import runpy
import sys
from pathlib import Path


def main(argv: list[str]) -> None:
    """Attach, then become the script."""
    parser = argparse.ArgumentParser(prog="python -m attuner.runner.probe", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("ATTUNER_PROBE_DIR", "probe-run")))
    parser.add_argument("--steps", type=int, default=2, help="steps to watch, from the first on (default: 2)")
    parser.add_argument("--hook", action="append", default=[], help="a hook of your own, package.module:function")
    parser.add_argument("script", help="the training script, e.g. pretrain_gpt.py; what follows are its arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(argv)
    script = Path(given.script).resolve()
    if not script.is_file():
        parser.error(f"{given.script}: no such script")
    sys.path.insert(0, str(script.parent))
    sys.argv = [given.script, *given.arguments]
    _prepare()
    from .megatron_lm import watch

    watch(given.out.resolve(), steps=given.steps, hooks=given.hook)
    runpy.run_path(str(script), run_name="__main__")


def _prepare() -> None:
    """Put the CPU shim in place where it is asked for: before anything imports megatron."""
    if os.environ.get("ATTUNER_CPU") == "1":
        from .. import pretrain_cpu

        pretrain_cpu.install()


if __name__ == "__main__":
    main(sys.argv[1:])
