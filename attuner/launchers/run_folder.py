"""What a launcher reads and writes in the folder of one attempt: the job document, the driver's stamps, the heartbeat."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attuner.ports import Stamp
from attuner.runner import files

BROKEN = ("node_lost", "infrastructure")
"""Outcomes that the driver gives to an allocation that broke under the ranks: nothing they did."""


@dataclass(frozen=True)
class Stamps:
    """The driver's stamps as they stand on disk."""

    lines: list[dict[str, Any]]
    last_heartbeat: float | None
    exists: bool

    def _event(self, name: str) -> dict[str, Any]:
        return next((x for x in self.lines if x.get("event") == name), {})

    def _last(self, name: str) -> dict[str, Any]:
        return next((x for x in reversed(self.lines) if x.get("event") == name), {})

    def allocated(self) -> bool:
        """Tell whether devices were ever held."""
        return bool(self._event("allocated"))

    def lost(self) -> bool:
        """Tell whether the driver itself closed the run because its allocation broke: a node lost, contact to storage lost."""
        return self._event("released").get("outcome") in BROKEN

    def started(self) -> bool:
        """Tell whether a driver ever wrote here."""
        return self.exists

    def released(self) -> bool:
        """Tell whether the devices were given back, by the driver's own word."""
        return bool(self._event("released"))

    def stamp(self) -> Stamp:
        """Return the stamps as one record."""
        allocated, released, nodes = self._event("allocated"), self._event("released"), self._last("nodes")
        return Stamp(
            allocated_at=allocated.get("t"),
            released_at=released.get("t"),
            last_heartbeat=self.last_heartbeat,
            hosts=sorted(_words(nodes.get("hosts"))) or _words(allocated.get("hosts")),
            hardware=_words(nodes.get("hardware")),
            nodes=_words(nodes.get("ids")) or _words(allocated.get("nodes")),
            lost_nodes=_words(released.get("lost")),
            warnings=[x for line in self.lines if line.get("event") == "topology" for x in _words(line.get("warnings"))],
            versions=_versions(self._last("versions").get("versions")),
            outcome=str(released.get("outcome", "")),
            phase=str(released.get("phase", "")),
            detail=str(released.get("detail", "")),
            other_load=released.get("other_load"),
        )


def _words(value: Any) -> list[str]:
    return [str(x) for x in value] if isinstance(value, list) else []


def _versions(value: Any) -> dict[str, str]:
    return {str(k): str(v) for k, v in value.items()} if isinstance(value, dict) else {}


def read_stamps(folder: Path) -> Stamps:
    """Read what the driver stamped so far; an empty folder is no stamps."""
    try:
        beat: float | None = float((folder / files.HEARTBEAT).read_text())
    except (FileNotFoundError, ValueError):
        beat = None
    path = folder / files.STAMPS
    text = path.read_text(errors="replace") if path.exists() else ""
    return Stamps(lines=_lines(text), last_heartbeat=beat, exists=path.exists())


def _lines(text: str) -> list[dict[str, Any]]:
    """Return the lines that are whole; a damaged one tells nothing, and must not stop the campaign for ever."""
    found = []
    for line in text.splitlines():
        try:
            data = json.loads(line)
        except ValueError:
            continue
        if isinstance(data, dict):
            found.append(data)
    return found


def write_job(folder: Path, document: dict[str, Any]) -> None:
    """Write the job document that the driver and the ranks read."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_json(folder / files.JOB, document)
