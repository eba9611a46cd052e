"""The tables of a ledger file, the triggers that make them append-only, and the views that a person queries.

The views show, per campaign, the last event of each kind and key: a correction is a later event, never an edit. They
are made again at each claim, so an older file gets the views of today.
"""

from __future__ import annotations

from typing import Final

from attuner.core.people import HIDEABLE

# "at" is quoted because DuckDB reads the bare word as time travel; the views call it at_s.
TABLES: Final = """
CREATE TABLE IF NOT EXISTS events (
    seq BIGINT PRIMARY KEY, campaign_id VARCHAR NOT NULL, n BIGINT NOT NULL, kind VARCHAR NOT NULL,
    key VARCHAR NOT NULL, "at" DOUBLE NOT NULL, fence INTEGER NOT NULL, record JSON NOT NULL,
    prev VARCHAR NOT NULL, hash VARCHAR NOT NULL);
CREATE TABLE IF NOT EXISTS _guard (never INTEGER);
"""

# DuckDB has no row that a trigger may reject; raising an error while feeding a table that stays empty does the same.
TRIGGERS: Final = {
    "events_no_update": "AFTER UPDATE ON events REFERENCING NEW TABLE AS touched",
    "events_no_delete": "AFTER DELETE ON events REFERENCING OLD TABLE AS touched",
}
_FIRES: Final = "FOR EACH STATEMENT INSERT INTO _guard SELECT error('the ledger is append-only') FROM touched"

# View name: (event kind, columns). A column is NAME[:TYPE], or NAME:TYPE=FIELD where the record calls it otherwise.
_KINDS: Final[dict[str, tuple[str, str]]] = {
    "campaigns": (
        "campaign",
        "name stack=stack.name launcher=launcher.name proposer=proposer.name gpus:INTEGER=workload.gpus "
        "budget_gpu_hours=budget.gpu_hours source_file",
    ),
    "launches": (
        "launch",
        "id kind purpose recipe hypothesis reserve_gpu_hours:DOUBLE time_limit_s:DOUBLE profile_steps:INTEGER",
    ),
    "submissions": ("attempt", "launch_id number:INTEGER submission_id folder address submitted_at:DOUBLE"),
    "settlements": (
        "settled",
        "launch_id attempt:INTEGER gpus:INTEGER allocated_at:DOUBLE released_at:DOUBLE gpu_hours:DOUBLE how lost:BOOLEAN",
    ),
    "trials": (
        "trial",
        "launch_id attempt:INTEGER status cause phase gpu_hours:DOUBLE duration_s:DOUBLE gpus:INTEGER config_digest "
        "failure_kind=failure.kind failure_rank:INTEGER=failure.rank failure_levers:JSON=failure.levers nodes:JSON versions:JSON",
    ),
    "hypotheses": (
        "hypothesis",
        "id parent lever_group=group title bottleneck mechanism predicted_gain:DOUBLE predicted_error:DOUBLE "
        "arguments:JSON env:JSON citations:JSON assumptions:JSON lessons:JSON",
    ),
    "verdicts": ("verdict", "look decision subject recipe findings:JSON"),
    "scores": (
        "score",
        "launch_id attempt:INTEGER valid:BOOLEAN why_invalid decision tokens_per_s_per_gpu:DOUBLE step_s:DOUBLE "
        "gain:DOUBLE gain_over_baseline:DOUBLE new_leader:BOOLEAN leader_before",
    ),
    "shipments": ("shipment", "launch_id recipe gain:DOUBLE kept_baseline:BOOLEAN reason folder"),
    "notes": ("note", "record:JSON=$"),
    "directives": ("directive", "act said_by=by why lever gpu_hours:DOUBLE hypothesis:JSON"),
    "reviews": ("review", "launch_id recipe decision said_by=by why items:JSON"),
    "reruns": ("invalidated", "step of_key=key said_by=by why request after:INTEGER new_round:BOOLEAN hides:JSON"),
    "replies": (
        "reply",
        "status stop_reason input_tokens:BIGINT=usage.input_tokens output_tokens:BIGINT=usage.output_tokens "
        "cache_write_tokens:BIGINT=usage.cache_write_tokens cache_read_tokens:BIGINT=usage.cache_read_tokens "
        "usd:DOUBLE detail content:JSON",
    ),
    "asked": (
        "message",
        "number:INTEGER hypothesis thread model bound_tokens:BIGINT=input_tokens max_tokens:BIGINT bound_usd:DOUBLE sent:JSON",
    ),
}

# what a rerun set aside (`invalidated`) is no record that holds; never what was decided, submitted or charged
_LATEST: Final = (
    """CREATE OR REPLACE VIEW set_aside AS
    SELECT campaign_id, split_part(hidden, ' ', 1) AS kind, substr(hidden, strpos(hidden, ' ') + 1) AS key, max(n) AS by_n
    FROM (SELECT campaign_id, n, unnest(from_json(record->'$.hides', '["VARCHAR"]')) AS hidden
          FROM events WHERE kind = 'invalidated')
    WHERE split_part(hidden, ' ', 1) IN ({}) GROUP BY ALL""".format(", ".join(f"'{kind}'" for kind in sorted(HIDEABLE))),
    """CREATE OR REPLACE VIEW latest AS SELECT e.* FROM events e
    LEFT JOIN set_aside s ON s.campaign_id = e.campaign_id AND s.kind = e.kind AND s.key = e.key AND e.n < s.by_n
    WHERE s.by_n IS NULL
    QUALIFY row_number() OVER (PARTITION BY e.campaign_id, e.kind, e.key ORDER BY e.n DESC) = 1""",
)

_JOINS: Final = (
    """CREATE OR REPLACE VIEW attempts AS
    SELECT a.campaign_id, a.launch_id, a.number AS attempt, a.submission_id, a.folder, a.address, a.submitted_at,
           s.gpus, s.allocated_at, s.released_at, s.gpu_hours, s.how, s.lost
    FROM submissions a LEFT JOIN settlements s
      ON s.campaign_id = a.campaign_id AND s.launch_id = a.launch_id AND s.attempt = a.number""",
    # a call whose reply never came counts as its bound
    """CREATE OR REPLACE VIEW messages AS
    SELECT a.campaign_id, a.n, a.at_s, a.key, a.number, a.hypothesis, a.thread, a.model,
           coalesce(r.status, 'unanswered') AS status, r.stop_reason, r.input_tokens, r.output_tokens,
           r.cache_write_tokens, r.cache_read_tokens, a.bound_usd, coalesce(r.usd, a.bound_usd) AS usd,
           r.at_s - a.at_s AS took_s, r.detail, a.sent, r.content
    FROM asked a LEFT JOIN replies r ON r.campaign_id = a.campaign_id AND r.key = a.key ORDER BY a.campaign_id, a.number""",
    """CREATE OR REPLACE VIEW spend_usd AS
    SELECT campaign_id, model, count(*) AS num_calls, count(*) FILTER (status = 'unanswered') AS num_unanswered,
           sum(input_tokens) AS input_tokens, sum(output_tokens) AS output_tokens,
           sum(cache_write_tokens) AS cache_write_tokens, sum(cache_read_tokens) AS cache_read_tokens, sum(usd) AS usd
    FROM messages GROUP BY ALL ORDER BY ALL""",
    """CREATE OR REPLACE VIEW spend AS
    SELECT s.campaign_id, coalesce(l.kind, 'unknown') AS launch_kind, sum(s.gpu_hours) AS gpu_hours,
           count(*) AS num_attempts
    FROM settlements s LEFT JOIN launches l ON l.campaign_id = s.campaign_id AND l.id = s.launch_id
    GROUP BY ALL ORDER BY ALL""",
    """CREATE OR REPLACE VIEW board AS
    SELECT c.campaign_id, c.name, sh.launch_id AS shipped, sh.gain, sh.kept_baseline,
           (SELECT coalesce(sum(gpu_hours), 0) FROM settlements s WHERE s.campaign_id = c.campaign_id)
             AS spend_gpu_hours,
           (SELECT count(*) FROM launches l WHERE l.campaign_id = c.campaign_id) AS num_launches, c.at_s AS born_at_s
    FROM campaigns c LEFT JOIN (
        SELECT * FROM shipments QUALIFY row_number() OVER (PARTITION BY campaign_id ORDER BY n DESC) = 1) sh
      ON sh.campaign_id = c.campaign_id ORDER BY born_at_s""",
)


def statements(*, new: bool) -> list[str]:
    """Return the SQL that prepares a ledger file: the views, and for a new file the tables and triggers before them."""
    tables = [TABLES, *(f"CREATE TRIGGER {name} {when} {_FIRES}" for name, when in TRIGGERS.items())] if new else []
    return [*tables, *_LATEST, *(_view(name, kind, columns) for name, (kind, columns) in _KINDS.items()), *_JOINS]


def _view(name: str, kind: str, columns: str) -> str:
    picked = ", ".join(_column(c) for c in columns.split())
    return (
        f'CREATE OR REPLACE VIEW {name} AS SELECT campaign_id, n, "at" AS at_s, key, {picked} '
        f"FROM latest WHERE kind = '{kind}' ORDER BY seq"
    )


def _column(text: str) -> str:
    left, _, field = text.partition("=")
    name, _, kind = left.partition(":")
    path = "$" if field == "$" else f"$.{field or name}"
    if kind == "JSON":
        return f"record->'{path}' AS {name}"
    value = f"record->>'{path}'"
    return f"{f'TRY_CAST({value} AS {kind})' if kind else value} AS {name}"
