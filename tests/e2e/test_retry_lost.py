"""Retry right after a crash: a late report undoes it, our automation makes it again; and crashed runs go on by themselves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect_site import ROOT, Site, site_in

from attuner.cli.automations import LATE_REPORT, LOST_RETRIES, automations, crashed_runs, lost_retries, stuck_runs

pytestmark = pytest.mark.slow
ROUNDS = int(os.environ.get("ATTUNER_TEST_ROUNDS", "2"))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with site_in(tmp_path) as found:
        found.pool()
        words = ("--name", "hold", "--pool", "attuner", "--tag", "attuner")
        found.server.command("--no-prompt", "deploy", "tests/e2e/turn_flow.py:hold", *words, cwd=ROOT)
        found.worker()
        yield found


def crash(site: Site, run: str, book: Path, *, held: int) -> None:
    """Kill the run's process once it has begun for the `held`-th time, and wait until the server says so."""
    site.server.until(lambda: book.exists() and len(book.read_text().splitlines()) >= held, 120)
    os.kill(site.process_of(run), signal.SIGKILL)
    site.until_state(run, "CRASHED", timeout=30)


def retried_at_once(site: Site, folder: Path) -> tuple[str, bool]:
    """Crash a run and press Retry in the same moment; return the run, and whether the Retry was undone."""
    folder.mkdir()
    book = folder / "book"
    run = site.trigger("hold/hold", name="a", book=str(book), until=str(folder / "go"), cluster="")
    crash(site, run, book, held=1)
    retry = {"state": {"type": "SCHEDULED", "name": "AwaitingRetry", "message": "a person pressed Retry"}}
    assert site.server.ask("POST", f"/flow_runs/{run}/set_state", retry)
    (folder / "go").touch()
    site.until_state(run, "COMPLETED", "CRASHED", timeout=120)
    undone = any(message.startswith(LATE_REPORT.rstrip("*")) for _, message in site.states(run))
    return run, undone


def test_without_our_automation_a_late_report_undoes_a_retry(site: Site, tmp_path: Path) -> None:
    outcomes = [retried_at_once(site, tmp_path / f"plain{n}") for n in range(ROUNDS)]
    lost = [run for run, undone in outcomes if undone]
    for run, _ in outcomes:
        print("\n".join(f"{name:16} {message[:110]}" for name, message in site.states(run)), "\n")
    print(f"{len(lost)} of {ROUNDS} retries lost")
    if not lost:
        pytest.skip("this Prefect reports a crash once: the automation is no longer needed")
    made = site.server.ask("POST", "/automations/", lost_retries())
    assert made["name"] == LOST_RETRIES
    held = [retried_at_once(site, tmp_path / f"mended{n}") for n in range(ROUNDS)]
    for run, _ in held:
        site.until_state(run, "COMPLETED", timeout=120)
    print(f"{len(held)} of {ROUNDS} retries held, {sum(undone for _, undone in held)} of them undone first")


def test_a_crashed_run_goes_on_by_itself(site: Site, tmp_path: Path) -> None:
    for wanted in automations().values():
        # the same automation, for the deployment of this test
        related = wanted["trigger"].get("match_related")
        if wanted["name"] == crashed_runs()["name"]:
            related[1]["prefect.resource.name"] = ["hold"]
        assert site.server.ask("POST", "/automations/", wanted)
    book = tmp_path / "book"
    run = site.trigger("hold/hold", name="a", book=str(book), until=str(tmp_path / "go"), cluster="")
    crash(site, run, book, held=1)
    since = time.monotonic()
    crash(site, run, book, held=2)
    print(f"the run went on by itself after {time.monotonic() - since:.0f} s")
    (tmp_path / "go").touch()
    site.until_state(run, "COMPLETED", timeout=120)
    print("\n".join(f"{name:16} {message[:110]}" for name, message in site.states(run)))


def test_a_run_that_never_started_is_crashed(site: Site) -> None:
    wanted = stuck_runs()
    wanted["trigger"]["within"] = 12  # so that the test needn't wait for the five minutes
    assert site.server.ask("POST", "/automations/", wanted)
    found = site.server.ask("GET", "/deployments/name/hold/hold")
    given = {"name": "a", "book": "/nowhere", "until": "/nowhere", "cluster": ""}
    later = {"type": "SCHEDULED", "state_details": {"scheduled_time": "2099-01-01T00:00:00Z"}}  # no worker takes it up
    run = site.server.ask("POST", f"/deployments/{found['id']}/create_flow_run", {"parameters": given, "state": later})["id"]
    assert site.server.ask("POST", f"/flow_runs/{run}/set_state", {"state": {"type": "PENDING"}, "force": True})
    assert site.until_state(run, "CRASHED", timeout=90)["message"] == "never started"
