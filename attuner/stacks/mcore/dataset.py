"""The rows of a campaign: text that every machine has (the sources of Python's standard library, as bytes), or a folder that
`attuner data rows` wrote.

They are put into the campaign's folder once and frozen with a digest: sources differ between Python versions, so the digest is
computed at birth, and every run checks it before it trains.
"""

from __future__ import annotations

import hashlib
import shutil
import sysconfig
from pathlib import Path

from attuner.core.errors import UserError
from attuner.datatools.frozen import ABOUT, ROWS, open_rows
from attuner.runner import files

NAME = "python-stdlib"
VOCABULARY = 256


def freeze(dataset: str, folder: Path, *, seq_len: int, num_rows: int) -> str:
    """Put `num_rows` rows of `seq_len` + 1 tokens under `folder` once; return `name@sha256:…`.

    A row has one token more than the sequence: the last token's label.

    Args:
        dataset: python-stdlib, or a folder of rows; with `@sha256:…` behind it where the digest is stated.

    Raises:
        UserError: there is no such dataset, its digest or its shape differs, or there are too few rows.
    """
    name, _, stated = dataset.rpartition("@sha256:") if "@sha256:" in dataset else (dataset, "", "")
    wanted = f"sha256:{stated}" if stated else ""
    if name != NAME:
        return _own(Path(name), wanted, folder, seq_len=seq_len, num_rows=num_rows)
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


def _own(given: Path, wanted: str, folder: Path, *, seq_len: int, num_rows: int) -> str:
    """Put a folder of rows beside the campaign's other inputs, verified; `rows.json` has the digest of what was made."""
    where = f"workload.dataset: {given}"
    if not (given / ABOUT).is_file():
        raise UserError(f"{where}: neither {NAME} nor a folder of rows; `attuner data rows SOURCE -o {given}` makes one")
    rows = open_rows(given)
    if rows.mask is not None or rows.used is not None:
        raise UserError(f"{where}: has a loss mask or padding; stack mcore's rules hold for rows in which every label counts")
    if rows.seq_len != seq_len or len(rows.rows) < num_rows:
        raise UserError(f"{where}: {len(rows.rows)} rows of {rows.seq_len} tokens, the campaign needs {num_rows} of {seq_len}")
    found = f"sha256:{rows.about['sha256']}"
    if wanted and wanted != found:
        raise UserError(f"{where}: has {found[:19]}…, the file says {wanted[:19]}…")
    folder.mkdir(parents=True, exist_ok=True)
    for name in (ROWS, ABOUT):
        if not (folder / name).exists():
            part = folder / f"{name}.part"
            shutil.copyfile(given / name, part)
            part.replace(folder / name)
    return f"{given}@{found}"


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
