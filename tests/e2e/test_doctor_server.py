"""`attuner doctor` against a real Prefect server: what is missing is named, and what was mended is seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prefect_server import Server

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
QUIET = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "RAY_USAGE_STATS_ENABLED": "0"}


def doctor(env: dict[str, str], *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    command = [sys.executable, "-m", "attuner.cli.main", "--project", str(ROOT), "doctor", "--json", *words]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, {c["name"]: c for c in json.loads(done.stdout)["checks"]}


def test_what_is_missing_is_named_and_what_was_mended_is_seen(tmp_path: Path) -> None:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("ATTUNER_", "PREFECT_", "RAY_"))}
    env = {**kept, **QUIET, "PREFECT_HOME": str(tmp_path / "prefect"), "ATTUNER_HOME": str(tmp_path / "home")}
    server = Server(env, tmp_path / "server.log")
    try:
        code, found = doctor(server.env)
        assert code == 1
        automations = {"dead runs", "stuck runs", "lost retries", "crashed runs"}
        assert {name for name, check in found.items() if not check["ok"]} == {"deployments", "worker", "leases", *automations}
        assert all(check["mend"] for check in found.values() if not check["ok"])
        assert "lease_storage.filesystem" in found["leases"]["mend"]
        assert found["server telemetry"]["detail"] == "off"
        server.command("work-pool", "create", "attuner", "--type", "process", cwd=ROOT)
        server.command("--no-prompt", "deploy", "--all", cwd=ROOT)
        _, found = doctor(server.env, "--mend")
        assert {name for name, check in found.items() if not check["ok"]} == {"worker", "leases"}
        doctor(server.env, "--mend")  # a second time makes nothing twice
        _, found = doctor(server.env)
        assert all(found[name]["ok"] for name in automations)
        made = server.ask("POST", "/automations/filter", {})
        assert len(made) == len(automations)
        assert all(x["enabled"] for x in made)
        slot = {"name": "attuner-lab", "limit": 1, "active_slots": 1}
        server.ask("POST", "/v2/concurrency_limits/", slot)
        flow = server.ask("POST", "/flows/", {"name": "gone"})
        gone = {"flow_id": flow["id"], "state": {"type": "CRASHED"}}
        held = json.dumps({"flow_run": server.ask("POST", "/flow_runs/", gone)["id"]})
        server.ask("POST", "/variables/", {"name": "attuner_lab", "value": held})
        _, found = doctor(server.env)
        assert "attuner-lab: held by a run that ended" in found["clusters"]["detail"]
        _, found = doctor(server.env, "--mend")
        assert found["clusters"]["ok"]
        assert server.ask("GET", "/v2/concurrency_limits/attuner-lab")["active_slots"] == 0
    finally:
        server.process.terminate()
        server.process.wait(30)
