"""Attaches to a run from outside, drives the observation of its first steps, and takes everything off again."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from . import batch, replicas, share
from .census import Census, replace
from .collect import collect
from .header import FORMAT, header, rule_of
from .hooks import Hooks
from .measure import Rule
from .merge import GIVEN_UP
from .observe import Observation
from .piece import unwrapped

_EMPTY = {"format": FORMAT, "precision": "other", "world_size": 0, "layout": {}, "vocab_size": 0, "declared": {"optimizer": ""}}


class Probe:
    """Watches the first steps of a run on this rank. Build it with `attach`; nothing it does raises into the run.

    watching: whether there are steps left to observe.
    """

    def __init__(self, chunks: list[Any], optimizer: Any, config: Any, run_dir: Path, steps: int, keep_shares: bool) -> None:
        self.watching = steps > 0
        self._chunks, self._optimizer, self._config = chunks, optimizer, config
        self._run_dir, self._steps, self._keep_shares = run_dir, steps, keep_shares
        self._device = _device(chunks)
        self._header: dict[str, Any] = dict(_EMPTY)
        self._rule, self._hooks, self._census = Rule(""), Hooks([]), Census()
        self._groups: list[replicas.Group] = []
        self._undo: list[Callable[[], None]] = []
        self._now: Observation | None = None
        self._step, self._finished, self._why = 0, False, ""
        self._missing: dict[str, str] = {}
        self._told: list[dict[str, Any]] = []
        self._seconds: dict[str, float] = {}

    @classmethod
    def attach(
        cls,
        model_chunks: list[Any],
        optimizer: Any,
        config: Any,
        run_dir: str | Path,
        *,
        steps: int = 2,
        declared: dict[str, Any] | None = None,
        hooks: list[str] | None = None,
        keep_shares: bool = False,
    ) -> "Probe":
        """Attach to a run before its first step, on all ranks alike.

        model_chunks: what the schedule trains, each in megatron's DistributedDataParallel.
        config: the model's TransformerConfig. run_dir: a folder that all ranks share.
        declared: overrides of what the optimizer's own configuration declares, by the fingerprint's names.
        hooks: a user's own, "package.module:function". keep_shares: leave the ranks' shares beside the fingerprint.
        """
        probe = cls(list(model_chunks), optimizer, config, Path(run_dir), steps, keep_shares)
        with probe._guarded("attach"):
            probe._header = header(probe._chunks, optimizer, config, declared or {})
            probe._rule = rule_of(probe._header["declared"], optimizer)
            probe._hooks = Hooks(list(hooks or []))
            pieces, probe._missing = collect(probe._chunks, config)
            if pieces:
                probe._groups = replicas.groups_of(probe._chunks[0], pieces, has_experts=bool(config.num_moe_experts))
            if (why := probe._rule.explainable()) != "":
                probe._missing["fit of the update"] = why
            if probe.watching:
                probe._hook()
        return probe

    # ------------------------------------------------------------------------------------------ a step

    def before_step(self) -> None:
        """Begin to observe a step; call it before the forward."""
        if self.watching and not self._why:
            self._census.found.clear()
            self._now = Observation(self._groups, self._optimizer, self._rule, self._device)

    def see_loss(self, mask: Any, chunk: Any) -> None:
        """Take the loss mask of the chunk's latest forward, as the loss uses it: any shape with the labels' elements."""
        if self._now is not None:
            with self._guarded(f"step{self._step}"), torch.no_grad():
                self._now.batch.see_loss(mask, chunk)

    def after_step(
        self, *, loss: float | None = None, aux: dict[str, float] | None = None, loss_tokens: int | None = None
    ) -> None:
        """End the observation of a step. A collective over all ranks.

        loss: mean over the tokens of the global batch; aux: every auxiliary loss by name; loss_tokens: used only where the
        loss shows no mask. They may be None on ranks that don't know them, if one rank that speaks for its replicas does.
        """
        if not self.watching:
            return
        with self._guarded(f"step{self._step}"):
            self._bring_together(f"step{self._step}", loss, aux or {}, loss_tokens)
        self._now = None
        self._step += 1
        if self._why or self._step >= self._steps:
            self._detach()

    def finish(self) -> None:
        """Take everything off and leave the fingerprint. A collective over all ranks; only the first call does it."""
        if self._finished:
            return
        self._finished = True
        self._detach()
        mine: dict[str, Any] = {"groups": [], "steps": [], "missing": {}, "not_finite": []}
        with self._guarded(None):
            groups = [share.keys(group) for group in self._groups if group.speaks]
            missing = {**self._missing, **self._hooks.missing}
            mine = {"groups": groups, "steps": self._told, "missing": missing, "not_finite": self._hooks.not_finite}
        if self._why:
            mine["missing"]["probe"] = self._why
        speaks = bool(mine["groups"] or self._why or dist.get_rank() == 0)
        seconds = {name: round(value, 6) for name, value in self._seconds.items()}
        top = {**self._header, "seconds": seconds, "hooks": self._hooks.values}
        with self._guarded(None):
            share.settle(self._run_dir, mine if speaks else None, top, self._device, keep=self._keep_shares)

    # ------------------------------------------------------------------------------------------ inside

    def _hook(self) -> None:
        inner = self._optimizer.step

        def step(*args: Any, **kwargs: Any) -> Any:
            self._before_update()
            result = inner(*args, **kwargs)
            self._after_update(result)
            return result

        self._undo.append(replace(self._optimizer, "step", step))
        for chunk in self._chunks:
            core = unwrapped(chunk)
            self._undo.append(core.register_forward_pre_hook(self._see_forward, with_kwargs=True).remove)
        if _graphed(self._config):
            self._missing["dtypes of activations and logits"] = "modules aren't hooked where CUDA graphs are used"
        else:
            self._undo.append(self._census.detach)
            self._census.attach(self._chunks)

    def _detach(self) -> None:
        self.watching, self._now = False, None
        while self._undo:
            with self._guarded(None):
                self._undo.pop()()

    def _see_forward(self, core: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._now is not None and core.training:
            with self._guarded(f"step{self._step}"), torch.no_grad():
                self._now.batch.see_forward(core, args, kwargs)

    def _before_update(self) -> None:
        if self._now is not None:
            with self._guarded(f"step{self._step}"), torch.no_grad():
                self._synchronize()
                self._hooks.call(self._chunks, self._optimizer, self._step)
                self._now.before_update()
                self._synchronize()

    def _after_update(self, result: Any) -> None:
        if self._now is not None:
            with self._guarded(f"step{self._step}"):
                self._synchronize()
                self._now.after_update(result)
                self._synchronize()

    def _bring_together(self, name: str, loss: float | None, aux: dict[str, float], loss_tokens: int | None) -> None:
        """Agree with all ranks that everyone can, then exchange. Every rank makes the same collectives in the same order."""
        now, inputs, targets = self._now, None, None
        said: dict[str, Any] = {}
        with self._guarded(None):
            if now is None or now.updates == 0:
                raise RuntimeError("before_step wasn't called" if now is None else "the optimizer's step wasn't seen")
            inputs, targets = now.batch.rows()
            said = {"loss": share.word(loss), "aux": {key: share.word(value) for key, value in aux.items()}}
            said |= {"used_norm": share.word(now.used_norm), "updated": now.updated}
        if not self._all_can(name) or now is None:
            return
        reasons = [replicas.agree(group, self._device) for group in self._groups] + [batch.agree(inputs, targets)]
        self._why = next((f"rank {dist.get_rank()}, {name}: {reason}" for reason in reasons if reason), "")
        if not self._all_can(name):
            return
        parts = [replicas.reduce(group, numbers) for group, numbers in zip(self._groups, now.numbers, strict=True)]
        rows, missing = batch.describe(batch.exchange(inputs, targets, mask_seen=now.batch.mask_seen), loss_tokens)
        self._missing = {**missing, **self._missing}
        said["batch"] = rows
        speaking = [share.strict(part) for group, part in zip(self._groups, parts, strict=True) if group.speaks]
        census = sorted(self._census.found)
        self._told.append({"step": self._step, "said": said, "options": now.options, "census": census, "groups": speaking})

    def _all_can(self, name: str) -> bool:
        """Say whether no rank has failed, and take the slowest rank's seconds for ours. A collective over all ranks."""
        state = torch.tensor([bool(self._why), self._seconds.get(name, 0.0)], dtype=torch.float64, device=self._device)
        dist.all_reduce(state, op=dist.ReduceOp.MAX)
        failed, self._seconds[name] = state.tolist()
        if failed and not self._why:
            self._why = f"rank {dist.get_rank()}, {name}: {GIVEN_UP}"
        return not failed

    @contextmanager
    def _guarded(self, name: str | None) -> Iterator[None]:
        """Turn an exception into the reason why the probe gives up, and add the seconds of what is inside to `name`.

        name: None where the caller counts them already.
        """
        start = time.perf_counter()
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the probe must never end a run
            where = name or f"step{self._step}"
            self._why = self._why or f"rank {dist.get_rank()}, {where}: {type(error).__name__}: {error}"[:200]
            self._now = None
        finally:
            if name is not None:
                self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def _synchronize(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()


def _device(chunks: list[Any]) -> torch.device:
    """Return where this rank computes, and its collectives too; a stage without parameters asks the backend."""
    for chunk in chunks:
        for parameter in chunk.parameters():
            return parameter.device
    return torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")


def _graphed(config: Any) -> bool:
    graphs = (getattr(config, name, False) for name in ("enable_cuda_graph", "external_cuda_graph"))
    return any(graphs) or getattr(config, "cuda_graph_impl", "none") != "none"
