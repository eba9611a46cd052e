"""Reads configs/watch.yaml: which recipes are re-verified and re-tuned when what they run on changes.

Every problem is one line that names the file, the entry and the key.
"""

from __future__ import annotations

import difflib
from pathlib import Path

from pydantic import Field, field_validator, model_validator

from attuner.core.base import Record, Value
from attuner.core.campaign import ProposerSpec
from attuner.core.errors import UserError
from attuner.yamlfile import is_file, parse, read_yaml

FIELDS = (
    *(
        "attuner",
        "rules",
        "framework",
        "commit",
        "patches",
        "script",
        "model",
        "data",
        "hardware",
        "image",
        "cluster",
        "cluster_env",
    ),
    *("python", "torch", "cuda", "nccl", "nccl_plugin", "driver", "kernel", "ray", "megatron_core", "megatron_commit"),
    *(
        "megatron_bridge",
        "nemo_automodel",
        "slime",
        "slime_commit",
        "sglang",
        "transformer_engine",
        "flash_attn",
        "apex",
        "deep_ep",
    ),
)
"""Fields of an environment that can differ between two nights: what files declare, and what launches report of themselves."""


class AlertLimits(Record):
    """From when on something is an alert."""

    slowdown: float | None = Field(
        default=None, gt=0, lt=1, description="fraction of the old speed; default: the bands of both campaigns, together"
    )


class Watched(Record):
    """One recipe that is watched: the campaign file that found it, and what a re-tuning of it may cost."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,40}$", description="what it is called in alerts; `only` takes it")
    campaign: str = Field(
        min_length=1, description="campaign file, beside this file, in its folder's folder, or an absolute path"
    )
    gpu_hours: float = Field(gt=0, allow_inf_nan=False, description="budget of one re-tuning, device-hours")
    enabled: bool = True
    proposer: dict[str, Value] = Field(
        default_factory=dict,
        description="what a re-tuning searches with, instead of what the campaign file says: {name: catalog}",
    )
    alerts: AlertLimits = AlertLimits()
    ignore: list[str] = Field(
        default_factory=lambda: ["attuner"], description="fields of the environment whose change is no reason to re-tune"
    )

    @field_validator("ignore")
    @classmethod
    def _fields(cls, names: list[str]) -> list[str]:
        for name in names:
            if name not in FIELDS:
                near = difflib.get_close_matches(name, FIELDS, n=1, cutoff=0.6)
                hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(FIELDS)}"
                raise ValueError(f"{name}: no field of an environment; {hint}")
        return names

    @model_validator(mode="after")
    def _known(self) -> Watched:
        foreign = sorted(self.proposer.keys() - ProposerSpec.model_fields.keys())
        if foreign:
            raise ValueError(f"proposer.{foreign[0]}: unknown key; known: {', '.join(ProposerSpec.model_fields)}")
        return self

    def changes(self, *, budget: bool) -> dict[str, Value]:
        """Return what holds instead of what the campaign file says, by key."""
        found: dict[str, Value] = {f"proposer.{k}": v for k, v in self.proposer.items()}
        return {**found, "budget.gpu_hours": self.gpu_hours} if budget else found


class WatchList(Record):
    """The whole file."""

    recipes: list[Watched] = Field(default_factory=list, description="looked at in this order")


def load_watch(path: Path) -> list[Watched]:
    """Return the watched recipes in order, their campaign files as paths that exist.

    Raises:
        UserError: the file is malformed, a name stands twice, or a campaign file is not there.
    """
    data, found = read_yaml(path), {}
    recipes = data.get("recipes") if isinstance(data, dict) else None
    if isinstance(recipes, list):  # each by itself, so that an error names the entry
        for number, given in enumerate(recipes, start=1):
            parse(Watched, given, f"{path}: {given.get('name', number) if isinstance(given, dict) else number}")
    for entry in parse(WatchList, data, path).recipes:
        if entry.name in found:
            raise UserError(f"{path}: recipes: {entry.name} stands twice; give one another name")
        found[entry.name] = entry.model_copy(update={"campaign": str(_file(entry, path))})
    return list(found.values())


def _file(entry: Watched, near: Path) -> Path:
    tried = [near.parent / entry.campaign, near.parent.parent / entry.campaign, Path(entry.campaign)]
    there = next((p.resolve() for p in tried if is_file(p)), None)
    if there is None:
        name = entry.campaign if entry.campaign.isprintable() and len(entry.campaign) < 200 else f"{entry.campaign[:60]!a}…"
        raise UserError(f"{near}: {entry.name}: campaign: {name}: no such file")
    return there


def pick(entries: list[Watched], only: str, path: Path) -> list[Watched]:
    """Return the entries to look at: those that are enabled, or the one that is named.

    Raises:
        UserError: nothing has this name.
    """
    if not only:
        return [x for x in entries if x.enabled]
    found = [x for x in entries if x.name == only]
    if not found:
        raise UserError(f"{path}: recipes: nothing is called {only}; known: {', '.join(x.name for x in entries) or 'none'}")
    return found
