"""What broke in a run, as its logs tell it: class, phase, root-cause rank, evidence, and what to change next."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from attuner.core.base import Record

Retry = Literal["no", "may_help", "unknown"]
UNDETERMINED = "undetermined"
SHOWN_LEVERS = 3


class EvidenceLine(Record):
    """One line of a log, as it may be shown to a person."""

    file: str
    line: int
    text: str
    rank: int | None = None

    def said(self) -> str:
        """Return it with its place."""
        rank = f" rank {self.rank}:" if self.rank is not None else ""
        return f"{self.file}:{self.line}:{rank} {self.text}"


class Failure(Record):
    """The diagnosis of a failed run."""

    kind: str = Field(description="class, e.g. oom.optimizer_step; `undetermined` where the logs establish none")
    seen: str = Field(default="", description="of an undetermined one: the class of what is seen")
    phase: str = Field(default="", description="what the run was doing; '' where nothing tells")
    rank: int | None = Field(default=None, description="where it began; None: the logs don't tell")
    node: str = ""
    rule: str = Field(default="", description="id of the rule that spoke; '' for none")
    why: str
    evidence: list[EvidenceLine] = Field(default_factory=list)
    levers: list[str] = Field(default_factory=list, description="lever groups to try next, of the stack's catalog, best first")
    retry: Retry = Field(default="unknown", description="can the same run, started again, come through?")
    action: str = Field(default="", description="what to do next, one line")
    open: str = Field(default="", description="what these logs don't tell of the cause; '' where they tell it")
    also: list[str] = Field(default_factory=list, description="other classes seen, effects of this one as far as is known")

    @property
    def undetermined(self) -> bool:
        """Tell whether the logs establish no cause."""
        return self.kind == UNDETERMINED

    def headline(self) -> str:
        """Return class, phase and rank in a few words."""
        what = f"{self.kind} ({self.seen})" if self.seen else self.kind
        where = f" in {self.phase}" if self.phase else ""
        who = f", rank {self.rank}" if self.rank is not None else ""
        return f"{what}{where}{who}"

    def said(self) -> str:
        """Return the diagnosis in one line of our own words: nothing of the log stands in it."""
        if self.undetermined:
            return f"cause undetermined{f' ({self.seen})' if self.seen else ''}"
        levers = f"; next: {', '.join(self.levers[:SHOWN_LEVERS])}" if self.levers else ""
        return f"{self.headline()}{levers}"
