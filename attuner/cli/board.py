"""`attuner board [--html DIR]`: all campaigns as lines, as JSON, or as a static site."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from attuner.cli import read
from attuner.cli.reading import SITE, Unreadable, no_collection, told
from attuner.cli.spend import read_prices
from attuner.core.errors import UserError
from attuner.settings import load_settings


def board(arguments: argparse.Namespace) -> int:
    """Print one line per campaign, or write the site of all of them."""
    with no_collection():
        return _board(arguments)


def _board(arguments: argparse.Namespace) -> int:
    if not arguments.html:
        if arguments.prices:
            raise UserError("board: --prices goes with --html DIR; `attuner spend --prices FILE` prints the account")
        return read.board(arguments)
    from attuner.report.board_rows import entry, ordered
    from attuner.report.board_site import files_of
    from attuner.report.site_files import write_site
    from attuner.wiring import open_ledger

    settings = load_settings(project=arguments.project)
    prices = read_prices(arguments.prices, settings)
    ledger = open_ledger(settings)
    names = ledger.campaigns()
    folder = Path(arguments.html)
    found = [told(name, past, lambda e: entry(e, prices)) for name, past in ledger.histories(names, without=SITE)]
    unread = [f for f in found if isinstance(f, Unreadable)]
    entries = ordered(f for f in found if not isinstance(f, Unreadable))
    changed = write_site(folder, files_of(entries, [u.line() for u in unread]))
    page = folder / "index.html"
    if arguments.json:
        print(json.dumps({"page": str(page), "campaigns": len(names), "changed": [str(p) for p in changed]}))
    else:
        files = f"{len(changed)} file{'' if len(changed) == 1 else 's'} changed" if changed else "nothing changed"
        print(f"{page}: {len(names)} campaign{'' if len(names) == 1 else 's'}, {files}")
    return 0
