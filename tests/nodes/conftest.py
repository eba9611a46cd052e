"""Three nodes of one slot each, and a campaign folder on them."""

from __future__ import annotations

import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from contract import s3_server
from nodes.cluster import POSSIBLE, Nodes, wait_for
from nodes.node_lab import NODES, Site

KEYS = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_DEFAULT_REGION": "x"}


@pytest.fixture(scope="session")
def s3() -> Iterator[dict[str, str]]:
    """Return the environment that leads boto3 to a small server; nodes have it as an image has a role."""
    with s3_server.serving() as server:
        yield {**KEYS, "AWS_ENDPOINT_URL_S3": server.url}


@pytest.fixture(scope="session")
def cluster(s3: dict[str, str]) -> Iterator[Nodes]:
    if not POSSIBLE:
        pytest.skip("nodes with disks of their own on one machine need unshare and root")
    nodes = None
    try:
        nodes = Nodes(NODES, env=s3)
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
