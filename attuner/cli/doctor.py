"""`attuner doctor`: is this installation fit to run campaigns unattended, and what is to be mended. It changes nothing, unless
`--mend` is given: then it makes the automations that Prefect lacks for it, and gives back slots that nobody holds any more."""

from __future__ import annotations

import argparse
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attuner.cli.automations import automations
from attuner.config import file_digests, read_lock
from attuner.core.access import Check
from attuner.settings import Settings, load_settings

POOL = "attuner"
DEPLOYMENTS = (
    *("campaign/campaign", "nightly/nightly", "rerun-step/rerun-step", "propose/propose", "review/review", "direct/direct"),
    "lessons-audit/lessons-audit",
)
HEARTBEAT = "PREFECT_FLOWS_HEARTBEAT_FREQUENCY"
MEMORY = "prefect.server.concurrency.lease_storage.memory"
FILES = "prefect.server.concurrency.lease_storage.filesystem"
ENDED = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
ROOM_GIB = 5.0
GIB = 1 << 30


def doctor(arguments: argparse.Namespace) -> int:
    """Look at settings, rules, ledger and Prefect; exit 0 if all is well, 1 if something is to be mended."""
    settings = load_settings(project=arguments.project)
    found = [*machine(settings), *prefect(mend=arguments.mend), *clusters(arguments.file, settings)]
    well = all(c.ok for c in found)
    if arguments.json:
        print(json.dumps({"ok": well, "checks": [c.data() for c in found]}, indent=1, ensure_ascii=False))
        return 0 if well else 1
    width = max(len(c.name) for c in found)
    for check in found:
        print(f"  {'ok  ' if check.ok else 'MEND'}  {check.name:{width}}  {check.detail}")
        if check.mend and not check.ok:
            print(f"        {'':{width}}  → {check.mend}")
    wrong = sum(not c.ok for c in found)
    print("  all is well" if well else f"  {wrong} of {len(found)} to mend")
    if not arguments.file:
        print("  of clusters too: `attuner doctor FILE…`, with campaign or cluster files")
    return 0 if well else 1


# ---------------------------------------------------------------------------------------------- this machine


def machine(settings: Settings) -> list[Check]:
    """Return what is found of folders, rules, ledger and telemetry."""
    return [_home(settings), _rules(settings), _ledger(settings), _telemetry()]


def _home(settings: Settings) -> Check:
    home = settings.home
    there = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(there).free / GIB
    writable = os.access(there, os.W_OK)
    mend = (
        f"make {there} writable for this user"
        if not writable
        else f"free some room: campaigns and their traces need {ROOM_GIB:g} GiB"
    )
    return Check(
        name="home",
        ok=writable and free >= ROOM_GIB,
        detail=f"{home}, {free:.0f} GiB free{'' if writable else ', not writable'}",
        mend=mend,
    )


def _rules(settings: Settings) -> Check:
    folder = settings.rules_dir()
    locked, now = read_lock(folder), file_digests(folder)
    moved = sorted(name for name in locked.keys() | now.keys() if locked.get(name) != now.get(name))
    detail = f"{len(now)} files as rules/LOCK says" if not moved else f"differ from rules/LOCK: {', '.join(moved[:3])}"
    return Check(
        name="rules", ok=not moved, detail=detail, mend="look at the change, then `attuner rules check` and `attuner rules lock`"
    )


def _ledger(settings: Settings) -> Check:
    from attuner.wiring import open_ledger

    if not settings.ledger.exists():
        return Check(name="ledger", ok=True, detail=f"{settings.ledger}: none yet")
    ledger = open_ledger(settings)
    problems, campaigns = ledger.verify(None), ledger.campaigns()
    ledger.close()
    detail = f"sound, {len(campaigns)} campaigns" if not problems else problems[0].line()
    return Check(name="ledger", ok=not problems, detail=detail, mend="restore the last sound copy; docs/operations.md")


def _telemetry() -> Check:
    wanted = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1", "RAY_USAGE_STATS_ENABLED": "0"}
    left = [f"{k}={v}" for k, v in wanted.items() if os.environ.get(k, "").lower() not in (v, {"false": "0"}.get(v, v))]
    detail = "off" if not left else "may be sent by a server or a Ray that you start from here; attuner's own are off"
    return Check(name="telemetry", ok=not left, detail=detail, mend=f"export {' '.join(left)}")


def clusters(files: list[str], settings: Settings) -> list[Check]:
    """Return what is found of the clusters that these campaign or cluster files name."""
    from attuner.cli.cluster import named
    from attuner.wiring import cluster_checks

    found = []
    for file in files:
        launcher, cluster = named(Path(file), settings.configs_dir())
        checks = cluster_checks(cluster, settings, launcher=launcher)
        found += [x.model_copy(update={"name": f"{cluster.name}: {x.name}"}) for x in checks]
    return found


# ---------------------------------------------------------------------------------------------- Prefect


def prefect(*, mend: bool) -> list[Check]:
    """Return what is found of the Prefect server; one check that fails where there is none.

    Args:
        mend: make the automations that are missing, and free slots whose holder ended.
    """
    from prefect import __version__
    from prefect.settings import PREFECT_API_URL

    address = PREFECT_API_URL.value()
    if not address:
        return [
            Check(
                name="server",
                ok=False,
                detail="PREFECT_API_URL is not set: campaigns run with a temporary server, without UI and schedules",
                mend="prefect server start, then export PREFECT_API_URL=http://127.0.0.1:4200/api",
            )
        ]
    api = _Api(address)
    version = api.get("/admin/version")
    if version is None:
        return [Check(name="server", ok=False, detail=f"{address}: {api.error}", mend="start it: `prefect server start`")]
    same = version == __version__
    server = Check(
        name="server",
        ok=same,
        detail=f"{address}, {version}" + ("" if same else f"; here is {__version__}"),
        mend="make the two versions equal",
    )
    looked = [_analytics(api), _leases(api), _deployed(api), _pool(api)]
    return [server, *looked, *_automations(api, mend=mend), *_stuck(api, mend=mend)]


class _Api:
    """Prefect's HTTP interface; an answer that isn't 200 is None, and `error` says why."""

    def __init__(self, address: str) -> None:
        import httpx

        self._client, self.error = httpx.Client(base_url=address, timeout=10), ""
        self._failures: tuple[type[Exception], ...] = (httpx.HTTPError, ValueError)

    def get(self, path: str) -> Any:
        return self._answer(lambda: self._client.get(path))

    def post(self, path: str, body: dict[str, Any]) -> Any:
        return self._answer(lambda: self._client.post(path, json=body))

    def patch(self, path: str, body: dict[str, Any]) -> bool:
        try:
            self._client.patch(path, json=body).raise_for_status()
        except self._failures as error:
            self.error = " ".join(str(error).split())[:200]
            return False
        return True

    def _answer(self, call: Callable[[], Any]) -> Any:
        try:
            answer = call()
            answer.raise_for_status()
            return answer.json()
        except self._failures as error:
            self.error = " ".join(str(error).split())[:200]
            return None


def _analytics(api: _Api) -> Check:
    told = api.get("/admin/settings") or {}
    on = (told.get("server") or {}).get("analytics_enabled")
    detail = "off" if on is False else "on" if on else f"not told: {api.error or 'the server keeps it to itself'}"
    mend = "start the server with PREFECT_SERVER_ANALYTICS_ENABLED=false DO_NOT_TRACK=1"
    return Check(name="server telemetry", ok=on is False, detail=detail, mend=mend)


def _leases(api: _Api) -> Check:
    """Look where the server keeps the leases of concurrency slots: in memory, a restart forgets who holds a cluster."""
    told = ((api.get("/admin/settings") or {}).get("server") or {}).get("concurrency") or {}
    kept = told.get("lease_storage", "")
    detail = {MEMORY: "in memory: a restart of the server forgets which campaign holds a cluster", FILES: "in files"}
    mend = f"start the server with PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE={FILES}"
    return Check(name="leases", ok=bool(kept) and kept != MEMORY, detail=detail.get(kept, kept or "not told"), mend=mend)


def _deployed(api: _Api) -> Check:
    found = {name: api.get(f"/deployments/name/{name}") for name in DEPLOYMENTS}
    missing = [name for name, x in found.items() if x is None]
    if missing:
        detail = f"no {', '.join(missing)}"
        return Check(name="deployments", ok=False, detail=detail, mend="prefect --no-prompt deploy --all, in the checkout")
    silent = [name for name, x in found.items() if not _heartbeat(x)]
    detail = (
        f"{len(found)} of prefect.yaml, all with a heartbeat"
        if not silent
        else f"{', '.join(silent)}: its runs send no heartbeat"
    )
    return Check(name="deployments", ok=not silent, detail=detail, mend=f"deploy again: prefect.yaml sets {HEARTBEAT}")


def _heartbeat(deployment: dict[str, Any]) -> str:
    env = (deployment.get("job_variables") or {}).get("env") or {}
    return str(env.get(HEARTBEAT) or os.environ.get(HEARTBEAT) or "")


def _pool(api: _Api) -> Check:
    mend = f"prefect work-pool create {POOL} --type process"
    if api.get(f"/work_pools/{POOL}") is None:
        return Check(name="worker", ok=False, detail=f"no work pool {POOL}", mend=mend)
    workers = api.post(f"/work_pools/{POOL}/workers/filter", {}) or []
    alive = [w["name"] for w in workers if w.get("status") == "ONLINE"]
    mend = f"prefect worker start --pool {POOL} --limit 10, kept alive by systemd or the like"
    return Check(name="worker", ok=bool(alive), detail=f"{len(alive)} online of {len(workers)} known", mend=mend)


def _automations(api: _Api, *, mend: bool) -> list[Check]:
    """Look for what must happen by itself: dead runs are seen, a Retry isn't lost, crashed runs go on."""
    known = {a["name"]: a for a in api.post("/automations/filter", {"limit": 200}) or []}
    return [_automation(api, name, wanted, known.get(wanted["name"]), mend=mend) for name, wanted in automations().items()]


def _automation(api: _Api, name: str, wanted: dict[str, Any], known: dict[str, Any] | None, *, mend: bool) -> Check:
    state = "missing" if known is None else "as it should be" if known.get("enabled") else "switched off"
    if known is None and mend and api.post("/automations/", wanted) is not None:
        known, state = wanted, "made"
    well = known is not None and bool(known.get("enabled"))
    todo = "attuner doctor --mend makes it" if known is None else "switch it on in the Prefect UI, under Automations"
    detail = f"automation {wanted['name']!r}: {state}{f'; {api.error}' if mend and not well and api.error else ''}"
    return Check(name=name, ok=well, detail=detail, mend=todo)


def _stuck(api: _Api, *, mend: bool) -> list[Check]:
    """Look for clusters whose slot is taken by a flow run that ended: a restarted server forgot its lease."""
    found = [x for x in api.post("/v2/concurrency_limits/filter", {"limit": 200}) or [] if x["name"].startswith(f"{POOL}-")]
    taken, stuck = [x["name"] for x in found if x["active_slots"]], []
    for name in taken:
        note = api.get(f"/variables/name/{name.replace('-', '_')}")
        run = api.get(f"/flow_runs/{json.loads(note['value'])['flow_run']}") if note else None
        if run is not None and run["state"]["type"] in ENDED:
            stuck.append(name)
    left = [x for x in stuck if not (mend and api.patch(f"/v2/concurrency_limits/{x}", {"active_slots": 0}))]
    detail = (
        f"{', '.join(left)}: held by a run that ended" if left else f"{len(found)} known, {len(taken) - len(stuck)} held by a run"
    )
    todo = "who waits frees it within three minutes; attuner doctor --mend does at once"
    return [Check(name="clusters", ok=not left, detail=detail, mend=todo)]
