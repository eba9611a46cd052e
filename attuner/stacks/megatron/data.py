"""The data of a campaign on Megatron-LM: which files the baseline reads, and one digest of them. Nothing is made here: rows come
from `attuner data rows`, or are what the recipe reads anyway."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from attuner.core.base import Value
from attuner.core.campaign import Campaign
from attuner.core.errors import UserError
from attuner.core.recipe import EffectiveConfig
from attuner.datatools.frozen import digest_of, sha256_of

log = logging.getLogger(__name__)
MOCK = "mock"
ENDINGS = (".bin", ".idx")


def freeze(campaign: Campaign, baseline: EffectiveConfig) -> str:
    """Return `name@sha256:…` of what the baseline reads.

    Mock data follow from the arguments, so their digest is one of those. Of files it is one of all .bin and .idx files in the
    order of the arguments. Files that can't be seen from here keep the digest that the campaign states.

    Raises:
        UserError: the digest is another than the one stated, or there are no files and none is stated.
    """
    name, _, stated = campaign.workload.dataset.partition("@")
    arguments, where = baseline.arguments, f"{campaign.source_file}: workload.dataset"
    if arguments.get("mock_data"):
        if name != MOCK:
            raise UserError(f"{where}: {name}: the baseline has mock_data; name it {MOCK}")
        shape = {key: arguments.get(key) for key in ("seq_length", "vocab_size", "tokenizer_type", "seed", "split")}
        found = hashlib.sha256(repr(sorted(shape.items())).encode()).hexdigest()
    else:
        files = [Path(prefix + ending) for prefix in prefixes(arguments) for ending in ENDINGS]
        missing = [file for file in files if not file.is_file()]
        if not files:
            raise UserError(f"{where}: the baseline names neither data_path, train_data_path nor mock_data")
        if missing and not stated:
            raise UserError(f"{where}: {missing[0]}: not seen from here; state {name}@sha256:… (`attuner data rows` writes it)")
        if missing:
            log.warning("%s: %s is not seen from here: the stated digest is taken on trust", where, missing[0])
            return campaign.workload.dataset
        found = digest(files)
    if stated and stated != f"sha256:{found}":
        raise UserError(f"{where}: what the baseline reads has sha256:{found[:12]}…, the file says {stated[:19]}…")
    return f"{name}@sha256:{found}"


def prefixes(arguments: dict[str, Value]) -> list[str]:
    """Return the data files' prefixes, in order; weights between them are left out.

    Source: megatron/training/arguments.py (data_path and its kin: [weight prefix]… or prefix…).
    """
    words: list[str] = []
    for name in ("data_path", "train_data_path"):
        value = arguments.get(name)
        words += [str(x) for x in (value if isinstance(value, list) else [value]) if x is not None]
    return [word for word in words if not _is_number(word)]


def digest(files: list[Path]) -> str:
    """Return sha256 over the files' own digests, in their order."""
    return digest_of(sha256_of(file) for file in files)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True
