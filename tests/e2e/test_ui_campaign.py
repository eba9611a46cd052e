"""The Prefect UI by a real browser, from a fresh checkout: a campaign by its form, watched to its end, artifacts opened; a
review answered by its form; a schedule that fires."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from browser import browser, needs_browser
from prefect_site import ROOT, Site, site_in

from attuner.core.events import History
from attuner.ledgers.duckdb_file import DuckdbLedger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), needs_browser]
REPLAY = "configs/campaigns/replay-quickstart.yaml"
NOT_DECIDED = "recompute_granularity"
"""Whose rule is taken out of the test's register: what it decided waits for a person."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    project = tmp_path_factory.mktemp("fresh") / "project"
    for name in ("flows", "tasks", "rules", "configs"):
        shutil.copytree(ROOT / name, project / name)
    shutil.copy(ROOT / "prefect.yaml", project)
    file = project / "rules" / "replay" / "placement.yaml"
    rules = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump([x for x in rules if NOT_DECIDED not in x["covers"]]))
    with site_in(tmp_path_factory.mktemp("ui"), project=project, env={"PREFECT_LOGGING_LEVEL": "INFO"}) as found:
        found.pool()
        found.deploy()
        found.worker()
        yield found


def deployment(site: Site, name: str) -> str:
    return str(site.server.ask("GET", f"/deployments/name/{name}")["id"])


def newest(site: Site, name: str) -> dict[str, Any]:
    """Return the newest run of a deployment."""
    body = {"deployments": {"id": {"any_": [deployment(site, name)]}}, "sort": "ID_DESC", "limit": 200}
    runs = site.server.ask("POST", "/flow_runs/filter", body) or [{}]
    return dict(max(runs, key=lambda r: r.get("created", "")))


def histories(site: Site) -> list[History]:
    with DuckdbLedger(site.home / "attuner.duckdb") as ledger:
        return [History(ledger.history(x)) for x in ledger.campaigns()]


def test_a_campaign_by_its_form_suspends_for_review_and_ships_what_a_person_admits(site: Site) -> None:
    base = site.server.url.removesuffix("/api")
    with browser(base) as ui:
        ui.open("/deployments", until="lessons-audit")
        ui.picture("deployments")
        ui.open(f"/deployments/deployment/{deployment(site, 'campaign/campaign')}/run", until="dry_run (Optional)")
        ui.fill("file", REPLAY)
        ui.fill("budget_gpu_hours", "0.5")
        ui.picture("form")
        ui.submit(lambda: bool(ui.page.get_by_text("View run").count()))
        run = newest(site, "campaign/campaign")
        assert run["parameters"]["file"] == REPLAY
        assert run["parameters"]["budget_gpu_hours"] == 0.5
        site.until_state(run["id"], "RUNNING", timeout=180)
        site.server.until(lambda: len(site.server.tasks(run["id"])) > 12, 240)
        ui.open(f"/runs/flow-run/{run['id']}", until="Task Runs")
        ui.picture("running")
        site.until_state(run["id"], "Suspended", timeout=600)
        ui.open(f"/runs/flow-run/{run['id']}", until="Suspended")
        ui.page.get_by_role("button", name="Resume").first.click()
        ui.page.get_by_text("Your name").first.wait_for()
        ui.choose("Decision", ("admit", "refuse"), "admit")
        ui.fill("Your name", "Ada")
        ui.fill("Reason", "recomputation saves memory and changes no result")
        ui.picture("review")
        ui.submit(lambda: site.run(run["id"])["state"]["name"] not in ("Suspended", ""))
        site.until_state(run["id"], "COMPLETED", timeout=600)
        ui.open(f"/runs/flow-run/{run['id']}", until="Completed")
        ui.page.get_by_text("Artifacts", exact=True).first.click()
        ui.page.get_by_text("Flow run", exact=True).first.wait_for()
        ui.scroll()
        ui.page.get_by_text(f"{histories(site)[-1].campaign().id}-report").first.wait_for()
        ui.picture("artifacts")
        shown = site.server.ask("POST", "/artifacts/filter", {"limit": 200})
        for kind in ("report", "launches", "review"):
            one = next(a for a in shown if str(a["key"]).endswith(f"-{kind}"))
            ui.open(f"/artifacts/artifact/{one['id']}", until=str(one["key"]))
            ui.picture(f"artifact-{kind}")
    history = histories(site)[-1]
    assert [str(x) for x in history.campaign().changed] == ["budget.gpu_hours 0.4 → 0.5"]
    (answer,) = history.reviews()
    assert (answer.decision, answer.by) == ("admit", "Ada")
    shipment = history.shipment()
    assert shipment is not None
    assert not shipment.kept_baseline
    waiting = {"flow_runs": {"tags": {"all_": ["review-deadline"]}}}
    assert site.server.ask("POST", "/flow_runs/filter", waiting) == []


def test_a_dry_run_by_the_form_spends_nothing(site: Site) -> None:
    before = len(histories(site))
    with browser(site.server.url.removesuffix("/api")) as ui:
        ui.open(f"/deployments/deployment/{deployment(site, 'campaign/campaign')}/run", until="dry_run (Optional)")
        ui.fill("file", REPLAY)
        ui.field("dry_run").get_by_role("switch").click()
        ui.submit(lambda: bool(ui.page.get_by_text("View run").count()))
        run = newest(site, "campaign/campaign")
        state = site.until_state(run["id"], "COMPLETED", timeout=240)
        assert state["name"] == "DryRun"
        ui.open(f"/runs/flow-run/{run['id']}", until="DryRun")
        ui.picture("dry-run")
        ui.open(f"/deployments/deployment/{deployment(site, 'rerun-step/rerun-step')}/run", until="why")
        ui.picture("rerun")
    assert len(histories(site)) == before


def test_a_schedule_fires(site: Site) -> None:
    name = "lessons-audit/lessons-audit"
    every_minute = [{"schedule": {"cron": "* * * * *", "timezone": "Europe/Berlin"}, "active": True}]
    made = site.server.ask("POST", f"/deployments/{deployment(site, name)}/schedules", every_minute)
    assert made
    try:
        site.server.until(lambda: (newest(site, name).get("state") or {}).get("type") is not None, 120)
        body = {
            "deployments": {"id": {"any_": [deployment(site, name)]}},
            "flow_runs": {"state": {"type": {"any_": ["COMPLETED"]}}},
        }
        site.server.until(lambda: site.server.ask("POST", "/flow_runs/filter", body), 240)
        (first, *_) = site.server.ask("POST", "/flow_runs/filter", body)
        assert first["auto_scheduled"]
        with browser(site.server.url.removesuffix("/api")) as ui:
            ui.open(f"/deployments/deployment/{deployment(site, name)}", until="Schedules")
            ui.picture("schedule")
    finally:
        site.server.ask("DELETE", f"/deployments/{deployment(site, name)}/schedules/{made[0]['id']}")
