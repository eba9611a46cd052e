"""Puts tests/ on the path, so that every folder of tests may use `lab`, and marks the tests of tests/long.txt as `long`."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def long_tests() -> set[str]:
    """Return the entries of tests/long.txt: files, and single tests without their parameters."""
    return {x for x in (HERE / "long.txt").read_text().splitlines() if x and not x.startswith("#")}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what `make check` leaves to `make test`."""
    known = long_tests()
    for item in items:
        name = f"{item.path.relative_to(HERE.parent)}::{item.nodeid.partition('::')[2].partition('[')[0]}"
        if not known.isdisjoint({name, name.partition("::")[0]}):
            item.add_marker(pytest.mark.long)
