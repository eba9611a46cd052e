"""Where a run's files go when the control side doesn't see the folder they are written in: a shared path, or S3 through boto3.

The job document says it under `storage`: `url`, the campaign's name there, `base` (the campaign's folder on the nodes) and the
`inputs` that the control side put there. Where base lies in the storage itself nothing is copied; only traces of ranks that
nobody keeps are removed.
"""

import contextlib
import os
import re
import shutil
import time
from pathlib import Path
from typing import Any

from . import files

S3 = "s3://"
LIVE_BYTES = 8 << 20
RANK = re.compile(r"rank[_-]?(\d+)")


class StorageError(Exception):
    """Storage can't be read or written; the message is one line."""


class Storage:
    """The job's side of a campaign's storage.

    Args:
        job: the job document; without `storage` everything here does nothing.
        run_dir: the run's folder on this node.
    """

    def __init__(self, job: dict[str, Any], run_dir: Path) -> None:
        self._job, self._run_dir = job, run_dir
        away = job.get("storage") or {}
        self._url, self._base = str(away.get("url", "")), Path(away.get("base", "/"))
        self._campaign, self._inputs = str(away.get("campaign", "")), list(away.get("inputs", []))
        self._tags: dict[str, str] = {}
        self.apart = bool(self._url) and (self._url.startswith(S3) or self._base != Path(self._url) / self._campaign)
        """Whether the run's folder lies outside of storage, so that it must be copied."""
        self.sees_all = bool(self._url) and not self._url.startswith(S3)
        self._store: _Path | _S3 | None = None
        if self.apart:
            root = f"{self._url.rstrip('/')}/{self._campaign}"
            self._store = _S3(root) if self._url.startswith(S3) else _Path(Path(root))

    def begin(self) -> None:
        """Bring the inputs here, as far as they aren't. Raises StorageError."""
        for name in self._inputs if self._store else []:
            for key, size in self._store.names(name).items():  # type: ignore[union-attr]
                path = self._base / key
                ours = key == name or key.startswith(f"{name}/")
                if ours and (not path.is_file() or path.stat().st_size != size):
                    path.parent.mkdir(parents=True, exist_ok=True)
                    partial = path.with_name(f".{path.name}.{os.getpid()}")
                    self._store.get(key, partial)  # type: ignore[union-attr]
                    partial.replace(path)

    def cancelled(self) -> bool:
        """Tell whether the control side has given this run up."""
        if self._store is not None:
            return bool(self._store.names(f"{self._name(self._run_dir)}/{files.CANCELLED}"))
        return (self._run_dir / files.CANCELLED).exists()

    def sync(self) -> None:
        """Copy what is small and has changed: stamps, heartbeat, steps, what the ranks said. Raises StorageError."""
        if self._store is not None:
            self._push([p for p in self._run_dir.iterdir() if p.is_file() and p.stat().st_size <= LIVE_BYTES])

    def finish(self) -> None:
        """Copy logs, metrics and the traces of ranks that are kept; those of others are removed. Raises StorageError."""
        keep = {int(x) for x in self._job.get("keep_ranks") or []}
        for path in (self._run_dir / files.TRACES).glob("*") if keep else []:
            rank = RANK.search(path.name)
            if rank and int(rank.group(1)) not in keep and path.is_file():
                path.unlink()
        if self._store is not None:
            self._push([p for p in self._run_dir.rglob("*") if p.is_file()])

    def keep_saved(self) -> None:
        """Copy a checkpoint that the run saved, so that later runs find it. Raises StorageError."""
        save = self._job.get("save")
        if self._store is not None and save and Path(save).is_dir():
            self._push([p for p in Path(save).rglob("*") if p.is_file()])

    def _name(self, path: Path) -> str:
        return path.relative_to(self._base).as_posix()

    def _push(self, paths: list[Path]) -> None:
        for path in sorted(paths):
            if path.name == files.JOB or ".tmp" in path.name or path.name.startswith("."):
                continue
            with contextlib.suppress(FileNotFoundError):  # renamed meanwhile
                stat = path.stat()
                tag, name = f"{stat.st_mtime_ns}:{stat.st_size}", self._name(path)
                if self._tags.get(name) != tag and self._store is not None:
                    self._store.put(path, name)
                    self._tags[name] = tag


class _Path:
    def __init__(self, root: Path) -> None:
        self._root = root

    def names(self, prefix: str) -> dict[str, int]:
        base = self._root / prefix
        found = [base] if base.is_file() else sorted(p for p in base.rglob("*") if p.is_file())
        return {p.relative_to(self._root).as_posix(): p.stat().st_size for p in found}

    def get(self, name: str, path: Path) -> None:
        try:
            shutil.copyfile(self._root / name, path)
        except OSError as error:
            raise StorageError(f"{self._root / name}: {error.strerror or error}") from None

    def put(self, path: Path, name: str) -> None:
        target = self._root / name
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, partial)
            partial.replace(target)
        except FileNotFoundError:
            raise
        except OSError as error:
            raise StorageError(f"{target}: {error.strerror or error}") from None


class _S3:
    def __init__(self, root: str) -> None:
        bucket, _, prefix = root.removeprefix(S3).partition("/")
        self._bucket, self._prefix, self._root = bucket, prefix.strip("/"), root
        try:
            import boto3  # type: ignore[import-not-found,import-untyped,unused-ignore]
            from boto3.exceptions import Boto3Error  # type: ignore[import-not-found,import-untyped,unused-ignore]
            from botocore.exceptions import (  # type: ignore[import-not-found,import-untyped,unused-ignore]
                BotoCoreError,
                ClientError,
            )
        except ImportError:
            raise StorageError(f"{root}: the job's Python has no boto3; install it in the image") from None
        self._errors = (BotoCoreError, ClientError, Boto3Error)
        self._client = self._try(lambda: boto3.client("s3"))

    def names(self, prefix: str) -> dict[str, int]:
        found: dict[str, int] = {}
        more: dict[str, str] = {}
        while True:
            page = self._try(
                lambda more=more: self._client.list_objects_v2(Bucket=self._bucket, Prefix=f"{self._prefix}/{prefix}", **more)
            )
            found |= {x["Key"][len(self._prefix) + 1 :]: int(x["Size"]) for x in page.get("Contents", [])}
            if not page.get("IsTruncated"):
                return found
            more = {"ContinuationToken": page["NextContinuationToken"]}

    def get(self, name: str, path: Path) -> None:
        self._try(lambda: self._client.download_file(Bucket=self._bucket, Key=f"{self._prefix}/{name}", Filename=str(path)))

    def put(self, path: Path, name: str) -> None:
        self._try(lambda: self._client.upload_file(Bucket=self._bucket, Key=f"{self._prefix}/{name}", Filename=str(path)))

    def _try(self, call: Any) -> Any:
        for wait_s in (0.5, 2.0, None):
            try:
                return call()
            except self._errors as error:
                if wait_s is None:
                    raise StorageError(f"{self._root}: {' '.join(str(error).split())[:200]}") from None
                time.sleep(wait_s)
        return None
