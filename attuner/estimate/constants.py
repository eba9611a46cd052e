"""The few numbers that are neither the model's nor the machine's, each with what it rests on.

They are priors: a campaign's own trials correct them. None of them was fitted to a replay table. `bench/estimate.py` fits the
first group again without the model that it judges.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Constants:
    """Efficiencies as shares of a figure, sizes in elements, times in seconds."""

    gemm_ceiling: float = 0.82
    gemm_k: float = 210.0
    attention_ceiling: float = 0.55
    mem_efficiency: float = 0.80
    near_efficiency: float = 0.75
    far_efficiency: float = 0.80
    straggler: float = 0.01
    p2p_exposed: float = 0.3
    overlap_left: float = 0.10
    tensor_hidden: float = 0.8


DEFAULT = Constants()
