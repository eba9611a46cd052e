"""The smallest change of a recipe's layout that fits another number of devices, by arithmetic alone: the global batch stays, and
data parallelism takes up the difference where it can. Whether a candidate trains the same is the gate's to say."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

from attuner.core.base import Value
from attuner.core.errors import Refused

SIZES = ("ep", "cp", "pp", "tp", "etp", "mbs")
"""What may change, that which disturbs the training least first."""
_MEGATRON = {
    **{"tp": "tensor_model_parallel_size", "pp": "pipeline_model_parallel_size", "cp": "context_parallel_size"},
    **{"ep": "expert_model_parallel_size", "etp": "expert_tensor_parallel_size", "mbs": "micro_batch_size"},
    **{"gbs": "global_batch_size", "heads": "num_attention_heads", "groups": "num_query_groups", "layers": "num_layers"},
    **{"ffn": "ffn_hidden_size", "moe_ffn": "moe_ffn_hidden_size", "experts": "num_experts", "seq": "seq_length"},
    **{"vp": "num_virtual_stages_per_pipeline_rank", "per_vp": "num_layers_per_virtual_pipeline_stage"},
}
_BRIDGE = {
    **{k: f"model.{v}" for k, v in _MEGATRON.items()},
    **{"gbs": "train.global_batch_size", "mbs": "train.micro_batch_size", "experts": "model.num_moe_experts"},
    "vp": "model.virtual_pipeline_model_parallel_size",
}
_AUTOMODEL = {
    **{k: f"distributed.{k}_size" for k in ("tp", "pp", "cp", "ep")},
    **{"gbs": "step_scheduler.global_batch_size", "mbs": "step_scheduler.local_batch_size"},
}
NAMES = {"megatron": _MEGATRON, "slime": _MEGATRON, "bridge": _BRIDGE, "automodel": _AUTOMODEL}
UNEVEN = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers", "pipeline_model_parallel_layout")
MAX_CHANGED = 3


@dataclass(frozen=True)
class Candidate:
    """A layout that the arithmetic allows; `changes` by argument, from and to."""

    changes: dict[str, tuple[Value, Value]] = field(default_factory=dict)

    def __str__(self) -> str:
        return ", ".join(f"{n} {a} → {b}" for n, (a, b) in self.changes.items()) or "no change: data parallelism takes it up"

    def arguments(self) -> dict[str, Value]:
        """Return what to set."""
        return {name: to for name, (_, to) in self.changes.items()}


class LayoutOf:
    """The layout in a recipe's arguments.

    Args:
        stack: whose names they have.
        arguments: the recipe's.
    """

    def __init__(self, stack: str, arguments: dict[str, Value]) -> None:
        self._names, self._arguments, self._stack = NAMES[stack], arguments, stack
        self.facts = {k: self._number(k) for k in ("heads", "groups", "layers", "ffn", "moe_ffn", "experts", "seq", "per_vp")}
        tp = self._number("tp") or 1
        self.sizes = {k: self._number(k) or 1 for k in ("tp", "pp", "cp", "ep", "mbs")}
        self.sizes["etp"] = self._number("etp") or tp
        self._etp_follows = not self._number("etp")
        self.batch = self._batch()
        self.vp = self._number("vp") or 1
        self.uneven = any(self._given(n) is not None for n in UNEVEN)
        self.sequence_parallel = self._given("sequence_parallel") is True

    def _given(self, name: str) -> Value:
        return self._arguments.get(f"model.{name}" if self._stack == "bridge" else name)

    def _number(self, key: str) -> int:
        value = self._arguments.get(self._names.get(key, ""))
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

    def _batch(self) -> int:
        """Return the rows of one update; slime makes them of its rollouts. 0 if the recipe doesn't tell."""
        given = self._number("gbs")
        rows, samples = (self._given(n) for n in ("rollout_batch_size", "n_samples_per_prompt"))
        steps = self._given("num_steps_per_rollout")
        if given or not isinstance(rows, int) or self._stack != "slime":
            return given
        each = samples if isinstance(samples, int) else 1
        return rows * each // (steps if isinstance(steps, int) and steps > 0 else 1)

    @property
    def told(self) -> bool:
        """Tell whether the recipe describes its layout and model, rather than naming them."""
        return bool(self.facts["heads"] and self.facts["layers"]) or self._stack == "automodel"

    def broken(self, gpus: int, sizes: dict[str, int] | None = None) -> str:
        """Return the formula that these sizes break on so many devices, '' if they break none that can be told."""
        s = sizes or self.sizes
        dense = s["tp"] * s["pp"] * s["cp"]
        if gpus % dense:
            return f"{gpus} devices do not divide by tp·pp·cp = {s['tp']}·{s['pp']}·{s['cp']} = {dense}"
        return self._experts(gpus, s) or self._widths(s) or self._stages(s) or self._rows(gpus // dense, s)

    def smallest(self) -> int:
        """Return the fewest devices on which the layout as it is breaks no formula, 0 if there are none below 65,536."""
        dense = self.sizes["tp"] * self.sizes["pp"] * self.sizes["cp"]
        return next((n for n in range(dense, 1 << 16, dense) if not self.broken(n)), 0)

    def _experts(self, gpus: int, s: dict[str, int]) -> str:
        experts = self.facts["experts"]
        if not experts and s["ep"] == 1:
            return ""
        sparse = s["etp"] * s["ep"] * s["pp"]
        if gpus % sparse:
            return f"{gpus} devices do not divide by etp·ep·pp = {s['etp']}·{s['ep']}·{s['pp']} = {sparse}"
        if experts and experts % s["ep"]:
            return f"{experts} experts do not divide by ep = {s['ep']}"
        moe_ffn = self.facts["moe_ffn"]
        return f"moe_ffn_hidden_size {moe_ffn} does not divide by etp = {s['etp']}" if moe_ffn % s["etp"] else ""

    def _widths(self, s: dict[str, int]) -> str:
        for name, fact in (("num_attention_heads", "heads"), ("ffn_hidden_size", "ffn")):
            if self.facts[fact] % s["tp"]:
                return f"{name} {self.facts[fact]} does not divide by tp = {s['tp']}"
        groups = self.facts["groups"]
        if groups and groups % s["tp"] and s["tp"] % groups:
            return f"num_query_groups {groups} and tp = {s['tp']}: neither divides the other"
        slices = (2 * s["cp"] if s["cp"] > 1 else 1) * (s["tp"] if self.sequence_parallel else 1)
        seq = self.facts["seq"]
        return (
            f"seq_length {seq} does not divide by {slices} (2·cp with cp > 1, times tp with sequence parallelism)"
            if seq % slices
            else ""
        )

    def _stages(self, s: dict[str, int]) -> str:
        layers, vp = self.facts["layers"], self._virtual(s)
        if self.uneven:
            same = s["pp"] == self.sizes["pp"]
            return "" if same else f"the stages are laid out by hand for pp = {self.sizes['pp']}, not {s['pp']}"
        if layers % s["pp"]:
            return f"{layers} layers do not divide by pp = {s['pp']}"
        if vp > 1 and (layers // s["pp"]) % vp:
            return f"{layers // s['pp']} layers of a stage do not divide by vp = {vp}"
        return ""

    def _virtual(self, s: dict[str, int]) -> int:
        each = self.facts["per_vp"]
        return max(1, self.facts["layers"] // s["pp"] // each) if each and s["pp"] > 1 else self.vp

    def _rows(self, dp: int, s: dict[str, int]) -> str:
        rows = s["mbs"] * dp
        if self.batch % rows:
            return f"a global batch of {self.batch} does not divide by micro batch·dp = {s['mbs']}·{dp} = {rows}"
        if self.batch and self._virtual(s) > 1 and (self.batch // rows) % s["pp"]:
            return f"{self.batch // rows} micro-batches do not divide by pp = {s['pp']}, which virtual stages need"
        return ""

    # ------------------------------------------------------------------ candidates

    def candidates(self, gpus: int) -> Iterator[Candidate]:
        """Yield layouts that break no formula: fewest changed arguments first, then those nearest to the recipe's."""
        values = {k: [v for v in self._values(k, gpus) if v != self.sizes[k]] for k in self._changeable()}
        found: list[tuple[tuple[float, ...], Candidate]] = []
        for number in range(MAX_CHANGED + 1):
            for keys in itertools.combinations(values, number):
                for picked in itertools.product(*(values[k] for k in keys)):
                    sizes = {**self.sizes, **dict(zip(keys, picked, strict=True))}
                    if self._etp_follows:
                        sizes["etp"] = sizes["tp"]
                    if self.broken(gpus, sizes):
                        continue
                    far = sum(abs(math.log2(sizes[k] / self.sizes[k])) for k in keys)
                    order = [SIZES.index(k) for k in keys]
                    changes: dict[str, tuple[Value, Value]] = {self._names[k]: (self.sizes[k], sizes[k]) for k in keys}
                    found.append(((number, far, *order), Candidate(changes)))
            yield from (c for _, c in sorted(found, key=lambda x: x[0]))
            found.clear()

    def _changeable(self) -> list[str]:
        keys = [k for k in SIZES if k in self._names]
        dynamic = self._given("use_dynamic_batch_size") is True
        return [k for k in keys if not (k == "mbs" and dynamic) and not (k == "etp" and self._etp_follows) and self._can(k)]

    def _can(self, key: str) -> bool:
        if key in ("ep", "etp"):
            return bool(self.facts["experts"]) or self.sizes["ep"] > 1
        return not (key == "pp" and self.uneven)

    def _values(self, key: str, gpus: int) -> list[int]:
        whole = {"pp": self.facts["layers"], "ep": self.facts["experts"]}.get(key, 0)
        top = min(gpus, 64) if key != "ep" else gpus
        if key == "mbs":
            return [v for v in (1, 2, 4, 8, 16) if v <= self.sizes["mbs"]]
        if whole:
            return [v for v in range(1, top + 1) if whole % v == 0]
        return [2**i for i in range(top.bit_length()) if 2**i <= top]


def devices(stack: str, arguments: dict[str, Value], gpus: int) -> dict[str, tuple[Value, Value]]:
    """Return the arguments that count the devices themselves, as slime's do.

    Raises:
        Refused: so many devices are no whole nodes.
    """
    if stack != "slime":
        return {}
    nodes, each = arguments.get("actor_num_nodes", 1), arguments.get("actor_num_gpus_per_node", 8)
    size = each if isinstance(each, int) and each > 0 else 8
    new = (1, gpus) if gpus <= size else (gpus // size, size)
    if new[0] * new[1] != gpus:
        raise Refused(f"{gpus} devices are no whole number of nodes of {size}")
    pairs = {"actor_num_nodes": (nodes, new[0]), "actor_num_gpus_per_node": (each, new[1])}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
