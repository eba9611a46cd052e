"""Seconds that one layer, the embedding or the head takes for one micro-batch on one device, by component and by phase.

Every operator is priced by the larger of arithmetic and memory traffic. A matrix product reaches a share of the peak that falls
when its tiles don't fill the device's units and when its inner dimension is short. Communication is priced by network.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from attuner.estimate.hardware import Hardware
from attuner.estimate.network import Group, all_reduce_s, all_to_all_s, gather_s
from attuner.estimate.shape import BYTES, Layout, Shape, padded_vocab

COMPONENTS = (
    *("gemm", "grouped", "attention", "elementwise"),
    *("tensor_near", "tensor_far", "expert_near", "expert_far", "expert_split", "context", "host"),
)
GEMM, GROUPED, ATTENTION, ELEMENTWISE, TENSOR_NEAR, TENSOR_FAR, EXPERT_NEAR, EXPERT_FAR, EXPERT_SPLIT, CONTEXT, HOST = range(
    len(COMPONENTS)
)
NUM = len(COMPONENTS)
COMPUTE = (GEMM, GROUPED, ATTENTION, ELEMENTWISE)
TILE_M, TILE_N = 256, 128
OPERATORS = {"attention": 35, "local_attention": 8, "mlp": 20, "moe": 70, "expert": 8, "end": 20}
"""What the host does for one block forward, counted in operator launches (module calls and bookkeeping included)."""


@dataclass
class Cost:
    """Seconds by component: forward, backward, and forward again where recompute asks for it."""

    forward: list[float] = field(default_factory=lambda: [0.0] * NUM)
    backward: list[float] = field(default_factory=lambda: [0.0] * NUM)
    again: list[float] = field(default_factory=lambda: [0.0] * NUM)

    def add(self, component: int, forward: float, backward: float, *, again: bool) -> None:
        """Add one operator."""
        self.forward[component] += forward
        self.backward[component] += backward
        if again:
            self.again[component] += forward


class Pricer:
    """Prices blocks of one shape in one layout on one machine."""

    def __init__(self, shape: Shape, layout: Layout, machine: Hardware) -> None:
        self.shape, self.layout, self.machine = shape, layout, machine
        self.e = BYTES[layout.precision]
        self.tokens = layout.micro_batch * layout.seq_len / layout.cp
        self.near_tokens = self.tokens / (layout.tp if layout.sequence_parallel else 1)
        node = machine.gpus_per_node
        self.tensor = Group.of(layout.tp, 1, node)
        self.context = Group.of(layout.cp, layout.tp, node)
        self.expert_tensor = Group.of(layout.etp, 1, node)
        self.expert = Group.of(layout.ep, layout.etp, node)

    def gemm_s(self, m: float, n: float, k: float, *, batch: float = 1.0) -> float:
        """Return the seconds of `batch` products of (m, k) by (k, n)."""
        c, machine = self.machine.constants, self.machine
        if min(m, n, k) <= 0:
            return 0.0
        traffic = batch * self.e * (m * k + k * n + m * n) / (machine.mem_bytes_s * c.mem_efficiency)
        share = c.gemm_ceiling * k / (k + c.gemm_k)
        if not machine.synchronous:
            tiles = batch * max(1.0, m / TILE_M) * max(1.0, n / TILE_N)
            share *= tiles / (tiles + machine.num_units / 2)
            m, n = max(m, TILE_N / 2), max(n, TILE_N / 2)
        return max(2.0 * batch * m * n * k / (machine.peak(self.layout.precision) * share), traffic)

    def traffic_s(self, num_bytes: float) -> float:
        """Return the seconds of an operator that only moves memory."""
        return num_bytes / (self.machine.mem_bytes_s * self.machine.constants.mem_efficiency)

    def _modules(self, *names: str) -> bool:
        layout = self.layout
        return layout.recompute == "full" or (
            layout.recompute == "selective" and any(n in layout.recompute_modules for n in names)
        )

    def _host(self, cost: Cost, operators: float, *, again: bool) -> None:
        """Add what launching takes: all of it where the host waits for each operator, else what the device does not hide."""
        launch = operators * self.machine.launch_s
        if self.machine.synchronous:
            cost.add(ELEMENTWISE, launch, 2 * launch, again=again)  # an operator has a fixed cost of its own, too
            cost.add(HOST, launch, 2 * launch, again=again)
            cost.again[HOST] += launch if again else 0.0  # saving and restoring random states around a recomputed block
            return
        ahead, back = sum(cost.forward), sum(cost.backward)
        shown = math.hypot(launch, ahead) - ahead
        cost.add(HOST, shown, math.hypot(2 * launch, back) - back, again=again)

    def attention(self) -> Cost:
        """Return one layer's norm, projections, attention and residual."""
        shape, layout, cost = self.shape, self.layout, Cost()
        tp, tokens, h = layout.tp, self.tokens, shape.hidden
        q, v = shape.heads * shape.query_dim / tp, shape.heads * shape.value_dim / tp
        kv = 2 * max(1.0, shape.kv_groups / tp) * shape.head_dim
        full = layout.recompute == "full"
        again = self._modules("attention")
        if shape.kv_lora:
            down = self.gemm_s(self.near_tokens, shape.kv_lora + shape.rope_dim + shape.q_lora, h)
            key = self.gemm_s(tokens, shape.heads * (shape.head_dim + shape.value_dim) / tp, shape.kv_lora)
            query = self.gemm_s(tokens, q, shape.q_lora or h)
            cost.add(GEMM, down, 2 * down, again=full)
            cost.add(GEMM, key + query, 2 * (key + query), again=self._modules("mla_up_proj"))
        else:
            project = self.gemm_s(tokens, q + kv, h)
            cost.add(GEMM, project, 2 * project, again=again)
        out = self.gemm_s(tokens, h, v)
        cost.add(GEMM, out, 2 * out, again=again)
        self._core(cost, q, v)
        norm, rest = self.traffic_s(2 * self.near_tokens * h * self.e), self.traffic_s(3 * self.near_tokens * h * self.e)
        cost.add(ELEMENTWISE, norm, 2 * norm, again=self._modules("layernorm"))
        turn = self.traffic_s(2 * tokens * (q + kv / 2) * self.e)
        cost.add(ELEMENTWISE, rest + turn, rest + turn, again=again)
        self._tensor(cost, again=full)
        if layout.cp > 1:
            ring = gather_s(self.context, tokens * layout.cp * kv * self.e, self.machine)
            cost.add(CONTEXT, ring * 0.5, ring, again=full)
        operators = OPERATORS["attention"] + (0 if layout.attention == "flash" else OPERATORS["local_attention"])
        self._host(cost, operators, again=full)
        return cost

    def _core(self, cost: Cost, q: float, v: float) -> None:
        """Add softmax(q·k)·v: fused (half of the square is skipped, nothing is written) or operator by operator."""
        layout, machine, c = self.layout, self.machine, self.machine.constants
        pairs = self.tokens * layout.seq_len
        again = self._modules("core_attn")
        if layout.attention == "flash":
            flops = 2.0 * pairs * (q + v) / 2
            seconds = flops / (machine.peak(layout.precision) * c.attention_ceiling)
            cost.add(ATTENTION, seconds, 2.5 * seconds, again=again)
            return
        heads = self.shape.heads / layout.tp
        batch = layout.micro_batch * heads
        rows = layout.seq_len / layout.cp
        product = self.gemm_s(rows, layout.seq_len, self.shape.query_dim, batch=batch)
        product += self.gemm_s(rows, self.shape.value_dim, layout.seq_len, batch=batch)
        passes = 4 if not self.shape.dropout else 6
        scores = self.traffic_s(passes * batch * rows * layout.seq_len * self.e)
        cost.add(ATTENTION, product + scores, 2 * product + scores, again=again)

    def mlp(self, width: int, *, module: str = "mlp") -> Cost:
        """Return an MLP with its norm and residual."""
        shape, cost, h = self.shape, Cost(), self.shape.hidden
        again, full = self._modules(module), self.layout.recompute == "full"
        self._mlp_body(cost, width, again=again)
        norm, rest = self.traffic_s(2 * self.near_tokens * h * self.e), self.traffic_s(3 * self.near_tokens * h * self.e)
        cost.add(ELEMENTWISE, norm, 2 * norm, again=self._modules("layernorm", module))
        cost.add(ELEMENTWISE, rest, rest, again=full)
        self._tensor(cost, again=again)
        self._host(cost, OPERATORS["mlp"] + (2 if shape.gated else 0), again=again)
        return cost

    def _mlp_body(self, cost: Cost, width: float, *, again: bool) -> None:
        tp, up = self.layout.tp, 2 if self.shape.gated else 1
        first, second = (
            self.gemm_s(self.tokens, up * width / tp, self.shape.hidden),
            self.gemm_s(self.tokens, self.shape.hidden, width / tp),
        )
        act = self.traffic_s((up + 1) * self.tokens * width / tp * self.e)
        cost.add(GEMM, first + second, 2 * (first + second), again=again)
        cost.add(ELEMENTWISE, act, 1.7 * act, again=again)

    def moe(self) -> Cost:
        """Return a layer of experts: router, exchange, permutation, experts, shared expert, norm and residual."""
        shape, layout, cost, h, e = self.shape, self.layout, Cost(), self.shape.hidden, self.e
        again, full = self._modules("moe"), layout.recompute == "full"
        sent = self.near_tokens * shape.topk
        rows = sent * layout.etp
        local, up = max(1.0, shape.num_experts / layout.ep), 2 if shape.gated else 1
        width = shape.moe_ffn / layout.etp
        router = self.gemm_s(self.near_tokens, shape.num_experts, h) + self.traffic_s(12 * self.near_tokens * shape.num_experts)
        cost.add(ELEMENTWISE, router, 2 * router, again=again)
        first = self.gemm_s(rows / local, up * width, h, batch=local)
        second = self.gemm_s(rows / local, h, width, batch=local)
        cost.add(GROUPED, first + second, 2 * (first + second), again=self._modules("moe", "experts"))
        act = self.traffic_s((up + 1) * rows * width * e)
        cost.add(ELEMENTWISE, act, 1.7 * act, again=self._modules("moe", "experts", "moe_act"))
        permute = self.traffic_s(2 * (2 * sent + 2 * rows) * h * e)
        cost.add(ELEMENTWISE, permute, permute, again=again)
        if shape.shared_ffn:
            self._mlp_body(cost, shape.shared_ffn, again=self._modules("moe", "shared_experts"))
            if not layout.overlap_shared_expert:
                self._tensor(cost, again=again)
        norm, rest = self.traffic_s(2 * self.near_tokens * h * e), self.traffic_s(3 * self.near_tokens * h * e)
        cost.add(ELEMENTWISE, norm, 2 * norm, again=self._modules("layernorm"))
        cost.add(ELEMENTWISE, rest, rest, again=full)
        self._exchange(cost, sent, again=again)
        loops = 1.0 if layout.grouped_gemm else local
        self._host(cost, OPERATORS["moe"] + loops * OPERATORS["expert"], again=again)
        return cost

    def _exchange(self, cost: Cost, sent: float, *, again: bool) -> None:
        """Add dispatch and combine: over the expert group, and over the tensor slices of an expert."""
        layout, machine, h, e = self.layout, self.machine, self.shape.hidden, self.e
        if layout.ep * layout.etp == 1:
            return
        if layout.dispatcher == "allgather":
            whole = self.near_tokens * layout.ep * layout.etp * h * e
            group = Group.of(layout.ep * layout.etp, 1, machine.gpus_per_node)
            seconds = 2 * gather_s(group, whole, machine)
            cost.add(EXPERT_FAR if group.far else EXPERT_NEAR, seconds, seconds, again=again)
            return
        left = 0.2 if layout.overlap_ep else 1.0
        spread = 2 * all_to_all_s(self.expert, sent * h * e, machine) * left
        # experts that would fit a node but for their tensor slices: which group stays inside is the rank order's choice
        split = self.expert.far and layout.ep <= machine.gpus_per_node
        component = EXPERT_SPLIT if split else EXPERT_FAR if self.expert.far else EXPERT_NEAR
        cost.add(component, spread, spread, again=again)
        slices = 2 * gather_s(self.expert_tensor, sent * layout.etp * h * e, machine)
        cost.add(EXPERT_FAR if self.expert_tensor.far else EXPERT_NEAR, slices, slices, again=again)

    def _tensor(self, cost: Cost, *, again: bool) -> None:
        """Add the tensor group's exchange around one block: all-gather and reduce-scatter, or one all-reduce."""
        num_bytes = self.tokens * self.shape.hidden * self.e
        seconds = all_reduce_s(self.tensor, num_bytes, self.machine) * (0.3 if self.layout.overlap_tp else 1.0)
        hidden = 0.0 if self.machine.synchronous else min(seconds / 2, self.machine.constants.tensor_hidden * cost.forward[GEMM])
        cost.add(TENSOR_FAR if self.tensor.far else TENSOR_NEAR, seconds, seconds - hidden, again=again)

    def embedding(self) -> Cost:
        """Return looking up the embedding."""
        cost = Cost()
        look = self.traffic_s(3 * self.tokens * self.shape.hidden * self.e)
        cost.add(ELEMENTWISE, look, 2 * look, again=False)
        self._tensor(cost, again=False)
        self._host(cost, OPERATORS["end"], again=False)
        return cost

    def head(self) -> Cost:
        """Return the last norm, the logits and the loss."""
        shape, layout, cost = self.shape, self.layout, Cost()
        width = padded_vocab(shape.vocab, layout.tp, divisor=1 if self.machine.synchronous else 128) / layout.tp
        logits = self.gemm_s(self.tokens, width, shape.hidden)
        cost.add(GEMM, logits, 2 * logits, again=False)
        passes = (self.e + 4) * (2 if layout.fused_loss else 4)
        loss = self.traffic_s(passes * self.tokens * width)
        cost.add(ELEMENTWISE, loss, loss, again=False)
        self._tensor(cost, again=False)
        self._host(cost, OPERATORS["end"] * 2, again=False)
        return cost


def combine(*parts: tuple[float, Cost]) -> Cost:
    """Return the weighted sum of costs."""
    total = Cost()
    for weight, cost in parts:
        for into, values in ((total.forward, cost.forward), (total.backward, cost.backward), (total.again, cost.again)):
            for i, value in enumerate(values):
                into[i] += weight * value
    return total
