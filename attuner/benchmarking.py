"""What stacks share that make a benchmark of somebody's training run: what a run reported is compared as its recipe would have
told it without the wrapping, data that nobody made here get a digest, and dotted names become a tree again."""

from __future__ import annotations

import glob
import hashlib
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attuner.core.base import Value
from attuner.core.campaign import Campaign
from attuner.core.errors import Refused, UserError
from attuner.datatools.frozen import digest_of, sha256_of

log = logging.getLogger(__name__)


def as_judged(told: Mapping[str, Value], judged: Mapping[str, Value], wrapped: Iterable[str]) -> dict[str, Value]:
    """Return what a run reported of its final arguments, as its recipe alone would have made them.

    wrapped: the arguments that the launch itself sets or drops, by name or by beginning (`wandb.*`). Only these take the judged
    value: what else differs is what the run really trained with.
    """
    names = list(wrapped)

    def ours(name: str) -> bool:
        return any(name == w or (w.endswith("*") and name.startswith(w[:-1])) for w in names)

    kept = {name: value for name, value in told.items() if not ours(name)}
    return {**kept, **{name: value for name, value in judged.items() if ours(name)}}


def freeze(campaign: Campaign, patterns: Iterable[str], described: Mapping[str, Value], *, made: bool) -> str:
    """Return `name@sha256:…` of the workload's dataset.

    patterns: files that the recipe reads, shell patterns allowed. described: the arguments that name the data, which are the
    digest where the data follow from them. made: they do, as mock data; nothing is read.

    Raises:
        UserError: the digest is another than the one stated, or the files aren't seen from here and none is stated.
    """
    name, _, stated = campaign.workload.dataset.partition("@")
    where = f"{campaign.source_file}: workload.dataset"
    listed = list(patterns)
    files = [Path(f) for p in listed for f in sorted(glob.glob(p))]  # noqa: PTH207 - patterns are whole paths
    unseen = next((p for p in listed if not glob.glob(p)), "")  # noqa: PTH207
    if made:
        found = hashlib.sha256(repr(sorted(described.items())).encode()).hexdigest()
    elif listed and not unseen:
        found = digest_of(sha256_of(f) for f in files)
    elif stated:
        log.warning("%s: %s is not seen from here: the stated digest is taken on trust", where, unseen or name)
        return campaign.workload.dataset
    else:
        raise UserError(f"{where}: {unseen or name}: not seen from here; state {name}@sha256:… of what the job reads")
    if stated and stated != f"sha256:{found}":
        raise UserError(f"{where}: what the baseline reads has sha256:{found[:12]}…, the file says {stated[:19]}…")
    return f"{name}@sha256:{found}"


def check_weights(campaign: Campaign, arguments: Mapping[str, Value], names: Iterable[str]) -> None:
    """Raise UserError if the baseline loads weights that no launch would load: it would train from random ones, unsaid.

    names: the arguments by which the framework loads them.
    """
    if campaign.prepare.checkpoint or campaign.prepare.steps:
        return
    name = next((n for n in names if arguments.get(n)), None)
    if name is not None:
        raise UserError(
            f"{campaign.source_file}: prepare.checkpoint: the recipe's {name} is {arguments[name]}, but launches load what "
            "prepare.checkpoint names; name it there"
        )


def nested(flat: Mapping[str, Value]) -> dict[str, Any]:
    """Return dotted names as the tree that they were made of; parts that are all numbers from 0 on are a list.

    Raises:
        UserError: a name is both a value and a branch.
    """
    tree: dict[str, Any] = {}
    for name, value in flat.items():
        branch = tree
        *path, last = name.split(".")
        for part in path:
            found = branch.setdefault(part, {})
            if not isinstance(found, dict):
                raise UserError(f"{name}: {part} has a value of its own; write one or the other")
            branch = found
        if isinstance(branch.get(last), dict):
            raise UserError(f"{name}: has a value and names below it; write one or the other")
        branch[last] = value
    whole: dict[str, Any] = _lists(tree)
    return whole


def _lists(tree: Any) -> Any:
    if not isinstance(tree, dict):
        return tree
    found = {name: _lists(value) for name, value in tree.items()}
    if found and set(found) == {str(i) for i in range(len(found))}:
        return [found[str(i)] for i in range(len(found))]
    return found


def divide(name: str, number: int, formula: str, factors: tuple[int, ...]) -> int:
    """Return a quotient that must be whole.

    Raises:
        Refused: it isn't; with the formula and its numbers.
    """
    product = 1
    for factor in factors:
        product *= factor
    if product < 1 or number % product:
        shown = "·".join(map(str, factors))
        raise Refused(f"{name} {number} does not divide by {formula} = {shown}{f' = {product}' if len(factors) > 1 else ''}")
    return number // product
