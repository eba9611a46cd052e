"""A signal that comes while the ledger is in use stops the campaign as anywhere else, and leaves the ledger fit for use."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from attuner.core.judgement import Note
from attuner.ledgers.duckdb_file import DuckdbLedger

# a handler that raises inside `open` leaves a file object to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
ROUNDS = 60


class Told(SystemExit):
    """What the handler raises, as Prefect's for SIGTERM does."""


@pytest.fixture
def alarms() -> Iterator[None]:
    def handler(_signum: int, _frame: object) -> None:
        raise Told(143)

    before = signal.signal(signal.SIGALRM, handler)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


def test_a_signal_in_a_ledger_call_is_a_stop_and_no_error(tmp_path: Path, alarms: None) -> None:
    """DuckDB puts `RuntimeError: Query interrupted` over what the handler raised: a job that is paid for would run on."""
    stops = []
    with DuckdbLedger(tmp_path / "attuner.duckdb") as ledger:
        ledger.claim("c")
        for number in range(ROUNDS):
            signal.setitimer(signal.ITIMER_REAL, 0.001 + 0.0002 * (number % 40))
            try:
                while True:
                    ledger.append("c", "note", "n", Note(text="x" * 2000))
            except (Told, KeyboardInterrupt) as stop:
                stops.append(type(stop).__name__)
        assert len(stops) == ROUNDS
        signal.setitimer(signal.ITIMER_REAL, 0)
        ledger.append("c", "note", "last", Note(text="it still works"))
        assert ledger.history("c")[-1].key == "last"
        assert ledger.verify("c") == []
