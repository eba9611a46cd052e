"""Where runs write when the cluster doesn't see this machine's folders: a path of the cluster, or s3://bucket/prefix.

The control side of it: inputs go there before a launch, paths in the job document become the cluster's, and what a run
leaves comes back into the attempt's folder. `attuner_runner.storage` is the job's side. S3 goes through boto3 and its usual
chain of credentials, region and endpoint (AWS_PROFILE, AWS_ENDPOINT_URL, a pod's role); attuner keeps no key.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from attuner.core.errors import Transient, UserError
from attuner.runner import files

S3 = "s3://"
SCRATCH = "/tmp/attuner-runs"
"""Folder on the nodes where a run writes before S3 gets it, unless the cluster's file names one."""
LIVE = (files.STAMPS, files.HEARTBEAT, files.STEPS, files.CONFIG, files.FINGERPRINT, files.LOG)
"""What is fetched while a run goes on; the rest comes at its end."""
LIVE_BYTES = 8 << 20
LOOK_S = {"path": 0.5, "s3": 4.0}
REFUSED = ("AccessDenied", "NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "403", "401")


class Store(Protocol):
    """Files under one root, by name; a tag changes when the content does."""

    kind: str
    root: str

    def names(self, prefix: str) -> dict[str, tuple[str, int]]:
        """Return name → (tag, size) of all files under a prefix."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes, None if there is none."""
        ...

    def write(self, name: str, data: bytes) -> None:
        """Write a small file."""
        ...

    def download(self, name: str, path: Path) -> None:
        """Copy a file from there."""
        ...

    def upload(self, path: Path, name: str) -> None:
        """Copy a file there."""
        ...


class PathStore:
    """A folder that both sides see; `mount` is where this side sees it, if elsewhere than the cluster does."""

    kind = "path"

    def __init__(self, root: str, mount: str = "") -> None:
        self.root = root.rstrip("/") or "/"
        self._here = Path(mount or root)

    def names(self, prefix: str) -> dict[str, tuple[str, int]]:
        """Return name → (modification time, size)."""
        base = self._here / prefix
        found = {}
        for folder, _, inside in os.walk(base):
            for one in inside:
                path = Path(folder, one)
                try:
                    stat = path.stat()
                except OSError:  # renamed or removed meanwhile
                    continue
                found[path.relative_to(self._here).as_posix()] = (f"{stat.st_mtime_ns}:{stat.st_size}", stat.st_size)
        return found

    def read(self, name: str) -> bytes | None:
        """Return a file's bytes."""
        try:
            return (self._here / name).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise Transient(f"{self._here / name}: {error.strerror or error}") from None

    def write(self, name: str, data: bytes) -> None:
        """Write a file atomically."""
        try:
            path = self._here / name
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.{os.getpid()}")
            partial.write_bytes(data)
            partial.replace(path)
        except OSError as error:
            raise _unwritable(self._here, error) from None

    def download(self, name: str, path: Path) -> None:
        """Copy a file from there, whole or not at all."""
        try:
            _replace(path, lambda partial: shutil.copyfile(self._here / name, partial))
        except FileNotFoundError:
            return  # removed meanwhile
        except OSError as error:
            raise Transient(f"{self._here / name}: {error.strerror or error}") from None

    def upload(self, path: Path, name: str) -> None:
        """Copy a file there, whole or not at all."""
        try:
            _replace(self._here / name, lambda partial: shutil.copyfile(path, partial))
        except OSError as error:
            raise _unwritable(self._here, error) from None


class S3Store:
    """A bucket and a prefix in it, through boto3."""

    kind = "s3"

    def __init__(self, url: str) -> None:
        bucket, _, prefix = url.removeprefix(S3).partition("/")
        if not bucket:
            raise UserError(f"storage: {url}: names no bucket; it looks like s3://bucket/prefix")
        self.root = url.rstrip("/")
        self._bucket, self._prefix = bucket, prefix.strip("/")
        self._client = _s3_client(url)

    def names(self, prefix: str) -> dict[str, tuple[str, int]]:
        """Return name → (etag, size)."""
        start = len(self._key("")) if self._prefix else 0
        found: dict[str, tuple[str, int]] = {}
        more: dict[str, Any] = {}
        while True:
            page = self._do("list_objects_v2", Prefix=self._key(prefix), **more)
            found |= {x["Key"][start:]: (x["ETag"], int(x["Size"])) for x in page.get("Contents", [])}
            if not page.get("IsTruncated"):
                return found
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def read(self, name: str) -> bytes | None:
        """Return an object's bytes."""
        answer = self._do("get_object", Key=self._key(name))
        if answer is None:
            return None
        broken: tuple[type[BaseException], ...] = (OSError, *_errors())
        try:
            data: bytes = answer["Body"].read()
        except broken as error:
            raise Transient(f"{self.root}/{name}: {_line(error)}") from None
        return data

    def write(self, name: str, data: bytes) -> None:
        """Put an object."""
        self._do("put_object", Key=self._key(name), Body=data)

    def download(self, name: str, path: Path) -> None:
        """Copy an object from there, whole or not at all; large ones in parts."""
        _replace(path, lambda partial: self._do("download_file", Key=self._key(name), Filename=str(partial)))

    def upload(self, path: Path, name: str) -> None:
        """Copy a file there; large ones in parts."""
        self._do("upload_file", Key=self._key(name), Filename=str(path))

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _do(self, call: str, **arguments: Any) -> Any:
        try:
            return getattr(self._client, call)(Bucket=self._bucket, **arguments)
        except _errors() as error:
            code = str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))
            if code in ("NoSuchKey", "404"):
                return None
            if code in REFUSED or type(error).__name__ in ("NoCredentialsError", "NoRegionError", "ProfileNotFound"):
                raise UserError(
                    f"storage: {self.root}: {call} refused: {_line(error)}; check the bucket and this machine's AWS credentials"
                ) from None
            raise Transient(f"storage {self.root}: {call}: {_line(error)}") from None


def open_store(url: str, *, mount: str = "") -> Store:
    """Return the store that a cluster's `storage` names.

    Args:
        url: a path as the cluster sees it, or s3://bucket/prefix.
        mount: where this machine sees that path, if elsewhere.

    Raises:
        UserError: not a path and not S3, or S3 without boto3.
    """
    if url.startswith(S3):
        return S3Store(url)
    if "://" in url or not url.startswith("/"):
        raise UserError(f"storage: {url}: is neither an absolute path nor s3://bucket/prefix")
    return PathStore(url, mount)


class RunStorage:
    """One campaign's files in a store, seen from the control side.

    Args:
        store: where they are.
        home: the campaign's folder on this side.
        scratch: folder on the cluster where S3 runs write first; '' is SCRATCH.
    """

    def __init__(self, store: Store, home: Path, *, scratch: str = "") -> None:
        self._store, self._home = store, home
        base = scratch or (SCRATCH if store.kind == "s3" else store.root)
        self.base = str(PurePosixPath(base) / home.name)
        """The campaign's folder as the cluster's nodes see it."""
        self._shared: dict[str, str] = {}
        self._seen: dict[str, dict[str, str]] = {}
        self._looked: dict[str, float] = {}

    def folder(self, folder: str) -> str:
        """Return the cluster's path of a folder of this campaign: where the driver of an attempt writes."""
        return str(PurePosixPath(self.base) / Path(folder).relative_to(self._home).as_posix())

    def share(self, document: dict[str, Any]) -> dict[str, Any]:
        """Return the job document for the cluster: its inputs are uploaded, its paths are the cluster's.

        Everything under inputs/ that a string of the document names goes there once; what isn't here (a checkpoint that an
        earlier run made) is there already.
        """
        inputs = sorted(_inputs(document, str(self._home)))
        for name in inputs:
            self._upload(name)
        away = {"url": self._store.root, "campaign": self._home.name, "base": self.base, "inputs": inputs}
        return {**_relocated(document, str(self._home), self.base), "storage": away}

    def fetch(self, folder: str, *, final: bool = False) -> None:
        """Bring what a run has left so far into its folder here; with `final` all of it, else the small files.

        Raises:
            Transient: the store doesn't answer.
        """
        run = Path(folder).relative_to(self._home).as_posix()
        now = time.monotonic()
        if not final and now - self._looked.get(run, float("-inf")) < LOOK_S[self._store.kind]:
            return
        prefix = f"{self._home.name}/{run}/"
        seen = self._seen.setdefault(run, {})
        for name, (tag, size) in sorted(self._store.names(prefix).items()):
            inside = PurePosixPath(name.removeprefix(prefix))
            if ".." in inside.parts or inside.name.startswith(".") or inside.name == files.JOB:
                continue
            live = str(inside) in LIVE or inside.name.startswith("failure.rank") or inside.name.endswith(".json")
            if seen.get(name) == tag or not (final or (live and size <= LIVE_BYTES and len(inside.parts) == 1)):
                continue
            self._store.download(name, Path(folder, *inside.parts))
            seen[name] = tag
        self._looked[run] = time.monotonic()

    def forbid(self, folder: str) -> None:
        """Forbid an attempt's driver to begin, should it still come up."""
        run = Path(folder).relative_to(self._home).as_posix()
        self._store.write(f"{self._home.name}/{run}/{files.CANCELLED}", b"cancelled\n")

    def _upload(self, name: str) -> None:
        """Upload one of inputs/ if it is here and differs from what is there."""
        here = self._home / name
        found = sorted(p for p in here.rglob("*") if p.is_file()) if here.is_dir() else [here] if here.is_file() else []
        if not found or self._shared.get(name):
            return
        prefix = f"{self._home.name}/{name}" + ("/" if here.is_dir() else "")
        there = self._store.names(prefix)
        for path in found:
            target = f"{self._home.name}/{path.relative_to(self._home).as_posix()}"
            if there.get(target, ("", -1))[1] != path.stat().st_size:
                self._store.upload(path, target)
        self._shared[name] = "there"


def _inputs(value: Any, home: str) -> set[str]:
    """Return 'inputs/NAME' of every string that names something under the campaign's inputs/."""
    if isinstance(value, dict):
        return {name for x in value.values() for name in _inputs(x, home)}
    if isinstance(value, list):
        return {name for x in value for name in _inputs(x, home)}
    found = set()
    if isinstance(value, str):
        for rest in value.split(f"{home}/inputs/")[1:]:
            name = rest.split("/")[0].split()[0:1]
            found |= {f"inputs/{x}" for x in name}
    return found


def _relocated(value: Any, home: str, base: str) -> Any:
    if isinstance(value, dict):
        return {k: _relocated(x, home, base) for k, x in value.items()}
    if isinstance(value, list):
        return [_relocated(x, home, base) for x in value]
    if isinstance(value, str):
        return base if value == home else value.replace(f"{home}/", f"{base}/")
    return value


def _replace(path: Path, write: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(partial)
        if partial.exists():
            partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _unwritable(root: Path, error: OSError) -> UserError:
    return UserError(
        f"storage: {root}: can't be written from here ({error.strerror or error}); mount it, or say where it is mounted "
        "with ATTUNER_STORAGE_MOUNT"
    )


def _s3_client(url: str) -> Any:
    try:
        import boto3  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        raise UserError(f"storage: {url}: needs boto3 on this machine: pip install 'attuner[s3]'") from None
    try:
        return boto3.client("s3")
    except _errors() as error:
        raise UserError(f"storage: {url}: {_line(error)}") from None


def _errors() -> tuple[type[BaseException], ...]:
    import boto3.exceptions  # type: ignore[import-not-found,import-untyped,unused-ignore]
    import botocore.exceptions  # type: ignore[import-not-found,import-untyped,unused-ignore]

    return (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError, boto3.exceptions.Boto3Error)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
