"""How long documents are, drawn: their distribution over token lengths, and what rows of several lengths make of them.

Self-contained: no network, no script. The name of the sources is foreign text and passes `esc`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attuner.datatools.lengths import QUANTILES, Fit, Lengths, bins
from attuner.report.style import css
from attuner.report.svg import CHAR_W, Box, Canvas, drawing, esc, text, tick_text, ticks
from attuner.report.terminal import share_pct

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_WIDE, _NARROW = 960.0, 360.0
_EXTRA = """
.h-documents{fill:var(--blue)}
.h-tokens{fill:none;stroke:var(--red);stroke-width:1.8;stroke-linejoin:round}
.h-mark{stroke:var(--soft);stroke-dasharray:4 4}
.f-kept{fill:var(--blue);background:var(--blue)}
.f-padding{fill:var(--idle);background:var(--idle)}
.f-lost{fill:var(--comm1);background:var(--comm1)}
svg .on-f-kept{fill:var(--bg)}svg .on-f-padding{fill:var(--on-idle)}svg .on-f-lost{fill:var(--on-comm1)}
.k-line{display:inline-block;width:1.3em;height:0;border-top:2px solid var(--red)}
.k-dash{display:inline-block;width:1.3em;height:0;border-top:2px dashed var(--soft)}
"""


@dataclass(frozen=True)
class _Frame:
    """The plot's place, and what its edges mean; lengths stand on a logarithmic axis."""

    left: float
    right: float
    top: float
    bottom: float
    low: float
    high: float
    max_y: float

    def x(self, length: float) -> float:
        return self.left + (self.right - self.left) * math.log(length / self.low) / math.log(self.high / self.low)

    def y(self, share: float) -> float:
        return self.bottom - (self.bottom - self.top) * share / self.max_y


def page(found: Lengths, name: str) -> str:
    """Return the whole page."""
    body = [_head(found, name), _distribution(found), _fits(found), _table(found), _quantiles(found)]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>How long documents are</title>\n<style>{css()}{_EXTRA}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(body)
        + "\n</main>\n</body>\n</html>\n"
    )


def picture(found: Lengths, name: str) -> str:
    """Return the distribution as an SVG file of its own."""
    svg = histogram(found, width=_WIDE)
    style = f"<title>{esc(name)}</title><style>{css()}{_EXTRA}svg{{background:var(--bg)}}</style>"
    head, rest = svg.split(">", 1)
    return f'{head} xmlns="http://www.w3.org/2000/svg">{style}{rest}\n'


def histogram(found: Lengths, *, width: float, css: str = "") -> str:
    """Return the drawing: a bar a range of lengths (documents), a stepped line (tokens), a dashed line a sequence length."""
    wide = width > 600
    binned = bins(found, 48 if wide else 24)
    shares = [(a, b, n / found.documents, t / max(1, sum(x[3] for x in binned))) for a, b, n, t in binned]
    height = 340.0 if wide else 300.0
    f = _Frame(
        left=50 if wide else 40,
        right=width - 10,
        top=52,
        bottom=height - 46,
        low=float(binned[0][0]),
        high=float(max(binned[-1][1], binned[0][0] + 1)),
        max_y=1.08 * max(max(d, t) for _, _, d, t in shares),
    )
    body = [*_axes(f, height, wide=wide)]
    for low, below, documents, tokens in shares:
        x0, x1 = f.x(low), f.x(below)
        span = f"{low:,}" if below - low == 1 else f"{low:,} to {below - 1:,}"
        words = f"{span} tokens: {share_pct(documents)} of documents, {share_pct(tokens)} of tokens"
        body.append(
            f'<g><title>{esc(words)}</title><rect class="h-documents" x="{x0:.1f}" y="{f.y(documents):.1f}" '
            f'width="{max(x1 - x0 - 1, 0.6):.1f}" height="{f.bottom - f.y(documents):.1f}"/></g>'
        )
    body.append(_steps(f, shares))
    body += _marks(f, found, width, height)
    return drawing(width, height, "share of documents and of tokens by length of the document", body, css=f"lengths {css}")


def _axes(f: _Frame, height: float, *, wide: bool) -> list[str]:
    out = [text(0, 14, "share of all", "axis-title")]
    for v in ticks(0, f.max_y, 5):
        y = f.y(v)
        out.append(f'<line class="grid" x1="{f.left:.1f}" x2="{f.right:.1f}" y1="{y:.1f}" y2="{y:.1f}"/>')
        out.append(text(f.left - 8, y + 4, share_pct(v), "tick", anchor="end"))
    out.append(f'<line class="axis" x1="{f.left:.1f}" x2="{f.right:.1f}" y1="{f.bottom:.1f}" y2="{f.bottom:.1f}"/>')
    edge = 0.0
    for v in _round_lengths(f.low, f.high):
        words = tick_text(v)
        x, half = f.x(v), len(words) * CHAR_W / 2
        out.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{f.bottom:.1f}" y2="{f.bottom + 4:.1f}"/>')
        middle = min(max(x, half), f.right - half)
        if middle - half >= edge:
            out.append(text(middle, f.bottom + 18, words, "tick", anchor="middle"))
            edge = middle + half + (14 if wide else 8)
    out.append(text(f.right, height - 6, "tokens of a document (logarithmic)", "axis-title", anchor="end"))
    return out


def _round_lengths(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten in the range; every whole number where that gives fewer than three."""
    found = [m * 10.0**e for e in range(0, 13) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    return found if len(found) > 2 else ticks(low, high, 5)


def _steps(f: _Frame, shares: list[tuple[int, int, float, float]]) -> str:
    path = [f"M{f.x(shares[0][0]):.1f} {f.bottom:.1f}"]
    path += [f"V{f.y(tokens):.1f}H{f.x(below):.1f}" for _, below, _, tokens in shares]
    return f'<path class="h-tokens" d="{"".join(path)}V{f.bottom:.1f}"/>'


def _marks(f: _Frame, found: Lengths, width: float, height: float) -> list[str]:
    """Return a dashed line at each sequence length that lies in the range, named at its top."""
    canvas = Canvas(Box(0, 0, width, height))
    out = []
    for fit in found.fits:
        at = fit.seq_len + 1
        if not f.low <= at <= f.high:
            continue
        x = f.x(at)
        out.append(f'<line class="h-mark" x1="{x:.1f}" x2="{x:.1f}" y1="{f.top - 6:.1f}" y2="{f.bottom:.1f}"/>')
        spots = [(x, y, "middle") for y in (f.top - 10, f.top - 26)]
        out.append(canvas.label(spots, tick_text(fit.seq_len), "m-note"))
    return out


def bars(found: Lengths, *, width: float, css: str = "") -> str:
    """Return the drawing: a bar a sequence length, in tokens: kept, padding, and what longer documents lose."""
    row_h, bar_h = 56.0, 26.0
    longest = max(found.tokens + f.padding for f in found.fits)
    scale = (width - 2) / longest
    body: list[str] = []
    for n, fit in enumerate(found.fits):
        y = n * row_h
        kept = found.tokens - fit.truncated
        # of padding the share of the rows, of the others that of the documents' tokens: the same figures as in the table
        parts = [
            ("kept", kept, kept / found.tokens),
            ("padding", fit.padding, fit.padding_share),
            ("lost", fit.truncated, fit.truncated / found.tokens),
        ]
        name = f"seq_len {fit.seq_len:,}: rows {share_pct(fit.efficiency)} filled"
        body.append(text(0, y + 14, name, "bar-name"))
        x = 0.0
        for part, tokens, of_all in parts:
            w, share = tokens * scale, share_pct(of_all)
            if w > 0.4:
                words = f"{_WORDS[part]}: {tokens:,} tokens, {share}"
                body.append(
                    f'<g><title>{esc(words)}</title><rect class="f-{part}" x="{x:.1f}" y="{y + 20:.1f}" '
                    f'width="{max(w - 1.5, 0.4):.1f}" height="{bar_h:.0f}"/></g>'
                )
            if w > len(share) * CHAR_W + 10:
                body.append(text(x + w / 2, y + 20 + bar_h / 2 + 4, share, f"in-bar on-f-{part}", anchor="middle"))
            x += w
    base = len(found.fits) * row_h
    body.append(f'<line class="axis" x1="0" x2="{longest * scale:.1f}" y1="{base:.1f}" y2="{base:.1f}"/>')
    for v in ticks(0, longest, 8 if width > 600 else 3):
        anchor = "start" if v == 0 else "middle" if v * scale < width - 30 else "end"
        body.append(f'<line class="axis" x1="{v * scale:.1f}" x2="{v * scale:.1f}" y1="{base:.1f}" y2="{base + 4:.1f}"/>')
        body.append(text(v * scale, base + 18, tick_text(v), "tick", anchor=anchor))
    body.append(text(width, base + 40, "tokens, one document a row", "axis-title", anchor="end"))
    return drawing(width, base + 46, "tokens kept, of padding and lost by sequence length", body, css=f"bars {css}")


_WORDS = {
    "kept": "documents' tokens in rows (share of tokens)",
    "padding": "padding (share of the rows)",
    "lost": "cut off longer documents (share of tokens)",
}


def _head(found: Lengths, name: str) -> str:
    stats = {
        "documents": f"{found.documents:,}",
        "tokens, end tokens included": f"{found.tokens:,}",
        "half of the documents have at most": f"{found.quantile(0.5):,} tokens",
        "99% have at most": f"{found.quantile(0.99):,} tokens; the longest {found.longest:,}",
    }
    rows = "".join(f"<div><dt>{esc(k)}</dt><dd>{esc(v)}</dd></div>" for k, v in stats.items())
    return f'<p class="eyebrow">{esc(name)}</p>\n<h1>How long documents are</h1>\n<dl class="stats">{rows}</dl>'


def _both(draw: object, found: Lengths) -> str:
    assert callable(draw)
    return f"{draw(found, width=_WIDE, css='wide')}\n{draw(found, width=_NARROW, css='narrow')}"


def _distribution(found: Lengths) -> str:
    legend = (
        '<li><span class="swatch h-documents" style="background:var(--blue)"></span>documents</li>'
        '<li><span class="k-line"></span>tokens: where the text is</li>'
        '<li><span class="k-dash"></span>sequence lengths tried</li>'
    )
    return (
        f'<section><h2>Distribution</h2>\n<figure>{_both(histogram, found)}</figure>\n<ul class="legend">{legend}</ul></section>'
    )


def _fits(found: Lengths) -> str:
    legend = "".join(f'<li><span class="swatch f-{part}"></span>{esc(words)}</li>' for part, words in _WORDS.items())
    note = "End to end there is no padding, and only the last row's rest is lost; but rows' ends cut through documents."
    return (
        f'<section><h2>One document a row</h2>\n<figure>{_both(bars, found)}</figure>\n<ul class="legend">{legend}</ul>\n'
        f'<p class="soft">{note}</p></section>'
    )


def _table(found: Lengths) -> str:
    names = (
        "seq_len",
        "rows, end to end",
        "documents cut by a row's end",
        "rows, one document each",
        "filled",
        "truncated tokens",
    )
    head = "".join(f'<th class="num">{esc(n)}</th>' for n in names)
    return (
        f'<section><h2>Sequence lengths</h2>\n<table class="cards"><thead><tr>{head}</tr></thead><tbody>'
        + "".join(f"<tr>{_row(fit, found, names)}</tr>" for fit in found.fits)
        + "</tbody></table></section>"
    )


def _row(fit: Fit, found: Lengths, names: tuple[str, ...]) -> str:
    cells = (
        f"{fit.seq_len:,}",
        f"{fit.rows_end_to_end:,}",
        f"{fit.documents_cut:,} ({share_pct(fit.documents_cut / found.documents)})",
        f"{fit.rows_one_by_one:,}",
        share_pct(fit.efficiency),
        f"{fit.truncated:,} ({share_pct(fit.truncated / found.tokens)})",
    )
    return "".join(f'<td class="num" data-label="{esc(n)}">{esc(c)}</td>' for n, c in zip(names, cells, strict=True))


def _quantiles(found: Lengths) -> str:
    rows = "".join(f'<tr><td>{q * 100:g}%</td><td class="num">{found.quantile(q):,}</td></tr>' for q in QUANTILES)
    head = '<th>share of documents</th><th class="num">have at most this many tokens</th>'
    return f"<section><h2>Quantiles</h2>\n<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></section>"
