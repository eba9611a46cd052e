"""What is trained and how.

Workload is frozen for a campaign, Recipe is what a person writes, EffectiveConfig is what finally holds.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, field_validator

from attuner.core.base import Record, Value, digest_of


class Workload(Record):
    """What every candidate trains. It never changes in a campaign."""

    model: str
    dataset: str = Field(description="name, or name@sha256:… once it is frozen at birth")
    seq_len: int = Field(gt=0)
    global_batch: int = Field(gt=0, description="rows per update")
    precision: str
    seed: int
    steps: int = Field(gt=1, description="steps per launch: warm-up and scored, without profiled ones")
    warmup_steps: int = Field(ge=1)
    gpus: int = Field(gt=0, description="devices; on a CPU cluster, CPU slots")
    hardware: str

    def scored_steps(self) -> range:
        """Return the step numbers whose times make the score."""
        return range(self.warmup_steps, self.steps)

    def tokens_per_step(self) -> int:
        """Return the tokens of one update: rows × row length."""
        return self.global_batch * self.seq_len


class Recipe(Record):
    """Arguments and environment of one training run, in the framework's own names."""

    stack: str
    arguments: dict[str, Value] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)

    @field_validator("arguments", mode="before")
    @classmethod
    def _whole_floats(cls, value: Any) -> Any:
        # JSON and YAML lose the difference between 1 and 1.0 on the way through a database: one spelling only
        if not isinstance(value, dict):
            return value
        return {k: [_whole(x) for x in v] if isinstance(v, list) else _whole(v) for k, v in value.items()}

    def changed(self, arguments: dict[str, Value], env: dict[str, str] | None = None) -> Recipe:
        """Return a copy with some values replaced."""
        return Recipe(stack=self.stack, arguments={**self.arguments, **arguments}, env={**self.env, **(env or {})})


def _whole(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() and abs(value) < 2**53 else value


class EffectiveConfig(Record):
    """Final values: arguments after the framework's own derivations, environment, and derived facts."""

    arguments: dict[str, Value]
    env: dict[str, str]
    facts: dict[str, Value]
    versions: dict[str, str] = Field(default_factory=dict)

    def argument_digest(self) -> str:
        """Return the digest of the final arguments alone, as a run reports them too."""
        return digest_of(self.data()["arguments"])

    def flat(self) -> dict[str, Value]:
        """Return every final value under one name: argument, `env:NAME` or `fact:NAME`."""
        return {
            **self.arguments,
            **{f"env:{k}": v for k, v in self.env.items()},
            **{f"fact:{k}": v for k, v in self.facts.items()},
        }


class Change(Record):
    """One final value that differs between two configurations."""

    key: str
    before: Value
    after: Value

    def __str__(self) -> str:
        return f"{self.key} {self.before} → {self.after}"


def differences(before: EffectiveConfig, after: EffectiveConfig) -> list[Change]:
    """Return every final value that differs, sorted by key."""
    old, new = before.flat(), after.flat()
    keys = sorted(k for k in old.keys() | new.keys() if k not in old or k not in new or not same_value(old[k], new[k]))
    return [Change(key=k, before=old.get(k), after=new.get(k)) for k in keys]


def same_value(a: Value, b: Value) -> bool:
    """Tell whether two values are one setting: `True` is not `1`, but `1` is `1.0`, and `[x]` is `x`."""
    if isinstance(a, list) and len(a) == 1:
        a = a[0]
    if isinstance(b, list) and len(b) == 1:
        b = b[0]
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same_value(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, bool) or isinstance(b, bool):
        return a is b
    return a == b
