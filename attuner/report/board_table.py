"""The table of the board's page: one row a campaign. It reads without script and without colour; on a phone a row is a card."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from attuner.report.board_rows import BoardEntry
from attuner.report.svg import esc
from attuner.report.terminal import DASH, pct, rate, share_pct
from attuner.report.words import number, when

_STATES = {"shipped": "✓", "baseline kept": "=", "waiting for review": "◆", "on paper": "✕"}
LOOKS = {"1": "final values", "2": "forward", "3": "update"}
"""The looks by the number that their names in the report begin with."""
ARROW = '<span class="arrow"> → </span>'
MODEL_COST = "language model"


@dataclass(frozen=True)
class Shown:
    """One cell: HTML that is safe already, and what it sorts by; '' is missing, and comes last."""

    html: str
    key: str | float = ""


@dataclass(frozen=True)
class Column:
    """One column. kind: `text`, `number`, or '' for one that can't be sorted by; css: its cells' class."""

    key: str
    name: str
    kind: str
    show: Callable[[BoardEntry], Shown]
    css: str = ""
    descending: bool = False
    """Whether its first sorting is from the largest down."""


def campaign_name(e: BoardEntry) -> str:
    """Return the campaign's id as the site shows it."""
    return esc(e.facts.campaign_id, limit=80)


def state(e: BoardEntry) -> str:
    """Return the campaign's state as a word with a sign; one played on a replay table says so in every state."""
    paper = " (on paper)" if e.not_shipped.startswith("Not shippable") and e.facts.state != "on paper" else ""
    return f"{_STATES.get(e.facts.state, '…')} {e.facts.state}{paper}"


def _sub(text: str) -> str:
    return f'<span class="sub">{text}</span>' if text else ""


def _name(e: BoardEntry) -> Shown:
    link = f'<a href="{e.page}">{campaign_name(e)}</a>'
    return Shown(f"{link}{_sub(esc(state(e)))}", e.facts.campaign_id)


def _model(e: BoardEntry) -> Shown:
    return Shown(esc(e.facts.campaign.workload.model, limit=80), e.facts.campaign.workload.model)


def _hardware(e: BoardEntry) -> Shown:
    work = e.facts.campaign.workload
    return Shown(esc(work.hardware, limit=80) + _sub(esc(e.facts.units.devices(work.gpus))), work.hardware)


def _framework(e: BoardEntry) -> Shown:
    told = [f"{name} {version}" for name, version in e.facts.versions if version not in e.framework]
    return Shown(esc(e.framework, limit=60) + _sub(esc(", ".join(told), limit=90)), e.framework)


def both(before: str, after: str) -> str:
    """Return `before → after` as HTML; one alone, or a dash."""
    return f"{before}{ARROW}<b>{after}</b>" if before and after else before or after or DASH


def _text(x: float | None, show: Callable[[float], str]) -> str:
    return "" if x is None else esc(show(x))


def _last(before: float | None, after: float | None) -> float | str:
    found = after if after is not None else before
    return "" if found is None else found


def speeds(e: BoardEntry) -> Shown:
    """Return the two speeds."""
    before, after = e.row["before_tokens_per_s_per_gpu"], e.row["after_tokens_per_s_per_gpu"]
    return Shown(both(_text(before, rate), _text(after, rate)), _last(before, after))


def gain(e: BoardEntry) -> Shown:
    """Return the gain with its noise band; a kept baseline has none."""
    found, band = e.row["gain"], e.row["band"]
    noise = "" if band is None else f"±{share_pct(band)}"
    if found is None:
        return Shown(DASH + (_sub(esc(f"noise band {noise}")) if noise else ""))
    once = "" if e.row["remeasured"] else _sub("not remeasured")
    return Shown(f"<b>{esc(pct(found))}</b> {esc(noise)}{once}{_sub(esc(_again(e)))}", found)


def _again(e: BoardEntry) -> str:
    """Return what a re-tuning gained over what ran before it."""
    past = e.facts.retuned
    if past is None:
        return ""
    return "re-tuning" if past.gain is None else f"re-tuning: {pct(past.gain)} over what ran before"


def efficiency(e: BoardEntry) -> Shown:
    """Return model FLOPs utilisation before and after."""
    return Shown(both(_text(e.mfu_before, share_pct), _text(e.mfu_after, share_pct)), _last(e.mfu_before, e.mfu_after))


def dollars(e: BoardEntry) -> Shown:
    """Return US dollars per million tokens before and after."""
    return Shown(both(_text(e.usd_before, number), _text(e.usd_after, number)), _last(e.usd_before, e.usd_after))


def cost(e: BoardEntry) -> Shown:
    """Return what the search was charged: device time, its dollars where a price is stated, a language model's dollars."""
    facts = e.facts
    usd = "" if e.usd is None else f"{e.usd:,.2f} US dollars"
    model = f"{facts.model_usd:.2f} US dollars to a {MODEL_COST}" if facts.num_model_calls else ""
    subs = _sub(esc(usd)) + _sub(esc(model))
    amount = esc(facts.units.amount(facts.total_gpu_hours))
    return Shown(f'{amount} <span class="nowrap">{esc(facts.units.time)}</span>{subs}', facts.total_gpu_hours)


def evidence(e: BoardEntry) -> Shown:
    """Return which looks admitted the recipe, which did not, and how much waits for a person."""
    words = {"admit": "✓ {}", "review": "◆ {}: review", "refuse": "✕ {}: refused"}
    taken = {name[0]: decision for name, decision in e.looks}
    lines = [
        f'<span class="tag {taken[n]}">{words[taken[n]].format(look)}</span>'
        if n in taken
        else f'<span class="soft">{DASH} {look}: not taken</span>'
        for n, look in (LOOKS.items() if taken else ())
    ]
    waiting = e.row["num_reviews"]
    if waiting:
        lines.append(f'<span class="tag review">◆ {waiting} for a person</span>')
    admitted = sum(decision == "admit" for decision in taken.values())
    return Shown("<br>".join(lines) or DASH, admitted if taken else "")


def _moved(e: BoardEntry) -> Shown:
    text = when(e.row["updated_at"])
    day, _, rest = text.partition(" ")
    return Shown(f'<span class="nowrap">{esc(day)}</span> <span class="nowrap">{esc(rest)}</span>', e.row["updated_at"])


def _files(e: BoardEntry) -> Shown:
    of = f'<span class="visually-hidden"> of {campaign_name(e)}</span>'
    recipe = f'<a href="{e.recipe_file}" download>recipe{of}</a>' if e.recipe_file else '<span class="soft">no recipe yet</span>'
    note = " (not shippable)" if e.recipe_file and e.not_shipped else ""
    return Shown(f'{recipe}{note}<br><a href="{e.report}">report{of}</a>')


COLUMNS = (
    Column("campaign", "Campaign", "text", _name),
    Column("model", "Model", "text", _model),
    Column("hardware", "Hardware", "text", _hardware),
    Column("version", "Framework", "text", _framework),
    Column("speed", "Tokens/s per device", "number", speeds, "num", descending=True),
    Column("gain", "Gain", "number", gain, "num", descending=True),
    Column("mfu", "MFU", "number", efficiency, "num", descending=True),
    Column("usd", "US$ per M tokens", "number", dollars, "num"),
    Column("cost", "Cost of tuning", "number", cost, "num", descending=True),
    Column("gate", "Gate", "number", evidence, "gate", descending=True),
    Column("moved", "Last moved", "number", _moved, descending=True),
    Column("files", "Files", "", _files, "files"),
)
FIRST = "moved"
"""The column that the table is sorted by when nobody sorted it, from the last down."""


def table(found: Sequence[BoardEntry]) -> str:
    """Return the table, in the order of the entries."""
    heads = "".join(_head(c) for c in COLUMNS)
    rows = "\n".join(_row(index, e) for index, e in enumerate(found))
    return (
        '<table id="board"><caption class="visually-hidden">Campaigns, the one that moved last first</caption>'
        '<thead><tr><th scope="col" class="pick needs-js"><span class="visually-hidden">Compare</span></th>'
        f"{heads}</tr></thead>\n"
        f"<tbody>\n{rows}\n</tbody></table>"
    )


def _head(column: Column) -> str:
    sort = f' data-key="{column.key}" data-sort="{column.kind}"' if column.kind else ""
    sort += ' data-first="descending"' if column.descending else ""
    sort += ' aria-sort="descending"' if column.key == FIRST else ""
    css = f' class="{column.css}"' if column.css else ""
    return f'<th scope="col"{css}{sort}>{esc(column.name)}</th>'


def _row(index: int, e: BoardEntry) -> str:
    work = e.facts.campaign.workload
    told = {"model": work.model, "hardware": work.hardware, "version": e.framework, "state": e.facts.state}
    data = "".join(f' data-{name}="{esc(text)}"' for name, text in told.items())
    box = (
        '<td class="pick needs-js"><label><input type="checkbox" autocomplete="off">'
        f'<span class="visually-hidden">compare {campaign_name(e)}</span></label></td>'
    )
    return f'<tr data-i="{index}"{data}>{box}{"".join(_cell(c, e) for c in COLUMNS)}</tr>'


def _cell(column: Column, e: BoardEntry) -> str:
    shown = column.show(e)
    key = repr(shown.key) if isinstance(shown.key, float) else esc(shown.key)
    sort = f' data-v="{key}"' if column.kind and key else ""
    if column.key == "campaign":
        return f'<th scope="row"{sort}>{shown.html}</th>'
    css = f' class="{column.css}"' if column.css else ""
    return f'<td{css}{sort} data-label="{esc(column.name)}"><div>{shown.html}</div></td>'
