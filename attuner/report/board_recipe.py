"""A campaign's recipe in the board's site: the file that a person takes, and the page that says where it is from."""

from __future__ import annotations

from attuner.report import claims, origin, queries
from attuner.report.board_rows import BoardEntry
from attuner.report.board_shell import code, shell
from attuner.report.board_table import Shown, cost, dollars, efficiency, evidence, gain, speeds, state
from attuner.report.html_tables import changes_table, pinned_table
from attuner.report.recipe_yaml import recipe_yaml
from attuner.report.svg import esc
from attuner.report.words import clean


def recipe_file(e: BoardEntry) -> str:
    """Return the YAML file of the recipe; its head says which campaign shipped it, or why it may not be used."""
    said = f"attuner campaign {clean(e.facts.campaign_id)}, recipe {e.facts.recipe_digest[:12]}"
    if e.not_shipped:
        return f"# NOT SHIPPABLE: {clean(e.not_shipped)}\n# {said}\n{recipe_yaml(e.facts.recipe)}"
    what = "kept the baseline" if claims.kept(e.facts) else "shipped"
    return f"# {what}: {said}\n{recipe_yaml(e.facts.recipe)}"


def page(e: BoardEntry) -> str:
    """Return the page of one campaign's recipe."""
    facts = e.facts
    name = clean(facts.campaign_id)
    parts = (_head(e), _recipe(e), _changes(e), _from(e), _check(e))
    return shell(f"{name}: recipe", "\n".join(p for p in parts if p), wide=False)


def _head(e: BoardEntry) -> str:
    facts = e.facts
    stats: tuple[tuple[str, Shown], ...] = (
        ("State", Shown(esc(state(e)))),
        ("Workload", Shown(esc(claims.subject(facts)))),
        ("Framework", Shown(esc(e.framework))),
        ("Tokens/s per device", speeds(e)),
        ("Gain", gain(e)),
        ("MFU", efficiency(e)),
        ("US dollars per million tokens", dollars(e)),
        ("Cost of tuning", cost(e)),
        ("Gate", evidence(e)),
    )
    cells = "".join(f"<div><dt>{esc(k)}</dt><dd>{shown.html}</dd></div>" for k, shown in stats)
    measured = claims.evidence(facts).removeprefix(claims.on_paper(facts)).strip()
    warning = f'<div class="notice"><p><b>Not to be used.</b> {esc(e.not_shipped)}</p></div>' if e.not_shipped else ""
    return (
        '<header>\n<p class="eyebrow"><a href="../index.html">Board</a> · campaign '
        f"{esc(facts.campaign_id)}</p>\n<h1>{esc(claims.headline(facts))}</h1>\n<p>{esc(measured)}</p>\n{warning}\n"
        f'<dl class="stats">{cells}</dl>\n'
        f'<p class="screen"><a href="../{e.report}">Report with every launch and look</a> · '
        f'<a href="../index.html#compare={e.slug}">Compare with another recipe</a></p>\n</header>'
    )


def _recipe(e: BoardEntry) -> str:
    facts = e.facts
    title = "The recipe" if facts.recipe_digest != facts.baseline_digest else "The baseline’s recipe"
    link = f'<p class="screen"><a href="../{e.recipe_file}" download>Download as YAML</a></p>' if e.recipe_file else ""
    return f'<section id="recipe">\n<h2>{title}</h2>\n{link}\n<pre>{code(recipe_yaml(facts.recipe).rstrip())}</pre>\n</section>'


def _changes(e: BoardEntry) -> str:
    facts = e.facts
    if facts.leader is None:
        return ""
    title = "What the best candidate changed" if claims.kept(facts) else "What it changes from the baseline"
    sql = code(f"{queries.view(facts)}\n{queries.changes(facts)}")
    return (
        f'<section id="changes">\n<h2>{title}</h2>\n<p class="soft">{esc(claims.changed(facts))}</p>\n{changes_table(facts)}\n'
        f"<details><summary>SQL that checks this</summary><pre>{sql}</pre></details>\n</section>"
    )


def _from(e: BoardEntry) -> str:
    facts = e.facts
    published, adapted = origin.published(facts), origin.adaptations(facts)
    parts = [
        f"<p>Published: {esc(published)}</p>" if published else "",
        "<p>Adapted from the public recipe:</p><ul>" + "".join(f"<li>{esc(a)}</li>" for a in adapted) + "</ul>"
        if adapted
        else "",
        pinned_table(facts),
    ]
    return '<section id="from">\n<h2>Where it is from</h2>\n' + "\n".join(p for p in parts if p) + "\n</section>"


def _check(e: BoardEntry) -> str:
    facts = e.facts
    sql = code(f"{queries.view(facts)}\n{queries.claim(facts)}\n{queries.spend(facts)}\n{queries.recipe(facts)}")
    return (
        '<section id="check">\n<h2>Check it</h2>\n<p>After <code>attuner ledger export ledger.duckdb</code>, in that file:</p>\n'
        f"<pre>{sql}</pre>\n</section>"
    )
