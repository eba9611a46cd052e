"""One piece of news as Markdown: what it says, what it rests on, and its figures. Every word of it may come from a run's log."""

from __future__ import annotations

from attuner.core.news import News
from attuner.core.private import mask
from attuner.report.markdown_parts import block, esc


def render(news: News) -> str:
    """Return the artifact of an alert."""
    rows = [f"- {block(mask(x))}" for x in news.evidence]
    rows += [f"- {block(mask(k))}: {v:,.6g}" for k, v in news.figures.items()]
    return "\n".join([f"**{esc(mask(news.text))}**", "", *rows])
