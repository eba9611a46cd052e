"""What a person sees of a ledger: views, queries and exports."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from attuner.core.base import Record
from attuner.core.errors import UserError
from attuner.core.failure import Failure
from attuner.core.judgement import Score, Shipment, Verdict
from attuner.core.run import Attempt, Launch, Settlement, Trial
from attuner.core.search import Hypothesis
from attuner.ledgers.duckdb_file import DuckdbLedger

BROKE = Failure(kind="oom.backward", why="memory", levers=["recompute"])


class Campaign(Record):
    """The parts of a campaign that the views show."""

    name: str
    workload: dict[str, int]
    budget: dict[str, float]
    stack: dict[str, str]
    source_file: str = "x.yaml"


def campaign(name: str, *, gpus: int, gpu_hours: float) -> Campaign:
    return Campaign(name=name, workload={"gpus": gpus}, budget={"gpu_hours": gpu_hours}, stack={"name": "mcore"})


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("filled") / "ledger.duckdb"
    with DuckdbLedger(path) as ledger:
        ledger.claim("tune-1")
        with ledger.batch():
            for kind, key, record in events():
                ledger.append("tune-1", kind, key, record)
        ledger.claim("tune-2")
        ledger.append("tune-2", "campaign", "tune-2", campaign("two", gpus=1, gpu_hours=1))
    return path


def events() -> list[tuple[str, str, Record]]:
    def launch(name: str, kind: str, hypothesis: str = "") -> Record:
        data = {"id": name, "kind": kind, "recipe": "d", "hypothesis": hypothesis, "purpose": "p"}
        return Launch.model_validate({**data, "reserve_gpu_hours": 2.0, "time_limit_s": 60})

    def attempt(name: str, number: int) -> Record:
        return Attempt(launch_id=name, number=number, submission_id=f"{name}-{number}", folder="f", submitted_at=5)

    def settled(name: str, number: int, gpu_hours: float) -> Record:
        data = {"launch_id": name, "attempt": number, "gpus": 2, "allocated_at": 1, "released_at": None}
        return Settlement.model_validate({**data, "gpu_hours": gpu_hours, "how": "released"})

    return [
        ("campaign", "tune-1", campaign("tune", gpus=2, gpu_hours=30)),
        ("launch", "c1", launch("c1", "calibrate")),
        ("attempt", "c1#1", attempt("c1", 1)),
        ("settled", "c1#1", settled("c1", 1, 0.5)),
        (
            "hypothesis",
            "h1",
            Hypothesis(
                id="h1",
                parent="c1",
                group="micro_batch",
                arguments={"micro-batch-size": 4},
                title="micro batch 1→4",
                bottleneck="b",
                mechanism="m",
                predicted_gain=0.2,
                predicted_error=0.1,
            ),
        ),
        ("verdict", "h1", Verdict(look="config", subject="h1", recipe="d", decision="admit", findings=[])),
        ("launch", "s1", launch("s1", "search", "h1")),
        ("attempt", "s1#1", attempt("s1", 1)),
        ("settled", "s1#1", settled("s1", 1, 0.25)),
        ("attempt", "s1#2", attempt("s1", 2)),
        ("settled", "s1#2", settled("s1", 2, 9.0)),
        ("settled", "s1#2", settled("s1", 2, 1.0)),
        ("trial", "s1", Trial(launch_id="s1", attempt=2, status="oom", cause="memory", gpu_hours=1.25, failure=BROKE)),
        ("score", "s1", Score(launch_id="s1", attempt=2, valid=True, decision="admit", gain=float("nan"))),
        (
            "shipment",
            "ship",
            Shipment(launch_id="s1", recipe="d", gain=0.3, kept_baseline=False, reason="r", folder="f"),
        ),
    ]


@pytest.fixture
def ledger(filled: Path) -> Iterator[DuckdbLedger]:
    with DuckdbLedger(filled) as opened:
        yield opened


VIEWS: dict[str, tuple[str, list[object]]] = {
    "campaigns": (
        "campaign_id, name, gpus, budget_gpu_hours, stack",
        [("tune-1", "tune", 2, "30.0", "mcore"), ("tune-2", "two", 1, "1.0", "mcore")],
    ),
    "launches": (
        "id, kind, purpose, recipe, hypothesis, reserve_gpu_hours",
        [("c1", "calibrate", "p", "d", "", 2.0), ("s1", "search", "p", "d", "h1", 2.0)],
    ),
    "attempts": (
        "launch_id, attempt, submission_id, gpu_hours, how",
        [
            ("c1", 1, "c1-1", 0.5, "released"),
            ("s1", 1, "s1-1", 0.25, "released"),
            ("s1", 2, "s1-2", 1.0, "released"),
        ],
    ),
    "trials": (
        "launch_id, status, cause, gpu_hours, failure_kind, failure_levers",
        [("s1", "oom", "memory", 1.25, "oom.backward", '["recompute"]')],
    ),
    "hypotheses": (
        "id, parent, lever_group, title, predicted_gain, arguments",
        [("h1", "c1", "micro_batch", "micro batch 1→4", 0.2, '{"micro-batch-size":4}')],
    ),
    "verdicts": ("look, decision, subject", [("config", "admit", "h1")]),
    "scores": ("launch_id, valid, decision, isnan(gain), new_leader", [("s1", True, "admit", True, False)]),
    "spend": ("*", [("tune-1", "calibrate", 0.5, 1), ("tune-1", "search", 1.25, 2)]),
    "board": (
        "campaign_id, name, shipped, gain, kept_baseline, spend_gpu_hours, num_launches",
        [("tune-1", "tune", "s1", 0.3, False, 1.75, 2), ("tune-2", "two", None, None, None, 0.0, 0)],
    ),
}


@pytest.mark.parametrize("view", VIEWS)
def test_the_views_show_the_last_event_of_each_key(ledger: DuckdbLedger, view: str) -> None:
    columns, rows = VIEWS[view]
    assert ledger.query(f"SELECT {columns} FROM {view} ORDER BY ALL").rows == rows


def test_a_query_names_its_columns(ledger: DuckdbLedger) -> None:
    columns, rows = ledger.query("SELECT key AS what, count(*) AS num FROM events WHERE kind = 'settled' GROUP BY 1 ORDER BY 1")
    assert (columns, rows[-1]) == (["what", "num"], ("s1#2", 2))


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM events",
        "DROP TABLE events",
        "CREATE TABLE x (y INTEGER)",
        "COPY events TO 'stolen.csv'",
        "ATTACH 'other.duckdb' AS other",
        "SELECT * FROM read_text('/etc/hostname')",
        "SET enable_external_access = true",
        "nonsense",
    ],
)
def test_a_query_only_reads_the_ledger(ledger: DuckdbLedger, sql: str) -> None:
    with pytest.raises(UserError) as caught:
        ledger.query(sql)
    assert "\n" not in str(caught.value)
    assert ledger.verify() == []


def test_a_query_without_a_ledger_makes_none(tmp_path: Path) -> None:
    ledger = DuckdbLedger(tmp_path / "sub" / "none.duckdb")
    with pytest.raises(UserError, match="no ledger is there"):
        ledger.query("SELECT 1")
    assert (ledger.campaigns(), ledger.history("a"), ledger.verify()) == ([], [], [])
    assert list(tmp_path.iterdir()) == []


def test_an_exported_database_is_a_ledger_of_its_own(ledger: DuckdbLedger, tmp_path: Path) -> None:
    target = ledger.export(tmp_path / "copy.duckdb")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["copy.duckdb"]
    with duckdb.connect(str(target)) as db:
        assert db.execute("SELECT * FROM board").fetchall() == ledger.query("SELECT * FROM board").rows
        with pytest.raises(duckdb.Error, match="append-only"):
            db.execute("DELETE FROM events")


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".json"])
def test_events_export_to_plain_files(ledger: DuckdbLedger, tmp_path: Path, suffix: str) -> None:
    target = ledger.export(tmp_path / f"it's{suffix}")
    quoted = str(target).replace("'", "''")
    rows = duckdb.connect().execute(f"SELECT seq, campaign_id, kind FROM '{quoted}'").fetchall()
    assert rows == ledger.query("SELECT seq, campaign_id, kind FROM events ORDER BY seq").rows
    assert [p.name for p in tmp_path.iterdir()] == [target.name]
    if suffix == ".json":
        assert json.loads(target.read_text())[1]["record"]["name"] == "tune"


def test_an_export_says_what_it_cannot_do(ledger: DuckdbLedger, tmp_path: Path) -> None:
    for target, why in (
        (tmp_path / "x.xls", "suffix"),
        (ledger.path, "itself"),
        (tmp_path / "no" / "x.csv", "no folder"),
    ):
        with pytest.raises(UserError, match=why):
            ledger.export(target)


def test_an_older_file_gets_the_views_of_today(filled: Path, tmp_path: Path) -> None:
    shutil.copytree(filled.parent, tmp_path, dirs_exist_ok=True)
    with duckdb.connect(str(tmp_path / "ledger.duckdb")) as db:
        db.execute("DROP VIEW board")
    with DuckdbLedger(tmp_path / "ledger.duckdb") as ledger:
        ledger.claim("tune-1")
        assert len(ledger.query("SELECT * FROM board").rows) == 2
        assert ledger.verify() == []
