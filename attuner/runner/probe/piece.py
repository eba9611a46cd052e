"""One parameter of a model as a rank holds it: the name that every layout and implementation gives it, its family, its shard,
and the places of its elements in the whole model. Names come from the modules, not from the checkpoint code, so that a wrong
slice in the latter can't hide itself."""

import dataclasses
import functools
import re
from typing import Any

import torch

from .numbers import Places, axis_keys, key_of

_RENAMED = (
    # Transformer Engine's grouped experts and fused norms, in the words of megatron's local modules
    (r"experts\.linear_fc([12])\.(weight|bias)(\d+)$", r"experts.\3.linear_fc\1.\2"),
    (r"experts\.local_experts\.(\d+)\.", r"experts.\1."),
    (r"self_attention\.linear_qkv\.layer_norm_(weight|bias)$", r"input_layernorm.\1"),
    (r"self_attention\.linear_q_up_proj\.layer_norm_(weight|bias)$", r"self_attention.q_layernorm.\1"),
    (r"self_attention\.linear_kv_up_proj\.layer_norm_(weight|bias)$", r"self_attention.kv_layernorm.\1"),
    (r"mlp\.linear_fc1\.layer_norm_(weight|bias)$", r"pre_mlp_layernorm.\1"),
)
EXPERT = re.compile(r"(?<!shared_)experts\.(\d+)\.")
_NORMS = (
    (r"(^|\.)(q|k|kv)_?(a_)?layer_?norm", "qk_norm"),
    (r"final_?(layer)?_?norm", "final_norm"),
    (r"layer_?norm|(^|\.)(e|h)norm\.|(^|\.)norm\.", "layer_norm"),
)
_MATRICES = (
    (r"^mtp\.", "mtp"),
    (r"position_embeddings", "position"),
    (r"word_embeddings", "embedding"),
    (r"^output_layer\.", "output"),
    (r"router\.weight$", "router"),
    (r"shared_experts\.linear_fc1", "shared_fc1"),
    (r"shared_experts\.linear_fc2", "shared_fc2"),
    (r"experts\.\d+\.linear_fc1", "expert_fc1"),
    (r"experts\.\d+\.linear_fc2", "expert_fc2"),
    (r"linear_(q|kv)_(down|up)_proj|linear_q_proj|linear_kv_proj", "mla"),
    (r"linear_qkv", "qkv"),
    (r"attention\.linear_proj", "attn_proj"),
    (r"mlp\.linear_fc1", "mlp_fc1"),
    (r"mlp\.linear_fc2", "mlp_fc2"),
)
TIED = "embedding.word_embeddings.weight"


@functools.cache
def family(name: str) -> str:
    """Return the family of a parameter by its layout-independent name.

    A family is decayed or not as a whole, or its weight decay couldn't be fitted: hence biases of matrices are 'other'.
    """
    for pattern, found in _NORMS:
        if re.search(pattern, name):
            return found
    if name.endswith(".bias"):
        return "other"
    return next((found for pattern, found in _MATRICES if re.search(pattern, name)), "other")


@dataclasses.dataclass
class Piece:
    """One parameter, or this rank's shard of it."""

    name: str
    parameter: Any
    shard: tuple[int, int]
    """Which tensor-parallel shard, of how many."""
    split: tuple[int, int]
    """The axis that is sharded, and of how many blocks each cut by itself it consists: two for gate and up."""
    expert: bool
    lo: int
    hi: int
    """The flat range of the parameter whose reduced gradient and update this rank has."""
    twin: bool
    """A later stage's copy of a tied weight: compared, never counted."""

    @property
    def family(self) -> str:
        """Family by name."""
        return family(self.name)

    @property
    def key(self) -> tuple[str, int, int]:
        """What two ranks share exactly when they hold replicas."""
        return (self.name, *self.shard)

    def places(self) -> Places:
        """Return the keys of all elements: those they would have in the unsharded parameter."""
        shape, device = self.parameter.shape, self.parameter.device
        rows, columns = (shape[0] if len(shape) else 1), 1
        for size in shape[1:]:
            columns *= size
        key = key_of(self.name)
        axes = [self._axis(0, rows, device), self._axis(1, columns, device)]
        return Places(axis_keys(key, axes[0]), axis_keys(key ^ 0x5DEECE66D, axes[1]))

    def _axis(self, axis: int, size: int, device: Any) -> Any:
        places = torch.arange(size, device=device)
        dimension, blocks = self.split
        if self.shard[1] == 1 or dimension != axis:
            return places
        width = size // blocks
        return places // width * (width * self.shard[1]) + self.shard[0] * width + places % width


def unwrapped(chunk: Any) -> Any:
    """Return the model inside DDP and precision wrappers."""
    while hasattr(chunk, "module"):
        chunk = chunk.module
    return chunk


def global_name(core: Any, name: str, first_expert: int) -> str:
    """Return the name of a parameter that every layout and implementation gives it.

    Layers count through the whole model by their own layer_number, experts from `first_expert`.
    """
    module, words = core, []
    parts = name.split(".")
    for part in parts[:-1]:
        module = getattr(module, part)
        number = getattr(module, "layer_number", None)
        words.append(str(number - 1) if part.isdigit() and isinstance(number, int) else part)
    found = ".".join([*words, parts[-1]])
    for pattern, replacement in _RENAMED:
        found = re.sub(pattern, replacement, found)
    return EXPERT.sub(lambda match: f"experts.{first_expert + int(match[1])}.", found)
