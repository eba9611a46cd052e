"""The words of the verbs by which a person speaks to a campaign."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

Add = Callable[..., argparse.ArgumentParser]
STEPS = ("launch", "profile", "score", "gate", "calibrate", "hypothesize", "remeasure", "ship")


def add_people(verbs: Any, add: Add) -> None:
    """Add propose, review, ban, pause, go-on, budget, finish, cancel and rerun."""
    for name, text, call in (
        ("propose", "queue a move of your own for a campaign; the gate judges it like any other", "propose"),
        ("review", "what waits for a person in a campaign; --admit or --refuse answers", "review"),
        ("ban", "forbid a lever group in a campaign (--undo takes it back)", "ban"),
        ("pause", "hold a campaign back before its next move", "pause"),
        ("go-on", "let a paused campaign go on", "go_on"),
        ("budget", "change a campaign's budget, device-hours", "budget_of"),
        ("finish", "end a campaign's search; what leads is re-measured and ships", "finish"),
        ("cancel", "end a campaign: its job is stopped and charged, the baseline kept", "cancel"),
        ("rerun", "one step of a campaign again: launch, profile, score, gate, calibrate, …", "rerun"),
    ):
        sub = add(verbs, name, text, f"people:{call}", json=True)
        sub.add_argument("campaign", metavar="CAMPAIGN", help="campaign id, or the start of it")
        sub.add_argument("--as", dest="name", default="", metavar="NAME", help="who says so (default: this machine's user)")
        sub.add_argument("--why", default="", metavar="TEXT", help="reason, for the record")
        _own(sub, name)


def _own(sub: argparse.ArgumentParser, name: str) -> None:
    if name == "propose":
        sub.add_argument("file", metavar="FILE", help="YAML: group, arguments, env, title …; or a list of such moves")
    elif name == "review":
        sub.add_argument("--admit", nargs="+", action="extend", default=[], metavar="LAUNCH", help="may ship")
        sub.add_argument("--refuse", nargs="+", action="extend", default=[], metavar="LAUNCH", help="may not ship")
    elif name == "ban":
        sub.add_argument("lever", metavar="LEVER", help="lever group (attuner rules levers), or `open`")
        sub.add_argument("--undo", action="store_true", help="allow it again")
    elif name == "budget":
        sub.add_argument("total", metavar="HOURS", nargs="?", type=float, default=None, help="new total, device-hours")
        sub.add_argument("--remaining", type=float, default=None, metavar="HOURS", help="what may still be spent instead")
    elif name == "rerun":
        sub.add_argument("step", metavar="STEP", choices=STEPS, help=", ".join(STEPS))
        sub.add_argument("key", metavar="KEY", nargs="?", default="", help="launch, hypothesis or calibration round")
        sub.add_argument("--only", action="store_true", help="set aside only; `attuner resume` goes on later")
        sub.add_argument("--quiet", action="store_true", help="print the last lines only")
