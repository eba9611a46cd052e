"""Every file that an import reads is read here: the source itself, and what it names beside it, never outside its root."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from pathlib import Path

from attuner.core.errors import UserError
from attuner.importing.shell.values import ROOT, clean

MAX_BYTES = 1 << 20
MAX_LINE = 200_000
MAX_FILES = 64
MAX_PATH = 200
"""Characters of a path that a source names."""
LOG_BYTES = 64 << 20
"""So much of a log is searched for a dump of arguments."""


@dataclass(frozen=True)
class Source:
    """A file to import.

    name: as messages call it.
    place: its path below the root, as scripts see it.
    """

    name: str
    text: str
    place: str
    root: Path
    whole: bool = True


def open_source(path: Path, *, root: str = "") -> Source:
    """Read a source.

    Args:
        path: the file.
        root: folder that what it names must lie in; '' is the checkout it belongs to, else its own folder.

    Raises:
        UserError: it is missing, no text, or too large for what it is.
    """
    if path.is_dir():
        raise UserError(f"{path}: is a folder; name the script, manifest, log or configuration file in it")
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            data = file.read(LOG_BYTES)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except OSError as error:
        raise UserError(f"{path}: can't be read: {error.strerror}") from None
    if b"\x00" in data[:4096]:
        raise UserError(f"{path}: is no text file")
    top = _root(path, root)
    resolved = path.resolve()
    if not resolved.is_relative_to(top):
        raise UserError(f"--root {root}: {path} does not lie in it; name a folder above it")
    place = posixpath.join(ROOT, resolved.relative_to(top).as_posix())
    return Source(path.name, clean(data.decode("utf-8", "replace")), place, top, size <= LOG_BYTES)


def _root(path: Path, root: str) -> Path:
    if root:
        if not Path(root).is_dir():
            raise UserError(f"--root {root}: no such folder")
        return Path(root).resolve()
    folder = path.resolve().parent
    return next((p for p in (folder, *folder.parents) if (p / ".git").exists()), folder)


def sized(source: Source) -> str:
    """Return the text of a source that is a script or a configuration. Raises UserError for one that is too large."""
    if len(source.text) > MAX_BYTES or not source.whole:
        raise UserError(
            f"{source.name}: more than {MAX_BYTES >> 20} MiB; a script or configuration is smaller (a log: --format dump)"
        )
    if max(map(len, source.text.split("\n"))) > MAX_LINE:
        raise UserError(f"{source.name}: a line of more than {MAX_LINE} characters; that is no script or configuration")
    return source.text


class Beside:
    """Reads the files that a source names, below its root."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.read: list[str] = []

    def __call__(self, path: str, folder: str) -> tuple[str, str] | None:
        """Return a file's place and text, None if there is none below the root.

        Args:
            path: as the script names it: from its own folder, from the root, or on its author's machine, of which as much of
                the end is looked for as lies below the root.
            folder: place of the script that names it.

        Raises:
            UserError: it is too large, or there are too many.
        """
        if len(path) > MAX_PATH or not path.isprintable():
            return None
        words = [w for w in path.split("/") if w not in ("", ".")]
        tries = [path] if path.startswith(ROOT + "/") else [posixpath.join(folder, path), posixpath.join(ROOT, path)]
        if not path.startswith(ROOT + "/"):
            tries += [posixpath.join(ROOT, *words[i:]) for i in range(1, len(words) - 1)]
        for place in map(posixpath.normpath, tries):
            if not place.startswith(ROOT + "/"):
                continue
            file = (self._source.root / place.removeprefix(ROOT + "/")).resolve()
            if file.is_relative_to(self._source.root) and file.is_file():
                return place, self._text(file, place)
        return None

    def _text(self, file: Path, place: str) -> str:
        self.read.append(place.removeprefix(ROOT + "/"))
        if len(self.read) > MAX_FILES:
            raise UserError(f"{self._source.name}: names more than {MAX_FILES} files; that is no launch script")
        try:
            if file.stat().st_size > MAX_BYTES:
                raise UserError(f"{file.name}: more than {MAX_BYTES >> 20} MiB; that is no script")
            return clean(file.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            raise UserError(f"{file.name}: can't be read: {error.strerror}") from None
