"""Builds a GPT model of megatron-core's local modules in any parallel layout, wraps it for data parallelism, gives it
megatron's optimizer and schedule, and moves its weights to and from torch_dist checkpoints that any layout can read.
megatron's process groups must be up."""

import dataclasses
import random
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallel
from megatron.core.distributed.finalize_model_grads import finalize_model_grads
from megatron.core.enums import ModelType
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_decoder_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import get_megatron_optimizer
from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
from megatron.core.tensor_parallel.random import model_parallel_cuda_manual_seed
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.module import MegatronModule
from megatron.core.transformer.moe import moe_utils

from .mcore_config import Configs

if not hasattr(moe_utils, "te_general_gemm"):
    # Without Transformer Engine the router looks up a name that was never bound (NameError; megatron-core 0.16.1).
    moe_utils.te_general_gemm = None


@dataclasses.dataclass(frozen=True)
class Built:
    """A model ready to train: its chunks (one a virtual stage), the same in DDP, optimizer and schedule."""

    chunks: list[Any]
    model: list[Any]
    optimizer: Any
    scheduler: Any


class RMSNorm(torch.nn.RMSNorm):
    """torch's RMSNorm whose weight says that its gradient must be summed over the ranks of sequence parallelism.

    megatron's wrapper around torch's norms refuses sequence parallelism, since they carry no such mark.
    """

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        _mark(self.weight, config)


class LayerNorm(torch.nn.LayerNorm):
    """torch's LayerNorm, marked in the same way."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps)
        _mark(self.weight, config)
        _mark(self.bias, config)


def _mark(parameter: Any, config: Any) -> None:
    """Let finalize_model_grads sum this parameter's gradient over tensor ranks."""
    parameter.sequence_parallel = config.sequence_parallel


class SdpaAttention(MegatronModule):
    """Causal core attention by torch's scaled_dot_product_attention, in place of megatron's DotProductAttention."""

    def __init__(self, config: Any, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale if softmax_scale is not None else config.kv_channels**-0.5
        self.dropout = float(config.attention_dropout)

    def forward(self, query: Any, key: Any, value: Any, attention_mask: Any = None, **_: Any) -> Any:
        """Attend causally.

        query: (sequence, batch, heads, channels); key and value may have fewer heads (query groups).
        Returns: (sequence, batch, heads · channels).
        """
        length, batch, heads, _channels = query.shape
        repeat = heads // key.size(2)
        if repeat > 1:
            key, value = (part.repeat_interleave(repeat, dim=2) for part in (key, value))
        query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))
        dropout = self.dropout if self.training else 0.0
        context = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=dropout, scale=self.scale
        )
        return context.permute(2, 0, 1, 3).reshape(length, batch, -1)


def block_spec(configs: Configs, vp_stage: int | None) -> Any:
    """Return megatron's specification of this stage's layers, with our norms and the chosen attention."""
    config = configs.transformer
    spec = get_gpt_decoder_block_spec(config, use_transformer_engine=False, normalization=config.normalization, vp_stage=vp_stage)
    norm = RMSNorm if config.normalization == "RMSNorm" else LayerNorm
    spec.layer_norm = norm
    for layer in spec.layer_specs:
        attention = layer.submodules.self_attention.submodules
        for owner in (layer.submodules, attention):
            for name in ("input_layernorm", "pre_mlp_layernorm", "q_layernorm", "k_layernorm"):
                if getattr(owner, name, IdentityOp) is not IdentityOp:
                    setattr(owner, name, norm)
        if configs.trainer.attention_implementation == "sdpa":
            attention.core_attention = SdpaAttention
    return spec


def start_parallel(configs: Configs) -> None:
    """Create megatron's process groups for the recipe's layout and seed every generator.

    Raises: RuntimeError when the layout doesn't divide the ranks (see mcore_layout.derive for clear messages).
    """
    config = configs.transformer
    parallel_state.initialize_model_parallel(
        tensor_model_parallel_size=config.tensor_model_parallel_size,
        pipeline_model_parallel_size=config.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=config.virtual_pipeline_model_parallel_size,
        context_parallel_size=config.context_parallel_size,
        expert_model_parallel_size=config.expert_model_parallel_size,
        expert_tensor_parallel_size=config.expert_tensor_parallel_size,
        num_distributed_optimizer_instances=configs.ddp.num_distributed_optimizer_instances,
        create_gloo_process_groups=False,
    )
    seed_all(configs.trainer.seed)


def seed_all(seed: int) -> None:
    """Seed Python, torch and megatron's tensor-parallel generators."""
    random.seed(seed)
    torch.manual_seed(seed)
    model_parallel_cuda_manual_seed(seed)


def build_chunks(configs: Configs, padded_vocab_size: int, device_kind: str) -> list[Any]:
    """Build this rank's model chunks, one a virtual pipeline stage, on its device in params_dtype."""
    virtual = configs.transformer.virtual_pipeline_model_parallel_size
    stages: list[int | None] = list(range(virtual)) if virtual else [None]
    return [_build_chunk(configs, padded_vocab_size, device_kind, stage) for stage in stages]


def _build_chunk(configs: Configs, padded_vocab_size: int, device_kind: str, stage: int | None) -> Any:
    config, trainer = configs.transformer, configs.trainer
    chunk = GPTModel(
        config,
        block_spec(configs, stage),
        vocab_size=padded_vocab_size,
        max_sequence_length=trainer.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=stage),
        share_embeddings_and_output_weights=not trainer.untie_embeddings_and_output_weights,
        position_embedding_type=trainer.position_embedding_type,
        rotary_base=trainer.rotary_base,
        rotary_percent=trainer.rotary_percent,
        vp_stage=stage,
    )
    chunk.model_type = ModelType.encoder_or_decoder
    if config.params_dtype != torch.float32:
        chunk = chunk.to(config.params_dtype)
    return chunk.cuda() if device_kind == "cuda" else chunk


def prepare(configs: Configs, chunks: list[Any], total_steps: int) -> Built:
    """Wrap the chunks in megatron's DDP and build optimizer and schedule. Load weights before: both take copies."""
    config, ddp = configs.transformer, configs.ddp
    model = [DistributedDataParallel(config, ddp, chunk, disable_bucketing=index > 0) for index, chunk in enumerate(chunks)]
    optimizer = get_megatron_optimizer(configs.optimizer, model, use_gloo_process_groups=False)
    config.finalize_model_grads_func = finalize_model_grads
    config.grad_scale_func = optimizer.scale_loss
    if ddp.overlap_grad_reduce:
        config.no_sync_func = _one_or_all([part.no_sync for part in model])
        if len(model) > 1:
            config.grad_sync_func = [part.start_grad_sync for part in model]
    if ddp.overlap_param_gather and len(model) > 1:
        config.param_sync_func = [part.start_param_sync for part in model]
    return Built(chunks, model, optimizer, _scheduler(configs, optimizer, total_steps))


def _one_or_all(functions: list[Any]) -> Any:
    return functions[0] if len(functions) == 1 else functions


def _scheduler(configs: Configs, optimizer: Any, total_steps: int) -> Any:
    """Build megatron's schedule; it also applies wd_mult, without which norms and biases would be decayed."""
    trainer, config = configs.trainer, configs.optimizer
    decay_steps = trainer.lr_decay_steps or max(total_steps, trainer.lr_warmup_steps + 1)

    def or_else(value: float | None) -> float:
        return config.weight_decay if value is None else value

    return OptimizerParamScheduler(
        optimizer,
        init_lr=trainer.lr_warmup_init,
        max_lr=config.lr,
        min_lr=config.min_lr,
        lr_warmup_steps=trainer.lr_warmup_steps,
        lr_decay_steps=decay_steps,
        lr_decay_style=trainer.lr_decay_style,
        start_wd=or_else(trainer.start_weight_decay),
        end_wd=or_else(trainer.end_weight_decay),
        wd_incr_steps=decay_steps,
        wd_incr_style=trainer.weight_decay_incr_style,
        wsd_decay_steps=trainer.lr_wsd_decay_steps,
        lr_wsd_decay_style=trainer.lr_wsd_decay_style,
    )


def count_parameters(chunks: list[Any], config: Any) -> int:
    """Count the whole model's parameters over all ranks, each once. A collective over the pipeline."""
    pipeline = parallel_state.get_pipeline_model_parallel_group()
    count = 0
    for chunk in chunks:
        for parameter in chunk.parameters():
            if getattr(parameter, "shared_embedding", False) and not chunk.pre_process:
                continue  # the last stage's copy of a tied embedding
            expert = not getattr(parameter, "allreduce", True)
            split = getattr(parameter, "tensor_model_parallel", False)
            width = config.expert_tensor_parallel_size if expert else config.tensor_model_parallel_size
            copies = (width if split else 1) * (config.expert_model_parallel_size if expert else 1)
            count += parameter.numel() * copies
    device = next(chunks[0].parameters()).device
    total = torch.tensor([count], dtype=torch.int64, device=device)
    dist.all_reduce(total, group=pipeline)
    return int(total.item())


def _sharded(chunks: list[Any]) -> dict[str, Any]:
    """Return the chunks' weights as megatron's sharded tensors, whose keys don't depend on the layout."""
    metadata = {
        "dp_cp_group": parallel_state.get_data_parallel_group(with_context_parallel=True),
        "singleton_local_shards": False,
    }
    return {f"model{index}": chunk.sharded_state_dict(metadata=metadata) for index, chunk in enumerate(chunks)}


def load_weights(chunks: list[Any], path: str) -> None:
    """Load a torch_dist checkpoint of any layout into this layout. A collective; call before `prepare`.

    Raises: FileNotFoundError when there is no checkpoint; KeyError when it lacks a weight.
    """
    if not (Path(path) / "metadata.json").is_file():
        raise FileNotFoundError(f"no megatron checkpoint in {path}")
    loaded = dist_checkpointing.load(_sharded(chunks), path)
    for index, chunk in enumerate(chunks):
        missing = chunk.load_state_dict(loaded[f"model{index}"], strict=False).missing_keys
        absent = [key for key in missing if not key.endswith("_extra_state")]
        if absent:
            raise KeyError(f"checkpoint {path} lacks {absent[0]}")


def save_weights(built: Built, path: str) -> None:
    """Save the weights, not the optimizer, as a torch_dist checkpoint. A collective."""
    for part in built.model:
        if part.ddp_config.overlap_param_gather:
            part.disable_forward_pre_hook()  # also waits for the gather that the next forward would have started
    if dist.get_rank() == 0:
        Path(path).mkdir(parents=True, exist_ok=True)
    dist.barrier()
    dist_checkpointing.save(_sharded(built.chunks), path)
