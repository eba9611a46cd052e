"""What following a script finds: the commands that it would start, and notes of what could not be told."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Started:
    """A command that the script would start."""

    words: list[str]
    env: dict[str, str]
    given: str
    where: str
    doubts: list[str]
    looped: bool = False


@dataclass
class Heard:
    """What the walk found."""

    started: list[Started] = field(default_factory=list)
    notes: dict[tuple[str, str], None] = field(default_factory=dict)
    """(kind, text): undecided, skipped, default."""

    def tell(self, kind: str, text: str) -> None:
        """Take a note, once."""
        if len(self.notes) < 500:
            self.notes[(kind, text)] = None
