"""What the estimate may hold back: whatever surely doesn't fit, and what is slower if the estimate knows all that it changes.

The estimate models layouts. Of a kernel, a dispatcher, a buffer or an environment variable it has no opinion, and its "no gain"
would only say so: levers outside the model are just those that a search finds and a model doesn't.
"""

from __future__ import annotations

from attuner.core.recipe import Recipe, same_value
from attuner.core.run import Trial
from attuner.core.search import Forecast

MODELLED = frozenset(
    {
        *("tensor_model_parallel_size", "sequence_parallel", "context_parallel_size", "expert_tensor_parallel_size"),
        *("pipeline_model_parallel_size", "virtual_pipeline_model_parallel_size", "expert_model_parallel_size"),
        *("num_virtual_stages_per_pipeline_rank", "num_layers_per_virtual_pipeline_stage"),
        *("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage"),
        *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
        *("micro_batch_size", "use_distributed_optimizer", "optimizer_cpu_offload", "optimizer_offload_fraction"),
        *("recompute_granularity", "recompute_method", "recompute_num_layers", "recompute_modules"),
    }
)
"""Arguments whose effect on speed the estimate works out from the shapes."""


def unmodelled(leader: Recipe, candidate: Recipe) -> list[str]:
    """Return what a candidate changes against the leader that the estimate has no opinion of, as names of final values."""
    before, after = leader.arguments, candidate.arguments
    changed = [k for k in before.keys() | after.keys() if not same_value(before.get(k), after.get(k))]
    env = [f"env:{k}" for k in leader.env.keys() | candidate.env.keys() if leader.env.get(k) != candidate.env.get(k)]
    return sorted([*(k for k in changed if k not in MODELLED), *env])


def weighed(forecast: Forecast, *, memory: str, parent: Trial | None, unknown: list[str]) -> Forecast:
    """Return a forecast with what is left of its reasons to hold the candidate back.

    Args:
        forecast: what the estimate said.
        memory: why it surely runs out of memory, or ''.
        parent: the trial that it starts from; what ran out of memory is tried again with less, and pays by fitting.
        unknown: what the candidate changes and the estimate doesn't model.
    """
    if not forecast.held or memory:
        return forecast
    if (parent is not None and parent.status == "oom") or unknown:
        return forecast.model_copy(update={"held": False, "why": ""})
    return forecast
