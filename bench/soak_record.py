"""The soak's own record: a file of JSON lines in its folder, from which it goes on when it was stopped itself."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Known:
    """What is on record of one campaign of the soak."""

    faults: list[dict[str, Any]] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    begun: dict[str, Any] | None = None
    end: dict[str, Any] | None = None
    mended: int = 0


class Record:
    """Append-only; one line per thing that happened."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def say(self, part: str, i: int, what: str, **more: Any) -> None:
        """Append one line."""
        line = {"t": round(time.time(), 3), "part": part, "i": i, "what": what, **more}
        with self.file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(line, sort_keys=True) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        """Return every whole line."""
        if not self.file.exists():
            return []
        return [json.loads(x) for x in self.file.read_text(encoding="utf-8").split("\n")[:-1]]

    def known(self, part: str) -> dict[int, Known]:
        """Return what is on record of each campaign of a part."""
        found: dict[int, Known] = {}
        for line in self.lines():
            if line["part"] != part or line["i"] < 0:
                continue
            known = found.setdefault(line["i"], Known())
            what = line["what"]
            if what == "begin":
                known.begun = line
            elif what == "fault":
                known.faults.append(line)
            elif what == "run":
                known.runs.append(line["run"])
            elif what == "go on":
                known.mended += 1
            elif what == "end":
                known.end = line
        return found
