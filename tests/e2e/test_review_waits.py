"""A campaign that waits for a person: nobody answers and it ships without at the deadline; an answer given elsewhere wakes it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import yaml
from prefect_site import ROOT, Site, site_in

from attuner.core.events import History
from attuner.ledgers.duckdb_file import DuckdbLedger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]
REPLAY = "configs/campaigns/replay-quickstart.yaml"


def project_in(folder: Path, *, wait_h: float) -> Path:
    """Return a copy of the checkout whose register doesn't decide about recomputation: that waits for a person, so long."""
    for name in ("flows", "tasks", "rules", "configs"):
        shutil.copytree(ROOT / name, folder / name)
    shutil.copy(ROOT / "prefect.yaml", folder)
    campaign = folder / REPLAY
    body = yaml.safe_load(campaign.read_text())
    campaign.write_text(yaml.safe_dump({**body, "gate": {**body["gate"], "review_wait_h": wait_h}}))
    file = folder / "rules" / "replay" / "placement.yaml"
    rules = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump([x for x in rules if "recompute_granularity" not in x["covers"]]))
    return folder


def history(site: Site) -> History:
    with DuckdbLedger(site.home / "attuner.duckdb") as ledger:
        return History(ledger.history(ledger.campaigns()[-1]))


def suspended(site: Site) -> str:
    """Start a campaign and return its flow run once it waits for a person."""
    run = site.trigger("campaign/campaign", file=REPLAY)
    site.until_state(run, "Suspended", timeout=600)
    return run


@pytest.mark.parametrize("answered", [False, True])
def test_nobody_answers_or_somebody_does_elsewhere(tmp_path: Path, *, answered: bool) -> None:
    project = project_in(tmp_path / "project", wait_h=10 if answered else 0.02)
    with site_in(tmp_path, project=project) as site:
        site.pool()
        site.deploy()
        site.worker()
        run = suspended(site)
        waits = history(site)
        assert waits.shipment() is None
        assert waits.reviews() == []
        if answered:
            form = {"campaign": waits.campaign().id, "launch": "l09", "decision": "admit", "by": "Ada", "why": "looked at it"}
            given = site.trigger("review/review", **form)
            site.until_state(given, "COMPLETED", timeout=240)
            site.until_state(run, "COMPLETED", timeout=600)
        else:
            site.until_state(run, "Cancelled", timeout=600)
        site.server.until(lambda: history(site).shipment() is not None, 600)
        after = history(site)
        shipment, first = after.shipment(), after.reviews()[0]
        assert shipment is not None
        assert not shipment.kept_baseline  # what needs no answer ships, if nobody gives one
        assert (first.decision, first.by) == (("admit", "Ada") if answered else ("unanswered", ""))
        shipped = after.launch(shipment.launch_id) if shipment.launch_id else None
        words = [x.decision for x in after.reviews()]
        print(f"answered: {answered}; shipped {shipment.launch_id}, {shipment.gain:+.0%}; reviews {words}")
        assert shipped is not None
        changed = after.recipe(shipped.recipe).arguments.get("recompute_granularity")
        assert (changed is None) is answered
        tagged = {"flow_runs": {"tags": {"all_": ["review-deadline"]}, "state": {"type": {"any_": ["SCHEDULED"]}}}}
        assert site.server.ask("POST", "/flow_runs/filter", tagged) == []
