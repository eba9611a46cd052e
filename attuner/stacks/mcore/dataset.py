"""Rows of real text that every machine has: the sources of Python's standard library, as bytes, in fixed-length rows.

The rows are written once per campaign and frozen with a digest: sources differ between Python versions, so the digest is
computed at birth, and every run checks it before it trains.
"""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

from attuner.core.errors import UserError
from attuner.runner import files

NAME = "python-stdlib"
VOCABULARY = 256


def freeze(dataset: str, folder: Path, *, seq_len: int, num_rows: int) -> str:
    """Write `num_rows` rows of `seq_len` + 1 byte tokens under `folder` once; return `python-stdlib@sha256:…`.

    A row has one token more than the sequence: the last token's label.

    Raises:
        UserError: another dataset is named, its digest differs, or the sources are too short.
    """
    name, _, wanted = dataset.partition("@")
    if name != NAME:
        raise UserError(f"workload.dataset: {name}: the mcore stack makes only {NAME}")
    rows, meta = folder / "rows.bin", folder / "rows.json"
    if not (rows.exists() and meta.exists()):
        text = _text(num_rows * (seq_len + 1))
        folder.mkdir(parents=True, exist_ok=True)
        rows.write_bytes(text)
        files.write_json(
            meta,
            {
                "num_rows": num_rows,
                "seq_len": seq_len,
                "vocab_size": VOCABULARY,
                "sha256": hashlib.sha256(text).hexdigest(),
                "source": f"standard library of Python {sysconfig.get_python_version()}",
            },
        )
    digest = hashlib.sha256(rows.read_bytes()).hexdigest()
    if wanted and wanted != f"sha256:{digest}":
        raise UserError(f"workload.dataset: the rows made here have sha256:{digest[:12]}…, the file says {wanted[:19]}…")
    return f"{NAME}@sha256:{digest}"


def _text(length: int) -> bytes:
    """Return the first bytes of the library's sources in name order; the packages' sources follow its top level."""
    library = Path(sysconfig.get_path("stdlib"))
    found = bytearray()
    for source in [*sorted(library.glob("*.py")), *sorted(library.glob("*/*.py"))]:
        if "site-packages" in source.parts:
            continue
        found += source.read_bytes()
        if len(found) >= length:
            return bytes(found[:length])
    raise UserError(f"workload: {length} tokens are asked for, the standard library has {len(found)}; take fewer steps or rows")
