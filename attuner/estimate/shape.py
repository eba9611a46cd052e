"""What is computed (Shape: a dense or MoE transformer) and how it is spread (Layout: Megatron's layout, schedule, recompute).

`Layout.check(shape)` refuses what can't be built, with the formula and its numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from attuner.core.errors import Refused

BYTES = {"fp32": 4, "bf16": 2, "fp16": 2}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A decoder-only transformer; layers with experts are those whose entry in `moe_layers` is 1."""

    num_layers: int
    hidden: int
    heads: int
    ffn: int
    vocab: int
    kv_groups: int = 0
    head_dim: int = 0
    gated: bool = False
    tied: bool = False
    learned_positions: int = 0
    num_experts: int = 0
    topk: int = 0
    moe_ffn: int = 0
    shared_ffn: int = 0
    moe_layers: tuple[int, ...] = ()
    q_lora: int = 0
    kv_lora: int = 0
    rope_dim: int = 0
    v_dim: int = 0
    mtp_layers: int = 0
    biases: bool = False
    dropout: bool = False

    def __post_init__(self) -> None:
        fill = {"kv_groups": self.kv_groups or self.heads, "head_dim": self.head_dim or self.hidden // self.heads}
        if self.num_experts:
            fill["moe_ffn"] = self.moe_ffn or self.ffn
            fill["moe_layers"] = self.moe_layers or (1,) * self.num_layers  # type: ignore[assignment]
        else:
            fill["moe_layers"] = (0,) * self.num_layers  # type: ignore[assignment]
        for name, value in fill.items():
            object.__setattr__(self, name, value)

    @property
    def value_dim(self) -> int:
        """Return the width of one head's value."""
        return self.v_dim or self.head_dim

    @property
    def query_dim(self) -> int:
        """Return the width of one head's query and key."""
        return self.head_dim + self.rope_dim

    def attention_params(self) -> int:
        """Return the parameters of one layer's attention, without the norms."""
        q, v = self.heads * self.query_dim, self.heads * self.value_dim
        if self.kv_lora:
            query = self.hidden * self.q_lora + self.q_lora * q if self.q_lora else self.hidden * q
            key = self.hidden * (self.kv_lora + self.rope_dim) + self.kv_lora * self.heads * (self.head_dim + self.value_dim)
            return query + key + v * self.hidden
        return self.hidden * (q + 2 * self.kv_groups * self.head_dim) + v * self.hidden

    def mlp_params(self, width: int) -> int:
        """Return the parameters of an MLP of this width."""
        return self.hidden * width * (3 if self.gated else 2)

    def num_params(self) -> int:
        """Return all parameters of the model."""
        total = self.vocab * self.hidden * (1 if self.tied else 2) + self.learned_positions * self.hidden + self.hidden
        for moe in self.moe_layers:
            total += self.attention_params() + 2 * self.hidden
            if moe:
                total += self.num_experts * (self.mlp_params(self.moe_ffn) + self.hidden) + self.mlp_params(self.shared_ffn)
            else:
                total += self.mlp_params(self.ffn)
        return total

    def flops_per_token(self, seq_len: int) -> float:
        """Return the model's floating-point operations per token, forward and backward, causal attention counted half."""
        total = 6.0 * self.vocab * self.hidden
        for moe in self.moe_layers:
            total += 6.0 * self.attention_params() + 6.0 * seq_len * self.heads * (self.query_dim + self.value_dim) / 2
            width = self.topk * self.mlp_params(self.moe_ffn) + self.mlp_params(self.shared_ffn)
            total += 6.0 * (width if moe else self.mlp_params(self.ffn))
        return total


@dataclass(frozen=True, kw_only=True)
class Layout:
    """How a step is spread over devices; every name is Megatron's idea of it, every default Megatron's default."""

    gpus: int
    global_batch: int
    seq_len: int
    micro_batch: int = 1
    tp: int = 1
    pp: int = 1
    vp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    first_layers: int | None = None
    last_layers: int | None = None
    stage_layers: tuple[int, ...] = ()
    counts_embedding: bool = False
    counts_loss: bool = False
    recompute: str = "none"
    recompute_method: str = "uniform"
    recompute_layers: int = 1
    recompute_modules: tuple[str, ...] = ("core_attn",)
    sequence_parallel: bool = True
    distributed_optimizer: bool = True
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    overlap_p2p: bool = True
    overlap_tp: bool = False
    overlap_ep: bool = False
    overlap_shared_expert: bool = False
    offload: float = 0.0
    attention: str = "flash"
    dispatcher: str = "alltoall"
    precision: str = "bf16"
    grads_fp32: bool = True
    moment_bytes: float = 8.0
    grouped_gemm: bool = True
    fused_loss: bool = False
    fused_bias_act: bool = True

    @cached_property
    def dp(self) -> int:
        """Return the data-parallel size."""
        return max(1, self.gpus // (self.tp * self.pp * self.cp))

    @cached_property
    def edp(self) -> int:
        """Return how many replicas of an expert there are."""
        return max(1, self.gpus // (self.etp * self.ep * self.pp))

    @cached_property
    def num_microbatches(self) -> int:
        """Return the micro-batches of one step on one data-parallel rank."""
        return max(1, self.global_batch // (self.micro_batch * self.dp))

    def layers_per_stage(self, shape: Shape) -> tuple[int, ...]:
        """Return the layers of each pipeline stage, first to last."""
        if self.stage_layers:
            return self.stage_layers
        pp, total = self.pp, shape.num_layers
        if pp == 1:
            return (total,)
        each, rest = divmod(total + sum(self._counted()), pp)
        if sum(self._counted()) and not rest and (self.first_layers, self.last_layers) == (None, None):
            embedding, loss = self._counted()
            return (each - embedding, *(each,) * (pp - 2), each - loss)
        ends = [self.first_layers, self.last_layers]
        middle = pp - sum(e is not None for e in ends)
        each = (total - sum(e or 0 for e in ends)) // middle if middle else 0
        first, last = (each if e is None else e for e in ends)
        return (first, *(each,) * (pp - 2), last)

    def _counted(self) -> tuple[int, int]:
        """Return 1 where the embedding, and the loss, count as a layer of the first and the last stage."""
        return (int(self.counts_embedding), int(self.counts_loss)) if self.pp > 1 else (0, 0)

    def check(self, shape: Shape) -> None:
        """Pass what Megatron can build.

        Raises:
            Refused: with the formula and its numbers.
        """
        for law in (self._check_world, self._check_stages, self._check_width, self._check_recompute):
            law(shape)

    def _check_world(self, shape: Shape) -> None:
        dense, sizes = self.tp * self.pp * self.cp, (self.tp, self.pp, self.vp, self.cp, self.ep, self.etp, self.micro_batch)
        if min(*sizes, self.gpus, self.global_batch, self.seq_len) < 1:
            raise Refused("a parallel size, batch or length below 1")
        if self.gpus % dense:
            raise Refused(f"world size {self.gpus} does not divide by tp·pp·cp = {self.tp}·{self.pp}·{self.cp} = {dense}")
        if shape.num_experts:
            expert = self.etp * self.ep * self.pp
            if self.gpus % expert:
                raise Refused(f"world size {self.gpus} does not divide by etp·ep·pp = {self.etp}·{self.ep}·{self.pp} = {expert}")
            if shape.num_experts % self.ep:
                raise Refused(f"num_experts {shape.num_experts} does not divide by ep = {self.ep}")
            if shape.moe_ffn % self.etp:
                raise Refused(f"moe_ffn_hidden_size {shape.moe_ffn} does not divide by etp = {self.etp}")
            if self.tp > 1 and not self.sequence_parallel:
                raise Refused(f"experts with tp = {self.tp} need sequence_parallel")
        elif self.ep > 1:
            raise Refused(f"ep = {self.ep} without experts")
        rows = self.micro_batch * self.dp
        if self.global_batch % rows:
            raise Refused(
                f"global_batch_size {self.global_batch} does not divide by "
                f"micro_batch_size·dp = {self.micro_batch}·{self.dp} = {rows}"
            )

    def _check_stages(self, shape: Shape) -> None:
        stages, m = self.layers_per_stage(shape), self.num_microbatches
        if len(stages) != self.pp or sum(stages) != shape.num_layers or min(stages) < 0:
            ends = (
                f", first {self.first_layers}, last {self.last_layers}"
                if (self.first_layers, self.last_layers) != (None, None)
                else ""
            )
            raise Refused(
                f"num_layers {shape.num_layers} does not divide into pp = {self.pp} stages{ends}: {stages} sum to {sum(stages)}"
            )
        if self.vp > 1:
            if self.pp < 2:
                raise Refused(f"vp = {self.vp} needs pp ≥ 2, it is {self.pp}")
            embedding, loss = self._counted()
            filled = (stages[0] + embedding, *stages[1:-1], stages[-1] + loss)
            odd = next((n for n in filled if n % self.vp), None)
            if odd is not None:
                raise Refused(f"layers per stage {odd} do not divide by vp = {self.vp}")
            if m % self.pp:
                raise Refused(f"micro-batches {m} do not divide by pp = {self.pp}, which virtual stages need")

    def _check_width(self, shape: Shape) -> None:
        widths = {
            "num_attention_heads": shape.heads,
            "ffn_hidden_size": shape.ffn if not all(shape.moe_layers) else self.tp,
            "moe_shared_expert_intermediate_size": shape.shared_ffn,
        }
        for name, value in widths.items():
            if value % self.tp:
                raise Refused(f"{name} {value} does not divide by tp = {self.tp}")
        if shape.kv_groups % self.tp and self.tp % shape.kv_groups:
            raise Refused(f"num_query_groups {shape.kv_groups} and tp = {self.tp}: neither divides the other")
        slices = self.cp * 2 if self.cp > 1 else 1
        slices *= self.tp if self.sequence_parallel else 1
        if self.seq_len % slices:
            raise Refused(
                f"seq_length {self.seq_len} does not divide by {slices} (2·cp with cp > 1, times tp with sequence_parallel)"
            )

    def _check_recompute(self, shape: Shape) -> None:
        if self.recompute not in ("none", "selective", "full"):
            raise Refused(f"recompute_granularity {self.recompute}: none, selective or full")
        if self.recompute == "full" and self.recompute_layers < 1:
            raise Refused("recompute_num_layers: full recompute needs at least 1")


def padded_vocab(vocab: int, tp: int, *, divisor: int = 128) -> int:
    """Return the vocabulary padded as Megatron does: to a multiple of divisor·tp."""
    step = divisor * tp
    return -(-vocab // step) * step
