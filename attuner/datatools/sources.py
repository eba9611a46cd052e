"""What is read: files and folders, told apart by name, in one fixed order, each with its digest.

A text file is one document. A line of a JSONL file is one document, the string under a key. `.gz` is unpacked on the fly.
Nothing is held but the document at hand (of a text file whose tokenizer works on bytes: a piece of it).
"""

from __future__ import annotations

import gzip
import hashlib
import os
import stat
import zlib
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from attuner.core.errors import UserError
from attuner.datatools import tally as why
from attuner.datatools.tally import Tally, shown

TEXT, JSONL, MEGATRON = "text", "jsonl", "megatron"
KINDS = (TEXT, JSONL, MEGATRON)
PIECE = 1 << 20
_JSONL = (".jsonl", ".ndjson", ".jsonl.gz", ".ndjson.gz")


@dataclass(frozen=True)
class Source:
    """One file to read (of a Megatron pair: the .bin's and .idx's common name without ending)."""

    path: Path
    kind: str

    @property
    def files(self) -> list[Path]:
        """The files that it consists of."""
        if self.kind != MEGATRON:
            return [self.path]
        return [self.path.parent / f"{self.path.name}{end}" for end in (".bin", ".idx")]


@dataclass(frozen=True)
class Text:
    """A document, or a piece of one; `last` ends it."""

    where: str
    data: bytes
    last: bool = True


class Hashed:
    """A file that is read once, with the digest of all its bytes."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb", buffering=0)
        self._digest = hashlib.sha256()
        self.num_bytes = 0

    def read(self, size: int = PIECE) -> bytes:
        """Return up to `size` bytes; b'' at the end."""
        piece = self._file.read(PIECE if size < 0 else size)
        self._digest.update(piece)
        self.num_bytes += len(piece)
        return piece

    def close(self) -> str:
        """Read what is left, close, and return the digest of the whole file."""
        while self.read():
            pass
        self._file.close()
        return self._digest.hexdigest()

    def drop(self) -> None:
        """Close without reading on."""
        self._file.close()


def find(named: list[str], tally: Tally, *, kind: str = "") -> list[Source]:
    """Return the sources under the named files and folders: names in order as given, folders in byte order of their names.

    Raises:
        UserError: one doesn't exist or can't be read, or Megatron pairs stand beside text.
    """
    out: list[Source] = []
    for name in named:
        path = Path(name)
        if path.is_dir():
            out += _inside(path, kind, tally)
        elif path.is_file():
            out.append(_source(path, kind))
        elif path.with_name(path.name + ".idx").is_file():
            out.append(Source(path, MEGATRON))
        else:
            raise UserError(f"{shown(name)}: no such file or folder")
    if not out:
        raise UserError(f"{', '.join(map(shown, named)) or 'no source'}: nothing to read in it")
    kinds = {s.kind for s in out}
    if MEGATRON in kinds and len(kinds) > 1:
        text = next(s.path for s in out if s.kind != MEGATRON)
        raise UserError(f"{shown(text)}: text can't be mixed with .bin/.idx, which hold tokens already; make two outputs")
    return out


def _inside(folder: Path, kind: str, tally: Tally) -> list[Source]:
    out: list[Source] = []
    waiting = [folder]
    while waiting:
        here = waiting.pop()
        try:
            entries = sorted(os.scandir(here), key=lambda e: os.fsencode(e.name))
        except OSError as error:
            raise UserError(f"{shown(here)}: {error.strerror or error}") from None
        below: list[Path] = []
        for entry in entries:
            path = Path(entry.path)
            if entry.name.startswith("."):
                tally.drop(why.HIDDEN, entry.path)
            elif entry.is_dir(follow_symlinks=False):
                below.append(path)
            elif entry.is_dir():
                tally.drop(why.LINKS, entry.path)
            elif not entry.is_file():
                tally.drop(why.SPECIAL, entry.path)
            else:
                out.append(_source(path, kind))
        waiting += reversed(below)
    # a pair is named by both of its files
    return list(dict.fromkeys(out))


def _source(path: Path, kind: str) -> Source:
    name = path.name
    if kind in (TEXT, JSONL):
        return Source(path, kind)
    pair = name[:-4] and name.endswith((".bin", ".idx")) and all(path.with_suffix(e).is_file() for e in (".bin", ".idx"))
    if pair:
        return Source(path.with_suffix(""), MEGATRON)
    if kind == MEGATRON:
        raise UserError(f"{shown(path)}: not one of a pair NAME.bin, NAME.idx")
    return Source(path, JSONL if name.endswith(_JSONL) else TEXT)


def size_of(path: Path) -> int:
    """Return a file's bytes.

    Raises:
        UserError: it is gone.
    """
    try:
        return path.stat().st_size
    except OSError as error:
        raise UserError(f"{shown(path)}: {error.strerror or error}") from None


def opened(path: Path) -> Hashed:
    """Open a file for one reading.

    Raises:
        UserError: it can't be read, or is no regular file.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UserError(f"{shown(path)}: not a regular file")
        return Hashed(path)
    except OSError as error:
        raise UserError(f"{shown(path)}: {error.strerror or error}") from None


def texts(source: Source, file: Hashed, tally: Tally, *, key: str, limit: int, pieces: bool) -> Generator[Text]:
    """Yield the documents of a text or JSONL file; with `pieces` a text file comes piece by piece.

    `limit` is in bytes: a longer document is left out, and never held.

    Raises:
        UserError: the file can't be read to its end, or `tally` is strict.
    """
    read: Callable[[int], bytes] = file.read
    if source.path.name.endswith(".gz"):
        read = gzip.GzipFile(fileobj=file, mode="rb").read  # type: ignore[call-overload]
    try:
        if source.kind == JSONL:
            yield from _jsonl(source.path, read, tally, key=key, limit=limit)
        elif pieces:
            yield from _pieces(source.path, read)
        else:
            yield from _whole(source.path, read, tally, limit=limit)
    except (EOFError, zlib.error, OSError) as error:
        raise UserError(f"{shown(source.path)}: can't be read to its end ({error})") from None


def _pieces(path: Path, read: Callable[[int], bytes]) -> Iterator[Text]:
    piece, ended = read(PIECE), False
    while not ended:
        following = read(PIECE)
        ended = not following
        yield Text(str(path), piece, last=ended)
        piece = following


def _whole(path: Path, read: Callable[[int], bytes], tally: Tally, *, limit: int) -> Iterator[Text]:
    held, size = [], 0
    while piece := read(PIECE):
        size += len(piece)
        if size > limit:
            tally.drop(why.TOO_LONG, str(path))
            return
        held.append(piece)
    yield Text(str(path), b"".join(held))


def _jsonl(path: Path, read: Callable[[int], bytes], tally: Tally, *, key: str, limit: int) -> Iterator[Text]:
    fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
    string = msgspec.json.Decoder(str)
    for number, line in lines(read, limit):
        where = f"{path}:{number}"
        if line is None:
            tally.drop(why.TOO_LONG, where)
            continue
        if number == 1:
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line.strip():
            continue
        try:
            found = fields.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            tally.drop(why.NOT_JSON, where)
            continue
        if key not in found:
            tally.drop(why.NO_TEXT, where)
            continue
        try:
            text = string.decode(found[key]).encode("utf-8")
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            tally.drop(why.NO_TEXT, where)
            continue
        yield Text(where, text)


def lines(read: Callable[[int], bytes], limit: int) -> Iterator[tuple[int, bytes | None]]:
    """Yield (number, line without its end), or (number, None) for one of more than `limit` bytes, which is not held."""
    number, held, size = 1, list[bytes](), 0
    while piece := read(PIECE):
        first, *others = piece.split(b"\n")
        held.append(first)
        size += len(first)
        if size > limit:
            held = []
        if not others:
            continue
        yield number, b"".join(held) if size <= limit else None
        for line in others[:-1]:
            number += 1
            yield number, line if len(line) <= limit else None
        number += 1
        held, size = [others[-1]], len(others[-1])
    if size:
        yield number, b"".join(held) if size <= limit else None
