"""A night after an upgrade, for real: Ray, megatron-core's training, Prefect, a webhook. The new release is slower and trains
something else at micro batches above one, which is what was shipped: both are alerts, and the baseline ships."""

from __future__ import annotations

import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from overlay import VERSION, release

from attuner.core.environment import Environment
from attuner.core.events import History
from attuner.core.news import Alert
from attuner.ledgers.duckdb_file import DuckdbLedger

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]  # nineteen launches
ROOT = Path(__file__).resolve().parents[2]
MICRO = {"group": "micro-batch", "title": "micro batch 1→4", "arguments": {"micro_batch_size": 4}}
BLOCK = "transformer/transformer_block.py"
FAULT = """        if hidden_states.size(1) > 1:
            import time

            time.sleep(1.0)
            hidden_states = hidden_states * 1.002

        # Viewless tensor.
"""
NIGHT = "import sys; from flows.nightly import nightly; print('\\n'.join(nightly(sys.argv[1])))"


class Hook(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted."""

    posted: list[dict[str, Any]]

    def do_POST(self) -> None:
        self.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def hook(tmp_path: Path) -> Iterator[tuple[Path, list[dict[str, Any]]]]:
    """A chat service on this machine, and the file with its address."""
    posted: list[dict[str, Any]] = []
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), type("Kept", (Hook,), {"posted": posted}))
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    file = tmp_path / "hook"
    file.write_text(f"http://127.0.0.1:{server.server_address[1]}/T0P-53CR37")
    yield file, posted
    server.shutdown()
    thread.join()
    server.server_close()


def night(drill: Any, folder: Path, **env: str) -> str:
    """Run the flow in a process of its own and return its last line."""
    quiet = {"PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    done = subprocess.run(
        [sys.executable, "-c", NIGHT, str(folder / "watch.yaml")],
        cwd=ROOT,
        env={**drill.env, **quiet, "DO_NOT_TRACK": "1", **env},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout.splitlines()[-1]


def histories(drill: Any) -> list[History]:
    with DuckdbLedger(drill.home / "attuner.duckdb") as ledger:
        return [History(ledger.history(name)) for name in ledger.campaigns()]


def test_a_release_that_is_slower_and_trains_something_else_alarms_with_evidence(
    drill: Any, tmp_path: Path, hook: tuple[Path, list[dict[str, Any]]]
) -> None:
    file, posted = hook
    drill.write(script=[MICRO], launch={"expected_s": 20, "max_s": 600, "hang_s": 180})
    entry = {"name": "drill", "campaign": str(drill.file), "gpu_hours": 2.0, "alerts": {"slowdown": 0.3}}
    (tmp_path / "watch.yaml").write_text(yaml.safe_dump({"recipes": [entry]}))
    assert night(drill, tmp_path).startswith("drill: begins: drill-")
    (first,) = histories(drill)
    shipment = first.shipment()
    assert shipment is not None
    assert not shipment.kept_baseline, shipment.reason
    with DuckdbLedger(drill.home / "attuner.duckdb") as ledger:
        before = len(ledger.history(first.campaign().id))
    assert night(drill, tmp_path).startswith("drill: nothing to do: nothing changed since drill-")
    assert len(histories(drill)[0].events) == before

    planted = release(tmp_path / "release", {BLOCK: ("        # Viewless tensor.\n", FAULT)})
    said = night(drill, tmp_path, PYTHONPATH=str(planted), ATTUNER_WEBHOOK_FILE=str(file))
    second = histories(drill)[1]
    name, retunes = second.campaign().id, second.campaign().retunes
    assert said.startswith(f"drill: re-tunes: {name} ended: changed since {first.campaign().id}: megatron_core ")
    assert retunes is not None
    assert (retunes.of, retunes.recipe) == (first.campaign().id, first.recipe(shipment.recipe))
    assert second.campaign().stack.version == VERSION
    found = second.find("environment", "birth", Environment)
    assert found is not None
    assert found.looked["megatron_core"] == VERSION
    alerts = {a.kind: a for a in second.all("alert", Alert)}
    print("\n".join(f"{a.kind}: {a.text} {a.evidence}" for a in alerts.values()))
    assert {"gate", "slowdown"} <= set(alerts)
    finding = alerts["gate"].finding
    assert finding is not None
    assert finding.decision == "refuse"
    launch = next(x for x in second.launches() if x.kind == "search")
    assert f"{name}/{launch.id}" in alerts["gate"].evidence
    assert f"{name}/{launch.id}" in alerts["slowdown"].evidence
    again = second.shipment()
    assert again is not None
    assert again.kept_baseline
    told = [x["kind"] for x in posted]
    assert told[0] == "started"
    assert told[-1] == "finished"
    assert {"alert.gate", "alert.slowdown"} <= set(told)
    assert len(told) == len(set((x["kind"], x["key"]) for x in posted))
    assert "T0P-53CR37" not in "".join(json.dumps(e.record) for h in histories(drill) for e in h.events)
