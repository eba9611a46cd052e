"""A register that takes another stack's rules over: as they are, or told in this stack's own names.

A framework built on another one keeps its arguments (slime) or holds them in fields of its own (Megatron-Bridge), and with
them every rule about them. `rules/<stack>/inherits.yaml` says from whom, and which name stands for which. What can't be told
in this stack's names never admits: a rule that admits is left out, and of one that doesn't the condition that can't be read
counts as met.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import Field

from attuner.core.base import Record
from attuner.policy.conditions import subject

KEPT = ("env:", "fact:")
"""Beginnings of names that are the same in every stack."""
FORCES = ("refuse", "review")


class Inherits(Record):
    """From whom a register inherits, and what its names are here."""

    stack: str
    fields: dict[str, list[str]] = Field(
        default_factory=dict,
        description="section here -> names there that go by `section.name` here; none at all: the same names",
    )
    names: dict[str, list[str]] = Field(default_factory=dict, description="name there -> other names here, beside the fields")
    sections: list[str] = Field(
        default_factory=list, description="where names with the same beginning may stand here (`fp8*` is `model.fp8*` too)"
    )
    absent: list[str] = Field(default_factory=list, description="names that this stack can't set: conditions find no value")
    without: dict[str, str] = Field(default_factory=dict, description="rules that aren't taken over, each with the reason")
    source: list[str] = Field(min_length=1)

    @functools.cached_property
    def here(self) -> dict[str, list[str]]:
        """Return the names here of each name there: first the one that conditions read, of the earliest section."""
        found: dict[str, list[str]] = {}
        for section, names in self.fields.items():
            for name in names:
                found.setdefault(name, []).append(f"{section}.{name}")
        for name, others in self.names.items():
            found[name] = [*others, *found.get(name, [])]
        for section, own in ({"model": "transformer", "ddp": "ddp", "optimizer": "optimizer"}).items():
            found |= {f"{own}.{name}": [f"{section}.{name}"] for name in self.fields.get(section, [])}
        return found


def inherited(entries: Iterable[tuple[str, dict[str, Any]]], inherits: Inherits) -> list[tuple[str, dict[str, Any]]]:
    """Return (file, entry) pairs of the other stack's rules in this stack's names; a rule about none of them is left out."""
    found = []
    for file, entry in entries:
        told = entry
        if isinstance(entry, dict) and entry.get("id") in inherits.without:
            continue
        if inherits.fields and isinstance(entry, dict):
            own = _told(entry, inherits)
            if own is None:
                continue
            told = own
        found.append((file, told))
    return found


def _told(entry: Mapping[str, Any], inherits: Inherits) -> dict[str, Any] | None:
    """Return one rule in this stack's names, or None if it has nothing to say here."""
    covers = [name for cover in entry.get("covers", []) for name in _covers(cover, entry, inherits)]
    when = entry.get("when")
    forced = entry.get("decision") in FORCES
    if not covers or (when is not None and not forced and not _readable(when, inherits)):
        return None
    told = {**entry, "covers": list(dict.fromkeys(covers))}
    if when is not None:
        own = _condition(when, inherits)
        if own is None and entry.get("kind") == "defect":
            return None  # it would speak of every change; what its condition names has rules of its own
        told["when"] = own
    if "examples" in entry:
        told["examples"] = [_example(example, entry, told["covers"][0], inherits) for example in entry["examples"]]
    return told


def _covers(cover: str, entry: Mapping[str, Any], inherits: Inherits) -> list[str]:
    if cover.startswith(KEPT):
        return [cover]
    if not cover.endswith("*"):
        return inherits.here.get(cover, [])
    beginning = cover[:-1]
    known = [here for there, names in inherits.here.items() if there.startswith(beginning) for here in names]
    # what nobody has listed may be refused by its beginning, never admitted
    return known + ([f"{s}.{cover}" for s in inherits.sections] if entry.get("decision") in FORCES else [])


def _names(atom: Mapping[str, Any]) -> list[str]:
    prefix, name = subject(dict(atom))
    return [prefix + n for n in (name, *atom.get("same_product", ()))]


def _known(atom: Mapping[str, Any], inherits: Inherits) -> bool:
    return all(n.startswith(KEPT) or n in inherits.here or n in inherits.absent for n in _names(atom))


def _readable(when: Mapping[str, Any], inherits: Inherits) -> bool:
    parts = when.get("all") or when.get("any")
    return all(_readable(p, inherits) for p in parts) if parts else _known(when, inherits)


def _condition(when: Mapping[str, Any], inherits: Inherits) -> dict[str, Any] | None:
    """Return a condition in this stack's names; None is met by everything."""
    for word in ("all", "any"):
        if word in when:
            parts = [_condition(part, inherits) for part in when[word]]
            read = [part for part in parts if part is not None]
            if word == "any" and len(read) < len(parts):
                return None
            return ({word: read} if len(read) > 1 else read[0]) if read else None
    if not _known(when, inherits):
        return None
    own = dict(when)
    if "arg" in own:
        own["arg"] = _first(own["arg"], inherits)
    if "arg" in own and "same_product" in own:
        own["same_product"] = [_first(name, inherits) for name in own["same_product"]]
    return own


def _first(name: str, inherits: Inherits) -> str:
    return inherits.here.get(name, [name])[0]


def _example(example: Mapping[str, Any], entry: Mapping[str, Any], instead: str, inherits: Inherits) -> dict[str, Any]:
    """Return a case in this stack's names; a covered value that isn't here is told of one that is."""
    own = dict(example)
    for side in ("before", "after"):
        if side in own:
            values = own[side].items()
            own[side] = {here: value for there, value in values for here in _here(there, entry, instead, inherits)}
    return own


def _here(name: str, entry: Mapping[str, Any], instead: str, inherits: Inherits) -> list[str]:
    if name.startswith(KEPT):
        return [name]
    covered = any(name == c or (c.endswith("*") and name.startswith(c[:-1])) for c in entry["covers"])
    return inherits.here.get(name, [instead] if covered else [name])
