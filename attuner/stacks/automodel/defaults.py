"""Values that hold in an AutoModel run where nobody states them: the defaults that the classes of its configuration declare. Read
from a checkout's source by their text, nothing is imported; without one, those of commit 36044ad3 stand."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from attuner.core.base import Value
from attuner.core.errors import UserError

COMMIT = "36044ad3"
CLASSES = {
    "step_scheduler": ("components/training/step_scheduler.py", "StepSchedulerConfig"),
    "lr_scheduler": ("components/optim/optimizer.py", "LRSchedulerConfig"),
    "checkpoint": ("components/checkpoint/config.py", "CheckpointingConfig"),
    "dataloader": ("components/datasets/loader.py", "DataloaderConfig"),
    "distributed.moe": ("components/distributed/config.py", "MoEParallelizerConfig"),
    "distributed.pipeline": ("components/distributed/pipelining/config.py", "PipelineConfig"),
    "fsdp2": ("components/distributed/config.py", "FSDP2Config"),
    "megatron_fsdp": ("components/distributed/config.py", "MegatronFSDPConfig"),
    "ddp": ("components/distributed/config.py", "DDPConfig"),
}
"""Section or strategy -> file and class that declare its fields."""
STRATEGIES = {"fsdp2": "fsdp2", "megatron_fsdp": "megatron_fsdp", "megatron-fsdp": "megatron_fsdp", "mfsdp": "megatron_fsdp"}
STRATEGIES |= {"ddp": "ddp"}
OPTIONAL = ("lr_scheduler", "distributed.moe", "distributed.pipeline")
"""Sections that hold only where the recipe has them."""
RUNTIME = {"dataset_config", "packing", "batch_sampler_config", "dataset_build_schedule", "seed", "collate_fn", "loss_fn"}
RUNTIME |= {
    "pp_batch_size",
    "batch_size",
    "model_repo_id",
    "model_cache_dir",
    "is_peft",
    "model_state_dict_keys",
    "multimodal",
    "mp_policy",
}
"""Fields that the recipe fills in at run time, or whose default is an object."""
ELSEWHERE: dict[str, Value] = {
    **{f"distributed.{name}_size": 1 for name in ("tp", "cp", "pp", "ep")},
    **{"distributed.strategy": "fsdp2", "distributed.dp_size": None, "distributed.dp_replicate_size": None},
    **{"clip_grad_norm.max_norm": 1, "seed": 42, "step_scheduler.local_batch_size": 1, "nvtx": False},
    **{"packed_sequence.packed_sequence_size": 0, "dist_env.backend": "nccl", "dist_env.timeout_minutes": 1},
}
"""Defaults that stand in the code of the recipe. Source: recipes/llm/train_ft.py:setup, recipes/_dist_utils.py."""
FSDP2_POLICY: dict[str, Value] = {
    **{"distributed.mp_policy.param_dtype": "bfloat16", "distributed.mp_policy.reduce_dtype": "float32"},
    **{"distributed.mp_policy.output_dtype": "bfloat16", "distributed.mp_policy.cast_forward_inputs": True},
}
"""Source: components/distributed/config.py:FSDP2Config.__post_init__."""


def fields_of(source: str) -> dict[str, dict[str, Value]]:
    """Return the fields of each class with their declared defaults; '' is the table of COMMIT.

    A default that is no plain value is None.

    Raises:
        UserError: the checkout lacks a class that attuner knows.
    """
    if not source:
        from attuner.stacks.automodel.declared import FIELDS

        return FIELDS
    root, found = Path(source) / "nemo_automodel", {}
    for name, (file, wanted) in CLASSES.items():
        path = root / file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        body = next((n for n in ast.parse(text).body if isinstance(n, ast.ClassDef) and n.name == wanted), None)
        if body is None:
            raise UserError(
                f"stack.source: {source}: no AutoModel checkout that attuner knows: no {wanted} in nemo_automodel/{file}"
            )
        found[name] = {k: v for k, v in _declared(body).items() if k not in RUNTIME}
    return found


def _declared(body: ast.ClassDef) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = _literal(node.value)
    return found


def _literal(node: ast.expr | None) -> Value:
    if node is None:
        return None
    try:
        value: Any = ast.literal_eval(node)
    except ValueError:
        return None
    plain = value is None or isinstance(value, bool | int | float | str)
    return int(value) if isinstance(value, float) and value.is_integer() else value if plain else None


def defaults(given: dict[str, Value], fields: dict[str, dict[str, Value]]) -> dict[str, Value]:
    """Return what holds beside the given arguments."""
    strategy = STRATEGIES.get(str(given.get("distributed.strategy") or "fsdp2").lower(), "")
    found = dict(ELSEWHERE)
    for section, values in fields.items():
        if section in STRATEGIES.values():
            if section == strategy:
                found |= {f"distributed.{name}": value for name, value in values.items()}
        elif section not in OPTIONAL or any(name.startswith(f"{section}.") for name in given):
            found |= {f"{section}.{name}": value for name, value in values.items()}
    if strategy == "fsdp2" and not any(name.startswith("distributed.mp_policy.") for name in given):
        found |= FSDP2_POLICY
    return found
