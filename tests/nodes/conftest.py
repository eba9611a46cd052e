"""Three nodes of one slot each, and a campaign folder on them."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nodes.cluster import Nodes, wait_for
from nodes.lab import NODES, Site


@pytest.fixture(scope="session")
def cluster() -> Iterator[Nodes]:
    nodes = None
    try:
        nodes = Nodes(NODES)
        yield nodes
    finally:
        if nodes is not None:
            nodes.end()


@pytest.fixture
def site(cluster: Nodes, tmp_path: Path) -> Iterator[Site]:
    """Return a campaign folder on a cluster that is whole; what still runs at the end is stopped."""
    for number in range(1, NODES + 1):
        if not cluster.processes(number, running="raylet"):
            cluster.add(number)
    wait_for(lambda: len(cluster.alive()) == NODES, 90, "all nodes")
    found = Site(cluster, tmp_path / f"camp-{secrets.token_hex(2)}", sys.executable)
    found.home.mkdir()
    yield found
    for launcher, attempt in found.made:
        launcher.cancel(attempt)
