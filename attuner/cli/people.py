"""What a person says to a campaign, from the terminal: propose, review, ban, pause, go-on, budget, finish, cancel, rerun.

All but `rerun` are only put on record: the process that runs the campaign acts on them. `rerun` takes the campaign up itself.
"""

from __future__ import annotations

import argparse
import getpass
import json
from pathlib import Path
from typing import TYPE_CHECKING

from attuner.core.errors import UserError
from attuner.core.events import History
from attuner.core.people import Directive
from attuner.policy import budget, leader, people
from attuner.settings import Settings, load_settings

if TYPE_CHECKING:
    from attuner.ledgers.duckdb_file import DuckdbLedger


def _open(arguments: argparse.Namespace) -> tuple[Settings, DuckdbLedger, str]:
    from attuner.wiring import open_ledger

    settings = load_settings(project=arguments.project)
    ledger = open_ledger(settings)
    return settings, ledger, ledger.find(arguments.campaign)


def _who(arguments: argparse.Namespace) -> str:
    """Return the name for the record: the one given, else this machine's user."""
    return arguments.name.strip() or getpass.getuser()


def _told(arguments: argparse.Namespace, record: Directive, line: str) -> int:
    print(json.dumps(record.data(), indent=1, ensure_ascii=False) if arguments.json else line)
    return 0


def propose(arguments: argparse.Namespace) -> int:
    """Queue the moves of a file."""
    from attuner.proposals import read_proposals
    from attuner.steps.people import queue

    moves = read_proposals(Path(arguments.file))
    _, ledger, name = _open(arguments)
    said = [queue(ledger, name, move, by=_who(arguments), why=arguments.why) for move in moves]
    if arguments.json:
        print(json.dumps([x.data() for x in said], indent=1, ensure_ascii=False))
        return 0
    for move in moves:
        print(f"queued  {move.title}  ({move.group}); the gate judges it when {name} comes to its next move")
    return 0


def review(arguments: argparse.Namespace) -> int:
    """Answer what waits for a person; without an answer list it."""
    from attuner.steps.people import answer

    settings, ledger, name = _open(arguments)
    asked = [(x, "admit") for x in arguments.admit] + [(x, "refuse") for x in arguments.refuse]
    if not asked:
        return _waiting(arguments, History(ledger.history(name)), name)
    # no default for the name: whoever admits something must mean it
    given = [answer(ledger, name, launch, word, by=arguments.name, why=arguments.why) for launch, word in asked]
    history = History(ledger.history(name))
    if arguments.json:
        print(json.dumps([x.data() for x in given], indent=1, ensure_ascii=False))
    else:
        for x in given:
            print(f"{x.decision}  {x.launch_id}  {len(x.items)} items, by {x.by}: {x.why}")
    if history.shipment() is not None and not arguments.json:
        print(f"{name} has shipped already; `attuner rerun {name} ship` decides again with these answers")
    elif not arguments.json:
        from attuner.cli.wake import wake

        print(wake(settings, name) or f"to go on: attuner resume {name}")
    return 0


def _waiting(arguments: argparse.Namespace, history: History, name: str) -> int:
    waits = leader.waiting(history)
    rows = [
        {
            "launch": s.launch_id,
            "tokens_per_s_per_gpu": s.tokens_per_s_per_gpu,
            "gain_over_baseline": s.gain_over_baseline,
            "items": [x.data() for x in people.open_items(history, s.launch_id)],
        }
        for s in waits
    ]
    given = [x.data() for x in history.reviews()]
    if arguments.json:
        print(json.dumps({"campaign": name, "waiting": rows, "answers": given}, indent=1, ensure_ascii=False))
        return 0
    for score in waits:
        speed = f"{score.tokens_per_s_per_gpu:,.0f} tok/s/device"
        print(f"{score.launch_id}  {speed}, {score.gain_over_baseline:+.1%} over the baseline")
        print("\n".join(f"   {line}" for line in leader.open_reviews(history, score.launch_id)))
    for said in history.reviews():
        print(f"answered  {said.launch_id}  {said.decision}" + (f" by {said.by}: {said.why}" if said.by else f": {said.why}"))
    print(f"{len(waits)} wait for a person: attuner review {name} --admit|--refuse LAUNCH --as NAME --why TEXT")
    return 0


def ban(arguments: argparse.Namespace) -> int:
    """Ban a lever group, or take a ban back."""
    from attuner.steps import people as said

    settings, ledger, name = _open(arguments)
    if arguments.undo:
        done = said.unban(ledger, name, arguments.lever, by=_who(arguments), why=arguments.why)
        return _told(arguments, done, f"{arguments.lever} is allowed again in {name}")
    said.check_lever(ledger, name, arguments.lever, settings.rules_dir())
    done = said.ban(ledger, name, arguments.lever, by=_who(arguments), why=arguments.why)
    return _told(arguments, done, f"{arguments.lever} is banned in {name}: no move of it is launched any more")


def pause(arguments: argparse.Namespace) -> int:
    """Hold a campaign back before its next move."""
    from attuner.steps import people as said

    _, ledger, name = _open(arguments)
    done = said.pause(ledger, name, by=_who(arguments), why=arguments.why)
    return _told(arguments, done, f"{name} pauses before its next move; attuner go-on {name}")


def go_on(arguments: argparse.Namespace) -> int:
    """Let a paused campaign go on."""
    from attuner.steps import people as said

    _, ledger, name = _open(arguments)
    return _told(arguments, said.go_on(ledger, name, by=_who(arguments), why=arguments.why), f"{name} goes on")


def finish(arguments: argparse.Namespace) -> int:
    """End a campaign's search; what leads is re-measured and ships."""
    from attuner.steps import people as said

    _, ledger, name = _open(arguments)
    done = said.finish(ledger, name, by=_who(arguments), why=arguments.why)
    return _told(arguments, done, f"{name} ends its search after what runs now, then re-measures and ships")


def cancel(arguments: argparse.Namespace) -> int:
    """End a campaign: the job is stopped, its charge settled, the baseline kept."""
    from attuner.steps import people as said

    _, ledger, name = _open(arguments)
    done = said.cancel(ledger, name, by=_who(arguments), why=arguments.why)
    return _told(arguments, done, f"{name} is cancelled: what runs is stopped and charged, the baseline is kept")


def budget_of(arguments: argparse.Namespace) -> int:
    """Set a campaign's budget: its total, or what may still be spent."""
    from attuner.steps import people as said

    _, ledger, name = _open(arguments)
    if (arguments.total is None) == (arguments.remaining is None):
        raise UserError("budget: give the new TOTAL, or --remaining HOURS, in device-hours")
    spent = budget.spent(History(ledger.history(name)))
    total = arguments.total if arguments.total is not None else spent + arguments.remaining
    done = said.set_budget(ledger, name, total, by=_who(arguments), why=arguments.why)
    return _told(arguments, done, f"{name}: {total:g} device-hours in all, {spent:.4f} of them spent")


def rerun(arguments: argparse.Namespace) -> int:
    """Set one step aside, then go on with the campaign: what is missing is done again, and nothing else."""
    from attuner.cli.run import go_on_with
    from attuner.report.reruns import rerun_rows
    from attuner.steps.rerun import rerun as set_aside

    settings, ledger, name = _open(arguments)
    done = set_aside(
        ledger, name, arguments.step, arguments.key, by=_who(arguments), why=arguments.why, rules_dir=settings.rules_dir()
    )
    if not arguments.json:
        print(f"set aside  {', '.join(done.hides)}")
    if arguments.only:
        print(json.dumps(done.data(), indent=1, ensure_ascii=False) if arguments.json else f"to go on: attuner resume {name}")
        return 0
    ledger.close()
    code = go_on_with(settings, name, quiet=arguments.quiet or arguments.json)
    rows = rerun_rows(History(ledger.history(name)))
    if arguments.json:
        print(json.dumps([r.data() for r in rows], indent=1, ensure_ascii=False))
        return code
    print("\n".join(f"  {r.step:13}{r.key:24}{r.what}" for r in rows))
    return code
