"""bench.html: a comparison on one self-contained page: what was compared, figures, curves, tests. No network, no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attuner.bench.curves import picture
from attuner.bench.outcome import Outcome
from attuner.bench.stats import Test
from attuner.bench.table import HEAD, Line, cells, lines
from attuner.report.style import css
from attuner.report.svg import esc

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_HUES = ("#1f5fa8", "#b8431a", "#0b6b58", "#8a5a00", "#7a4fa0", "#5a626c", "#a02860")
_DARK_HUES = ("#7db3ee", "#f08a62", "#5fc9ae", "#e5b454", "#bd9ce0", "#9aa3ad", "#ee86ae")


def page(
    title: str, protocol: Sequence[str], outcomes: Sequence[Outcome], tests: Sequence[Test], sources: Mapping[str, str]
) -> str:
    """Return the whole page.

    Args:
        title: of the page.
        protocol: what was the same for every arm, one sentence each.
        outcomes: every campaign.
        tests: of the first arm against the others.
        sources: where each table's figures come from.
    """
    rows = lines(outcomes)
    parts = [
        f"<h1>{esc(title)}</h1>",
        f'<p class="eyebrow">{esc("on " + ", ".join(dict.fromkeys(o.table for o in outcomes)))}</p>' if outcomes else "",
        _list(protocol),
        '<section id="figures"><h2>Figures</h2>',
        _table(rows),
        "</section>",
        *(_curves(table, outcomes, sources.get(table, "")) for table in dict.fromkeys(o.table for o in outcomes)),
        _tests(tests),
        _shipped(outcomes),
    ]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{esc(title)}</title>\n<style>{css()}{style()}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(p for p in parts if p)
        + "\n</main>\n</body>\n</html>\n"
    )


def style() -> str:
    """Return the colours of the arms, light and dark."""
    rules = "".join(_hue(n, hue) for n, hue in enumerate(_HUES))
    dark = "".join(_hue(n, hue) for n, hue in enumerate(_DARK_HUES))
    shared = (
        ".bench-curves .line{fill:none;stroke-width:2}.bench-curves .shade{fill-opacity:.12;stroke:none}"
        "main{max-width:1400px}.wide-table{overflow-x:auto}.wide-table table{width:100%;margin:0}"
    )
    return f"{shared}{rules}@media screen and (prefers-color-scheme:dark){{{dark}}}"


def _hue(number: int, hue: str) -> str:
    name = f".bench-curves .arm-{number}"
    return f"{name}.line{{stroke:{hue}}}{name}.shade{{fill:{hue}}}{name}.name{{fill:{hue};font-weight:600}}"


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{esc(i)}</li>" for i in items) + "</ul>"


def _grid(head: Sequence[str], body: Sequence[Sequence[str]], *, words: int) -> str:
    """Return a table whose first `words` columns are words, the others figures."""
    top = "".join(f'<th class="{"" if i < words else "num"}">{esc(h)}</th>' for i, h in enumerate(head))
    rows = "".join(
        "<tr>"
        + "".join(
            f'<td class="{"nowrap" if i < words - (words > 2) else "num" if i >= words else ""}">{esc(c)}</td>'
            for i, c in enumerate(row)
        )
        + "</tr>"
        for row in body
    )
    return f'<div class="wide-table"><table><thead><tr>{top}</tr></thead><tbody>{rows}</tbody></table></div>'


def _table(rows: Sequence[Line]) -> str:
    return _grid(HEAD, [cells(r) for r in rows], words=2)


def _curves(table: str, outcomes: Sequence[Outcome], source: str) -> str:
    here = [o for o in outcomes if o.table == table]
    drawn = picture(here) or "<p>No arm gained anything here.</p>"
    said = f'<p class="soft">{esc(f"Figures: {source}")}</p>' if source else ""
    caption = "Line: mean over the campaigns. Shading: their range. Ticks: where each search ended; after it the curve runs flat."
    return f'<section><h2>{esc(table)}</h2>\n<figure>{drawn}</figure>\n<p class="soft">{esc(caption)}</p>{said}</section>'


def _tests(found: Sequence[Test]) -> str:
    if not found:
        return ""
    head = ("table", "arm", "against", "test", "difference of means", "p (one-sided)", "lowest possible", "permutations")
    body = [
        [
            t.table or "all",
            t.arm,
            t.other,
            t.kind,
            f"{t.difference:+.1%}",
            f"{t.p:.2g}",
            f"{t.lowest:.2g}",
            f"{t.permutations:,}{'' if t.counted else ' drawn'}",
        ]
        for t in found
    ]
    return f'<section id="tests"><h2>Permutation tests</h2>{_grid(head, body, words=4)}</section>'


def _shipped(outcomes: Sequence[Outcome]) -> str:
    head = ("table", "arm", "seed", "what it would ship", "gain", "GPU-h", "launches", "failed")
    body = [
        [
            o.table,
            o.arm,
            str(o.seed),
            o.shipped or "the baseline",
            f"{o.gain:+.1%}",
            f"{o.gpu_hours:,.3g}" if o.gpu_hours < 10 else f"{o.gpu_hours:,.0f}",
            str(o.launches),
            str(o.failed),
        ]
        for o in outcomes
    ]
    listed = f"<details><summary>{len(body)} of them</summary>{_grid(head, body, words=4)}</details>"
    return f'<section id="campaigns"><h2>Every campaign</h2>{listed}</section>'
