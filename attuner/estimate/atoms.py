"""The step of one layout taken apart into atoms that a correction can scale: per stage kind seconds by phase and component,
and per step what is paid once. Everything that needs the shape and the machine happens here, once per layout; a correction is
applied afterwards by model.py, without pricing anything again.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

from attuner.estimate.hardware import Hardware
from attuner.estimate.layer import Cost, Pricer, combine
from attuner.estimate.memory import GIB, stage_memory, stage_params
from attuner.estimate.network import Group, gather_s, send_s
from attuner.estimate.shape import BYTES, Layout, Shape

Blocks = dict[str, Cost]


@dataclass(frozen=True)
class StageKind:
    """Stages that cost the same: how many there are, the first of them, and seconds of one micro-batch."""

    count: int
    first: int
    cost: Cost
    p2p_s: float


@dataclass(frozen=True)
class Atoms:
    """A layout's step before any correction."""

    kinds: list[StageKind]
    kind_of: list[int]
    data_near_s: float
    data_far_s: float
    data_hidden_s: float
    optimizer_s: float
    offload_s: float
    straggler: float
    memory: list[dict[str, float]]


class Taker:
    """Takes layouts of one shape on one machine apart; keeps what layouts share."""

    def __init__(self, shape: Shape, machine: Hardware) -> None:
        self.shape, self.machine = shape, machine
        self._blocks: dict[tuple[object, ...], Blocks] = {}
        self._atoms: dict[Layout, Atoms] = {}

    def atoms(self, layout: Layout) -> Atoms:
        """Return the layout's atoms."""
        found = self._atoms.get(layout)
        if found is None:
            if len(self._atoms) > 50_000:
                self._atoms.clear()
            found = self._atoms[layout] = self._take(layout)
        return found

    def _priced(self, layout: Layout) -> Blocks:
        key = (
            *(layout.tp, layout.cp, layout.ep, layout.etp, layout.micro_batch, layout.seq_len, layout.recompute),
            *(layout.recompute_modules, layout.sequence_parallel, layout.overlap_tp, layout.overlap_ep, layout.precision),
            *(layout.overlap_shared_expert, layout.attention, layout.dispatcher, layout.grouped_gemm, layout.fused_loss),
        )
        found = self._blocks.get(key)
        if found is None:
            price = Pricer(self.shape, layout, self.machine)
            found = {"attention": price.attention(), "embedding": price.embedding(), "head": price.head()}
            if not all(self.shape.moe_layers):
                found["mlp"] = price.mlp(self.shape.ffn)
            if any(self.shape.moe_layers):
                found["moe"] = price.moe()
            self._blocks[key] = found
        return found

    def _take(self, layout: Layout) -> Atoms:
        shape, stages = self.shape, layout.layers_per_stage(self.shape)
        blocks = self._priced(layout)
        seen: dict[tuple[int, int, bool, bool], int] = {}
        counts: list[int] = []
        bodies: list[tuple[int, Cost]] = []
        kind_of: list[int] = []
        memory: list[dict[str, float]] = []
        first = 0
        p2p = self._p2p(layout)
        for stage, count in enumerate(stages):
            layers = range(first, first + count)
            first += count
            moe = sum(shape.moe_layers[i] for i in layers)
            key = (count, moe, stage == 0, stage == layout.pp - 1)
            if key not in seen:
                seen[key] = len(bodies)
                counts.append(0)
                bodies.append((stage, self._stage(layout, blocks, key)))
            counts[seen[key]] += 1
            kind_of.append(seen[key])
            memory.append(stage_memory(shape, layout, stage, layers, cpu=self.machine.synchronous))
        kinds = [StageKind(n, stage, cost, p2p) for n, (stage, cost) in zip(counts, bodies, strict=True)]
        return Atoms(
            kinds=kinds,
            kind_of=kind_of,
            memory=memory,
            **self._once(layout, stages, kinds),
        )

    def _stage(self, layout: Layout, blocks: Blocks, key: tuple[int, int, bool, bool]) -> Cost:
        count, moe, first, last = key
        spared = 0.0
        if layout.recompute == "full" and layout.recompute_method == "block":
            spared = max(0.0, 1.0 - layout.recompute_layers * layout.vp / max(count, 1))
        parts = [(float(count), blocks["attention"])]
        if count - moe:
            parts.append((float(count - moe), blocks["mlp"]))
        if moe:
            parts.append((float(moe), blocks["moe"]))
        body = combine(*parts)
        body.again = [a * (1 - spared) for a in body.again]
        ends = [(1.0, body)]
        if first:
            ends.append((1.0, blocks["embedding"]))
        if last:
            ends.append((1.0 + self.shape.mtp_layers, blocks["head"]))
            if self.shape.mtp_layers:
                ends += [
                    (float(self.shape.mtp_layers), blocks[name]) for name in ("attention", "moe" if "moe" in blocks else "mlp")
                ]
        return combine(*ends) if len(ends) > 1 else body

    def _p2p(self, layout: Layout) -> float:
        """Return the seconds of one micro-batch that a stage waits for its neighbours' sends."""
        if layout.pp == 1:
            return 0.0
        num_bytes = layout.micro_batch * layout.seq_len / layout.cp / layout.tp * self.shape.hidden * BYTES[layout.precision]
        far = layout.gpus > self.machine.gpus_per_node and layout.gpus // layout.pp >= 1
        far = far and layout.gpus // layout.pp * 2 > self.machine.gpus_per_node
        once = 2 * send_s(num_bytes, self.machine, far=far)
        return once if layout.vp == 1 else once * layout.vp * (self.machine.constants.p2p_exposed if layout.overlap_p2p else 1.0)

    def _once(self, layout: Layout, stages: tuple[int, ...], kinds: list[StageKind]) -> dict[str, float]:
        """Return what a step pays once: gradients, parameters, the update, the wait for the slowest replica."""
        shape, machine, c = self.shape, self.machine, self.machine.constants
        node = machine.gpus_per_node
        dense_group = Group.of(layout.dp * layout.cp, layout.tp, node)
        expert_group = Group.of(layout.edp, layout.etp * layout.ep, node)
        e = BYTES[layout.precision]
        grad = 4 if layout.grads_fp32 else e
        first, heaviest, worst = 0, (0.0, 0.0), -1.0
        for stage, count in enumerate(stages):
            params = stage_params(shape, layout, stage, range(first, first + count))
            first += count
            if sum(params) > worst:
                worst, heaviest = sum(params), params
        near = far = 0.0
        for held, group in zip(heaviest, (dense_group, expert_group), strict=True):
            reduce_s = gather_s(group, grad * held, machine)
            gather = gather_s(group, (e if layout.distributed_optimizer else grad) * held, machine)
            if held and group.size > 1:
                near, far = (near, far + reduce_s + gather) if group.far else (near + reduce_s + gather, far)
        last = max(sum(k.cost.backward) + sum(k.cost.again) for k in kinds)
        ahead = max(sum(k.cost.forward) for k in kinds)
        hidden = (0.9 * last if layout.overlap_grad_reduce else 0.0) + (0.9 * ahead if layout.overlap_param_gather else 0.0)
        dense, expert = heaviest
        shards = (layout.dp * layout.cp, layout.edp) if layout.distributed_optimizer else (1, 1)
        owned = dense / shards[0] + expert / shards[1]
        update = owned * (28 + e) + (dense + expert) * 2 * grad
        return {
            "data_near_s": near,
            "data_far_s": far,
            "data_hidden_s": hidden,
            "optimizer_s": update / (machine.mem_bytes_s * c.mem_efficiency),
            "offload_s": layout.offload * owned * ((grad + e) / machine.host_bytes_s + 28 / machine.host_mem_bytes_s),
            "straggler": c.straggler * expected_slowest(min(layout.edp, layout.dp) if shape.num_experts else layout.dp),
        }


def expected_slowest(replicas: int) -> float:
    """Return how many standard deviations the slowest of `replicas` lies above the mean (Blom's approximation)."""
    return NormalDist().inv_cdf((replicas - 0.375) / (replicas + 0.25)) if replicas > 1 else 0.0


__all__ = ["GIB", "Atoms", "StageKind", "Taker", "expected_slowest"]
