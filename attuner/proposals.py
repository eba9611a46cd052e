"""A person's move, from a file or a form, as the Hypothesis that is queued: what is changed and, if they like, why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field

from attuner.core.base import Record, Value
from attuner.core.errors import UserError
from attuner.core.search import Hypothesis
from attuner.yamlfile import parse, read_yaml


class Proposal(Record):
    """One move as a person writes it."""

    group: str = Field(default="open", description="lever group of the catalog, or `open`: any one argument or variable")
    arguments: dict[str, Value] = Field(default_factory=dict, description="arguments to set")
    env: dict[str, str] = Field(default_factory=dict, description="environment variables to set")
    parent: str = Field(default="", description="launch to start from; empty: the leader when its turn comes")
    title: str = Field(default="", description="short name")
    bottleneck: str = Field(default="a person's idea", description="what it is meant to ease")
    mechanism: str = Field(default="", description="why it should help")
    predicted_gain: float = Field(default=0.0, description="over the leader, a fraction: 0.2 = +20%")
    predicted_error: float = Field(default=1.0, ge=0, description="half width of the prediction, a fraction")

    def hypothesis(self) -> Hypothesis:
        """Return the move; its id is given when it is taken up."""
        changed = {**self.arguments, **self.env}
        title = self.title or ", ".join(f"{k}={v}" for k, v in changed.items())
        return Hypothesis.model_validate({**self.data(), "id": "queued", "title": title})


def read_proposals(path: Path) -> list[Hypothesis]:
    """Return the moves of a file: one, or a list of them.

    Raises:
        UserError: one line on the first problem.
    """
    data: Any = read_yaml(path)
    moves = data if isinstance(data, list) else [data]
    if not moves:
        raise UserError(f"{path}: holds no move; see docs/people.md")
    where = [f"{path}: move {n}" if len(moves) > 1 else str(path) for n in range(1, len(moves) + 1)]
    return [parse(Proposal, move, at).hypothesis() for move, at in zip(moves, where, strict=True)]
