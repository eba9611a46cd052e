"""An answer given in the terminal wakes the flow run that asked for it, and no other: over HTTP, with Prefect's own client."""

from __future__ import annotations

import http.server
import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab import ID, MICRO, UNCOVERED, Lab, begin, campaign, search
from people_lab import BUCKET, BY, FASTER, lab, words
from prefect.settings import PREFECT_API_URL, temporary_settings
from pydantic import ConfigDict

from attuner.cli.wake import ELSEWHERE, waiting_key, wake
from attuner.core.base import Record
from attuner.launchers.replay import Row
from attuner.ledgers.duckdb_file import DuckdbLedger
from attuner.settings import Settings
from attuner.steps import people as said
from attuner.steps import review

OTHER = Row(match={"bucket_size": 500}, step_s=0.45)
MOVE = {"group": "open", "arguments": {"bucket_size": 500}, "parent": "l01"}
RUN = "4b1a4ea0-7c3b-4b39-9b39-0f6f4c1d3b11"


class Raw(Record):
    """Any record, as it was written."""

    model_config = ConfigDict(extra="allow", frozen=True)


class Api(http.server.BaseHTTPRequestHandler):
    """As much of Prefect's API as a suspended run needs."""

    key: str
    resumed: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if self.path.endswith("/flow_runs/filter"):
            state = {"type": "PAUSED", "name": "Suspended", "state_details": {"pause_key": self.key}}
            self.answer([{"id": RUN, "name": "campaign x", "flow_id": str(uuid.uuid4()), "state": state}])
        else:
            assert self.path.endswith(f"/flow_runs/{RUN}/resume")
            self.resumed.append(body["run_input"])
            self.answer({"status": "ACCEPT", "details": {"type": "accept_details"}, "state": None})

    def do_GET(self) -> None:
        self.answer({"detail": "no CSRF here"}, status=404)

    def answer(self, value: Any, *, status: int = 200) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def api() -> Iterator[type[Api]]:
    handler = type("Kept", (Api,), {"key": "", "resumed": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{server.server_address[1]}/api"}):
        yield handler
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def asking(tmp_path: Path) -> Lab:
    """A campaign with two launches that wait for a person; the faster one, l07, is asked about."""
    made = lab(tmp_path, BUCKET, OTHER, FASTER)
    kit = made.kit()
    begin(kit, campaign(MICRO, {**UNCOVERED, "parent": "l01"}, MOVE))
    search(kit)
    return made


def on_disk(made: Lab, home: Path) -> Settings:
    with DuckdbLedger(home / "attuner.duckdb") as ledger:
        ledger.claim(ID)
        for event in made.history().events:
            ledger.append(ID, event.kind, event.key, Raw.model_validate(event.record))
        ledger.release(ID)
    return Settings(home=home, project=None)


@pytest.mark.parametrize(("launch_id", "woken"), [("l08", False), ("l07", True)])
def test_a_run_is_woken_by_the_answer_to_its_own_question_only(
    asking: Lab, tmp_path: Path, api: type[Api], launch_id: str, *, woken: bool
) -> None:
    question = review.asked(asking.history())
    assert question is not None
    assert question.launch_id == "l07"
    api.key = waiting_key(question)
    said.answer(words(asking), ID, launch_id, "admit", **BY)
    done = wake(on_disk(asking, tmp_path / "home"), ID)
    assert api.resumed == ([ELSEWHERE] if woken else [])
    assert bool(done) is woken


def test_what_a_run_is_woken_with_admits_nothing() -> None:
    assert ELSEWHERE["decision"] == "refuse"
