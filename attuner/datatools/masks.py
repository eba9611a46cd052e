"""`attuner data masks`: which labels of rows count in the loss, and what the masks mean for changes of the micro batch.

Label j of a row is token j + 1, read after tokens 0 … j. A label counts if every asked-for condition lets it:
 - no padding: the label is one of the row's own tokens;
 - no document ends: the token that is read is not the end token (as Megatron's --eod-mask-loss does: what follows an end
   token belongs to another document);
 - after a marker, until an end: the label lies behind a marker's last token, up to and with the end's last token.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attuner import __version__
from attuner.core.errors import UserError
from attuner.datatools import frozen
from attuner.datatools.output import writing
from attuner.datatools.tokenizers import load

Tokens = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
_BLOCK_TOKENS = 1 << 17
EVEN, UNEVEN = "even", "uneven"
"""As `fact:loss_masks` of the rules."""


@dataclass(frozen=True)
class Keep:
    """Which labels count; none of these: all of them."""

    no_padding: bool = False
    no_document_ends: bool = False
    after: str = ""
    """Marker: text, or token ids as `ids:1,2,3`."""
    until: str = ""


@dataclass(frozen=True)
class Masked:
    """What the masks came to."""

    num_rows: int
    num_labels: int
    loss_tokens: int
    fewest: int
    most: int
    empty_rows: int
    """Rows without any loss token."""
    padding_counts: bool
    """Rows are padded, and padding counts in the loss."""
    sha256: str

    @property
    def uniform(self) -> str:
        """`even` if every row has the same number of loss tokens, else `uneven`."""
        return EVEN if self.fewest == self.most else UNEVEN


def make_masks(folder: Path, keep: Keep, *, force: bool = False, tokenizer: str = "") -> Masked:
    """Write `folder`/mask.bin and name it in rows.json.

    Raises:
        UserError: the rows don't fit the wish, there is a mask already, or the disk is full.
    """
    rows = frozen.open_rows(folder, with_mask=False)
    if "mask_sha256" in rows.about and not force:
        raise UserError(f"{folder}: has masks already; --force replaces them")
    marks = _marks(rows, keep, tokenizer)
    if keep.no_padding and rows.used is None:
        raise UserError(f"{folder}: --no-padding: these rows have no padding")
    if keep.no_document_ends and rows.about.get("eos") is None:
        raise UserError(f"{folder}: --no-document-ends: these rows were made without an end token")
    part = folder / f"{frozen.MASK}.part"
    counts: Counter[int] = Counter()
    with writing(folder):
        try:
            sha256 = _write(part, rows, keep, marks, counts)
            masked = _summed(rows, keep, counts, sha256)
            about = {**rows.about, "mask_sha256": sha256, "masks": _made(masked, keep, marks)}
            new = folder / f"{frozen.ABOUT}.part"
            new.write_text(frozen.document(about), encoding="utf-8")
            # mask.bin first: until rows.json names this digest, readers see no mask, or refuse it
            part.replace(folder / frozen.MASK)
            new.replace(folder / frozen.ABOUT)
        except BaseException:
            part.unlink(missing_ok=True)
            (folder / f"{frozen.ABOUT}.part").unlink(missing_ok=True)
            raise
    return masked


def _marks(rows: frozen.Frozen, keep: Keep, tokenizer: str) -> tuple[Tokens | None, Tokens | None]:
    if keep.until and not keep.after:
        raise UserError("--until: needs --after, where the loss begins")
    after, until = (_tokens(rows, told, flag, tokenizer) for told, flag in ((keep.after, "--after"), (keep.until, "--until")))
    return after, until


def _tokens(rows: frozen.Frozen, told: str, flag: str, tokenizer: str) -> Tokens | None:
    """Return the token ids of a marker."""
    if not told:
        return None
    if told.startswith("ids:"):
        words = told[4:].split(",")
        if not all(w.strip().isdecimal() for w in words):
            raise UserError(f"{flag} {told}: token ids as ids:1,2,3")
        found = np.array([int(w) for w in words], np.int64)
    else:
        made: dict[str, Any] = rows.about.get("made", {}).get("tokenizer", {})
        name = tokenizer or str(made.get("name", ""))
        if not name or name.startswith("none"):
            raise UserError(f"{flag} {told}: these rows name no tokenizer; give the marker as ids:1,2,3")
        loaded = load(name)
        if loaded.about().get("sha256") != made.get("sha256"):
            raise UserError(f"{flag} {told}: --tokenizer {name} is not the one that the rows were made with")
        alone = loaded.id_of(told)
        [encoded] = loaded.encode([told.encode()])
        found = np.array([alone], np.int64) if alone is not None else np.asarray(encoded, np.int64)
    if not len(found) or len(found) > rows.seq_len or int(found.max()) >= int(rows.about["vocab_size"]):
        raise UserError(f"{flag} {told}: tokens {found.tolist()} can't stand in these rows")
    return found


def _write(part: Path, rows: frozen.Frozen, keep: Keep, marks: tuple[Tokens | None, Tokens | None], counts: Counter[int]) -> str:
    digest = hashlib.sha256()
    with part.open("wb") as file:
        for block, used in rows.blocks(_BLOCK_TOKENS):
            kept = block_mask(block, used, keep, marks, eos=rows.about.get("eos"))
            values, times = np.unique(kept.sum(axis=1), return_counts=True)
            counts.update(dict(zip(values.tolist(), times.tolist(), strict=True)))
            raw = kept.astype(np.uint8).tobytes()
            digest.update(raw)
            file.write(raw)
    return digest.hexdigest()


def block_mask(
    rows: Tokens, used: Tokens | None, keep: Keep, marks: tuple[Tokens | None, Tokens | None], *, eos: int | None
) -> Bools:
    """Return which labels of some rows (rows, width) count: (rows, width − 1)."""
    kept = np.ones((len(rows), rows.shape[1] - 1), np.bool_)
    if keep.no_padding and used is not None:
        kept &= np.arange(1, rows.shape[1])[None, :] < used[:, None]
    if keep.no_document_ends:
        kept &= rows[:, :-1] != eos
    after, until = marks
    if after is not None:
        kept &= _spans(rows, after, until)[:, 1:]
    return kept


def _spans(rows: Tokens, after: Tokens, until: Tokens | None) -> Bools:
    """Return which tokens lie behind a marker, up to and with the next end."""
    opens = _found(rows, after)
    if until is None:
        seen = np.maximum.accumulate(opens, axis=1)
        return np.concatenate([np.zeros((len(rows), 1), np.bool_), seen[:, :-1]], axis=1)
    closes = _found(rows, until)
    place = np.arange(rows.shape[1])[None, :]
    # the last marker's end and the last end's end before each token: inside while the marker is the later one
    opened = np.maximum.accumulate(np.where(opens, place, -1), axis=1)
    closed = np.maximum.accumulate(np.where(closes, place, -1), axis=1)
    before = [np.concatenate([np.full((len(rows), 1), -1), x[:, :-1]], axis=1) for x in (opened, closed)]
    return np.asarray(before[0] > before[1])


def _found(rows: Tokens, pattern: Tokens) -> Bools:
    """Return the tokens at which an occurrence of the pattern ends."""
    ends = np.zeros(rows.shape, np.bool_)
    n = len(pattern)
    hit = np.ones((len(rows), rows.shape[1] - n + 1), np.bool_)
    for k, token in enumerate(pattern.tolist()):
        hit &= rows[:, k : k + hit.shape[1]] == token
    ends[:, n - 1 :] = hit
    return ends


def _summed(rows: frozen.Frozen, keep: Keep, counts: Counter[int], sha256: str) -> Masked:
    total = sum(n * times for n, times in counts.items())
    if not total:
        raise UserError(f"{rows.folder}: no label would count: no row has a loss token")
    return Masked(
        num_rows=len(rows.rows),
        num_labels=len(rows.rows) * rows.seq_len,
        loss_tokens=total,
        fewest=min(counts),
        most=max(counts),
        empty_rows=counts.get(0, 0),
        padding_counts=rows.used is not None and not keep.no_padding and bool((rows.used[:] <= rows.seq_len).any()),
        sha256=sha256,
    )


def _made(masked: Masked, keep: Keep, marks: tuple[Tokens | None, Tokens | None]) -> dict[str, Any]:
    wish = {k: v for k, v in vars(keep).items() if v}
    ids = {name: m.tolist() for name, m in zip(("after", "until"), marks, strict=True) if m is not None}
    found = {k: v for k, v in vars(masked).items() if k != "sha256"}
    return {"by": f"attuner {__version__} data masks", "keep": wish, "ids": ids, "loss_masks": masked.uniform, **found}


def consequence(masked: Masked) -> list[str]:
    """Return what the masks mean for a campaign, a sentence each.

    Source: rules/megatron/conditional.yaml MEG-CND-060, 062, 063 (Megatron divides each micro-batch by its own loss tokens
    and then averages).
    """
    out = []
    if masked.uniform == EVEN:
        out.append(
            "equally many loss tokens in every row (fact:loss_masks even): another micro batch weighs each token as before"
        )
    else:
        out.append(
            "unequal numbers of loss tokens (fact:loss_masks uneven): another micro batch weighs tokens otherwise, so the gate "
            "refuses it unless calculate_per_token_loss is on"
        )
    if masked.empty_rows:
        out.append(
            f"{masked.empty_rows:,} rows have no loss token: a micro-batch of only such rows adds nothing but is averaged in"
        )
    if masked.padding_counts:
        out.append("padding counts in the loss; --no-padding leaves it out")
    return out
