"""A resolver on the checkout that ATTUNER_MEGATRON_SRC names, and slime's on ATTUNER_SLIME_SRC, for tests of this folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from attuner.config import load_recipe
from attuner.core.base import Value
from attuner.core.campaign import Campaign, Cluster, Device, LauncherSpec, Prepare, ProposerSpec, StackSpec
from attuner.core.errors import Refused
from attuner.core.recipe import Change, EffectiveConfig, Recipe, Workload, differences
from attuner.stacks.megatron.stack import MegatronStack

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "configs" / "recipes" / "megatron"
SOURCE = os.environ.get("ATTUNER_MEGATRON_SRC", "")
SLIME = os.environ.get("ATTUNER_SLIME_SRC", "")
GPUS = {"llama3-8b": 64, "glm4.5-355b": 256, "glm4.5-355b-slime": 64}
needs_checkout = pytest.mark.skipif(not SOURCE, reason="no Megatron-LM checkout: set ATTUNER_MEGATRON_SRC")
needs_slime = pytest.mark.skipif(not SLIME, reason="no slime checkout: set ATTUNER_SLIME_SRC")


def frame(recipe: Recipe, gpus: int, *, hardware: str = "8xH100", **stack: Any) -> Campaign:
    """Return a campaign around one recipe, as `attuner gate` makes it."""
    cluster = Cluster(name="c", devices=4096, devices_per_node=8, device=Device(kind="cuda"))
    work = {"model": "m", "dataset": "d", "seq_len": 1, "global_batch": 1, "precision": "bfloat16", "seed": 1}
    spec = {"source": SOURCE, "slime_source": SLIME, "transformer_engine": "2.9.0", "torch": "2.9.0", **stack}
    return Campaign(
        name="t",
        workload=Workload.model_validate({**work, "steps": 2, "warmup_steps": 1, "gpus": gpus, "hardware": hardware}),
        baseline=recipe,
        stack=StackSpec.model_validate({"name": "megatron", "version": "?", **spec}),
        launcher=LauncherSpec(name="ray_jobs", cluster=cluster),
        proposer=ProposerSpec(name="scripted"),
        prepare=Prepare(),
        source_file="t.yaml",
    )


@dataclass
class Bench:
    """The checkout under test: resolves the example recipes, changed."""

    stack: MegatronStack
    version: Version
    bases: dict[str, EffectiveConfig]

    @classmethod
    def made(cls) -> Bench:
        bench = cls(stack=MegatronStack(), version=Version("0"), bases={})
        bench.version = Version(bench.base("llama3-8b").versions["megatron_core"])
        return bench

    def resolve(
        self,
        base: str,
        change: dict[str, Value] | None = None,
        *,
        env: dict[str, str] | None = None,
        gpus: int = 0,
        without: str = "",
        **more: Any,
    ) -> EffectiveConfig:
        recipe = load_recipe(RECIPES / f"{base}.yaml").changed(change or {}, env)
        kept = {name: value for name, value in recipe.env.items() if name != without}
        recipe = Recipe(stack="megatron", arguments=recipe.arguments, env=kept)
        return self.stack.resolve(recipe, frame(recipe, gpus or GPUS[base], **more))

    def base(self, name: str) -> EffectiveConfig:
        if name not in self.bases:
            self.bases[name] = self.resolve(name)
        return self.bases[name]

    def changes(self, base: str, change: dict[str, Value], **more: Any) -> dict[str, tuple[Value, Value]]:
        found: list[Change] = differences(self.base(base), self.resolve(base, change, **more))
        return {c.key: (c.before, c.after) for c in found}

    def refusal(self, base: str, change: dict[str, Value], **more: Any) -> str:
        with pytest.raises(Refused) as refused:
            self.resolve(base, change, **more)
        return str(refused.value)
