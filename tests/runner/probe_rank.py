"""Ranks for the tests of the probe: `python -m torch.distributed.run --nproc-per-node N -m tests.runner.probe_rank RUN_DIR`. The
job's key `test` says what happens: 'restored' notes what the probe left behind on the objects that it had hooked, 'broken' makes
the last rank's probe fail in the middle of step 1, 'broken_attach' as it attaches."""

import sys
from pathlib import Path
from typing import Any

from attuner.runner import files, train_mcore


def looks(chunks: list[Any], optimizer: Any, step: int) -> dict[str, Any]:
    """A user's hook."""
    weight = next(chunks[0].parameters())
    return {"gradient_there": float(weight.main_grad.abs().sum() > 0), "kind": type(optimizer).__name__, "nan": float("nan")}


def fails(chunks: list[Any], optimizer: Any, step: int) -> dict[str, Any]:
    """A user's hook that is wrong."""
    raise ValueError("wrong on purpose")


TRAINING = {"current_microbatch"}
"""Attributes that megatron's schedule sets on modules, probe or none."""


def state(run: Any) -> dict[str, str]:
    """Describe whatever a probe could have changed on a run's objects: their attributes, and every hook of every module."""
    found = {"config": repr(sorted((k, id(v)) for k, v in vars(run.configs.transformer).items()))}
    inner = getattr(run.built.optimizer, "chained_optimizers", [])
    for name, thing in (("optimizer", run.built.optimizer), *((f"optimizer {i}", part) for i, part in enumerate(inner))):
        found[name] = repr(sorted(vars(thing)))
    for i, chunk in enumerate(run.built.model):
        for name, module in chunk.named_modules():
            hooks = {k: [id(f) for f in v.values()] for k, v in vars(module).items() if k.endswith("hooks") and v}
            found[f"{i}.{name}"] = repr((sorted(set(vars(module)) - TRAINING), hooks))
    return found


def restored(run: Any) -> None:
    """Train with the probe and write down what is different afterwards."""
    asked, run.job["probe"] = run.job.get("probe", True), False
    run.build()
    before = state(run)
    run.job["probe"] = asked
    run._attach_probe()
    during = state(run)
    run.train()
    after = state(run)
    changed = {name for name in before if before[name] != during[name]}
    report = {"hooked": sorted(changed), "left": sorted(name for name in before if before[name] != after[name])}
    files.write_json(run.rank.run_dir / f"restored{run.rank.index}.json", report)


def break_the_last_rank(run: Any, when: str) -> None:
    """Plant a failure in the last rank's probe."""
    from attuner.runner.probe import attach
    from attuner.runner.probe.measure import Numbers

    real = Numbers.read_after

    def in_step_1(self: Any, *args: Any) -> None:
        if run.rank.step == 1:
            raise RuntimeError("planted")
        real(self, *args)

    def at_once(*args: Any) -> Any:
        raise RuntimeError("planted")

    if run.rank.index != run.rank.world_size - 1:
        return
    if when == "broken":
        Numbers.read_after = in_step_1  # type: ignore[method-assign]
    else:
        attach.collect = at_once  # type: ignore[assignment]


def main(run_dir: str) -> None:
    """Be one rank."""
    with train_mcore.Rank(run_dir) as rank:
        job = files.read_json(rank.run_dir / files.JOB)
        train_mcore.import_megatron(job["device"])
        run = train_mcore.Run(rank, job)
        if job["test"] == "restored":
            restored(run)
        else:
            break_the_last_rank(run, job["test"])
            run.build()
            run.train()
        run.finish()


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).resolve()))
