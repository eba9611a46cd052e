"""A failed launch, a failed score, a failed ship, each run again by each of its doors: Retry in the UI, the form, the terminal.

Real Prefect server, worker and deployments; the cluster is a replayed table, which the test spoils and mends. Prints the table of
what ran again and what did not.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prefect_server import PREFECT, Server, stopped

from attuner.core.events import History
from attuner.ledgers.duckdb_file import DuckdbLedger
from attuner.report.reruns import RerunRow, rerun_rows

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
TABLE = "quickstart-2xcpu.csv"
WHO = {"by": "Ada", "why": "a drill"}


class Shop:
    """One project, server, worker and ledger, on which campaigns are spoilt and run again."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.project = folder, folder / "out", folder / "project"
        for name in ("flows", "tasks", "rules", "configs"):
            shutil.copytree(ROOT / name, self.project / name)
        shutil.copy(ROOT / "prefect.yaml", self.project)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("ATTUNER_", "PREFECT_", "RAY_"))}
        self.env = {
            **kept,
            "ATTUNER_HOME": str(self.home),
            "ATTUNER_PROJECT": str(self.project),
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_WORKER_QUERY_SECONDS": "1",
            "PREFECT_LOGGING_LEVEL": "WARNING",
        }
        self.server = Server(self.env, folder / "server.log")
        self.server.command("work-pool", "create", "attuner", "--type", "process", cwd=self.project)
        self.server.command("--no-prompt", "deploy", "--all", cwd=self.project)
        with (folder / "worker.log").open("w") as out:
            command = [*PREFECT, "worker", "start", "--pool", "attuner"]
            self.worker = subprocess.Popen(command, env=self.server.env, cwd=self.project, stdout=out, stderr=out)

    def close(self) -> None:
        for process in (self.worker, self.server.process):
            stopped(process)

    def trigger(self, deployment: str, **parameters: Any) -> str:
        return self.server.run_of(deployment, parameters)

    def ended(self, run: str, state: str) -> None:
        self.server.until(lambda: self.server.state(run) in ("COMPLETED", "FAILED", "CRASHED"), 240)
        assert self.server.state(run) == state, self.server.ask("GET", f"/flow_runs/{run}")["state"]

    def born(self, known: set[str]) -> str:
        """Return the campaign that is born next."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            new = set(self.ledger().campaigns()) - known if (self.home / "attuner.duckdb").exists() else set()
            if new:
                return new.pop()
            time.sleep(0.05)
        raise AssertionError("no campaign was born")

    def ledger(self) -> DuckdbLedger:
        return DuckdbLedger(self.home / "attuner.duckdb")

    def history(self, campaign: str) -> History:
        return History(self.ledger().history(campaign))

    def spoil(self, what: str, campaign: str = "") -> None:
        if what == "launch":
            self._rows(lambda row: row.replace(",ok,", ",oom,", 1) if row.startswith('2,1,4,"""alltoall""","""full"""') else row)
        elif what == "score":
            self.common.write_text(self.common.read_text() + "# edited after the campaign began\n")
        else:
            (self.home / campaign / "not-shippable.recipe.yaml").mkdir(parents=True)

    def mend(self, what: str, campaign: str = "") -> None:
        if what == "launch":
            shutil.copy(ROOT / "configs" / "replay" / TABLE, self.project / "configs" / "replay" / TABLE)
        elif what == "score":
            shutil.copy(ROOT / "rules" / "common.yaml", self.common)
        else:
            (self.home / campaign / "not-shippable.recipe.yaml").rmdir()

    @property
    def common(self) -> Path:
        return self.project / "rules" / "common.yaml"

    def _rows(self, change: Any) -> None:
        file = self.project / "configs" / "replay" / TABLE
        file.write_text("".join(change(row) for row in file.read_text().splitlines(keepends=True)))

    def fail(self, what: str) -> tuple[str, str]:
        """Run a campaign in which `what` fails; return the campaign and its flow run."""
        known = set(self.ledger().campaigns()) if (self.home / "attuner.duckdb").exists() else set()
        if what == "launch":
            self.spoil(what)
        run = self.trigger("campaign/campaign", file="configs/campaigns/replay-quickstart.yaml")
        campaign = self.born(known)
        if what != "launch":
            self.spoil(what, campaign)
        self.ended(run, "COMPLETED" if what == "launch" else "FAILED")
        return campaign, run

    def again(self, door: str, campaign: str, run: str, step: str, key: str) -> None:
        if door == "Retry":
            self.server.command("flow-run", "retry", run, cwd=self.project)
            self.server.until(lambda: self.server.state(run) == "COMPLETED", 240)
        elif door == "form":
            again = self.trigger("rerun-step/rerun-step", campaign=campaign, step=step, key=key, **WHO)
            self.ended(again, "COMPLETED")
        else:
            command = [sys.executable, "-m", "attuner.cli.main", "rerun", campaign, step, *([key] if key else [])]
            said = ["--as", WHO["by"], "--why", WHO["why"], "--quiet"]
            done = subprocess.run(
                [*command, *said], env=self.server.env, cwd=self.project, capture_output=True, text=True, timeout=240, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            assert "kept" in done.stdout


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    made = Shop(tmp_path_factory.mktemp("doors"))
    yield made
    made.close()


CASES = [
    ("launch", "form", "launch", "l07"),
    ("launch", "command", "launch", "l07"),
    ("score", "Retry", "score", "l01"),
    ("score", "form", "score", "l01"),
    ("score", "command", "score", "l01"),
    ("ship", "Retry", "ship", ""),
    ("ship", "form", "ship", ""),
    ("ship", "command", "ship", ""),
]


@pytest.mark.parametrize(("what", "door", "step", "key"), CASES, ids=[f"{w}-{d}" for w, d, *_ in CASES])
def test_each_door_runs_again_what_failed_and_leaves_the_rest(shop: Shop, what: str, door: str, step: str, key: str) -> None:
    campaign, run = shop.fail(what)
    before = shop.history(campaign)
    if what == "launch":
        assert before.trial(key).status == "oom"  # type: ignore[union-attr]
        states = {name: state for name, state, _ in shop.server.tasks(run)}
        assert states[f"launch {key}"] == "TrialFailed", "it completed: Retry has nothing to serve"
    shop.mend(what, campaign)
    shop.again(door, campaign, run, step, key)
    after = shop.history(campaign)
    rows = rerun_rows(after, since=before.events[-1].n)
    shown = [r for r in rows if r.what == "kept"] + [r for r in rows if r.what != "kept"]
    print(f"\n{what} failed, by {door}:\n" + "\n".join(f"  {r.step:13}{r.key[:70]:72}{r.what}" for r in shown))
    assert after.shipment() is not None
    assert not shop.ledger().verify(campaign)
    tries = {x.id: len(after.attempts(x.id)) for x in after.launches() if x.id in {y.id for y in before.launches()}}
    _judge(what, door, key, before, after, rows, tries)


def _judge(what: str, door: str, key: str, before: History, after: History, rows: list[RerunRow], tries: dict[str, int]) -> None:
    if door != "Retry":
        assert [(x.by, x.why) for x in after.reruns() if x.by != "attuner"] == [(WHO["by"], WHO["why"])]
    if what == "launch":
        assert tries == {k: 2 if k == key else 1 for k in tries}, "later launches stay"
        assert after.trial(key).status == "ok"  # type: ignore[union-attr]
        assert after.settled(key, 1) == before.settled(key, 1), "the failed attempt stays charged"
        assert any(r.step == "score" and r.key == key for r in rows)
    else:
        assert set(tries.values()) == {1}, "nothing was launched again"
    if what == "ship":
        assert [r.step for r in rows if r.what != "kept"] == ([] if door == "Retry" else ["ship"])
        assert after.remeasurement() == before.remeasurement()
