"""The board as a static site: a page of all campaigns, a page, a recipe file and a report for each. Nothing comes from outside.

A page's content policy forbids everything but its own style and, on the board, its own script, both named by their digests.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Mapping, Sequence

from attuner.core.events import Event
from attuner.report import board_diff, board_table, html
from attuner.report.board_recipe import page, recipe_file
from attuner.report.board_rows import BoardEntry, entries
from attuner.report.board_script import SCRIPT
from attuner.report.board_shell import code, shell
from attuner.report.board_table import COLUMNS, FIRST, campaign_name
from attuner.report.efficiency import MFU_MEANS
from attuner.report.spend import DevicePrice
from attuner.report.svg import esc
from attuner.report.words import units_for, when

FILTERS = (("model", "Model"), ("hardware", "Hardware"), ("version", "Framework"), ("state", "State"))
SQL = """-- attuner ledger export snapshot.duckdb, then in that file:
SELECT b.campaign_id, b.gain, b.kept_baseline, b.spend_gpu_hours,
       r.record->>'$.baseline_mean' AS before, r.record->>'$.leader_mean' AS after, r.record->>'$.band' AS band
FROM board b LEFT JOIN latest r ON r.campaign_id = b.campaign_id AND r.kind = 'remeasurement'
ORDER BY b.campaign_id;"""
EMPTY = "No campaign in this ledger yet."


def site(campaigns: Iterable[Sequence[Event]], prices: Mapping[str, DevicePrice]) -> dict[str, str]:
    """Return every file of the site, path to text, the board's page last: whoever follows its links finds their pages.

    The same ledger and prices give the same bytes. Raises what `gather` raises.
    """
    return files_of(entries(campaigns, prices))


def files_of(found: Sequence[BoardEntry], unread: Sequence[str] = ()) -> dict[str, str]:
    """Return every file of the site of these campaigns; unread: what can't be told of others, a line each."""
    files: dict[str, str] = {}
    for e in found:
        if e.recipe_file:
            files[e.recipe_file] = recipe_file(e)
        files[e.report] = html.render(e.facts)
        files[e.page] = page(e)
    files["index.html"] = index(found, unread)
    return files


def index(found: Sequence[BoardEntry], unread: Sequence[str] = ()) -> str:
    """Return the board's page."""
    if not found:
        start = "" if unread else f"<p>{EMPTY} Start one with <code>attuner run FILE</code>.</p>"
        return shell("Board of campaigns", f"<h1>Board</h1>\n{start}{_unread(unread)}")
    parts = (
        f'<header>\n<h1>Board</h1>\n<p class="soft">{esc(summary(found))}</p>\n</header>',
        "<noscript><p>Sorting, search and the comparison of two recipes need JavaScript. The table is complete without it.</p>"
        "</noscript>",
        _controls(found),
        board_table.table(found),
        _unread(unread),
        _picked(),
        _compare(found),
        _notes(found),
        f'<script type="application/json" id="data">{board_diff.embedded(board_diff.data(found))}</script>',
        f"<script>{SCRIPT}</script>",
    )
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    return shell("Board of campaigns", "\n".join(parts), script_digest=digest)


def _unread(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{esc(line)}</li>" for line in lines)
    return f"<h2>Can't be shown</h2>\n<ul>{items}</ul>" if lines else ""


def summary(found: Sequence[BoardEntry]) -> str:
    """Return how many campaigns there are, what came of them, what they were charged, and up to when the ledger goes."""
    states = [e.facts.state for e in found]
    counts = [f"{states.count(s)} {s}" for s in dict.fromkeys(states)]
    devices: dict[str, float] = {}
    for e in found:
        kind = e.facts.campaign.launcher.cluster.device.kind
        devices[kind] = devices.get(kind, 0.0) + e.facts.total_gpu_hours
    charged = [units_for(kind, hours).spent(hours) for kind, hours in sorted(devices.items(), reverse=True)]
    waiting = sum(1 for e in found if e.row["num_reviews"])
    said = [
        f"{len(found)} campaign{'' if len(found) == 1 else 's'}: {', '.join(counts)}",
        f"{' and '.join(charged)} charged",
        *([f"{waiting} with findings that wait for a person"] if waiting else []),
        f"last event {when(max(e.row['updated_at'] for e in found))}",
    ]
    return " · ".join(said)


def _controls(found: Sequence[BoardEntry]) -> str:
    sorts = "".join(
        f'<option value="{c.key}"{" selected" if c.key == FIRST else ""}>{esc(c.name)}</option>' for c in COLUMNS if c.kind
    )
    selects = "".join(_filter(name, label, found) for name, label in FILTERS)
    return (
        '<form id="filters" class="needs-js" autocomplete="off" aria-label="Search and filter">\n<div class="controls">'
        '<label class="grow">Search<input type="search" id="search"></label>'
        f"{selects}"
        f'<label class="cards-only">Sort by<select id="sort">{sorts}</select></label>'
        '<button type="button" id="reverse" class="cards-only">↓ descending</button>'
        '<button type="reset">Show all</button></div>\n<p id="count" role="status"></p></form>'
    )


def _filter(name: str, label: str, found: Sequence[BoardEntry]) -> str:
    def told(e: BoardEntry) -> str:
        work = e.facts.campaign.workload
        return {"model": work.model, "hardware": work.hardware, "version": e.framework, "state": e.facts.state}[name]

    # escaped the same way as the rows' own attributes: equal texts stay equal
    options = "".join(f'<option value="{text}">{text}</option>' for text in sorted({esc(told(e)) for e in found}))
    return f'<label>{label}<select data-filter="{name}"><option value="">all</option>{options}</select></label>'


def _picked() -> str:
    return (
        '<div id="picked" role="region" aria-label="Picked for comparison" hidden><p id="picked-names"></p>'
        '<button type="button" id="go">Show differences</button><button type="button" id="clear">Clear</button></div>'
    )


def _compare(found: Sequence[BoardEntry]) -> str:
    options = '<option value="">–</option>' + "".join(
        f'<option value="{i}">{campaign_name(e)}: {esc(e.facts.campaign.workload.model, limit=60)}, '
        f"{esc(e.facts.campaign.workload.hardware, limit=60)}</option>"
        for i, e in enumerate(found)
    )
    selects = "".join(
        f'<label>{label}<select id="{name}" autocomplete="off">{options}</select></label>'
        for name, label in (("first", "First recipe"), ("second", "Second recipe"))
    )
    return (
        '<section id="compare" class="needs-js" aria-labelledby="compare-title">\n'
        '<h2 id="compare-title" tabindex="-1">Compare two recipes</h2>\n'
        '<p class="soft">What each ships, or leads with: final values, after the framework’s own derivations. '
        "A recipe against its own baseline stands on its page.</p>\n"
        f'<div class="controls pair">{selects}<button type="button" id="swap">Swap</button></div>\n'
        '<p id="compared" role="status"></p>\n'
        '<table id="differences" class="cards" hidden><caption class="visually-hidden">Final values that differ</caption>'
        '<thead><tr><th scope="col">Final value</th><th scope="col">First</th><th scope="col">Second</th></tr></thead>'
        "<tbody></tbody></table>\n"
        "</section>"
    )


def _notes(found: Sequence[BoardEntry]) -> str:
    stated: dict[tuple[float, str, str], set[str]] = {}
    for e in found:
        if e.price:
            key = (e.price.usd_per_hour, e.price.source, e.price.read)
            stated.setdefault(key, set()).add(e.facts.campaign.workload.hardware)
    prices = [
        f"{', '.join(sorted(names))}: {usd:g} US dollars per device-hour ({source}{f'; read {read}' if read else ''})"
        for (usd, source, read), names in sorted(stated.items())
    ]
    notes = (
        "Gain: shipped over baseline. ± is the noise band of the calibration; a gain inside it is none.",
        f"{MFU_MEANS}. A dash: shape or peak is not known.",
        "US dollars: device-hours at the price that configs/device_prices.yaml states. A dash: no price is stated.",
        *prices,
        "Cost of tuning: from allocation to release, failures and checks included.",
        "Gate: three looks at what ships: at its final values, its forward pass, its gradients and first update. ✓ is admitted.",
    )
    items = "".join(f"<li>{esc(n)}</li>" for n in notes)
    sql = f"<details><summary>SQL that checks this</summary><pre>{code(SQL)}</pre></details>"
    return f'<section id="notes">\n<h2>How to read it</h2>\n<ul>{items}</ul>\n{sql}\n</section>'
