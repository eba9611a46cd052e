"""The framework's pinned source, for reading: files by path and by pattern, never outside its folders. What a proposer cites is
looked up here by fixed code, and what it reads comes from here too."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from attuner.core.errors import UserError

MAX_FILE_BYTES = 2_000_000
SUFFIXES = frozenset({".py", ".md", ".txt", ".yaml", ".yml", ".toml", ".sh", ".json", ".cpp", ".cu", ".h"})
MAX_PATTERN = 200
LONGEST_LINE = 300


def head_commit(folder: str) -> str:
    """Return the commit that a git checkout is at, from git's own files; '' where it is no checkout."""
    git = Path(folder) / ".git" if folder else Path()
    try:
        if git.is_file():  # a work tree of a repository elsewhere
            git = (git.parent / git.read_text(encoding="utf-8").partition(":")[2].strip()).resolve()
        head = (git / "HEAD").read_text(encoding="utf-8").strip()
        name = head.removeprefix("ref: ")
        if name == head:
            return head
        common = git / "commondir"
        for root in (git, (git / common.read_text(encoding="utf-8").strip()).resolve() if common.exists() else git):
            if (root / name).is_file():
                return (root / name).read_text(encoding="utf-8").strip()
            if (root / "packed-refs").is_file():
                lines = (root / "packed-refs").read_text(encoding="utf-8").splitlines()
                found = next((line.split()[0] for line in lines if line.endswith(f" {name}")), "")
                if found:
                    return found
    except OSError:
        pass
    return ""


class Source:
    """Folders, read together; a path is relative to one of them, or begins with the folder's own last names."""

    def __init__(self, folders: str) -> None:
        """Open the folders, joined as in PATH."""
        self.roots = [Path(p).resolve() for p in folders.split(os.pathsep) if p]

    def path(self, name: str) -> Path | None:
        """Return the file that a path names, or None: it does not exist, or lies outside."""
        if "\0" in name:
            return None
        for root in self.roots:
            for relative in _relatives(name, root):
                found = (root / relative).resolve()
                if found.is_relative_to(root) and found.suffix in SUFFIXES and found.is_file():
                    return found
        return None

    def lines(self, name: str) -> list[str] | None:
        """Return the lines of a file; None where there is no such file, or it is no text of a bearable size."""
        found = self.path(name)
        if found is None or found.stat().st_size > MAX_FILE_BYTES:
            return None
        return found.read_text(encoding="utf-8", errors="replace").splitlines()

    def names(self) -> Iterator[tuple[str, Path]]:
        """Yield every file as (name, path), in order; a name begins with the last two names of its folder."""
        for root in self.roots:
            prefix = "/".join(root.parts[-2:])
            for folder, inner, files in os.walk(root):
                inner[:] = sorted(d for d in inner if not d.startswith((".", "__pycache__")))
                for file in sorted(files):
                    path = Path(folder) / file
                    if path.suffix in SUFFIXES and not path.is_symlink():
                        yield f"{prefix}/{path.relative_to(root).as_posix()}", path

    def grep(self, pattern: str, *, under: str = "", limit: int = 60) -> list[str]:
        """Return `file:line: text` of lines that a regular expression fits, at most `limit` of them.

        Raises:
            UserError: the expression is too long or none.
        """
        if len(pattern) > MAX_PATTERN:
            raise UserError(f"pattern: longer than {MAX_PATTERN} characters")
        try:
            wanted = re.compile(pattern)
        except re.error as error:
            raise UserError(f"pattern: {error}") from None
        found: list[str] = []
        for name, path in self.names():
            if under and under.strip("/") not in name:
                continue
            if path.stat().st_size > MAX_FILE_BYTES:
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
                if wanted.search(line[:LONGEST_LINE]):
                    found.append(f"{name}:{number}: {line.strip()[:LONGEST_LINE]}")
                    if len(found) >= limit:
                        return found
        return found


def _relatives(name: str, root: Path) -> Iterator[str]:
    """Yield the path as given, and without what it repeats of the end of the folder's own path."""
    yield name
    for count in (1, 2):
        prefix = "/".join(root.parts[-count:]) + "/"
        if name.startswith(prefix):
            yield name.removeprefix(prefix)
