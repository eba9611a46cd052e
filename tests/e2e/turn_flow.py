"""A flow that holds a cluster for a while, as a campaign does: for tests of the queue."""

from __future__ import annotations

import time
from pathlib import Path

from prefect import flow

from tasks._cluster import cluster_turn


@flow(name="hold", persist_result=True)
def hold(name: str, book: str, until: str = "", cluster: str = "lab", campaign: str = "") -> str:
    """Write down when the cluster was held, from and to; it is held until the file `until` exists."""
    with cluster_turn(cluster, campaign):
        note(book, f"{name} from {time.time()}")
        while until and not Path(until).exists():
            time.sleep(0.1)
        note(book, f"{name} to {time.time()}")
    return name


def note(book: str, line: str) -> None:
    with Path(book).open("a") as out:
        out.write(line + "\n")
