"""What the probe saw of the first two steps of a run: batch, gradients, weights and first updates, per parameter family.

Written by the runner's probe (`fingerprint.json` in the run directory) and untrusted here: it is validated before use. Every
number is of the whole model or the whole global batch, whatever the layout, so two runs compare field by field. A number that
isn't finite is None and named in `not_finite`; a thing that the probe could not see is absent and named in `missing`.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attuner.core.base import Record

FORMAT = 1
FAMILIES = (
    *("embedding", "output", "final_norm", "qk_norm", "layer_norm", "qkv", "attn_proj", "router", "shared_fc1", "shared_fc2"),
    *("expert_fc1", "expert_fc2", "mlp_fc1", "mlp_fc2", "mla", "mtp", "position", "other"),
)
"""Names of parameter families, the same in every layout and implementation."""


class Batch(Record):
    """The rows that one step really consumed. Digests don't depend on row order, so not on the layout either."""

    rows: int = Field(ge=0)
    inputs: str = Field(description="hex digest of token ids at their positions")
    targets: str = Field(description="hex digest of labels and loss mask")
    labels: str = Field(description="hex digest of labels alone: tells a shifted mask from shifted labels")
    loss_mask: str
    positions: str
    rows_digest: str = Field(default="", description="hex digest over whole rows, inputs paired with their targets")
    loss_tokens: int = Field(description="tokens with a loss mask above zero")
    replicas_differ: bool = Field(default=False, description="tensor-parallel ranks saw different rows")


class Family(Record):
    """One parameter family (embedding, qkv, router, …) in one step, over the whole model."""

    numel: int
    grad_norm: float | None = Field(description="after reduction, before clipping, loss scale taken out")
    grad_projection: float | None = Field(description="gradient · fixed random signs; as large as the norm")
    zeros: int = Field(description="elements of the gradient that are exactly zero")
    weight_norm: float | None
    weight_projection: float | None = Field(description="weights the forward used · the same signs")
    stale: int = Field(default=0, description="elements where the weights in use are not the optimizer's own")
    update_norm: float | None = None
    update_projection: float | None = None
    lr: float | None = Field(default=None, description="learning rate fitted from the update")
    weight_decay: float | None = Field(default=None, description="weight decay fitted from the update")
    unexplained: float | None = Field(default=None, description="share of the update that the declared optimizer doesn't explain")


class Clip(Record):
    """What clipping did: the norm that the optimizer took, and the factor that it applied."""

    norm: float | None = Field(description="root of the sum of squares of all families, by the probe's own count")
    used_norm: float | None = Field(default=None, description="the norm that the optimizer reported")
    coefficient_min: float | None = None
    coefficient_max: float | None = None


class Group(Record):
    """One optimizer group as the run has it."""

    lr: float
    weight_decay: float
    betas: list[float] = Field(default_factory=list)
    eps: float | None = None
    numel: int = Field(description="elements in this group over the whole model")


class FirstStep(Record):
    """One of the first steps."""

    step: int
    loss: float | None = None
    aux: dict[str, float | None] = Field(default_factory=dict)
    batch: Batch | None = None
    families: dict[str, Family] = Field(default_factory=dict)
    clip: Clip | None = None
    grad_replicas: list[str] = Field(default_factory=list, description="families whose reduced gradient differs between replicas")
    weight_replicas: list[str] = Field(default_factory=list, description="families whose weights differ between replicas")
    replicas_compared: int = 0
    groups: list[Group] = Field(default_factory=list)
    census: dict[str, int] = Field(
        default_factory=dict, description="`what dtype` → elements (0 where counting makes no sense), e.g. `grad_buffer float32`"
    )


class Declared(Record):
    """What the run's own configuration says its optimizer does; the fits are compared with it."""

    optimizer: str
    lr: float | None = None
    betas: list[float] = Field(default_factory=list)
    eps: float | None = None
    weight_decay: float | None = None
    clip_grad: float | None = None


class Fingerprint(Record):
    """The whole of it. `steps` holds the observed steps in order, normally 0 and 1."""

    format: Literal[1]
    precision: Literal["fp32", "bf16", "fp16", "other"]
    world_size: int
    layout: dict[str, int] = Field(description="tp, pp, vpp, cp, ep, etp, dp, edp")
    vocab_size: int = Field(description="padded vocabulary; ln of it is a dead model's loss")
    data_parallel_gradients: Literal["replicated", "sharded"] = "replicated"
    declared: Declared
    steps: list[FirstStep]
    missing: dict[str, str] = Field(default_factory=dict, description="what could not be seen → why")
    not_finite: list[str] = Field(default_factory=list)
    seconds: dict[str, float] = Field(default_factory=dict, description="what the probe itself took, e.g. `step0`")
    hooks: dict[str, float | str | None] = Field(default_factory=dict, description="values of a user's own hooks")
