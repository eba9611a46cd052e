"""Lengths of documents in the terminal: quantiles, a histogram, and what each sequence length makes of them."""

from __future__ import annotations

from attuner.datatools.lengths import Lengths, bins
from attuner.report.terminal import bar, share_pct

_LABEL, _BINS, _BAR = 12, 16, 40
SHOWN = (0.05, 0.5, 0.9, 0.99)


def lines(found: Lengths) -> list[str]:
    """Return the lines."""
    mean = found.tokens / found.documents
    quantiles = ", ".join(f"p{q * 100:g} {found.quantile(q):,}" for q in SHOWN)
    out = [
        _line("documents", f"{found.documents:,}, {found.tokens:,} tokens with end tokens"),
        _line("tokens", f"mean {mean:,.1f}, {quantiles}, longest {found.longest:,}"),
        "",
        *_histogram(found),
        "",
        f"  {'':{_LABEL}}{'— end to end —':>30}{'— one document a row —':>46}",
        f"  {'seq_len':>{_LABEL}}{'rows':>16}{'documents cut':>14}{'rows':>12}{'filled':>10}{'padding':>10}{'truncated':>14}",
    ]
    for f in found.fits:
        out.append(
            f"  {f.seq_len:>{_LABEL},}{f.rows_end_to_end:>16,}{share_pct(f.documents_cut / found.documents):>14}"
            f"{f.rows_one_by_one:>12,}{share_pct(f.efficiency):>10}{share_pct(f.padding_share):>10}"
            f"{share_pct(f.truncated / found.tokens):>14}"
        )
    return out


def _line(label: str, words: str) -> str:
    return f"  {label:{_LABEL}}{words}"


def _histogram(found: Lengths) -> list[str]:
    """Return a line a bin, ranges of equal ratio; a bar's length is its share of the documents."""
    binned = bins(found, _BINS)
    most = max(n for _, _, n, _ in binned)
    words = [f"{low:,}" if below - low == 1 else f"{low:,}–{below - 1:,}" for low, below, _, _ in binned]
    width = max(map(len, words))
    return [
        f"  {word:>{width}}  {bar(n / most, _BAR):{_BAR}}  {n:,} ({share_pct(n / found.documents)})"
        for word, (_, _, n, _) in zip(words, binned, strict=True)
    ]
