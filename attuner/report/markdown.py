"""report.md: the same report for terminals, diffs and pull requests. Plain tables; every foreign text is escaped."""

from __future__ import annotations

from attuner.core.run import StepBreakdown
from attuner.report import claims, markdown_sections, origin, queries, said
from attuner.report.bars import parts
from attuner.report.facts import ChangedValue, ReportFacts
from attuner.report.markdown_parts import DECISION, block, bullets, code, esc, fenced, table
from attuner.report.recipe_yaml import recipe_yaml
from attuner.report.rows import OUTCOME_WORDS, LaunchRow
from attuner.report.spend import PURPOSES
from attuner.report.terminal import DASH, pct, rate, share_pct
from attuner.report.words import seconds, usd, value


def render(facts: ReportFacts) -> str:
    """Return the whole document. Times are UTC; figures carry their units."""
    blocks = [
        *_claim(facts),
        *_changes(facts),
        *_looks(facts),
        *markdown_sections.diagnosis(facts),
        *_step(facts),
        *markdown_sections.worth(facts),
        *_launches(facts),
        *markdown_sections.predictions(facts),
        *markdown_sections.verdicts(facts),
        *_spend(facts),
        *_reviews(facts),
        *markdown_sections.people(facts),
        *_recipe(facts),
        *_again(facts),
    ]
    return "\n\n".join(b for b in blocks if b) + "\n"


def _sql(query: str) -> str:
    return fenced(query, "sql")


def _claim(facts: ReportFacts) -> list[str]:
    lines = [
        ("workload", claims.subject(facts)),
        ("status", claims.status(facts)),
        ("baseline, calibrated", claims.noise(facts)),
        ("published", origin.published(facts)),
        ("charged", claims.cost(facts)),
        ("paid back after", claims.payback(facts)),
        ("MFU", said.efficiency(facts)),
        ("US dollars per million tokens", said.dollars(facts)),
        ("search ended because", claims.stop_line(facts)),
        ("waits for a person", f"{len(facts.reviews)} (see below)" if facts.reviews else ""),
    ]
    return [
        f"# {esc(facts.campaign.name)}: {esc(claims.headline(facts))}",
        f"**{esc(claims.from_to(facts))}**" if facts.claim else "",
        block(claims.evidence(facts)),
        "\n".join(f"- {k}: {esc(v)}" for k, v in lines if v),
        _sql(queries.claim(facts)) if facts.claim else "",
    ]


def _changes(facts: ReportFacts) -> list[str]:
    if facts.leader is None:
        return []
    head = ("Final value", "Before", "After", "Decision", "Rule and reason")
    rows = table(head, map(_change, facts.changes))
    return [
        "## What changed, and why each change is allowed",
        esc(claims.changed(facts)),
        rows,
        _sql(queries.changes(facts)),
    ]


def _change(changed: ChangedValue) -> list[str]:
    c = changed.change
    worst = max((f.decision for f in changed.findings), key=["admit", "review", "refuse"].index, default=None)
    why = [
        f"{code(f.rule)}{' (waived)' if f.waived else ''} {esc(f.reason)}"
        + (f" (source: {esc(' · '.join(f.source))})" if f.source else "")
        for f in changed.findings
    ]
    decision = DECISION[worst] if worst else DASH
    return [
        code(c.key),
        code(value(c.before)),
        code(value(c.after)),
        decision,
        "; ".join(why) or "no rule spoke about it",
    ]


def _looks(facts: ReportFacts) -> list[str]:
    if not facts.looks and facts.leader is None:
        return []
    head = ("Look", "Runs", "Compared", ">Baseline", ">Candidate", "Measured", "Tolerance", "Decision")
    rows = [
        [
            *map(esc, (r.look, r.subject, r.what, r.baseline, r.candidate, r.measured, r.tolerance)),
            DECISION[r.decision],
        ]
        for r in facts.looks
    ]
    tests = [
        f"- component {code(t.component)}, {code(t.argument)} {code(value(t.old))} → {code(value(t.new))}: "
        f"{'passed' if t.passed else '**failed**'}; "
        f"forward error {t.forward_error_old:.1e} → {t.forward_error_new:.1e}, "
        f"backward {t.backward_error_old:.1e} → {t.backward_error_new:.1e}, "
        f"tolerances {t.tolerance_forward:.1e} and {t.tolerance_backward:.1e} ({esc(t.why)})"
        for t in facts.components
    ]
    return [
        "## Is it the same training?",
        table(head, rows) if rows else "No look is on record for this recipe.",
        "\n".join(tests),
        _sql(queries.looks(facts)),
        "### What no look can see",
        bullets(claims.blind_spots(facts)),
    ]


def _step(facts: ReportFacts) -> list[str]:
    found = parts(facts.before, facts.after)
    if not found:
        return []
    totals = sum(p.before_s for p in found), sum(p.after_s for p in found)

    def cell(s: float, total: float) -> str:
        return f"{seconds(s)} ({share_pct(s / total)})" if s and total else DASH

    shown = [(n, f">{name} ({esc(b.launch_id)})") for n, name, b in _sides(facts) if b]
    rows = [[esc(p.name), *(cell((p.before_s, p.after_s)[n], totals[n]) for n, _ in shown)] for p in found]
    rows.append(["**step**", *(cell(totals[n], totals[n]) for n, _ in shown)])
    return [
        "## Where the step went",
        "Seconds per profiled step, mean over ranks. Communication includes waiting for the peer.",
        table(("Part", *(name for _, name in shown)), rows),
        _sql(queries.breakdown(facts)),
        _sql(queries.exposed(facts)),
    ]


def _sides(facts: ReportFacts) -> tuple[tuple[int, str, StepBreakdown | None], ...]:
    return (0, "Before", facts.before), (1, "After", facts.after)


def _launches(facts: ReportFacts) -> list[str]:
    if not facts.rows:
        return []
    speed = f">Outcome, {facts.units.speed}"
    names = (
        "Launch",
        "Kind",
        "What changed",
        ">Predicted gain",
        speed,
        ">Gain",
        "Verdict",
        "Reason",
        f">{facts.units.time}",
    )
    return [
        "## Every launch, predictions beside outcomes",
        block(claims.predictions(facts)),
        table(names, (_launch(r, facts) for r in facts.rows)),
        _sql(queries.launches(facts)),
    ]


def _launch(r: LaunchRow, facts: ReportFacts) -> list[str]:
    predicted = "" if r.predicted_gain is None else f"{pct(r.predicted_gain)} ±{share_pct(r.predicted_error or 0.0)}"
    outcome = rate(r.tokens_per_s) if r.tokens_per_s else OUTCOME_WORDS[r.outcome]
    gain = "" if r.gain is None else pct(r.gain) + (" **new leader**" if r.new_leader else "")
    verdict = DECISION[r.verdict] if r.verdict else ""
    again = f" ({r.num_attempts} attempts)" if r.num_attempts > 1 else ""
    charge = facts.units.amount(r.gpu_hours) + again
    what = esc(r.what) + (f" (asked for by {esc(r.by)})" if r.by else "")
    return [esc(r.id), r.kind, what, predicted, outcome, gain, verdict, esc(r.reason), charge]


def _spend(facts: ReportFacts) -> list[str]:
    if not facts.spend:
        return []
    price = facts.details.economy.price
    amounts = facts.units.amounts([s.gpu_hours for s in facts.spend])

    def line(name: str, launches: int, attempts: int, amount: str, hours: float) -> list[str]:
        return [name, f"{launches}", f"{attempts}", amount, *([usd(hours * price.usd_per_hour)] if price else [])]

    rows = [
        line(esc(PURPOSES.get(s.kind, s.kind)), s.num_launches, s.num_attempts, amount, s.gpu_hours)
        for s, amount in zip(facts.spend, amounts, strict=True)
    ]
    launches, attempts = sum(s.num_launches for s in facts.spend), sum(s.num_attempts for s in facts.spend)
    total = facts.total_gpu_hours
    rows.append(line("**total**", launches, attempts, facts.units.amount(total), total))
    head = ("Purpose", ">Launches", ">Attempts", f">{facts.units.time}", *([">US dollars"] if price else []))
    return [
        "## What it cost",
        "From allocation to release, failures and checks included.",
        table(head, rows),
        _sql(queries.spend(facts)),
    ]


def _reviews(facts: ReportFacts) -> list[str]:
    if facts.leader is None and not facts.reviews and not facts.other_reviews:
        return []
    others = ["Other candidates that wait:", bullets(facts.other_reviews)] if facts.other_reviews else []
    mine = bullets(claims.review_lines(facts)) or "Nothing for the leader's recipe."
    return ["## Waiting for a person", claims.REVIEW_MEANS, mine, *others, _sql(queries.reviews())]


def _recipe(facts: ReportFacts) -> list[str]:
    what = "The baseline's recipe" if facts.recipe_digest == facts.baseline_digest else "The recipe"
    adapted = ["Adapted from the public recipe:", bullets(origin.adaptations(facts))] if facts.campaign.adaptations else []
    return [f"## {what}", *adapted, fenced(recipe_yaml(facts.recipe), "yaml"), _sql(queries.recipe(facts))]


def _again(facts: ReportFacts) -> list[str]:
    notes = ["### Said along the way", bullets(facts.notes)] if facts.notes else []
    return [
        "## Check it, do it again",
        "\n".join(f"- {code(command)}: {esc(why)}" for command, why in claims.commands(facts)),
        "Before any query on this page:",
        _sql(queries.view(facts)),
        *markdown_sections.versions(facts),
        table(("Pinned", "Value"), ([esc(k), code(v)] for k, v in claims.pinned(facts))),
        *notes,
    ]
