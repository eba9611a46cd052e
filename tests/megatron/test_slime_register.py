"""Stack `slime` by slime's own parser: its register has a word on every argument, and a benchmark keeps the schedule.

Skips unless ATTUNER_SLIME_SRC names slime's checkout and ATTUNER_MEGATRON_SRC the Megatron-LM that it pins.
"""

from __future__ import annotations

import pytest
from megatron_bench import RECIPES, ROOT, frame, needs_checkout, needs_slime

from attuner.benchmarking import as_judged
from attuner.config import load_recipe, load_register
from attuner.core.recipe import Recipe
from attuner.policy.register import uncovered
from attuner.stacks.composed import slime
from attuner.stacks.slime import benchmark

pytestmark = [needs_checkout, needs_slime]


def test_every_argument_of_slime_is_covered() -> None:
    recipe, stack = load_recipe(RECIPES / "glm4.5-355b-slime.yaml"), slime()
    try:
        names = [a["name"] for a in stack.known_arguments(frame(recipe, 64))]
    finally:
        stack.close()
    assert "rollout_batch_size" in names
    assert uncovered(load_register(ROOT / "rules", "slime"), names) == []


@pytest.mark.parametrize("name", ["moe_aux_loss_coeff", "eps_clip", "max_tokens_per_gpu", "actor_num_nodes"])
def test_rules_of_both_are_in_one_register(name: str) -> None:
    assert load_register(ROOT / "rules", "slime").covering(name) != []


def test_a_benchmark_is_cut_short_and_its_schedules_are_not() -> None:
    recipe, stack = load_recipe(RECIPES / "glm4.5-355b-slime.yaml"), slime()
    campaign = frame(recipe, 64)
    try:
        judged = stack.resolve(recipe, campaign)
        wrapping = benchmark.wrapping(judged, {"steps": 10, "load": "/c"}, rollouts="/d/{rollout_id}.pt", profile_steps=1)
        kept = {k: v for k, v in recipe.arguments.items() if k not in benchmark.DROPPED}
        ran = stack.resolve(Recipe(stack="slime", arguments={**kept, **wrapping}, env=recipe.env), campaign)
    finally:
        stack.close()
    schedules = ("lr_decay_steps", "lr_warmup_steps", "wsd_decay_steps", "rows_per_update", "tokens_per_update")
    assert {n: ran.facts.get(n) for n in schedules} == {n: judged.facts.get(n) for n in schedules}
    assert ran.facts["unparsed_arguments"] == judged.facts["unparsed_arguments"]
    told = as_judged(ran.arguments, judged.arguments, benchmark.WRAPPED)
    assert told == judged.arguments
