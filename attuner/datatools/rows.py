"""`attuner data rows`: documents to fixed-length rows in a folder that a run, Megatron and the other data tools read.

Same input, same options, same version: the same bytes. A row has seq_len + 1 tokens, the last one's label included.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from attuner import __version__
from attuner.core.errors import UserError
from attuner.datatools import frozen
from attuner.datatools.megatron_index import write_index
from attuner.datatools.output import new_folder
from attuner.datatools.packing import Block, EndToEnd, OneByOne, Packed, Packer
from attuner.datatools.stream import AUTO, NONE, Progress, Reading, Stream, open_stream
from attuner.datatools.tally import shown

CONCATENATE, DOCUMENT = "concatenate", "document"
PACKS, LONGS, FORMATS = (CONCATENATE, DOCUMENT), ("cut", "split", "drop"), ("rows", "megatron", "gpt")
_GATHER_BYTES = 1 << 20


@dataclass(frozen=True)
class Layout:
    """How tokens become rows."""

    seq_len: int
    pack: str = CONCATENATE
    long: str = "cut"
    """Documents longer than a row, where each has its own: cut, split over several, or drop."""
    pad: str = AUTO
    shuffle: int | None = None
    """Seed; None: the order of the sources."""
    num_rows: int | None = None
    """Stop after so many."""
    format: str = "rows"
    """`megatron`: rows.idx makes rows.bin a Megatron file with a sequence a row. `gpt`: rows overlap by one token, and
    stream.bin/.idx hold them as one sequence, of which Megatron's GPTDataset cuts exactly these rows."""


class _File:
    """A file under way with its digest."""

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("wb")
        self._digest = hashlib.sha256()

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *args: object) -> None:
        self._file.close()

    def write(self, array: npt.NDArray[Any]) -> None:
        self.write_bytes(array.tobytes())

    def write_bytes(self, raw: bytes) -> None:
        self._digest.update(raw)
        self._file.write(raw)

    @property
    def started(self) -> bool:
        return self._file.tell() > 0

    def sha256(self) -> str:
        return self._digest.hexdigest()


def make_rows(
    named: list[str],
    out: Path,
    reading: Reading,
    layout: Layout,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Write the folder `out` and return what its rows.json says.

    Raises:
        UserError: a source, the tokenizer or an option can't be used, nothing fills a row, or the disk is full.
        Refused: another process writes `out`.
    """
    if not 1 <= layout.seq_len <= 1 << 24:
        raise UserError(f"--seq-len {layout.seq_len}: 1 to {1 << 24}")
    if layout.num_rows is not None and layout.num_rows < 1:
        raise UserError(f"--num-rows {layout.num_rows}: at least 1")
    for name in named:
        if Path(name).is_dir() and out.resolve().is_relative_to(Path(name).resolve()):
            raise UserError(f"{out}: lies in the source {shown(name)}, and the next time would be read; name a folder outside")
    if layout.format == "gpt" and (layout.pack != CONCATENATE or layout.shuffle is not None):
        raise UserError("--format gpt: rows stand end to end and unshuffled (Megatron shuffles them by its own seed)")
    with new_folder(out, mark=frozen.ABOUT, force=force) as part:
        pads = (layout.pad,) if layout.pack == DOCUMENT else ()
        stream = open_stream(named, reading, progress=progress, specials=pads)
        pad = _pad(stream, layout)
        # --dataloader-fast-cache-load takes the type from the vocabulary, and knows uint16 and int32 only
        least = 0 if layout.format == "rows" else (1 << 8) + 1
        dtype = frozen.dtype_for(max(stream.coding.vocab_size, least))
        packer = _packer(layout, dtype, pad)
        about: dict[str, Any] = {"seq_len": layout.seq_len, "dtype": dtype, "pad": pad, "eos": stream.coding.eos}
        about |= _write(part, stream, packer, layout, dtype)
        about["megatron"] = _index(part, layout, dtype, about["num_rows"])
        about |= _provenance(part, named, stream, layout, packer.packed)
        about = {k: v for k, v in about.items() if v is not None}
        (part / frozen.ABOUT).write_text(frozen.document(about), encoding="utf-8")
    return about


def _index(part: Path, layout: Layout, dtype: str, num_rows: int) -> dict[str, Any] | None:
    """Write the index that Megatron asks for; return the prefix and the digest under which the stack `megatron` freezes it."""
    if layout.format == "rows":
        return None
    whole = layout.format == "gpt"
    data, index = (frozen.STREAM, frozen.STREAM_INDEX) if whole else (frozen.ROWS, frozen.ROWS_INDEX)
    sequences, tokens = (1, num_rows * layout.seq_len + 1) if whole else (num_rows, layout.seq_len + 1)
    with (part / index).open("wb") as file:
        write_index(file, dtype, num_rows=sequences, width=tokens)
    found = frozen.digest_of(frozen.sha256_of(part / name) for name in (data, index))
    return {"prefix": data.removesuffix(".bin"), "sha256": found}


def _pad(stream: Stream, layout: Layout) -> int | None:
    if layout.pack != DOCUMENT:
        return None
    coding = stream.coding
    own = coding.tokenizer.pad if coding.tokenizer else None
    pad = coding.special(layout.pad, own if own is not None else coding.eos, "--pad")
    if pad is None:
        raise UserError("--pad: one document a row needs a padding token; the tokenizer names none: give its id")
    if pad >= coding.vocab_size:
        raise UserError(f"--vocab-size {coding.vocab_size}: the padding token {pad} is not below it; take another --pad")
    stream.max_id = max(stream.max_id, pad)
    return pad


def _packer(layout: Layout, dtype: str, pad: int | None) -> Packer:
    width = layout.seq_len + 1
    if pad is None:
        return EndToEnd(width, dtype, limit=layout.num_rows, overlap=layout.format == "gpt")
    return OneByOne(width, dtype, pad=pad, long=layout.long, limit=layout.num_rows)


def _write(part: Path, stream: Stream, packer: Packer, layout: Layout, dtype: str) -> dict[str, Any]:
    """Write rows.bin and used.bin; return number of rows and digests."""
    plain = "" if layout.shuffle is None else ".plain"
    padded = layout.pack == DOCUMENT
    with (
        _File(part / (frozen.ROWS + plain)) as rows,
        _File(part / (frozen.USED + plain)) as used,
        _File(part / frozen.STREAM) as whole,
        closing(_blocks(stream, packer)) as blocks,
    ):
        for block in blocks:
            if layout.format == "gpt":
                whole.write(block.rows[:, 1:] if rows.started else np.append(block.rows[0, :1], block.rows[:, 1:]))
            rows.write(block.rows)
            if block.used is not None:
                used.write(block.used)
            if packer.packed.num_rows == layout.num_rows:
                break
    digests = rows.sha256(), used.sha256()
    num_rows = packer.packed.num_rows
    if not num_rows:
        raise UserError(
            f"no row: {stream.tally.num_documents} documents gave {packer.packed.tokens} tokens, a row takes {layout.seq_len + 1}"
            f"{stream.tally.why()}"
        )
    if layout.shuffle is not None:
        order = row_order(layout.shuffle, num_rows)
        digests = (
            _gather(part, frozen.ROWS, order, dtype, layout.seq_len + 1),
            _gather(part, frozen.USED, order, "int32", 1) if padded else "",
        )
        (part / f"{frozen.USED}.plain").unlink(missing_ok=True)
    if not padded:
        (part / frozen.USED).unlink(missing_ok=True)
    if layout.format != "gpt":
        (part / frozen.STREAM).unlink()
    return {"num_rows": num_rows, "sha256": digests[0], "used_sha256": digests[1] if padded else None}


def _blocks(stream: Stream, packer: Packer) -> Generator[Block]:
    with closing(stream.pieces()) as pieces:
        for tokens, last in pieces:
            yield from packer.add(tokens, last=last)
    yield from packer.end()


def row_order(seed: int, num_rows: int) -> npt.NDArray[np.int64]:
    """Return the order of shuffled rows: by a hash (splitmix64) of seed and number, the same on every machine and version."""
    with np.errstate(over="ignore"):
        x = np.arange(num_rows, dtype=np.uint64) + np.uint64(seed % (1 << 64)) * np.uint64(0x9E3779B97F4A7C15)
        for _ in range(2):
            x += np.uint64(0x9E3779B97F4A7C15)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x ^= x >> np.uint64(31)
    return np.argsort(x, kind="stable")


def _gather(part: Path, name: str, order: npt.NDArray[np.int64], dtype: str, width: int) -> str:
    """Write a file's rows in another order and remove the old one."""
    plain = part / f"{name}.plain"
    size = width * np.dtype(dtype).itemsize
    step = max(1, _GATHER_BYTES // size)
    with _File(part / name) as file, plain.open("rb", buffering=0) as found:
        for at in range(0, len(order), step):
            # read, not mapped: pages of a mapping would pile up in memory
            places = order[at : at + step].tolist()
            file.write_bytes(b"".join(os.pread(found.fileno(), size, place * size) for place in places))
    plain.unlink()
    return file.sha256()


def _provenance(part: Path, named: list[str], stream: Stream, layout: Layout, packed: Packed) -> dict[str, Any]:
    """Write the list of sources; return what rows.json says of the making."""
    coding, stopped = stream.coding, layout.num_rows is not None and packed.num_rows == layout.num_rows
    listed = "".join(_sum_line(digest, path) for digest, path in stream.digests)
    (part / frozen.SOURCES).write_bytes(listed.encode("utf-8", "surrogateescape"))
    tokenizer = coding.tokenizer.about() if coding.tokenizer else {"name": "none: the sources hold tokens"}
    vocab_size = coding.vocab_size if coding.declared else stream.max_id + 1
    return {
        "vocab_size": vocab_size,
        "source": f"{len(stream.digests)} files, {tokenizer['name']}",
        "made": {
            "by": f"attuner {__version__} data rows",
            "reading": {k: v for k, v in asdict(stream.reading).items() if k != "allow_download"},
            "layout": asdict(layout),
            "tokenizer": tokenizer,
            "sources": {
                "named": [shown(n) for n in named],
                "files": len(stream.digests),
                "list": frozen.SOURCES,
                "sha256": frozen.sha256_of(part / frozen.SOURCES),
            },
            "counts": {**stream.tally.data(), **asdict(packed), "stopped_at_num_rows": stopped},
        },
    }


def _sum_line(digest: str, path: Path) -> str:
    """Return a line as `sha256sum` writes and checks it."""
    name = str(path)
    if "\\" in name or "\n" in name:
        return f"\\{digest}  {name.replace(chr(92), chr(92) * 2).replace(chr(10), chr(92) + 'n')}\n"
    return f"{digest}  {name}\n"


__all__ = ["AUTO", "FORMATS", "LONGS", "NONE", "PACKS", "Layout", "make_rows", "row_order"]
