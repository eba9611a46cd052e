"""Campaigns on the formula table of configs/replay, played with the real steps, rules and ledger: no cluster, no waiting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lab import ROOT

from attuner.bench.arms import arm
from attuner.bench.play import Entry, Protocol, campaign, run
from attuner.core.campaign import Campaign, ProposerSpec
from attuner.core.events import History
from attuner.ports import Proposer
from attuner.proposers.scripted import Scripted
from attuner.tables import Table, load_table

FORMULA = ROOT / "configs" / "replay" / "formula-moe-16xgpu.yaml"
RULES, CONFIGS = ROOT / "rules", ROOT / "configs"
LAYOUT = {"group": "layout", "arguments": {"tensor_model_parallel_size": 2, "sequence_parallel": True}}
NO_RECOMPUTE = {
    "group": "recompute",
    "arguments": {"recompute_granularity": None, "recompute_method": None, "recompute_num_layers": None},
}
OOM = {"group": "layout", "arguments": {"pipeline_model_parallel_size": 1, "expert_model_parallel_size": 1}}
NOWHERE = {"group": "layout", "arguments": {"tensor_model_parallel_size": 16, "sequence_parallel": True}}
LR = {"group": "open", "arguments": {"lr": 0.01}}


def table() -> Table:
    return load_table(FORMULA)


def born(*script: dict[str, Any], seed: int = 0, **protocol: Any) -> Campaign:
    """A campaign on the formula table whose proposer plays a script; the estimate holds nothing back."""
    entry = Entry(FORMULA, arm("catalog-hold"), seed, Protocol(**protocol))
    made = campaign(table(), entry, configs=CONFIGS)
    return made.model_copy(update={"proposer": ProposerSpec(name="scripted", script=list(script))})


def played(folder: Path, made: Campaign, proposer: Proposer | None = None) -> History:
    """The whole campaign."""
    return run(table(), made, proposer or Scripted(), folder=folder, rules=RULES)
