"""What several steps share: reading the past, deciding a launch, refusing when the register moved."""

from __future__ import annotations

from pathlib import Path

from attuner.config import register_lock
from attuner.core.base import Record, digest_of
from attuner.core.campaign import Campaign
from attuner.core.errors import RegisterChanged
from attuner.core.events import History
from attuner.core.judgement import ComponentTest
from attuner.core.recipe import EffectiveConfig, Recipe
from attuner.core.run import Launch, LaunchKind
from attuner.policy import budget
from attuner.ports import Kit

SCOPE_ARGUMENTS = (
    *("hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "seq_length", "params_dtype"),
    *("num_moe_experts", "moe_router_topk", "moe_ffn_hidden_size", "ffn_hidden_size"),
)
SCOPE_VERSIONS = ("megatron_core", "torch", "transformer_engine")
SHARED_TESTS = "component-tests"
"""Under this id stand the component tests made outside campaigns; it was never born, so no list of campaigns shows it."""


def past(kit: Kit, campaign_id: str) -> History:
    """Return the campaign's history as of now."""
    return History(kit.ledger.history(campaign_id))


def put(kit: Kit, campaign_id: str, kind: str, key: str, record: Record) -> None:
    """Append one record and tell who looks on."""
    kit.ledger.append(campaign_id, kind, key, record)
    kit.watch.event(kind, key, record)


def check_lock(kit: Kit, campaign: Campaign) -> None:
    """Raise RegisterChanged if rules/ or the judging code is not what the campaign was born with."""
    check_rules(kit.rules_dir, campaign)


def check_rules(rules_dir: Path, campaign: Campaign) -> None:
    """Do as check_lock, for whoever has no kit."""
    now = register_lock(rules_dir, campaign.stack.name)
    if now != campaign.register_lock:
        raise RegisterChanged(
            f"rules/: the register or attuner/policy changed after {campaign.id} began "
            f"({campaign.register_lock[:12]} → {now[:12]}); restore it, or start a new campaign"
        )


def scope_of(effective: EffectiveConfig, campaign: Campaign) -> str:
    """Return the digest of what a component test depends on: shapes, precision, hardware, versions; not the layout."""
    versions = {k: effective.versions.get(k) for k in SCOPE_VERSIONS}
    shapes = {k: effective.arguments.get(k) for k in SCOPE_ARGUMENTS}
    return digest_of({**shapes, "hardware": campaign.workload.hardware, "versions": versions})


def shared_tests(kit: Kit) -> list[ComponentTest]:
    """Return the component tests that were made outside any campaign."""
    return History(kit.ledger.history(SHARED_TESTS)).component_tests()


def put_recipe(kit: Kit, campaign_id: str, recipe: Recipe, effective: EffectiveConfig) -> str:
    """Record a recipe and its final values once; return the recipe's digest."""
    digest = recipe.digest()
    history = past(kit, campaign_id)
    if history.find("recipe", digest, Recipe) is None:
        put(kit, campaign_id, "recipe", digest, recipe)
    if history.effective(digest) is None:
        put(kit, campaign_id, "effective", digest, effective)
    return digest


def decide(
    kit: Kit,
    campaign_id: str,
    kind: LaunchKind,
    recipe: str,
    purpose: str,
    *,
    hypothesis: str = "",
    profile_steps: int = 0,
    steps: int | None = None,
    component: list[str] | None = None,
) -> Launch:
    """Reserve the budget and record a launch; the one with this kind and purpose is returned if it exists.

    Raises:
        BudgetExceeded: nothing is recorded then.
    """
    history = past(kit, campaign_id)
    for launch in history.launches():
        if (launch.kind, launch.purpose, launch.hypothesis) == (kind, purpose, hypothesis):
            return launch
    reserve = budget.reserve(history)
    budget.require(history, reserve, kind=kind)
    launch = Launch(
        id=f"l{len(history.launches()) + 1:02d}",
        kind=kind,
        recipe=recipe,
        hypothesis=hypothesis,
        purpose=purpose,
        reserve_gpu_hours=reserve,
        time_limit_s=budget.time_limit_s(history),
        profile_steps=profile_steps,
        steps=steps,
        component=component or [],
    )
    put(kit, campaign_id, "launch", launch.id, launch)
    return launch
