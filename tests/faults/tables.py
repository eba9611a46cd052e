"""Writes what the gate study found: runs.csv (one line a run), verdicts.csv (one line a judged candidate), summary.csv (the
confusion table), and study.json (with which register and tolerances)."""

import csv
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attuner.config import register_lock
from attuner.runner import files
from attuner.settings import load_settings

from .faults import FAULTS
from .judge import LOOKS, judge_all, number
from .plan import Case


def write(cases: Sequence[Case], work: Path, results: Path) -> None:
    """Judge and write all tables; says in one line what came out."""
    results.mkdir(parents=True, exist_ok=True)
    judged = judge_all(cases, work)
    lines = [j.line() for j in judged]
    _csv(results / "runs.csv", [_run_line(case, work) for case in cases])
    _csv(results / "verdicts.csv", lines)
    summary = [*_honest(lines), *_faults(lines)]
    _csv(results / "summary.csv", summary)
    (results / "table.md").write_text(_markdown(summary), encoding="utf-8")
    runners = sorted({json.loads((work / "runs" / case.name / "plan.json").read_text())["runner"] for case in cases})
    lock = register_lock(load_settings(project=".").rules_dir(), "mcore")
    about = {"register_and_policy": lock, "runners": runners, "runs": len(cases), "judged": len(judged)}
    files.write_json(results / "study.json", about)
    honest = [line for line in lines if line["kind"] != "fault"]
    counts = Counter(line["decision"] for line in honest)
    bad = [line["run"] for line in honest if line["decision"] == "refuse" or line["failed"]]
    missed = [line["fault"] for line in summary if line["fault"] and not line["limit"] and line["refused"] != line["runs"]]
    print(f"honest: {dict(counts)}, refused or failed: {bad[:8]}; faults with a run not refused: {missed}")


def _run_line(case: Case, work: Path) -> dict[str, Any]:
    folder = work / "runs" / case.name
    known = json.loads((folder / "plan.json").read_text())
    steps = files.read_jsonl(folder / files.STEPS)
    losses = {f"loss_step{n}": steps[n]["lm_loss"] if len(steps) > n else "" for n in (0, 1)}
    probe = files.read_json(folder / files.FINGERPRINT)["seconds"] if (folder / files.FINGERPRINT).exists() else {}
    return {
        "run": case.name,
        "kind": case.kind,
        "ranks": case.ranks,
        "status": known["status"],
        "runner": known["runner"],
        "seconds": known["seconds"],
        "probe_s": f"{sum(probe.values()):.3f}" if probe else "",
        "steps": len(steps),
        **losses,
    }


def _honest(lines: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for group in sorted({_group(line) for line in lines if line["kind"] != "fault"}):
        yield _count([line for line in lines if line["kind"] != "fault" and _group(line) == group], group=group)


def _group(line: dict[str, Any]) -> str:
    if line["kind"] == "baseline":
        return f"replicates, {line['precision']}"
    what = "other models and objectives" if line["variant"] != "moe" else "levers" if line["lever"] else "layouts"
    return f"{what}, {line['precision']}"


def _faults(lines: Sequence[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for fault in FAULTS.values():
        several = [line for line in lines if line["fault"] == fault.name]
        if several:
            yield _count(several, fault=fault.name, says=fault.says, source=fault.source, limit=fault.limit)


def _count(lines: Sequence[dict[str, Any]], **about: str) -> dict[str, Any]:
    used = [max((float(x) for x in (line["forward_margin"], line["update_margin"]) if x), default=0.0) for line in lines]
    keys = Counter(str(line["key"] or line["rule"]) for line in lines)
    return {
        **{name: about.get(name, "") for name in ("group", "fault", "says", "source")},
        "runs": len(lines),
        "refused": sum(line["decision"] == "refuse" for line in lines),
        **{
            f"refused_by_{look}": sum(line["decided_by"] == look and line["decision"] == "refuse" for line in lines)
            for look in (*LOOKS, "check")
        },
        "review": sum(line["decision"] == "review" for line in lines),
        "admitted": sum(line["decision"] == "admit" for line in lines),
        "failed": sum(bool(line["failed"]) for line in lines),
        "later_looks_alone": sum("refuse" in (line["forward"], line["update"], line["check"]) for line in lines),
        "paper_refused": sum(line["paper"] == "refuse" for line in lines),
        "margin_min": number(min(used)),
        "margin_max": number(max(used)),
        "keys": "; ".join(f"{key} ×{n}" for key, n in keys.most_common(4)),
        "limit": about.get("limit", ""),
    }


def _markdown(summary: Sequence[dict[str, Any]]) -> str:
    """Return the confusion table for a page: faults, then what no look can see, then honest runs."""
    parts = [
        ("## Planted faults", [line for line in summary if line["fault"] and not line["limit"]]),
        ("## What no look can see", [line for line in summary if line["limit"]]),
        ("## Honest runs", [line for line in summary if line["group"]]),
    ]
    out = [
        "<!-- written by make gate-study; see README.md here -->",
        "Counts are runs. *by*: which look refuses first (config, forward, update, or an fp32 check launch). *paper*: refused by",
        "the first look and a first loss within 5% alone. *limits*: smallest to largest part of its limit that any value used.",
        "",
    ]
    for title, lines in parts:
        out += [
            title,
            "",
            "| | runs | refused | by | review | admitted | paper | limits | first sign |",
            "|---|---|---|---|---|---|---|---|---|",
        ]
        out += [_row(line) for line in lines] + [""]
    return "\n".join(out)


def _row(line: dict[str, Any]) -> str:
    name = f"**{line['fault']}** {line['says']}" if line["fault"] else line["group"]
    by = ", ".join(f"{look} {n}" for look in (*LOOKS, "check") if (n := line[f"refused_by_{look}"]))
    counts = [line["runs"], line["refused"], by or "–", line["review"], line["admitted"], line["paper_refused"]]
    why = f"; {line['limit']}" if line["limit"] else ""
    sign = line["keys"].split(";")[0] + why
    return "| " + " | ".join([name, *map(str, counts), f"{line['margin_min']}–{line['margin_max']}", sign]) + " |"


def _csv(path: Path, lines: Sequence[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(lines[0]) if lines else ["empty"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
