"""Attaches the probe to Megatron-LM's own training loop, without an edit of it: `megatron.training.training.train_step` is looked
up on every call and begins alike from 0.16.1 to 0.20, so a wrapper sees model, optimizer and batches, and takes itself away after
the observed steps. Beside the fingerprint it leaves config.json (final arguments, facts, environment, versions) and a line of
steps.jsonl a step, as launches of attuner do, so that `attuner gate --runs` reads either."""

import functools
import importlib
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from .. import files
from ..rank import environment, finite
from . import Probe
from .piece import unwrapped

LM_LOSS = "lm loss"


def watch(out: Path, *, steps: int = 2, hooks: list[str] | None = None) -> None:
    """Have the first steps of the training run that this process is about to begin watched, on every rank alike.

    out: a folder that all ranks share; made by rank 0. steps: how many, from the first on.
    """
    training: Any = importlib.import_module("megatron.training.training")
    real = training.train_step
    watcher = _Watcher(training, out, steps, list(hooks or []))

    @functools.wraps(real)
    def train_step(*args: Any, **kwargs: Any) -> Any:
        result = watcher.step(real, args, kwargs)
        if not watcher.watching:
            training.train_step = real
        return result

    training.train_step = train_step


class _Watcher:
    """Drives one probe through Megatron-LM's first steps."""

    def __init__(self, training: Any, out: Path, steps: int, hooks: list[str]) -> None:
        self.watching = True
        self._training, self._out, self._steps, self._hooks = training, out, steps, hooks
        self._probe: Probe | None = None
        self._args: Any = training.get_args
        self._done = 0

    def step(self, real: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one of Megatron's steps and observe it. args begin: forward_step, batches, model, optimizer, scheduler, config."""
        forward_step, _, model, optimizer, _, config = args[:6]
        probe = self._attached(model, optimizer, config)
        probe.before_step()
        start = time.perf_counter()
        result = real(showing(forward_step, probe), *args[1:], **kwargs)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        losses = {name: float(value) for name, value in (result[0] or {}).items()}
        loss = losses.pop(LM_LOSS, None)
        aux = {**losses, **auxiliary(self._training)}
        probe.after_step(loss=loss, aux=aux)
        self._write(loss, aux, grad_norm=result[5], seconds=seconds)
        self._done += 1
        if not probe.watching or self._done >= self._steps:
            self.watching = False
            probe.finish()
        return result

    def _attached(self, model: list[Any], optimizer: Any, config: Any) -> Probe:
        if self._probe is None:
            args = self._args()
            if dist.get_rank() == 0:
                self._out.mkdir(parents=True, exist_ok=True)
                describe(self._training, self._out, args, model, optimizer, config)
            dist.barrier()
            left = args.train_iters - int(getattr(args, "iteration", 0) or 0)
            self._steps = max(1, min(self._steps, left))
            self._probe = Probe.attach(model, optimizer, config, self._out, steps=self._steps, hooks=self._hooks)
        return self._probe

    def _write(self, loss: float | None, aux: dict[str, float], *, grad_norm: Any, seconds: float) -> None:
        """Add the step's line, on the rank that knows the loss: the last stage's first."""
        args = self._args()
        if not tells_loss():
            return
        line = {
            **{"step": self._done, "kind": "warmup", "t": time.time(), "step_s": seconds},
            **{"lm_loss": finite(loss), "aux": {name: finite(value) for name, value in aux.items()}},
            **{"grad_norm": finite(grad_norm), "loss_tokens": 0, "tokens": args.global_batch_size * args.seq_length},
        }
        files.append_jsonl(self._out / files.STEPS, line)


def auxiliary(training: Any) -> dict[str, float]:
    """Return every auxiliary loss of experts as Megatron's log would say it, and leave its tracker as it was.

    A collective over all ranks. training: the module megatron.training.training.
    """
    args = training.get_args()
    if not args.num_experts:
        return {}
    moe_utils: Any = importlib.import_module("megatron.core.transformer.moe.moe_utils")
    tracker = moe_utils.get_moe_layer_wise_logging_tracker()
    if not isinstance(tracker, dict):
        return {}  # another tracker since 0.18; the log has these losses
    kept = {name: {**entry, "values": entry["values"].clone()} for name, entry in tracker.items()}
    found: dict[str, Any] = {}
    moe_utils.track_moe_metrics(
        loss_scale=1 / training.get_num_microbatches(),
        iteration=0,
        total_loss_dict=found,
        force_initialize=True,
        track_names=_names(args),
        num_layers=args.num_layers,
        moe_layer_freq=args.moe_layer_freq,
        mtp_num_layers=args.mtp_num_layers,
    )
    tracker.clear()
    tracker.update(kept)
    return {name: float(found[name]) for name in _names(args) if name in found}


def tells_loss() -> bool:
    """Tell whether this rank knows the loss and is the one to write it: the last stage's first."""
    last = parallel_state.is_pipeline_last_stage(ignore_virtual=True)
    first = parallel_state.get_data_parallel_rank(with_context_parallel=True) == 0
    return bool(last and first and parallel_state.get_tensor_model_parallel_rank() == 0)


def _names(args: Any) -> list[str]:
    """Return the auxiliary losses that Megatron's log names. Source: megatron/training/training.py:training_log."""
    kinds = args.moe_router_load_balancing_type
    kinds = kinds if isinstance(kinds, list) else [kinds]
    balancing = ("aux_loss", ""), ("seq_aux_loss", "seq_"), ("global_aux_loss", "global_")
    names = [f"{prefix}load_balancing_loss" for kind, prefix in balancing if kind in kinds]
    return [*names, *(["z_loss"] if args.moe_z_loss_coeff is not None else [])]


def showing(forward_step: Any, probe: Probe) -> Any:
    """Wrap a forward_step so that the probe is shown the loss mask: the first tensor bound to the loss function it returns."""

    @functools.wraps(forward_step)
    def shown(data_iterator: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        output, loss = forward_step(data_iterator, model, *args, **kwargs)
        core = unwrapped(model)
        bound = [value for value in getattr(loss, "args", ()) if isinstance(value, torch.Tensor)]
        if bound and core.post_process:
            probe.see_loss(bound[0], core)
        return output, loss

    return shown


def describe(
    training: Any, out: Path, args: Any, model: list[Any], optimizer: Any, config: Any, *, parsed: frozenset[str] = frozenset()
) -> None:
    """Write config.json: final arguments as the resolver spells them, facts, environment and versions.

    parsed: destinations of the parser that really read the command line; those that Megatron's own doesn't have are the
    script's options, which go by a name of their own.
    """
    from ..megatron_facts import derive
    from ..megatron_import import Framework
    from ..megatron_values import final_values

    arguments: Any = importlib.import_module("megatron.training.arguments")
    ddp = model[0].ddp_config
    framework = Framework(arguments=arguments, training=training, slime=None, versions={})
    dests = {action.dest for action in framework.parser()._actions}
    values = final_values(args, dests, transformer=config, ddp=ddp, optimizer=optimizer.config)
    own = parsed - dests
    told: dict[str, Any] = {
        "arguments": {name: value for name, value in values.items() if name not in own},
        "script_arguments": {name: value for name, value in values.items() if name in own},
        "env": environment(()),
        "versions": {"megatron_core": _core_version(), "torch": torch.__version__.split("+")[0]},
    }
    try:
        told["facts"] = derive(args, config, ddp, framework, entry="pretrain_gpt.py")
    except Exception as error:  # noqa: BLE001 - the run goes on; only its first look has less to compare
        told["facts"], told["facts_missing"] = {}, f"{type(error).__name__}: {error}"[:300]
    files.write_json(out / files.CONFIG, told)


def _core_version() -> str:
    return str(importlib.import_module("megatron.core").__version__)
