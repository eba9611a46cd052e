"""One campaign at a time per cluster, whichever deployment or machine runs it: a global concurrency limit of the Prefect server.

A flow run takes the limit `attuner-CLUSTER` (1 slot, made if missing) before it touches the cluster, and waits visibly, in a
state named AwaitingCluster, while another holds it; the run that waits longest goes first. The slot is held by a lease that
the holder renews: a killed holder's lease ends by itself (LEASE_S, seen by the server within 15 s more), and the same flow
run, started again meanwhile, finds its place kept. Replayed tables touch no cluster and take nothing. Without a shared
server (PREFECT_API_URL unset) nobody else can be asked, and nothing is taken.

A server that restarts forgets its leases but not the count of slots, unless it keeps leases in files (docs/prefect.md):
the holder then takes its slot anew, and a slot whose holder ended is given back by who waits.
"""

from __future__ import annotations

import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateName
from prefect.client.schemas.objects import ConcurrencyLeaseHolder, FlowRun
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.settings import PREFECT_API_URL
from prefect.states import Running
from prefect.variables import Variable

from attuner.config import REPLAY
from attuner.ports import Kit
from attuner.steps.common import past

LEASE_S = 60.0
"""The server's shortest lease."""
RENEW_S = 20.0
POLL_S = 3.0
GRACE_S = 90.0
"""How long a free slot is left to whoever has the better claim: the holder that lost its lease, or who waits longer."""
ORPHAN_S = 3 * LEASE_S
"""A slot whose holder ended so long ago, and that no lease frees, is given back."""
AWAITING = "AwaitingCluster"
LOST = (404, 410)

_log = logging.getLogger(__name__)
_held: ContextVar[frozenset[str]] = ContextVar("attuner_clusters", default=frozenset())


def limit_name(cluster: str) -> str:
    """Return the concurrency limit of a cluster."""
    return "attuner-" + re.sub(r"[^a-z0-9]+", "-", cluster.lower()).strip("-")


@contextmanager
def cluster_turn(cluster: str, campaign_id: str = "") -> Iterator[None]:
    """Hold the cluster ('': none is needed); a flow run that holds it, itself or by the flow that called it, goes on at once.

    Args:
        cluster: which.
        campaign_id: the campaign whose lease the caller holds: a holder of the same campaign is dead then, whatever it says.
    """
    name, run = limit_name(cluster), flow_run.id
    if not cluster or not PREFECT_API_URL.value() or not run or name in _held.get():
        yield
        return
    turn = Turn(name, cluster, UUID(run), campaign_id)
    turn.take()
    token = _held.set(_held.get() | {name})
    try:
        with turn.kept():
            yield
    finally:
        _held.reset(token)
        turn.give_back()


def cluster_of(kit: Kit, campaign_id: str) -> str:
    """Return the cluster that a campaign's launches touch, '' for a replayed one."""
    launcher = past(kit, campaign_id).campaign().launcher
    return "" if launcher.name == REPLAY else launcher.cluster.name


class Turn:
    """One flow run's turn on one cluster."""

    def __init__(
        self, name: str, cluster: str, run: UUID, campaign_id: str = "", *, now: Callable[[], float] = time.monotonic
    ) -> None:
        self._name, self._cluster, self._run, self._campaign, self._now = name, cluster, run, campaign_id, now
        self._left: tuple[dict[str, str], float] = ({}, now())
        self._lease: UUID | None = None
        self._shown = ""
        self._free_since: float | None = None

    # ------------------------------------------------------------------------------------------ taking

    def take(self) -> None:
        """Wait until the cluster is ours."""
        with get_client(sync_client=True) as client:
            _made(client, self._name)
            if self._found_again(client):
                return
            while not self._tried(client):
                time.sleep(POLL_S)
            state = client.read_flow_run(self._run).state if self._shown else None
            if state is not None and state.name == AWAITING:  # not one that is being cancelled
                client.set_flow_run_state(self._run, Running(message=f"cluster {self._cluster} is ours"), force=True)

    def _tried(self, client: SyncPrefectClient) -> bool:
        """Try once; a wait may last for hours, and a server that is away meanwhile ends it not."""
        try:
            return self._try(client)
        except httpx.HTTPError as error:
            get_run_logger().warning("cluster %s: the Prefect server does not answer: %s", self._cluster, error)
            return False

    def _found_again(self, client: SyncPrefectClient) -> bool:
        """Tell whether this flow run, started again, still holds the lease that it took before."""
        note = _note(self._name)
        if note.get("flow_run") != str(self._run) or not note.get("lease"):
            return False
        lease = UUID(note["lease"])
        if not _renewed(client, lease):
            return False
        self._lease = lease
        return True

    def _try(self, client: SyncPrefectClient) -> bool:
        free = client.read_global_concurrency_limit_by_name(self._name).active_slots == 0
        self._free_since = (self._free_since if self._free_since is not None else self._now()) if free else None
        holder, ahead = _holder(client, self._name, self._run), self._ahead(client)
        dead = self._ours_before()
        claimed = ahead is not None or (holder is not None and _comes_back(holder) and not dead)
        waited = self._now() - self._free_since if self._free_since is not None else 0.0
        if free and (not claimed or waited > GRACE_S) and self._acquire(client):
            return True
        if not free and ((holder is not None and _ended_long_ago(holder)) or (dead and self._left_behind())):
            client.release_concurrency_slots([self._name], 1, 1.0)  # its lease was lost with a restarted server
        self._show(client, holder, ahead)
        return False

    def _ours_before(self) -> bool:
        """Tell whether the holder is a process of our own campaign: whoever holds a campaign's lease is its only process."""
        note = _note(self._name)
        return bool(self._campaign) and note.get("campaign") == self._campaign and note.get("flow_run") != str(self._run)

    def _left_behind(self) -> bool:
        """Tell whether the slot has stayed taken for longer than a dead holder's lease can last: the server forgot the lease."""
        note = _note(self._name)
        if note != self._left[0]:
            self._left = (note, self._now())
        return self._now() - self._left[1] > GRACE_S

    def _acquire(self, client: SyncPrefectClient) -> bool:
        self._lease = _acquired(client, self._name, self._run)
        if self._lease is None:
            return False
        note = {"flow_run": str(self._run), "lease": str(self._lease), "campaign": self._campaign}
        Variable.set(_variable(self._name), json.dumps(note), overwrite=True)
        return True

    def _ahead(self, client: SyncPrefectClient) -> FlowRun | None:
        """Return the run that has waited for this cluster longer than we do."""
        name = FlowRunFilterState(name=FlowRunFilterStateName(any_=[AWAITING]))
        runs = client.read_flow_runs(flow_run_filter=FlowRunFilter(state=name), limit=200)
        queue = sorted(
            (r for r in runs if self._waits_here(r)), key=lambda r: (r.state.timestamp, str(r.id)) if r.state else (0, "")
        )
        first = queue[0] if queue else None
        return first if first is not None and first.id != self._run else None

    def _waits_here(self, run: FlowRun) -> bool:
        return bool(run.state and (run.state.message or "").startswith(f"cluster {self._cluster}:"))

    def _show(self, client: SyncPrefectClient, holder: FlowRun | None, ahead: FlowRun | None) -> None:
        """Say once what is waited for, where it is seen: in the run's state and in its log."""
        if self._shown:
            return
        by = f"held by flow run {holder.name!r} ({holder.id})" if holder else f"next is {ahead.name!r}" if ahead else "is held"
        self._shown = f"cluster {self._cluster}: {by}; this run goes on when it is free"
        get_run_logger().info(self._shown)
        _log.warning(self._shown)  # the terminal of `attuner run`, which Prefect's own log doesn't reach
        client.set_flow_run_state(self._run, Running(name=AWAITING, message=self._shown), force=True)

    # ------------------------------------------------------------------------------------------ keeping

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Renew the lease until the end of the block."""
        done = threading.Event()
        log = get_run_logger()
        context = copy_context()  # the thread asks the same server as the flow
        thread = threading.Thread(target=context.run, args=(self._renew, done, log), daemon=True, name=f"lease {self._name}")
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(timeout=10)

    def _renew(self, done: threading.Event, log: Any) -> None:
        with get_client(sync_client=True) as client:
            while not done.wait(RENEW_S):
                try:
                    if self._lease is not None and not _renewed(client, self._lease):
                        if _note(self._name).get("flow_run", str(self._run)) != str(self._run):
                            self._lease = None  # another run noted itself: the slot is not ours to free
                            log.warning("the lease of cluster %s is lost, and another run took it", self._cluster)
                            continue
                        client.update_global_concurrency_limit(self._name, GlobalConcurrencyLimitUpdate(active_slots=0))
                        if self._acquire(client):
                            log.info("the server forgot the lease of cluster %s; taken anew", self._cluster)
                        else:
                            log.warning("the lease of cluster %s is lost, and another run took it", self._cluster)
                except httpx.HTTPError as error:
                    log.warning("cluster %s: the lease could not be renewed: %s", self._cluster, error)

    def give_back(self) -> None:
        """Free the cluster for who waits; a server that can't be reached frees it when the lease ends."""
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            with get_client(sync_client=True) as client:
                client.release_concurrency_slots_with_lease(lease)
            Variable.unset(_variable(self._name))
        except (httpx.HTTPError, ObjectNotFound) as error:
            get_run_logger().warning("cluster %s could not be given back: %s", self._cluster, error)


# ---------------------------------------------------------------------------------------------- what the server is asked


def _variable(name: str) -> str:
    return name.replace("-", "_")


def _note(name: str) -> dict[str, str]:
    """Return who holds the limit, as its holder noted it; empty if nobody did."""
    try:
        found = json.loads(str(Variable.get(_variable(name), default="{}")))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _made(client: SyncPrefectClient, name: str) -> None:
    try:
        client.read_global_concurrency_limit_by_name(name)
    except ObjectNotFound:
        try:
            client.upsert_global_concurrency_limit_by_name(name, 1)
        except (ObjectAlreadyExists, httpx.HTTPStatusError):
            client.read_global_concurrency_limit_by_name(name)  # another run made it in the same moment


def _holder(client: SyncPrefectClient, name: str, run: UUID) -> FlowRun | None:
    """Return the other flow run that holds the limit by its own note."""
    noted = _note(name).get("flow_run")
    if not noted or noted == str(run):
        return None
    try:
        return client.read_flow_run(UUID(noted))
    except ObjectNotFound:
        return None


def _comes_back(run: FlowRun) -> bool:
    """Tell whether a holder runs, or is about to after a crash; one that waits for a person gave the cluster back."""
    return run.state is not None and not run.state.is_final() and not run.state.is_paused()


def _ended_long_ago(run: FlowRun) -> bool:
    if run.state is None or not run.state.is_final():
        return False
    return time.time() - run.state.timestamp.timestamp() > ORPHAN_S


def _acquired(client: SyncPrefectClient, name: str, run: UUID) -> UUID | None:
    """Return the lease of the slot, or None if it is taken."""
    holder = ConcurrencyLeaseHolder(type="flow_run", id=run)
    try:
        answer = client.increment_concurrency_slots_with_lease([name], 1, "concurrency", LEASE_S, holder)
    except httpx.HTTPStatusError as error:
        if error.response.status_code == httpx.codes.LOCKED:
            return None
        raise
    return UUID(answer.json()["lease_id"])


def _renewed(client: SyncPrefectClient, lease: UUID) -> bool:
    try:
        client.renew_concurrency_lease(lease, LEASE_S)
    except ObjectNotFound:
        return False
    except httpx.HTTPStatusError as error:
        if error.response.status_code in LOST:
            return False
        raise
    return True
