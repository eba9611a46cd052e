"""One at a time per cluster, on a real server and worker: who comes later waits visibly, goes on in order, is never dropped."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect_site import ROOT, Site, site_in

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_in(tmp_path_factory.mktemp("turns")) as found:
        found.pool()
        found.server.command(
            "--no-prompt", "deploy", "tests/e2e/turn_flow.py:hold", "--name", "hold", "--pool", "attuner", cwd=ROOT
        )
        found.worker()
        yield found


def spans(book: Path) -> list[tuple[str, float, float]]:
    """Return (name, from, to) by start; a hold that was cut off has no end."""
    seen: dict[str, list[float]] = {}
    for line in book.read_text().splitlines():
        name, _, at = line.split()
        seen.setdefault(name, []).append(float(at))
    return sorted(((n, x[0], x[-1] if len(x) > 1 else float("inf")) for n, x in seen.items()), key=lambda x: x[1])


def test_three_at_once_run_one_after_another_in_order_and_all_complete(site: Site, tmp_path: Path) -> None:
    book = tmp_path / "book"
    runs = [site.trigger("hold/hold", name="a", book=str(book), until=str(tmp_path / "go"))]
    site.server.until(book.exists, 90)
    for name in ("b", "c"):
        runs.append(site.trigger("hold/hold", name=name, book=str(book)))
        state = site.until_state(runs[-1], "AwaitingCluster", timeout=90)
        assert state["message"].startswith("cluster lab: ")
        assert runs[0] in state["message"]
    (tmp_path / "go").touch()
    for run in runs:
        site.until_state(run, "COMPLETED", timeout=120)
    held = spans(book)
    assert [x[0] for x in held] == ["a", "b", "c"]
    assert all(later[1] >= earlier[2] for earlier, later in itertools.pairwise(held))
    assert site.server.ask("GET", "/v2/concurrency_limits/attuner-lab")["active_slots"] == 0


def test_a_killed_holder_frees_the_cluster_by_itself(site: Site, tmp_path: Path) -> None:
    book = tmp_path / "book"
    first = site.trigger("hold/hold", name="a", book=str(book), until=str(tmp_path / "never"), cluster="killed")
    site.server.until(book.exists, 90)
    second = site.trigger("hold/hold", name="b", book=str(book), cluster="killed")
    site.until_state(second, "AwaitingCluster", timeout=90)
    killed = time.time()
    os.kill(site.process_of(first), signal.SIGKILL)
    site.until_state(first, "CRASHED", timeout=30)
    site.until_state(second, "COMPLETED", timeout=200)
    ((_, _, _), (_, since, _)) = spans(book)
    print(f"the next run went on {since - killed:.0f} s after the holder was killed")
    assert since - killed < 110


def test_a_holder_that_is_started_again_finds_its_place_kept(site: Site, tmp_path: Path) -> None:
    book = tmp_path / "book"
    first = site.trigger("hold/hold", name="a", book=str(book), until=str(tmp_path / "go"), cluster="kept")
    site.server.until(book.exists, 90)
    second = site.trigger("hold/hold", name="b", book=str(book), cluster="kept")
    site.until_state(second, "AwaitingCluster", timeout=90)
    os.kill(site.process_of(first), signal.SIGKILL)
    site.until_state(first, "CRASHED", timeout=30)
    time.sleep(4)  # past the worker's second report; what happens before it is another test's matter
    site.server.command("flow-run", "retry", first, cwd=ROOT)
    (tmp_path / "go").touch()
    site.until_state(first, "COMPLETED", timeout=120)
    site.until_state(second, "COMPLETED", timeout=120)
    order = [line.split()[0] for line in book.read_text().splitlines()]
    assert order == ["a", "a", "a", "b", "b"]


def test_a_server_that_restarts_and_forgets_its_leases_drops_nobody(site: Site, tmp_path: Path) -> None:
    book = tmp_path / "book"
    first = site.trigger("hold/hold", name="a", book=str(book), until=str(tmp_path / "go"), cluster="forgot")
    site.server.until(book.exists, 90)
    second = site.trigger("hold/hold", name="b", book=str(book), cluster="forgot")
    site.until_state(second, "AwaitingCluster", timeout=90)
    before = lease(site, "forgot")
    site.server.process.terminate()
    site.server.process.wait(30)
    site.server.start()
    site.server.until(lambda: lease(site, "forgot") not in ("", before), 90)  # taken anew by who holds it
    (tmp_path / "go").touch()
    site.until_state(first, "COMPLETED", timeout=120)
    site.until_state(second, "COMPLETED", timeout=180)
    assert [x[0] for x in spans(book)] == ["a", "b"]
    assert spans(book)[1][1] >= spans(book)[0][2]
    assert site.server.ask("GET", "/v2/concurrency_limits/attuner-forgot")["active_slots"] == 0


def test_a_killed_holder_of_ones_own_campaign_holds_nobody_up_even_if_the_server_forgot_it(site: Site, tmp_path: Path) -> None:
    """Started by hand, no worker sees that it died; its flow run stays Running, and the restarted server keeps its slot."""
    book = tmp_path / "book"
    words = "import sys; from turn_flow import hold; hold(*sys.argv[1:])"

    def by_hand(name: str, until: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", words, name, str(book), until, "own", "lab-0001"]
        env = {**site.server.env, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'e2e'}"}
        return subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    first = by_hand("a", str(tmp_path / "never"))
    site.server.until(book.exists, 90)
    first.kill()
    first.wait(30)
    site.server.process.terminate()
    site.server.process.wait(30)
    site.server.start()
    second = by_hand("b", "")
    assert second.wait(240) == 0
    assert [x[0] for x in spans(book)] == ["a", "b"]
    assert site.server.ask("GET", "/v2/concurrency_limits/attuner-own")["active_slots"] == 0


def lease(site: Site, cluster: str) -> str:
    """Return the lease that the holder of a cluster noted."""
    found = site.server.ask("GET", f"/variables/name/attuner_{cluster}")
    return str(json.loads(found["value"])["lease"]) if found else ""
