"""The arms of the proposer `claude`: what each of them goes without, for measuring what each part is worth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROMPTS = Path(__file__).parent / "prompts"


@dataclass(frozen=True)
class Arm:
    """What a model is given; the tools that fixed code judges by are the same in all arms."""

    practice: bool = True
    catalog: bool = True
    lessons: bool = True
    diagnosis: bool = True
    guide: bool = False
    knobs: bool = False
    committee: bool = False


ARMS = {
    "full": Arm(),
    "bare": Arm(practice=False, catalog=False, lessons=False),
    "no_catalog": Arm(catalog=False),
    "no_diagnosis": Arm(diagnosis=False),
    "public_guide": Arm(catalog=False, guide=True),
    "fixed_knobs": Arm(knobs=True),
    "committee": Arm(committee=True),
}

KNOBS = {
    "tensor parallel size": ("tensor_model_parallel_size", "sequence_parallel"),
    "pipeline parallel size": ("pipeline_model_parallel_size",),
    "expert parallel size": ("expert_model_parallel_size",),
    "expert tensor parallel size": ("expert_tensor_parallel_size",),
    "virtual stages": ("virtual_pipeline_model_parallel_size", "num_layers_per_virtual_pipeline_stage"),
    "pipeline split": (
        *("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"),
        *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
    ),
    "micro batch": ("micro_batch_size",),
    "recompute": ("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
    "data-parallel overlap": ("overlap_grad_reduce", "overlap_param_gather"),
    "token dispatcher": ("moe_token_dispatcher_type", "moe_enable_deepep", "moe_flex_dispatcher_backend"),
    "cross-entropy fusion": ("cross_entropy_loss_fusion", "cross_entropy_fusion_impl"),
}
"""The eleven knobs of the arm `fixed_knobs`: the six of ATTUNE's table E1, and five that are our reading of the paper."""

KNOB_ARGUMENTS = frozenset(name for names in KNOBS.values() for name in names)


def prompt(name: str) -> str:
    """Return one of our texts."""
    return (PROMPTS / f"{name}.md").read_text(encoding="utf-8").strip()
