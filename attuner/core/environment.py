"""What a campaign runs on, as far as it is known, and what a re-tuning starts from: Environment, DefectChange, Retunes."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attuner.core.base import Record
from attuner.core.recipe import Change, Recipe


class Environment(Record):
    """Software, hardware, model, data and rules of a campaign; which fields were seen, and which only declared.

    The names of `looked` and `reported` are those that a run reports of itself (Trial.versions): megatron_core, torch, cuda,
    nccl, nccl_plugin, driver, python, transformer_engine, image … What isn't installed has no entry.
    """

    looked: dict[str, str] = Field(
        default_factory=dict, description="seen by looking where launches run, no device held; empty: nobody could look"
    )
    reported: dict[str, str] = Field(default_factory=dict, description="what the newest finished launch there reported of itself")
    declared: dict[str, str] = Field(
        default_factory=dict,
        description="what files say or derive: framework, commit, patches, image, torch, hardware, model, data, rules, attuner",
    )
    blind: str = Field(default="", description="why nobody could look")

    def measured(self) -> dict[str, str]:
        """Return what was seen rather than declared: by looking, else as launches reported it."""
        return self.looked or self.reported

    def line(self) -> str:
        """Return it as one line for a person, what was only declared marked as such."""
        seen = self.measured()
        told = [f"{k} {v}" for k, v in sorted(seen.items())]
        told += [f"{k} {short(v)} (declared)" for k, v in sorted(self.declared.items()) if v and k not in seen]
        return ", ".join(told)


def short(value: object) -> str:
    """Return a value as a person reads it: digests cut, nothing at all named."""
    text = "none" if value in (None, "") else str(value)
    head, mark, digest = text.rpartition("sha256:")
    if mark:
        return f"{head}{mark}{digest[:12]}"
    return text[:12] if len(text) in (40, 64) and all(c in "0123456789abcdef" for c in text) else text


class DefectChange(Record):
    """A known defect that a version brings or cures: the register's rule holds now and did not, or the other way round."""

    rule: str
    subject: Literal["baseline", "shipped"] = Field(description="whose final values are in it")
    now: bool = Field(description="true: brought; false: cured")
    reason: str
    source: list[str] = Field(default_factory=list)


class Retunes(Record):
    """What a re-tuning starts from: the recipe that an earlier campaign shipped, how fast it was, and what changed since."""

    of: str = Field(description="id of the campaign that shipped the recipe")
    recipe: Recipe
    tokens_per_s_per_gpu: float = Field(description="of the shipped recipe, as it was re-measured before it shipped")
    baseline_tokens_per_s_per_gpu: float = Field(description="of the baseline, then")
    band: float = Field(description="of that campaign, a fraction")
    slowdown: float | None = Field(
        default=None, description="fraction from which a slowdown is an alert; none: both bands together"
    )
    before: Environment
    changes: list[Change]
    defects: list[DefectChange] = Field(default_factory=list)
