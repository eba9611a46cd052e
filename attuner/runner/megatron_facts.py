"""What follows from Megatron's validated arguments: sizes of the process groups, micro-batches, layers of every stage, padded
vocabulary, steps of the schedules, bucket size. Megatron's own functions and tables where they run without process groups;
what it would only find out while the model is built or the first batch runs is refused here, with the formula and its
numbers."""

import importlib
import inspect
import types
from typing import Any

from .errors import ConfigError, LayoutError
from .megatron_values import reason


def derive(args: Any, transformer: Any, ddp: Any, framework: Any, *, entry: str) -> dict[str, Any]:
    """Return the facts, and leave in `args` what Megatron would (train_iters, lr_decay_iters).

    Raises: LayoutError with the formula when the layout doesn't divide, ConfigError when the schedule can't be made.
    """
    sizes = group_sizes(args)
    check_widths(args, transformer)
    layers = layers_per_stage(args, transformer)
    facts: dict[str, Any] = {**sizes, **batches(args, sizes, entry=entry), "layers_per_stage": layers}
    _check_interleaving(transformer, facts["num_microbatches"])
    facts |= schedules(args, framework)
    return {
        **facts,
        "padded_vocab_size": padded_vocabulary(args, framework, entry=entry),
        "ddp_bucket_size": bucket_size(ddp, sizes["data_parallel_size"] * args.context_parallel_size),
        "gradient_accumulation_dtype": accumulation_dtype(args, ddp),
        "loss_masks": loss_masks(args, entry=entry),
        "attention_kernel": _kernel(transformer),
        "initial_weights": "checkpoint" if args.load or args.pretrained_checkpoint else "random",
        "validator": "args",
    }


# ---------------------------------------------------------------------------------------------- layout


def group_sizes(args: Any) -> dict[str, int]:
    """Return world size, data-parallel and expert-data-parallel size, once everything divides.

    Source: megatron/core/parallel_state.py:initialize_model_parallel, which checks this on the cluster.
    """
    pp, cp = args.pipeline_model_parallel_size, args.context_parallel_size
    tp, ep, etp = args.tensor_model_parallel_size, args.expert_model_parallel_size, args.expert_tensor_parallel_size
    shards, expert_shards = getattr(args, "gtp_weight_remat_size", 1), getattr(args, "expert_gtp_weight_remat_size", 1)
    dp = divide("world size", args.world_size, "tp·pp·cp·shards", (tp, pp, cp, shards))
    expert_dp = divide("world size", args.world_size, "etp·ep·pp·shards", (etp, ep, pp, expert_shards))
    instances = getattr(args, "num_distributed_optimizer_instances", 1) or 1
    if instances > 1:
        divide("data-parallel size · cp", dp * cp, "num_distributed_optimizer_instances", (instances,))
        divide("expert-data-parallel size", expert_dp, "num_distributed_optimizer_instances", (instances,))
    return {"world_size": args.world_size, "data_parallel_size": dp, "expert_data_parallel_size": expert_dp}


def divide(name: str, number: int, formula: str, factors: tuple[int, ...]) -> int:
    """Divide, or raise LayoutError with the formula and its numbers; factors of 1 at the end are not shown."""
    named = list(zip(formula.split("·"), factors, strict=True))
    while len(named) > 1 and named[-1][1] == 1 and named[-1][0] == "shards":
        named.pop()
    product = 1
    for _, factor in named:
        product *= factor
    if product < 1 or number % product:
        shown = "·".join(str(factor) for _, factor in named)
        numbers = f"{shown} = {product}" if len(named) > 1 else str(product)
        raise LayoutError(f"{name} {number} does not divide by {'·'.join(word for word, _ in named)} = {numbers}")
    return number // product


def check_widths(args: Any, transformer: Any) -> None:
    """Refuse widths that tensor and expert ranks can't share evenly.

    Source: megatron/core/tensor_parallel/utils.py:divide, transformer/attention.py, transformer/moe/{experts,moe_layer}.py.
    """
    tp, etp, ep = transformer.tensor_model_parallel_size, transformer.expert_tensor_parallel_size, args.expert_model_parallel_size
    divide("num_attention_heads", transformer.num_attention_heads, "tp", (tp,))
    groups = transformer.num_query_groups
    if groups and groups % tp and tp % groups:
        raise LayoutError(f"num_query_groups {groups} and tp = {tp}: one must divide the other")
    divide("ffn_hidden_size", transformer.ffn_hidden_size, "tp", (tp,))
    if args.sequence_parallel:
        divide("seq_length", args.seq_length, "cp·tp", (args.context_parallel_size, tp))
    if not transformer.num_moe_experts:
        return
    divide("num_experts", transformer.num_moe_experts, "ep", (ep,))
    divide("moe_ffn_hidden_size", transformer.moe_ffn_hidden_size, "etp", (etp,))
    if transformer.moe_shared_expert_intermediate_size:
        divide("moe_shared_expert_intermediate_size", transformer.moe_shared_expert_intermediate_size, "tp", (tp,))
    if tp > 1 and not transformer.sequence_parallel:
        raise LayoutError(f"mixture of experts with tp = {tp} needs sequence_parallel: the layer refuses to train without")
    if transformer.moe_router_topk > transformer.num_moe_experts:
        raise LayoutError(f"moe_router_topk {transformer.moe_router_topk} is above num_experts {transformer.num_moe_experts}")
    pattern = transformer.moe_layer_freq
    if isinstance(pattern, list) and len(pattern) != transformer.num_layers:
        raise LayoutError(f"moe_layer_freq names {len(pattern)} layers, num_layers is {transformer.num_layers}")


def layers_per_stage(args: Any, transformer: Any) -> list[int]:
    """Return the number of layers of every chunk: stage by stage, and within a stage by virtual stage.

    Raises: LayoutError when Megatron's own tables refuse, or don't place every layer once.
    """
    pp, vpp = transformer.pipeline_model_parallel_size, transformer.virtual_pipeline_model_parallel_size
    hybrid = getattr(args, "hybrid_layer_pattern", None)
    if hybrid and "|" in hybrid:
        segments = [segment for segment in hybrid.split("/")[0].split("|")]
        layers = [len(segments[v * pp + rank]) for rank in range(pp) for v in range(vpp or 1)]
    elif transformer.pipeline_model_parallel_layout is not None:
        table, kind = transformer.pipeline_model_parallel_layout.layout, _module("megatron.core.transformer.enums").LayerType
        layers = [chunk.count(kind.decoder) for stage in table for chunk in stage]
    else:
        _check_even(transformer, pp, vpp or 1)
        build = _module("megatron.core.transformer.transformer_block").get_num_layers_to_build
        chunks = [(rank, v if vpp else None) for rank in range(pp) for v in range(vpp or 1)]
        try:
            layers = [build(transformer, vp_stage=v, pp_rank=rank) for rank, v in chunks]
        except (ValueError, AssertionError, RuntimeError) as error:
            raise LayoutError(f"Megatron refuses the pipeline: {reason(error)}") from error
    if sum(layers) != transformer.num_layers or min(layers) < 0:
        raise LayoutError(f"stages hold {'+'.join(map(str, layers))} layers, num_layers is {transformer.num_layers}")
    return layers


def _check_even(transformer: Any, pp: int, vpp: int) -> None:
    """Say by which formula an even split fails: validate_args looks at num_layers % pp only; uneven ones are checked there."""
    if transformer.num_layers_in_first_pipeline_stage is None and transformer.num_layers_in_last_pipeline_stage is None:
        extra = bool(transformer.account_for_embedding_in_pipeline_split) + bool(transformer.account_for_loss_in_pipeline_split)
        name = "num_layers" + (f" + {extra}" if extra else "")
        divide(name, transformer.num_layers + extra, "pp·vpp", (pp, vpp))


def _check_interleaving(transformer: Any, microbatches: Any) -> None:
    """Repeat what the interleaved schedule checks only when training has begun.

    Source: megatron/core/pipeline_parallel/schedules.py:forward_backward_pipelining_with_interleaving.
    """
    if not transformer.virtual_pipeline_model_parallel_size or not isinstance(microbatches, int):
        return
    pp, group = transformer.pipeline_model_parallel_size, transformer.microbatch_group_size_per_vp_stage
    if not pp <= group <= microbatches:
        raise LayoutError(
            f"microbatch_group_size_per_vp_stage {group} must lie between pp = {pp} and the {microbatches} micro-batches "
            "of an update"
        )
    rest = microbatches % group
    if 0 < rest < pp:
        raise LayoutError(
            f"{microbatches} micro-batches leave {rest} over groups of {group}: that must be 0 or at least pp = {pp}"
        )


# ---------------------------------------------------------------------------------------------- batch and schedules


def batches(args: Any, sizes: dict[str, int], *, entry: str) -> dict[str, Any]:
    """Return rows, tokens and micro-batches of an update, by Megatron's own calculator.

    slime packs rows of any length: it has no fixed number of tokens, nor of micro-batches with use_dynamic_batch_size.
    """
    replicas = sizes["data_parallel_size"] * getattr(args, "gtp_weight_remat_size", 1)
    rows, slime = args.global_batch_size, entry == "slime"
    if slime and args.use_dynamic_batch_size:
        return {"num_microbatches": "dynamic", "rows_per_update": rows, "tokens_per_update": "dynamic"}
    if not args.decrease_batch_size_if_needed:
        divide("global_batch_size", rows, "micro_batch_size·dp", (args.micro_batch_size, replicas))
    module = _module("megatron.core.num_microbatches_calculator")
    wanted = inspect.signature(module.init_num_microbatches_calculator).parameters
    known = {name: getattr(args, name) for name in wanted if hasattr(args, name)}
    try:
        if module._GLOBAL_NUM_MICROBATCHES_CALCULATOR is None:  # in a run that is under way it is there
            module.init_num_microbatches_calculator(**{**known, "data_parallel_size": replicas})
    except (AssertionError, ValueError, TypeError) as error:
        raise ConfigError(f"Megatron refuses the batch: {reason(error)}") from error
    if not any(getattr(args, name, None) for name in ("rampup_batch_size", "step_batch_size_schedule")):
        rows = int(module.get_current_running_global_batch_size())
    return {
        "num_microbatches": rows // (args.micro_batch_size * replicas),
        "rows_per_update": rows,
        "tokens_per_update": "dynamic" if slime else rows * args.seq_length,
    }


def schedules(args: Any, framework: Any) -> dict[str, Any]:
    """Return the steps of the schedules as Megatron's scheduler is given them: they count rows, not updates.

    Raises: ConfigError when neither train_iters nor train_samples is known.
    """
    training = framework.training
    training.get_args = lambda: args
    if not args.train_iters and not args.train_samples:
        raise ConfigError("neither train_iters nor train_samples is given: Megatron can't make the learning-rate schedule")
    try:
        scheduler = training.get_optimizer_param_scheduler(types.SimpleNamespace(param_groups=[]))
        training.update_train_iters(args)
    except (AssertionError, ValueError, TypeError) as error:
        raise ConfigError(f"Megatron refuses the schedule: {reason(error)}") from error
    names = ("lr_decay_steps", "lr_warmup_steps", "wd_incr_steps", "wsd_decay_steps")
    steps = {name: getattr(scheduler, name, None) for name in names}
    return {"train_steps": args.train_iters, **{name: value for name, value in steps.items() if value is not None}}


def padded_vocabulary(args: Any, framework: Any, *, entry: str) -> Any:
    """Return the padded vocabulary by Megatron's own function, or in words what it depends on.

    The tokenizer itself isn't here: `vocab_size` stands for its size where the recipe states it.
    Source: megatron/training/tokenizer/tokenizer.py until 0.16, then megatron/core/tokenizers/utils/build_tokenizer.py.
    """
    if getattr(args, "padded_vocab_size", None):
        return int(args.padded_vocab_size)
    if not args.vocab_size:
        multiple = args.make_vocab_size_divisible_by * args.tensor_model_parallel_size
        return f"the tokenizer's, up to a multiple of {multiple}"
    places = (
        ("megatron.core.tokenizers.utils.build_tokenizer", "vocab_size_with_padding"),
        ("megatron.training.tokenizer.tokenizer", "_vocab_size_with_padding"),
    )
    for place, name in places:
        try:
            module = _module(place)
        except ImportError:
            continue
        size = int(args.vocab_size)
        if args.tokenizer_type in ("NullTokenizer", "NullMultimodalTokenizer") and entry != "slime":
            size = int(module.build_tokenizer(args).vocab_size)
        return int(getattr(module, name)(size, args))
    raise ConfigError("this Megatron-LM pads its vocabulary in a place that attuner doesn't know")


# ---------------------------------------------------------------------------------------------- the rest


def bucket_size(ddp: Any, replicas: int) -> Any:
    """Return the parameters of a gradient bucket, None for one bucket, or in words what it depends on.

    replicas: data-parallel size · cp.
    Source: megatron/training/training.py:get_model (0.16.1), :resolve_ddp_bucket_size (0.20.0).
    """
    if not getattr(ddp, "overlap_grad_reduce", False):
        return None
    if getattr(ddp, "num_buckets", None):
        return f"the parameters of a stage / {ddp.num_buckets}"
    return ddp.bucket_size if ddp.bucket_size is not None else max(40_000_000, 1_000_000 * replicas)


def accumulation_dtype(args: Any, ddp: Any) -> str:
    """Return the dtype that gradients are accumulated and reduced in.

    Source: megatron/core/distributed/param_and_grad_buffer.py: float32 with grad_reduce_in_fp32, else the parameters'.
    """
    return "float32" if getattr(ddp, "grad_reduce_in_fp32", False) else str(args.params_dtype).removeprefix("torch.")


def loss_masks(args: Any, *, entry: str) -> str:
    """Say whether every row has the same number of loss tokens: even, uneven or unknown."""
    if entry == "slime" or getattr(args, "sft", False) or args.eod_mask_loss:
        return "uneven"
    return "even" if entry == "pretrain_gpt.py" and args.dataloader_type != "external" else "unknown"


def _kernel(transformer: Any) -> str:
    """Return what attends: `local` for Megatron's own modules, else what Transformer Engine is told to use."""
    if getattr(transformer, "transformer_impl", "") == "local":
        return "local"
    return str(getattr(transformer.attention_backend, "name", transformer.attention_backend))


def _module(name: str) -> Any:
    return importlib.import_module(name)
