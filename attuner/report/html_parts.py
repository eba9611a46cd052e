"""Small pieces of HTML that every section is made of: sections, paragraphs, lists, the SQL beside a figure, two-sized figures."""

from __future__ import annotations

from collections.abc import Iterable

from attuner.report.svg import esc


def section(name: str, title: str, parts: Iterable[str]) -> str:
    """Return a section; `parts` are safe HTML, empty ones are left out."""
    return f'<section id="{name}">\n<h2>{esc(title)}</h2>\n' + "\n".join(p for p in parts if p) + "\n</section>"


def p(text: str, css_class: str = "") -> str:
    """Return a paragraph of foreign text; '' for none."""
    mark = f' class="{css_class}"' if css_class else ""
    return f"<p{mark}>{esc(text)}</p>" if text else ""


def sql(query: str) -> str:
    """Return the query that checks a figure, folded away on a screen."""
    return f"<details><summary>SQL that checks this</summary><pre>{lines(query)}</pre></details>"


def items(found: Iterable[str]) -> str:
    """Return a list of foreign texts."""
    return "<ul>" + "".join(f"<li>{esc(i)}</li>" for i in found) + "</ul>"


def both(wide: str, narrow: str, caption: str = "") -> str:
    """Return a figure that has a drawing for a wide and one for a narrow screen."""
    return f"<figure>{wide}\n{narrow}{caption}</figure>" if wide else ""


def lines(text: str) -> str:
    """Return text for `pre`: its lines and indents stay, everything else is escaped."""
    return "\n".join(_line(line) for line in text.split("\n"))


def _line(line: str) -> str:
    bare = line.lstrip(" ")  # `esc` joins white space; the indent of code has to stay
    return " " * (len(line) - len(bare)) + esc(bare, limit=4000)
