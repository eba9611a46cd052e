"""Looks at a Ray cluster before anything is paid for: address, version, token, room, storage from both sides, Python there.

Each look is a Check with what to do about it. The last ones need a small job on the cluster, which holds no device.
"""

from __future__ import annotations

import json
import secrets
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attuner.core.access import Access, Check
from attuner.core.campaign import Cluster
from attuner.core.errors import AttunerError
from attuner.launchers.ray_client import RayClient
from attuner.launchers.ray_room import room
from attuner.launchers.storage import RunStorage, open_store
from attuner.runner import files

JOB_S = 180.0
NODES = 16
SAID = "CHECKUP "
NEEDED = ("torch", "ray")


def doctor(cluster: Cluster, access: Access, *, home: Path, runner: Path, answer_timeout_s: float = 10.0) -> list[Check]:
    """Return what was looked at, in order; what can't be looked at for an earlier failure is left out.

    Args:
        home: folder of the ledger on this machine (ATTUNER_HOME).
        runner: folder of the runner's sources.
    """
    if not access.address:
        mend = "export ATTUNER_RAY_ADDRESS=http://head:8265"
        return [Check(name="address", ok=True, detail="none: each campaign starts a Ray of its own on this machine", mend=mend)]
    found: list[Check] = []
    try:
        client = RayClient(access, timeout_s=answer_timeout_s)
        told = client.get("/api/version")
    except AttunerError as error:
        return [Check(name="address", ok=False, detail=str(error), mend="see docs/ray.md, 'It doesn't answer'")]
    found.append(Check(name="address", ok=True, detail=f"{access.address} answers"))
    found.append(_version(str(told.get("ray_version", ""))))
    found.append(_looked("token", lambda: _token(client, access)))
    if not found[-1].ok:
        return found
    found.append(_looked("room", lambda: _room(client, cluster)))
    found.append(_looked("storage here", lambda: _storage(cluster, access)))
    try:
        found += _checkup(client, cluster, access, home, runner)
    except AttunerError as error:
        found.append(Check(name="job", ok=False, detail=str(error), mend="see the job's log in Ray's dashboard"))
    return found


def _looked(name: str, look: Callable[[], Check]) -> Check:
    try:
        return look()
    except AttunerError as error:
        return Check(name=name, ok=False, detail=str(error))
    except LookupError as error:
        return Check(name=name, ok=False, detail=str(error), mend="does a Ray dashboard answer at this address?")


def _version(there: str) -> Check:
    import ray

    same = there == ray.__version__
    mend = "" if same else f"install ray=={there} here: a job API of another version may refuse or misread what it is sent"
    return Check(name="version", ok=same, detail=f"Ray {there} there, {ray.__version__} here", mend=mend)


def _token(client: RayClient, access: Access) -> Check:
    client.get("/api/jobs/")
    detail = "accepted" if access.token_file else "none asked for: whoever reaches this address can run what he wants there"
    mend = "" if access.token_file else "start the cluster with RAY_AUTH_MODE=token, name the file in ATTUNER_RAY_TOKEN_FILE"
    return Check(name="token", ok=True, detail=detail, mend=mend)


def _room(client: RayClient, cluster: Cluster) -> Check:
    nodes, status = client.get("/api/v0/nodes?limit=10000&detail=1"), client.get("/api/cluster_status")
    need = {"gpus": cluster.devices, "gpus_per_node": cluster.devices_per_node}
    found = room(nodes, status, **need, resource=cluster.resource, autoscaled=cluster.autoscaled)
    if never := found.never():
        return Check(
            name="room", ok=False, detail=f"{cluster.name} {never}", mend="devices and devices_per_node of the cluster's file"
        )
    free = "" if found.free is None else f", {found.free} of them free now"
    return Check(name="room", ok=True, detail=f"{found.could} nodes with {found.per_node} × {cluster.resource}{free}")


def _storage(cluster: Cluster, access: Access) -> Check:
    if not cluster.storage:
        return Check(
            name="storage here", ok=True, detail="none: ATTUNER_HOME must be a folder that all nodes see under the same path"
        )
    store, name, token = open_store(cluster.storage, mount=access.storage_mount), "attuner-doctor", secrets.token_hex(8)
    store.write(name, token.encode())
    ok = store.read(name) == token.encode()
    return Check(
        name="storage here",
        ok=ok,
        detail=f"{cluster.storage} " + ("can be written and read" if ok else "gives back something else"),
    )


def _checkup(client: RayClient, cluster: Cluster, access: Access, home: Path, runner: Path) -> list[Check]:
    nonce = secrets.token_hex(6)
    folder = home / "attuner-doctor"
    run = folder / "runs" / "checkup"
    run.mkdir(parents=True, exist_ok=True)
    try:
        document: dict[str, Any] = {"run_dir": str(run), "nonce": nonce, "resource": cluster.resource, "limit": NODES}
        storage = (
            RunStorage(open_store(cluster.storage, mount=access.storage_mount), folder, scratch=cluster.scratch)
            if cluster.storage
            else None
        )
        (run / nonce).write_text(nonce)
        rows = _ask(client, access, storage.share(document) if storage else document, runner, nonce)
        back = set()
        if storage:
            storage.fetch(str(run), final=True)
            back = {str(files.read_json(p).get("nonce")) for p in run.glob("*.json")}
        python = _python(access, rows)
        told = [r for r in rows if "failed" not in r]
        return [python, *([_nodes_storage(told, cluster, nonce in back, str(run))] if told else [])]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ask(client: RayClient, access: Access, document: dict[str, Any], runner: Path, nonce: str) -> list[dict[str, Any]]:
    """Run the small job and return its rows."""
    with tempfile.TemporaryDirectory(prefix="attuner-doctor-") as stage:
        for source in runner.rglob("*.py"):
            copy = Path(stage) / "attuner_runner" / source.relative_to(runner)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        files.write_json(Path(stage) / files.JOB, document)
        job = f"attuner-doctor-{nonce}"
        entry = shlex.join([access.python, "-m", "attuner_runner.checkup", files.JOB])
        client.call("submit_job", entrypoint=entry, submission_id=job, runtime_env={"working_dir": stage})
    deadline = time.monotonic() + JOB_S
    while time.monotonic() < deadline:
        info = client.call("get_job_info", job)
        status = str(info.status.value)
        if status in ("SUCCEEDED", "FAILED", "STOPPED"):
            break
        time.sleep(0.5)
    else:
        client.call("stop_job", job)
        return [{"failed": f"the job didn't end within {JOB_S:.0f} s: {status}"}]
    lines = str(client.call("get_job_logs", job)).splitlines()
    said = next((line.removeprefix(SAID) for line in lines if line.startswith(SAID)), "")
    client.call("delete_job", job)
    if not said:
        words = [x for x in [*lines, *str(info.message or "").splitlines()] if x.strip()]
        return [{"failed": " ".join(words[-1].split())[:200] if words else f"the job {status.lower()} without a word"}]
    rows: list[dict[str, Any]] = json.loads(said)["nodes"]
    return rows


def _python(access: Access, rows: list[dict[str, Any]]) -> Check:
    failed = next((r["failed"] for r in rows if "failed" in r), "")
    if failed or not rows:
        detail = failed or "no node has the cluster's resource"
        return Check(name="python", ok=False, detail=detail, mend=f"ATTUNER_RAY_PYTHON={access.python}: does every node have it?")
    missing = sorted({name for r in rows for name in NEEDED if name not in r["versions"]})
    kinds = {json.dumps(r["versions"], sort_keys=True) for r in rows}
    told = ", ".join(f"{k} {v}" for k, v in sorted(rows[0]["versions"].items()) if k != "kernel")
    if missing:
        return Check(
            name="python",
            ok=False,
            detail=f"{told}; missing: {', '.join(missing)}",
            mend=f"install it for {access.python} on the nodes",
        )
    if "megatron_core" not in rows[0]["versions"]:
        told += "; no megatron-core: recipes of mcore and megatron need it (or a checkout on PYTHONPATH)"
    detail = f"{len(rows)} nodes: {told}" if len(kinds) == 1 else f"{len(rows)} nodes that differ; the first: {told}"
    return Check(
        name="python", ok=len(kinds) == 1, detail=detail, mend="" if len(kinds) == 1 else "give all nodes the same image"
    )


def _nodes_storage(rows: list[dict[str, Any]], cluster: Cluster, back: bool, run: str) -> Check:
    wrong = next((f"{r.get('host', r.get('id'))}: {r['storage']}" for r in rows if r.get("storage")), "")
    if wrong:
        return Check(
            name="storage there", ok=False, detail=wrong, mend="storage in the cluster's file, and its rights on the nodes"
        )
    if not cluster.storage:
        blind = [str(r.get("host")) for r in rows if not r.get("sees_control")]
        if blind:
            mend = "share ATTUNER_HOME with the nodes, or set storage (their path, or s3://bucket/prefix) in the cluster's file"
            return Check(
                name="storage there", ok=False, detail=f"{', '.join(blind[:4])} don't see {run} of this machine", mend=mend
            )
        return Check(name="storage there", ok=True, detail="the nodes see this machine's folder")
    if not back:
        mend = "is it the same place on both sides? ATTUNER_STORAGE_MOUNT says where this machine sees it"
        return Check(
            name="storage there", ok=False, detail=f"what the nodes wrote to {cluster.storage} is not seen here", mend=mend
        )
    return Check(name="storage there", ok=True, detail=f"what the nodes wrote to {cluster.storage} came back")
