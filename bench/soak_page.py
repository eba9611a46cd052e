"""The soak's table, for a terminal and as Markdown for docs/soak.md."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

from soak_evidence import Judged, judged
from soak_record import Record


def page(folders: list[Path]) -> tuple[str, int]:
    """Return the page of one or several soak folders, and how many laws were broken."""
    found: list[Judged] = []
    wrong: list[str] = []
    seconds: list[str] = []
    for folder in folders:
        more, also = judged(folder)
        found, wrong = found + more, wrong + also
        seconds += [_second(x) for x in Record(folder / "soak.jsonl").lines() if x["what"] == "second ended"]
    broken = sum(len(x.wrong) for x in found) + len(wrong)
    parts = [part for part in ("replay", "real") if any(x.part == part for x in found)]
    text = [_summary([x for x in found if x.part == part], part) for part in parts]
    text += [_faults(found), _states(found), _seconds(seconds), _reasons(found)]
    text.append("### Laws broken\n")
    text += [f"- {x}" for x in wrong]
    text += [f"- {x.part} {x.i} ({x.campaign_id or 'not born'}): {line}" for x in found for line in x.wrong]
    if not broken:
        text.append("None.")
    return "\n".join(text) + "\n", broken


def _summary(found: list[Judged], part: str) -> str:
    outcomes = Counter(x.outcome for x in found)
    faults = sum(len(x.known.faults) for x in found)
    rows = [
        ("campaigns", len(found)),
        *sorted(outcomes.items()),
        ("faults injected", faults),
        ("times gone on", sum(x.known.mended for x in found)),
        ("flow runs", sum(len(x.known.runs) for x in found)),
        ("launches", sum(x.launches for x in found)),
        ("attempts, each with one charge", sum(x.attempts for x in found)),
        ("device-hours spent", f"{sum(x.spent for x in found):.3f}"),
        (
            "highest share of its budget that a campaign spent",
            f"{max((x.spent / x.total for x in found if x.total), default=0):.1%}",
        ),
    ]
    return f"### {part}\n\n" + _table(("", part), rows)


def _faults(found: list[Judged]) -> str:
    counts = Counter((x.part, f["kind"]) for x in found for f in x.known.faults)
    rows = [(part, kind, n) for (part, kind), n in sorted(counts.items(), key=lambda x: (x[0][0], -x[1]))]
    return "### Faults by kind\n\n" + _table(("part", "fault", "injected"), rows)


def _states(found: list[Judged]) -> str:
    counts = Counter(
        (x.part, f["state"].split()[0] if f["state"] != "before birth" else f["state"]) for x in found for f in x.known.faults
    )
    rows = [(part, kind, n) for (part, kind), n in sorted(counts.items(), key=lambda x: (x[0][0], -x[1]))]
    return "### What the campaign had just put on record when a fault hit\n\n" + _table(("part", "newest record", "faults"), rows)


def _second(line: dict[str, Any]) -> str:
    if line["state"] == "FAILED" and "runs this campaign" in line["message"]:
        return "refused: another process runs the campaign"
    return (
        "completed: it found the campaign free or done"
        if line["state"] == "COMPLETED"
        else f"{line['state'].lower()} by another fault"
    )


def _seconds(outcomes: list[str]) -> str:
    rows = sorted(Counter(outcomes).items(), key=lambda x: -x[1])
    return "### Second runs of a campaign\n\n" + _table(("how it ended", "runs"), rows) if rows else ""


def _reasons(found: list[Judged]) -> str:
    counts = Counter(re.sub(r"[0-9][0-9.,%]*", "N", re.sub(r"/[\w./-]*/", "", x.reason))[:160] for x in found)
    return "### Reasons\n\n" + _table(("reason", "campaigns"), sorted(counts.items(), key=lambda x: -x[1]))


def _table(head: tuple[str, ...], rows: list[tuple[object, ...]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(str(c).replace('|', '¦') for c in row)} |" for row in rows]
    return "\n".join(lines) + "\n"
