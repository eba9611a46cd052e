"""A Kubernetes on paper for every test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kube_lab import Driver, Kube, paper


@pytest.fixture
def driver() -> Driver:
    return Driver()


@pytest.fixture
def kube(tmp_path: Path, driver: Driver) -> Iterator[Kube]:
    made = Kube(tmp_path, paper(driver))
    yield made
    made.close()
