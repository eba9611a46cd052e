"""environment: what a campaign runs on, read without holding a device, and on record at its birth.

Where launches run with a Python of this machine, that Python is asked (Kit.versions); of a cluster elsewhere only what the files
declare is known, and what its finished launches reported. The record says which is which.
"""

from __future__ import annotations

import attuner
from attuner.config import rules_digest
from attuner.core.campaign import Campaign
from attuner.core.environment import Environment
from attuner.core.events import History
from attuner.core.recipe import EffectiveConfig
from attuner.policy import drift
from attuner.ports import Kit
from attuner.source import head_commit
from attuner.steps.common import past, put

BIRTH = "birth"
"""Key of the record that a campaign makes at its birth."""
RECENT = 50
"""Campaigns of the ledger, from the newest back, that are looked through for launches on the same cluster."""


def read_environment(kit: Kit, campaign: Campaign, effective: EffectiveConfig | None) -> Environment:
    """Return the environment as it is now.

    Args:
        kit: wired; nothing is launched, and no lease is needed.
        campaign: with its data frozen.
        effective: the baseline's final values, for the framework's own version; None: it could not be resolved.
    """
    looked, blind = {}, "launches run on a cluster elsewhere: only what files declare, and what finished launches reported"
    if kit.versions is not None:
        looked, blind = drift.without_ignored(kit.versions()), ""
    return Environment(
        looked=looked,
        reported={} if looked else reported_there(kit, campaign),
        declared=declared(kit, campaign, effective),
        blind=blind,
    )


def declared(kit: Kit, campaign: Campaign, effective: EffectiveConfig | None) -> dict[str, str]:
    """Return what files say, or what is derived from them here; that a setting is not made is known, all else may be unknown."""
    stack, work, kube = campaign.stack, campaign.workload, campaign.launcher.cluster.kube
    found = {
        "framework": framework_version(campaign, effective) if effective else stack.version,
        "commit": head_commit(stack.source) or stack.commit,
        "slime_commit": head_commit(stack.slime_source),
        "image": kube.image if kube else "",
        "torch": stack.torch,
        "transformer_engine": stack.transformer_engine,
        "hardware": work.hardware,
        "model": work.model,
        "data": work.dataset,
        "rules": rules_digest(kit.rules_dir, stack.name),
        "attuner": attuner.__version__,
    }
    return {**{k: v for k, v in found.items() if v}, **drift.settings(campaign)}


def framework_version(campaign: Campaign, effective: EffectiveConfig) -> str:
    """Return the version of the framework that resolved the baseline: what is installed, else what the campaign states."""
    versions = effective.versions
    return versions.get(campaign.stack.name, versions.get("megatron_core", campaign.stack.version))


def reported_there(kit: Kit, campaign: Campaign) -> dict[str, str]:
    """Return what the newest finished launch there reported, whichever campaign's it was.

    There: on this campaign's cluster, from its checkout and in its environment (another one may load other libraries).
    """
    there = _place(campaign)
    for name in reversed(kit.ledger.campaigns()[-RECENT:]):
        try:
            history = History(kit.ledger.history(name))
            found = drift.reported(history) if _place(history.campaign()) == there else {}
        except (ValueError, KeyError, IndexError):
            continue  # written by another version of attuner
        if found:
            return found
    return {}


def _place(campaign: Campaign) -> tuple[object, ...]:
    """Return what must be equal for two campaigns' launches to find the same software: cluster, checkout, environment."""
    stack, cluster = campaign.stack, campaign.launcher.cluster
    kube = cluster.kube
    pods = (kube.namespace, kube.image, kube.env) if kube else ()
    job = (stack.source, stack.job_source, stack.commit, cluster.env, campaign.baseline.env)
    return (stack.name, campaign.launcher.name, cluster.name, pods, job)


def put_environment(kit: Kit, campaign_id: str, effective: EffectiveConfig) -> Environment:
    """Record the environment of a campaign that is being born, once."""
    history = past(kit, campaign_id)
    known = history.find("environment", BIRTH, Environment)
    if known is not None:
        return known
    found = read_environment(kit, history.campaign(), effective)
    put(kit, campaign_id, "environment", BIRTH, found)
    return found
