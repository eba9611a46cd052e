"""Turns the ranks' shares into the one fingerprint: replicas compared and counted once, shards added up, families' norms, and
the learning rate and weight decay that the update shows. Standard library only, no collective, no device.

A share is what `share.build` makes: the pieces of one rank that speaks for its replicas, and per step their numbers."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from .columns import CODES, DTYPES, FLOATS, KINDS, QUANTIZED

_LIMIT = 100
"""Entries of `missing` and `not_finite` that are kept."""
_TIED = 1e-9
"""How far apart, relatively, the squared gradient norms of tied weights may be that were summed over different shards."""


GIVEN_UP = "given up with another rank"
"""Part of the reason of a rank whose probe ended because another's failed: the other's reason comes first."""


class Row(NamedTuple):
    """One piece in one step, as one share tells it."""

    key: tuple[str, int, int]
    family: str
    numel: int
    twin: bool
    sharded: bool
    floats: dict[str, float]
    hashes: list[int]
    codes: dict[str, int]
    options: dict[str, Any] | None


class Findings:
    """What is missing and what isn't finite, both bounded."""

    def __init__(self) -> None:
        self.missing: dict[str, str] = {}
        self.not_finite: list[str] = []

    def lacks(self, what: str, why: str) -> None:
        """Note the first reason why something is missing."""
        if len(self.missing) < _LIMIT:
            self.missing.setdefault(what[:200], why[:200])

    def finite(self, value: float | None, name: str) -> float | None:
        """Return a number for strict JSON; one that isn't finite is None and named."""
        if value is None or math.isfinite(value):
            return value
        if len(self.not_finite) < _LIMIT:
            self.not_finite.append(name)
        return None


def merge(header: dict[str, Any], shares: list[dict[str, Any]], absent: list[int]) -> dict[str, Any]:
    """Return the fingerprint as JSON.

    header: format, precision, layout and so on, as rank 0 has them. shares: of every rank that speaks. absent: ranks whose
    share can't be read.
    """
    findings = Findings()
    for share in sorted(shares, key=lambda share: GIVEN_UP in share["missing"].get("probe", "")):
        for what, why in share["missing"].items():
            findings.lacks(what, why)
        findings.not_finite += share["not_finite"]
    if absent:
        findings.lacks("shares", f"of ranks {', '.join(map(str, absent[:8]))}: what they hold is left out")
    numbers = sorted({step["step"] for share in shares for step in share["steps"]})
    steps = [_step(number, shares, findings) for number in numbers]
    return {**header, "steps": steps, "missing": findings.missing, "not_finite": findings.not_finite}


def _step(number: int, shares: list[dict[str, Any]], findings: Findings) -> dict[str, Any]:
    told = [(share, step) for share in shares for step in share["steps"] if step["step"] == number]
    rows: dict[tuple[str, int, int], Row] = {}
    grad_differs: set[str] = set()
    weight_differs: set[str] = set()
    compared = 0
    for share, step in told:
        for group, part in zip(share["groups"], step["groups"], strict=True):
            compared += len(group["keys"]) * ((group["copies"] > 1) + (group["ranks"] > 1))
            for row, flags in _rows(group, part, step["options"]):
                grad_differs |= {row.family} if flags[0] else set()
                weight_differs |= {row.family} if flags[1] else set()
                other = rows.get(row.key)
                if other is not None:
                    compared += 2
                    grad_differs |= set() if _same_gradient(row, other) else {row.family}
                    weight_differs |= set() if row.hashes[1] == other.hashes[1] else {row.family}
                if other is None or other.twin:
                    rows[row.key] = row
    _check_shards(rows, findings)
    said = _said(told)
    name = f"step{number}"
    return {
        "step": number,
        "loss": findings.finite(said["loss"], f"{name}.loss"),
        "aux": {key: findings.finite(value, f"{name}.aux.{key}") for key, value in said["aux"].items()},
        "batch": said["batch"],
        "families": _families(list(rows.values()), name, said["updated"], findings),
        "clip": _clip(list(rows.values()), said, name, findings),
        "grad_replicas": sorted(grad_differs),
        "weight_replicas": sorted(weight_differs),
        "replicas_compared": compared,
        "groups": _groups(list(rows.values())),
        "census": _census(list(rows.values()), {noted for _, step in told for noted in step["census"]}),
    }


def _rows(group: dict[str, Any], part: dict[str, Any], options: list[dict[str, Any]]) -> Iterator[tuple[Row, tuple[bool, bool]]]:
    for i, (name, index, count, family, numel, twin) in enumerate(group["keys"]):
        floats = [math.nan if value is None else value for value in part["floats"][i]]
        codes = dict(zip(CODES, part["codes"][i], strict=True))
        chosen = options[codes["group"] - 1] if 0 < codes["group"] <= len(options) else None
        row = Row(
            (name, index, count),
            family,
            numel,
            twin,
            group["sharded"],
            dict(zip(FLOATS, floats, strict=True)),
            part["hashes"][i],
            codes,
            chosen,
        )
        yield row, (part["grad_differs"][i], part["weight_differs"][i])


def _same_gradient(one: Row, other: Row) -> bool:
    if one.hashes[0] == other.hashes[0]:
        return True
    tied = (one.twin or other.twin) and one.sharded
    return tied and math.isclose(one.floats["grad_2"], other.floats["grad_2"], rel_tol=_TIED)


def _check_shards(rows: dict[tuple[str, int, int], Row], findings: Findings) -> None:
    """Notice a parameter of which some shards were never told: its family would silently come out too small."""
    seen: dict[tuple[str, int], int] = {}
    for name, _index, count in rows:
        seen[name, count] = seen.get((name, count), 0) + 1
    for (name, count), found in seen.items():
        if found != count:
            findings.lacks("shards", f"{name}: {found} of {count}")


def _said(told: list[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """Return what the trainer said of the step: the first rank's that knew."""
    found: dict[str, Any] = {"loss": None, "aux": {}, "batch": None, "used_norm": None, "updated": True}
    for _, step in told:
        for key, value in step["said"].items():
            if found[key] in (None, {}):
                found[key] = value
        found["updated"] = found["updated"] and step["said"]["updated"]
    for key in ("loss", "used_norm"):
        found[key] = _number(found[key])
    found["aux"] = {key: _number(value) for key, value in found["aux"].items()}
    return found


def _number(value: Any) -> float | None:
    return None if value is None else float(value)  # 'nan' and 'inf' travel as words


# ---------------------------------------------------------------------------------------------- families


def _families(rows: list[Row], step: str, updated: bool, findings: Findings) -> dict[str, Any]:
    found = {}
    if not updated:
        findings.lacks(f"{step} updates", "the optimizer skipped the step")
    for name in sorted({row.family for row in rows}):
        mine = [row for row in rows if row.family == name]
        total = {column: _total([row.floats[column] for row in mine]) for column in FLOATS}
        values: dict[str, float | None] = {"grad_norm": _root(total["grad_2"]), "grad_projection": total["grad_p"]}
        if any(row.codes["param"] == QUANTIZED for row in mine):
            findings.lacks(f"weights of {name}", "they are kept quantized")
            values |= {"weight_norm": None, "weight_projection": None}
        else:
            values |= {"weight_norm": _root(total["weight_2"]), "weight_projection": total["weight_p"]}
        unseen = sum(row.codes["unseen"] > 0 for row in mine)
        if unseen:
            findings.lacks(f"update of {name}", f"the optimizer doesn't show {unseen} of its {len(mine)} parameters")
        elif updated:
            values |= {"update_norm": _root(total["update_2"]), "update_projection": total["update_p"], **_fit(total)}
        counts = {"numel": sum(row.numel for row in mine), "zeros": _count(total["zeros"]), "stale": _count(total["stale"])}
        found[name] = {**counts, **{key: findings.finite(value, f"{step}.{name}.{key}") for key, value in values.items()}}
    return found


def _total(values: list[float]) -> float:
    """Add up so that the order, and with it the layout, doesn't matter."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.inf


def _root(square: float) -> float:
    return math.sqrt(square) if square >= 0 else math.nan


def _count(value: float) -> int:
    return int(value) if math.isfinite(value) else 0


def _fit(total: dict[str, float]) -> dict[str, float | None]:
    """Fit u = -lr · s - lr · weight_decay · w by least squares; nothing where no direction could be computed."""
    ss, ww, sw = total["ss"], total["ww"], total["sw"]
    us, uw, uu = total["us"], total["uw"], total["update_2"]
    if ss == 0:
        return {}
    determinant = ss * ww - sw * sw
    a, b = us / ss, 0.0
    if determinant > 1e-12 * ss * ww:
        a, b = (us * ww - uw * sw) / determinant, (uw * ss - us * sw) / determinant
    rest = max(0.0, uu - a * us - b * uw) if math.isfinite(uu) else math.nan
    return {"lr": -a + 0.0, "weight_decay": b / a if a else None, "unexplained": math.sqrt(rest / uu) if uu else 0.0}


# ---------------------------------------------------------------------------------------------- the rest


def _clip(rows: list[Row], said: dict[str, Any], step: str, findings: Findings) -> dict[str, Any]:
    square = _total([row.floats["grad_2"] for row in rows])
    factors = [
        math.sqrt(row.floats["clipped_2"] / row.floats["grad_2"])
        for row in rows
        if not row.codes["unseen"] and row.codes["main_grad"] and row.floats["grad_2"] > 1e-12 * square
    ]
    values = {
        "norm": _root(square),
        "used_norm": said["used_norm"],
        "coefficient_min": min(factors, default=None),
        "coefficient_max": max(factors, default=None),
    }
    return {key: findings.finite(value, f"{step}.clip.{key}") for key, value in values.items()}


def _groups(rows: list[Row]) -> list[dict[str, Any]]:
    sizes: dict[tuple[Any, ...], int] = {}
    for row in rows:
        if row.options is not None:
            key = (row.options["lr"], row.options["weight_decay"], tuple(row.options["betas"]), row.options["eps"])
            sizes[key] = sizes.get(key, 0) + row.numel
    ordered = sorted(sizes.items(), key=lambda item: (item[0][:3], item[0][3] or 0.0))
    return [
        {"lr": lr, "weight_decay": decay, "betas": list(betas), "eps": eps, "numel": numel}
        for (lr, decay, betas, eps), numel in ordered
    ]


def _census(rows: list[Row], noted: set[str]) -> dict[str, int]:
    counts = dict.fromkeys(noted, 0)
    for row in rows:
        for kind in KINDS:
            if row.codes[kind]:
                name = f"{kind} {DTYPES[row.codes[kind] - 1]}"
                counts[name] = counts.get(name, 0) + row.numel
    return dict(sorted(counts.items()))
