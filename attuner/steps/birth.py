"""birth: from a campaign file to a campaign on record: data frozen, budget checked, baseline resolved, register locked."""

from __future__ import annotations

from attuner.config import register_lock
from attuner.core.campaign import Campaign
from attuner.core.errors import Refused, UserError
from attuner.core.recipe import EffectiveConfig
from attuner.policy import budget
from attuner.ports import Kit, Stack
from attuner.steps.common import past, put, put_recipe
from attuner.steps.environment import framework_version, put_environment

DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
"""Megatron's words for a precision, and the workload's."""


def resolve_baseline(stack: Stack, campaign: Campaign) -> EffectiveConfig:
    """Return the baseline's final values, checked against the workload.

    Raises:
        UserError: the framework refuses the baseline, or it trains something else than the workload says.
    """
    try:
        effective = stack.resolve(campaign.baseline, campaign)
    except Refused as error:
        raise UserError(f"{campaign.source_file}: baseline: {error}") from None
    work = campaign.workload
    found = framework_version(campaign, effective)
    if found != campaign.stack.version:
        raise UserError(
            f"{campaign.source_file}: stack.version: {campaign.stack.version}, but {found} is installed; make the two agree"
        )
    for name, key, value in (
        ("seq_len", "seq_length", work.seq_len),
        ("global_batch", "global_batch_size", work.global_batch),
        ("seed", "seed", work.seed),
        ("precision", "params_dtype", work.precision),
    ):
        found_value = effective.arguments.get(key, effective.facts.get(key, value))  # a fact, where a stack has its own names
        if found_value != value and DTYPES.get(str(found_value), found_value) != value:
            raise UserError(
                f"{campaign.source_file}: workload.{name}: {value}, but the baseline's {key} is {found_value}; make the two agree"
            )
    return effective


def birth(kit: Kit, campaign: Campaign) -> str:
    """Record the campaign with its baseline; return its id. A campaign that is on record is left as it is.

    Raises:
        UserError: the file asks for what can't be; nothing is recorded.
    """
    if is_born(kit, campaign.id):
        return campaign.id
    budget.check_at_birth(campaign, source=campaign.source_file)
    lock = register_lock(kit.rules_dir, campaign.stack.name)
    effective = resolve_baseline(kit.stack, campaign)
    (kit.folder / "inputs").mkdir(parents=True, exist_ok=True)
    dataset = kit.stack.freeze(campaign, kit.folder / "inputs")
    born = campaign.model_copy(
        update={"register_lock": lock, "workload": campaign.workload.model_copy(update={"dataset": dataset})}
    )
    kit.ledger.claim(campaign.id)
    if not past(kit, campaign.id).all("campaign", Campaign):
        put(kit, campaign.id, "campaign", campaign.id, born)
    put_environment(kit, campaign.id, effective)
    put_recipe(kit, campaign.id, born.baseline, effective)
    return campaign.id


def complete(kit: Kit, campaign_id: str) -> None:
    """Finish a birth that was cut off between the campaign's record and its baseline's."""
    if not is_born(kit, campaign_id):
        campaign = past(kit, campaign_id).campaign()
        effective = resolve_baseline(kit.stack, campaign)
        put_environment(kit, campaign_id, effective)
        put_recipe(kit, campaign_id, campaign.baseline, effective)


def is_born(kit: Kit, campaign_id: str) -> bool:
    """Tell whether the campaign is on record with its baseline resolved."""
    history = past(kit, campaign_id)
    return bool(history.all("campaign", Campaign)) and history.effective(history.campaign().baseline.digest()) is not None
