"""Finished or absent: an output folder is filled under another name, and gets its own by one rename when all is on disk.

`.NAME.part` beside it is the folder at work; whoever writes holds a lock on it, and what a killed writer left there is
wiped by the next one. An output that exists is never touched without `force`, and with it only if it is one of ours.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from attuner.core.errors import Refused, UserError


@contextmanager
def new_folder(out: Path, *, mark: str, force: bool = False) -> Iterator[Path]:
    """Yield an empty folder to fill; on a clean exit it becomes `out`, on an error nothing of it is left.

    `mark` is the file that tells that an existing folder was made by this tool and may be replaced with `force`.

    Raises:
        UserError: `out` exists (or is not ours), can't be made, or the disk is full.
        Refused: another process writes it right now.
    """
    _may_replace(out, mark, force=force)
    part = out.parent / f".{out.name}.part"
    with writing(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        part.mkdir(exist_ok=True)
        lock = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise Refused(f"{out}: another process is writing it") from None
        try:
            with writing(out):
                _empty(part)
                yield part
                _sync(part)
                _commit(part, out, mark, force=force)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
    finally:
        os.close(lock)


@contextmanager
def writing(out: Path) -> Iterator[None]:
    """Turn what the disk says into one line about `out`.

    Raises:
        UserError: any OSError inside.
    """
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        what = "no room left; nothing was kept" if full else "can't be written"
        raise UserError(f"{out}: {what} ({error.strerror or error})") from None


def _may_replace(out: Path, mark: str, *, force: bool) -> None:
    if not out.name or out.name in (".", ".."):
        raise UserError(f"{out}: name a new folder")
    if not (out.exists() or out.is_symlink()):
        return
    if out.is_symlink() or not out.is_dir():
        raise UserError(f"{out}: exists and is no folder; name another one")
    if not any(out.iterdir()):
        return
    if not (out / mark).is_file():
        raise UserError(f"{out}: exists and holds no {mark}, so it isn't replaced; name another folder")
    if not force:
        raise UserError(f"{out}: exists; --force replaces it")


def _empty(part: Path) -> None:
    for old in part.iterdir():
        if old.is_dir() and not old.is_symlink():
            shutil.rmtree(old)
        else:
            old.unlink()


def _sync(folder: Path) -> None:
    """Bring a folder and its files to the disk, so that the rename never comes before them."""
    for path in [*folder.iterdir(), folder]:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def _commit(part: Path, out: Path, mark: str, *, force: bool) -> None:
    _may_replace(out, mark, force=force)
    old = out.parent / f".{out.name}.old"
    shutil.rmtree(old, ignore_errors=True)
    if out.exists():
        out.rename(old)
    part.rename(out)
    shutil.rmtree(old, ignore_errors=True)
