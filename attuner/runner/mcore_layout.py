"""What follows from a recipe and a number of ranks: sizes of the process groups, micro-batches, layers of each
pipeline stage. Uses megatron's own functions where they run without process groups, and says in one line which
division fails."""

from typing import Any

from megatron.core.transformer.enums import LayerType
from megatron.core.transformer.transformer_block import get_num_layers_to_build

from .errors import LayoutError
from .mcore_config import Configs


def derive(configs: Configs, world_size: int) -> dict[str, Any]:
    """Return the facts of a recipe on `world_size` ranks.

    Raises: LayoutError with the formula and the numbers when the layout doesn't divide.
    """
    config, trainer = configs.transformer, configs.trainer
    tp, pp, cp = (
        config.tensor_model_parallel_size,
        config.pipeline_model_parallel_size,
        config.context_parallel_size,
    )
    ep, etp = config.expert_model_parallel_size, config.expert_tensor_parallel_size
    dp = _divide("world size", world_size, "tp·pp·cp", (tp, pp, cp))
    expert_dp = _divide("world size", world_size, "etp·ep·pp", (etp, ep, pp))
    microbatches = _divide("global_batch_size", trainer.global_batch_size, "micro_batch_size·dp", (trainer.micro_batch_size, dp))
    _check_widths(configs, tp, etp, ep)
    layers = layers_per_stage(config)
    _check_interleaving(config, microbatches)
    multiple = trainer.make_vocab_size_divisible_by * tp
    return {
        "world_size": world_size,
        "data_parallel_size": dp,
        "expert_data_parallel_size": expert_dp,
        "expert_tensor_parallel_size": etp,
        "num_microbatches": microbatches,
        "rows_per_update": trainer.global_batch_size,
        "tokens_per_update": trainer.global_batch_size * trainer.seq_length,
        "layers_per_stage": layers,
        "padded_vocab_size": -(-trainer.vocab_size // multiple) * multiple,
    }


def layers_per_stage(config: Any) -> list[int]:
    """Return the number of layers of every stage in the order of the layers: by virtual stage, then by rank.

    Raises: LayoutError when layers don't divide among stages.
    """
    pp, vpp = config.pipeline_model_parallel_size, config.virtual_pipeline_model_parallel_size
    uneven = config.num_layers_in_first_pipeline_stage or config.num_layers_in_last_pipeline_stage
    uneven = uneven or config.account_for_embedding_in_pipeline_split or config.account_for_loss_in_pipeline_split
    layout = config.pipeline_model_parallel_layout
    if vpp is not None and pp == 1:
        raise LayoutError(f"virtual_pipeline_model_parallel_size {vpp} needs pipeline_model_parallel_size above 1")
    if not uneven and layout is None:
        _divide("num_layers", config.num_layers, "pp·vpp", (pp, vpp or 1))
    stages = [(virtual if vpp else None, rank) for virtual in range(vpp or 1) for rank in range(pp)]
    try:
        if layout is not None:
            layers = [len(layout.get_layer_id_list(LayerType.decoder, v, r)) for v, r in stages]
        else:
            layers = [get_num_layers_to_build(config, vp_stage=v, pp_rank=r) for v, r in stages]
    except (ValueError, AssertionError, RuntimeError) as error:
        raise LayoutError(f"megatron refuses the pipeline: {' '.join(str(error).split())}") from error
    if sum(layers) != config.num_layers:
        raise LayoutError(f"stages hold {'+'.join(map(str, layers))} layers, num_layers is {config.num_layers}")
    return layers


def _divide(name: str, number: int, formula: str, factors: tuple[int, ...]) -> int:
    """Divide, or raise with the formula and its numbers."""
    product = 1
    for factor in factors:
        product *= factor
    if product < 1 or number % product:
        shown = "·".join(map(str, factors))
        numbers = f"{shown} = {product}" if len(factors) > 1 else str(product)
        raise LayoutError(f"{name} {number} does not divide by {formula} = {numbers}")
    return number // product


def _check_widths(configs: Configs, tp: int, etp: int, ep: int) -> None:
    config = configs.transformer
    _divide("num_attention_heads", config.num_attention_heads, "tp", (tp,))
    _divide("num_query_groups", config.num_query_groups, "tp", (tp,))
    _divide("num_attention_heads", config.num_attention_heads, "num_query_groups", (config.num_query_groups,))
    _divide("ffn_hidden_size", config.ffn_hidden_size, "tp", (tp,))
    if config.sequence_parallel:
        _divide("seq_length", configs.trainer.seq_length, "tp (sequence_parallel)", (tp,))
    if config.num_moe_experts:
        _divide("num_moe_experts", config.num_moe_experts, "ep", (ep,))
        _divide("moe_ffn_hidden_size", config.moe_ffn_hidden_size, "etp", (etp,))
        if config.moe_shared_expert_intermediate_size:
            _divide("moe_shared_expert_intermediate_size", config.moe_shared_expert_intermediate_size, "tp", (tp,))
        if tp > 1 and not config.sequence_parallel:
            raise LayoutError(f"mixture of experts with tp = {tp} needs sequence_parallel")
        if config.moe_router_topk > config.num_moe_experts:
            raise LayoutError(f"moe_router_topk {config.moe_router_topk} is above num_moe_experts {config.num_moe_experts}")


def _check_interleaving(config: Any, microbatches: int) -> None:
    """Repeat what megatron's interleaved schedule checks only when training has begun."""
    if not config.virtual_pipeline_model_parallel_size:
        return
    pp, group = config.pipeline_model_parallel_size, config.microbatch_group_size_per_vp_stage
    if not pp <= group <= microbatches:
        raise LayoutError(
            f"microbatch_group_size_per_vp_stage {group} must lie between pp = {pp} and the {microbatches} "
            "micro-batches of an update"
        )
    rest = microbatches % group
    if 0 < rest < pp:
        raise LayoutError(
            f"{microbatches} micro-batches leave {rest} over groups of {group}: that must be 0 or at least pp = {pp}"
        )
