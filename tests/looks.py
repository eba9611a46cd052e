"""Evidence made by hand: a small mixture of experts on two devices whose numbers hang together, and ways to spoil it.

`evidence()` is a healthy run; `seen(...)` changes its fingerprint. A healthy fingerprint's clip coefficient, fits and groups
agree with each other, so that a self-check can only speak about what a test spoils.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from attuner.config import load_tolerances
from attuner.core.fingerprint import Batch, Fingerprint, FirstStep
from attuner.core.judgement import Finding, Verdict
from attuner.core.run import Evidence, StepRecord
from attuner.policy.forward import forward_look
from attuner.policy.update import update_look
from attuner.policy.zones import Limits

ROOT = Path(__file__).resolve().parents[1]
NORMS = {"final_norm": 128, "qk_norm": 256, "layer_norm": 1024}
FAMILIES = {
    **{"embedding": 32768, "output": 32768, "qkv": 49152, "attn_proj": 65536, "router": 2048},
    **{"expert_fc1": 262144, "expert_fc2": 131072},
    **NORMS,
}
GRADIENTS = dict(zip(FAMILIES, (0.4, 0.5, 0.3, 0.2, 0.05, 0.6, 0.35, 0.02, 0.01, 0.03), strict=True))
LR, DECAY, CLIP = 1e-4, 0.1, 0.2
ROWS, TOKENS = 8, 506
LOSSES = (2.93, 2.85, 2.78, 2.72, 2.66, 2.61)
Data = dict[str, Any]


@cache
def limits(stack: str = "mcore") -> Limits:
    """The project's own tolerances."""
    return load_tolerances(ROOT / "rules", stack)


def family(name: str, step: int = 0) -> Data:
    """A family of one step."""
    numel, gradient = FAMILIES[name], GRADIENTS[name] * (1 - 0.1 * step)
    weight = math.sqrt(numel) * (1.0 if name in NORMS else 0.02)
    return {
        "numel": numel,
        "grad_norm": gradient,
        "grad_projection": gradient / 3,
        "zeros": 9216 if name == "embedding" else 0,
        "weight_norm": weight,
        "weight_projection": weight / 2,
        "update_norm": LR * math.sqrt(numel),
        "update_projection": LR * math.sqrt(numel) / 4,
        "lr": LR * (1 + 6e-7),
        "weight_decay": 1e-6 if name in NORMS else DECAY + 1.4e-4,
        "unexplained": 2.4e-4 if name in NORMS else 2e-5,
    }


def batch(**changes: Any) -> Data:
    """The rows of one step."""
    digests = {k: f"{k}-0".ljust(16, "0") for k in Batch.model_fields if k not in ("rows", "loss_tokens", "replicas_differ")}
    return {"rows": ROWS, "loss_tokens": TOKENS, **digests, **changes}


def first_step(step: int = 0) -> Data:
    """One observed step."""
    families = {name: family(name, step) for name in FAMILIES}
    norm = math.sqrt(sum(f["grad_norm"] ** 2 for f in families.values()))
    factor = CLIP / (norm + 1e-6)
    census = {
        f"{kind} float32": sum(FAMILIES.values()) for kind in ("param", "grad_buffer", "main_grad", "main_param", "exp_avg")
    }
    groups = [
        {"lr": LR, "weight_decay": decay, "betas": [0.9, 0.95], "eps": 1e-8, "numel": numel}
        for decay, numel in ((0.0, sum(NORMS.values())), (DECAY, sum(FAMILIES.values()) - sum(NORMS.values())))
    ]
    return {
        "step": step,
        "loss": LOSSES[step],
        "aux": {"load_balancing_loss": 1.0277},
        "batch": batch(),
        "families": families,
        "clip": {"norm": norm, "used_norm": norm, "coefficient_min": factor, "coefficient_max": factor},
        "replicas_compared": 40,
        "groups": groups,
        "census": {**census, "router_logits float32": 0},
    }


def fingerprint(precision: str = "fp32", **layout: int) -> Data:
    """A healthy fingerprint as the probe writes it."""
    sizes = {"tp": 1, "pp": 1, "vpp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 2, "edp": 2, **layout}
    declared = {"optimizer": "adam", "lr": LR, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": DECAY, "clip_grad": CLIP}
    return {
        "format": 1,
        "precision": precision,
        "world_size": 2,
        "layout": sizes,
        "vocab_size": 256,
        "declared": declared,
        "steps": [first_step(0), first_step(1)],
    }


def steps(losses: tuple[float, ...] = LOSSES, **changes: Any) -> list[StepRecord]:
    """The lines of a run."""
    given = {"t": 0.0, "step_s": 1.0, "aux": {"load_balancing_loss": 1.0277}, "loss_tokens": TOKENS, "tokens": 1024}
    return [
        StepRecord.model_validate({"step": n, "kind": "warmup" if n < 2 else "scored", "lm_loss": x, **given, **changes})
        for n, x in enumerate(losses)
    ]


def evidence(
    spoil: Callable[[Data], object] | None = None, *, label: str = "l07#1", precision: str = "fp32", **layout: int
) -> Evidence:
    """A healthy run; `spoil` may change its fingerprint (plain data) and, under `lines`, its step records."""
    data = fingerprint(precision, **layout)
    data["lines"] = steps()
    if spoil is not None:
        spoil(data)
    lines = data.pop("lines")
    return Evidence(label=label, recipe="r", steps=lines, fingerprint=Fingerprint.model_validate(data), precision=precision)


def base(spoil: Callable[[Data], object] | None = None, *, precision: str = "fp32", **layout: int) -> Evidence:
    """The baseline's run."""
    return evidence(spoil, label="l01#1", precision=precision, **layout)


def blind(label: str = "l07#1", lines: list[StepRecord] | None = None, **more: Any) -> Evidence:
    """A run without a fingerprint."""
    return Evidence.model_validate({"label": label, "recipe": "r", "steps": steps() if lines is None else lines, **more})


def forward(candidate: Evidence, *reference: Evidence, **more: Any) -> Verdict:
    """The second look."""
    given = {"limits": limits(), "subject": "l07#1", "recipe": "r", **more}
    return forward_look(reference or [base(precision=candidate.precision or "fp32")], candidate, **given)


def update(candidate: Evidence, *reference: Evidence, **more: Any) -> Verdict:
    """The third look."""
    given = {"limits": limits(), "subject": "l07#1", "recipe": "r", **more}
    return update_look(reference or [base(precision=candidate.precision or "fp32")], candidate, **given)


def objections(verdict: Verdict) -> dict[str, Finding]:
    """What a verdict has against a run, by key."""
    return {f.key: f for f in verdict.findings if f.decision != "admit"}


def families_of(data: Data, *names: str, step: int = 0) -> list[Data]:
    """Families of a step as plain data; all of them if none is named."""
    found = data["steps"][step]["families"]
    return [found[n] for n in (names or found)]


def scale(
    data: Data, factor: float, *names: str, fields: tuple[str, ...] = ("grad_norm", "grad_projection"), step: int = 0
) -> None:
    """Multiply fields of families."""
    for f in families_of(data, *names, step=step):
        for name in fields:
            f[name] *= factor


def reclip(data: Data, step: int = 0) -> None:
    """Make clipping agree with the gradients again, as a run with such gradients would have it."""
    norm = math.sqrt(sum(f["grad_norm"] ** 2 for f in families_of(data, step=step)))
    factor = min(1.0, CLIP / (norm + 1e-6))
    data["steps"][step]["clip"] = {"norm": norm, "used_norm": norm, "coefficient_min": factor, "coefficient_max": factor}


def steps_of(data: Data) -> list[FirstStep]:
    """The observed steps as records."""
    return [FirstStep.model_validate(s) for s in data["steps"]]
