"""Writes the files of a site into a folder: each atomically, only those that changed, and nothing that others put there.

`site-files.json` in the folder names what was written. A file that isn't named there is somebody else's: it is neither replaced
nor removed.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from attuner.core.errors import UserError

LIST = "site-files.json"


def write_site(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Write the files (path inside the folder → text) in their order; return the paths of those that changed.

    Pages that an earlier site had and this one has not are removed, if they are still as they were written.

    Raises:
        UserError: a path would leave the folder, something in the way was not written here, or the disk refuses.
    """
    try:
        return _write(folder, files)
    except OSError as error:
        raise UserError(f"{error.filename or folder}: can't be written ({error.strerror}); name another folder") from error


def _write(folder: Path, files: Mapping[str, str]) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    known = _known(folder)
    for name in files:
        _check(folder, name, ours=name in known)
    digests = {name: _digest(text.encode("utf-8")) for name, text in files.items()}
    # first the names: after a crash between two files everything written is known as ours
    _replace(folder / LIST, _listed({**known, **digests}))
    changed = [path for name, text in files.items() if _replace(path := folder / name, text)]
    for name in sorted(known.keys() - files.keys()):
        _remove(folder, name, known[name])
    _replace(folder / LIST, _listed(digests))
    return changed


def _known(folder: Path) -> dict[str, str]:
    """Return the files that were written here before, with their digests."""
    path = folder / LIST
    if path.is_symlink():
        raise UserError(f"{path}: a link; name another folder")
    if not path.exists():
        return {}
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): str(digest) for name, digest in data["files"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a list of a site's files; remove it or name another folder") from error


def _listed(digests: Mapping[str, str]) -> str:
    return json.dumps({"written_by": "attuner board --html", "files": dict(sorted(digests.items()))}, indent=1) + "\n"


def _inside(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return bool(parts) and not PurePosixPath(name).is_absolute() and ".." not in parts and "\\" not in name and "\0" not in name


def _check(folder: Path, name: str, *, ours: bool) -> None:
    """Refuse a path that leaves the folder, and a file of somebody else's."""
    if not _inside(name):
        raise UserError(f"{name!r}: not a path inside {folder}")
    path = folder / name
    for parent in path.relative_to(folder).parents:
        if (folder / parent).is_symlink() and parent != Path():
            raise UserError(f"{folder / parent}: a link out of the site; name another folder")
    if os.path.lexists(path) and (not ours or path.is_dir()):
        raise UserError(f"{path}: not written by attuner board; move it away or name another folder")


def _replace(path: Path, text: str) -> bool:
    """Write one file atomically; return False, and touch nothing, if it holds this text already."""
    content = text.encode("utf-8")
    if path.is_file() and not path.is_symlink() and path.read_bytes() == content:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.draft")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return True


def _remove(folder: Path, name: str, digest: str) -> None:
    """Remove a page of an earlier site, unless somebody changed it since."""
    if not _inside(name) or any((folder / p).is_symlink() for p in Path(name).parents if p != Path()):
        return
    path = folder / name
    if path.is_file() and not path.is_symlink() and _digest(path.read_bytes()) == digest:
        path.unlink()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
