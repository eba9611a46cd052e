"""The SQL that checks the report's figures against an exported ledger, for a reader who trusts nothing.

Every query reads `mine`: the campaign's events without those that a later one replaced or a rerun set aside. DuckDB's dialect.
"""

from __future__ import annotations

from attuner.core.people import HIDEABLE
from attuner.report.facts import ReportFacts


def view(facts: ReportFacts) -> str:
    """Return the statement to run first."""
    kinds = ", ".join(map(_text, sorted(HIDEABLE)))
    return (
        "CREATE OR REPLACE TEMP VIEW mine AS\n"
        "WITH aside AS (SELECT n, unnest(from_json(record->'$.hides', '[\"VARCHAR\"]')) AS name\n"
        f"               FROM events WHERE campaign_id = {_text(facts.campaign_id)} AND kind = 'invalidated')\n"
        f"SELECT * FROM events e WHERE campaign_id = {_text(facts.campaign_id)}\n"
        f"AND NOT (kind IN ({kinds})\n"
        "         AND EXISTS (FROM aside WHERE aside.name = e.kind || ' ' || e.key AND aside.n > e.n))\n"
        "QUALIFY row_number() OVER (PARTITION BY kind, key ORDER BY n DESC) = 1;"
    )


def claim(facts: ReportFacts) -> str:
    """Return the query for the two speeds, the gain and the band; of a re-tuning also for the speed of what ran before."""
    if facts.remeasurement:
        past = ""
        if facts.retuned and facts.retuned.launch:
            of = f"FROM mine s WHERE s.kind = 'score' AND s.key = {_text(facts.retuned.launch)}"
            past = f",\n       (SELECT s.record->>'$.tokens_per_s_per_gpu' {of}) AS ran_before"
        return (
            "SELECT record->>'$.baseline_mean' AS before, record->>'$.leader_mean' AS after,\n"
            "       record->>'$.gain' AS gain, record->>'$.band' AS band, record->>'$.reason' AS reason"
            f"{past}\nFROM mine WHERE kind = 'remeasurement';"
        )
    return (
        "SELECT kind, key, record->>'$.mean' AS baseline, record->>'$.band' AS band,\n"
        "       record->>'$.tokens_per_s_per_gpu' AS measured, record->>'$.new_leader' AS new_leader\n"
        "FROM mine WHERE kind IN ('calibration', 'score') ORDER BY n;"
    )


def changes(facts: ReportFacts) -> str:
    """Return the query for every final argument that differs between baseline and leader."""
    leader = facts.leader.recipe if facts.leader else facts.recipe_digest
    return (
        "WITH final AS (SELECT e.key AS recipe, j.key AS name, j.value AS value\n"
        "               FROM mine e, json_each(e.record, '$.arguments') j WHERE e.kind = 'effective')\n"
        "SELECT coalesce(b.name, l.name) AS name, b.value AS baseline, l.value AS leader\n"
        f"FROM (FROM final WHERE recipe = {_text(facts.baseline_digest)}) b\n"
        f"FULL JOIN (FROM final WHERE recipe = {_text(leader)}) l ON b.name = l.name\n"
        "WHERE b.value IS DISTINCT FROM l.value ORDER BY 1;"
    )


def looks(facts: ReportFacts) -> str:
    """Return the query for what every look found about the leader's recipe."""
    leader = facts.leader.recipe if facts.leader else facts.recipe_digest
    return (
        "SELECT record->>'$.look' AS look, e.key, f.value->>'$.key' AS what, f.value->>'$.before' AS baseline,\n"
        "       f.value->>'$.after' AS candidate, f.value->>'$.decision' AS decision, f.value->>'$.reason' AS reason\n"
        "FROM mine e, json_each(e.record, '$.findings') f\n"
        f"WHERE e.kind = 'verdict' AND e.record->>'$.recipe' = {_text(leader)} ORDER BY e.n;"
    )


def launches(facts: ReportFacts) -> str:
    """Return the query for predictions, outcomes and charges of every launch."""
    per_hour = facts.units.per_hour
    return (
        "SELECT l.key AS launch, l.record->>'$.kind' AS kind, h.record->>'$.predicted_gain' AS predicted,\n"
        "       t.record->>'$.status' AS outcome, s.record->>'$.tokens_per_s_per_gpu' AS tokens_per_s,\n"
        "       s.record->>'$.gain' AS gain,\n"
        f"       {per_hour:g} * CAST(t.record->>'$.gpu_hours' AS DOUBLE) AS \"{facts.units.time}\"\n"
        "FROM mine l LEFT JOIN mine t ON t.kind = 'trial' AND t.key = l.key\n"
        "LEFT JOIN mine s ON s.kind = 'score' AND s.key = l.key\n"
        "LEFT JOIN mine h ON h.kind = 'hypothesis' AND h.key = l.record->>'$.hypothesis'\n"
        "WHERE l.kind = 'launch' ORDER BY l.n;"
    )


def breakdown(facts: ReportFacts) -> str:
    """Return the query for where the step went, seconds per step, mean over ranks and profiled steps."""
    ids = [b.launch_id for b in (facts.before, facts.after) if b]
    parts = ("step_s", "compute_s", "exposed_comm_s", "copy_s", "host_s", "idle_s")
    sums = ",\n       ".join(f"avg(CAST(r.value->>'$.{p}' AS DOUBLE)) AS {p}" for p in parts)
    return (
        f"SELECT e.key AS launch,\n       {sums}\n"
        "FROM mine e, json_each(e.record, '$.rank_steps') r\n"
        f"WHERE e.kind = 'breakdown' AND e.key IN ({', '.join(map(_text, ids))}) GROUP BY e.key;"
    )


def exposed(facts: ReportFacts) -> str:
    """Return the query for exposed communication by collective and by group, seconds per step as above."""
    ids = ", ".join(_text(b.launch_id) for b in (facts.before, facts.after) if b)
    return (
        "SELECT e.key AS launch, told.name AS told_by, k.key AS part,\n"
        "       sum(CAST(k.value AS DOUBLE)) / any_value(json_array_length(e.record, '$.rank_steps')) AS exposed_s\n"
        "FROM mine e, json_each(e.record, '$.rank_steps') r,\n"
        "     (VALUES ('collective', '$.comm_by_kind'), ('group', '$.comm_by_group')) told(name, path),\n"
        "     json_each(r.value, told.path) k\n"
        f"WHERE e.kind = 'breakdown' AND e.key IN ({ids}) GROUP BY ALL ORDER BY 1, 2, 3;"
    )


def spend(facts: ReportFacts) -> str:
    """Return the query for the charge by kind of launch, with the total."""
    return (
        "SELECT coalesce(l.record->>'$.kind', 'total') AS kind, count(*) AS attempts,\n"
        f"       {facts.units.per_hour:g} * sum(CAST(s.record->>'$.gpu_hours' AS DOUBLE)) AS \"{facts.units.time}\"\n"
        "FROM mine s JOIN mine l ON l.kind = 'launch' AND l.key = s.record->>'$.launch_id'\n"
        "WHERE s.kind = 'settled' GROUP BY ROLLUP (l.record->>'$.kind');"
    )


def reviews() -> str:
    """Return the query for every finding that a person must look at, of all candidates."""
    return (
        "SELECT e.key, f.value->>'$.rule' AS rule, f.value->>'$.key' AS what, f.value->>'$.reason' AS reason\n"
        "FROM mine e, json_each(e.record, '$.findings') f\n"
        "WHERE e.kind = 'verdict' AND f.value->>'$.decision' = 'review' ORDER BY e.n;"
    )


def recipe(facts: ReportFacts) -> str:
    """Return the query for the recipe itself."""
    return f"SELECT record FROM mine WHERE kind = 'recipe' AND key = {_text(facts.recipe_digest)};"


def worth(facts: ReportFacts) -> str:
    """Return the query for the hours after which the tuning is paid back; devices, charge and gain stand beside them."""
    if facts.remeasurement:
        gain = "CAST(r.record->>'$.gain' AS DOUBLE)"
        of, last = "JOIN mine r ON r.kind = 'remeasurement'", "r"
    else:
        leader = _text(facts.leader.id if facts.leader else "")
        gain = "CAST(r.record->>'$.tokens_per_s_per_gpu' AS DOUBLE) / CAST(k.record->>'$.mean' AS DOUBLE) - 1"
        of, last = f"JOIN mine k ON k.kind = 'calibration' JOIN mine r ON r.kind = 'score' AND r.key = {leader}", "k"
    return (
        "SELECT CAST(c.record->>'$.workload.gpus' AS INTEGER) AS devices, charged.device_hours,\n"
        f"       {gain} AS gain,\n"
        "       device_hours / (devices * gain) AS paid_back_after_hours\n"
        "FROM (SELECT sum(CAST(record->>'$.gpu_hours' AS DOUBLE)) AS device_hours FROM mine WHERE kind = 'settled') charged,\n"
        f"     mine c {of}\nWHERE c.kind = 'campaign' ORDER BY {last}.n DESC LIMIT 1;"
    )


def verdicts() -> str:
    """Return the query for every finding of every look that has a measurement, and of those that don't admit."""
    return (
        "SELECT e.key, e.record->>'$.look' AS look, f.value->>'$.decision' AS decision, f.value->>'$.rule' AS rule,\n"
        "       f.value->>'$.key' AS what, f.value->>'$.deviation' AS deviation, f.value->>'$.tolerance' AS tolerance\n"
        "FROM mine e, json_each(e.record, '$.findings') f WHERE e.kind = 'verdict'\n"
        "AND (f.value->>'$.deviation' IS NOT NULL OR f.value->>'$.decision' <> 'admit') ORDER BY e.n;"
    )


def predictions() -> str:
    """Return the query for what proposer and estimate predicted, beside what was measured."""
    return (
        "SELECT s.key AS launch, h.record->>'$.predicted_gain' AS proposer, h.record->>'$.predicted_error' AS proposer_error,\n"
        "       f.record->>'$.gain' AS estimate, f.record->>'$.gain_error' AS estimate_error, s.record->>'$.gain' AS measured,\n"
        "       f.record->>'$.step_s' AS estimated_step_s, s.record->>'$.step_s' AS step_s\n"
        "FROM mine s JOIN mine l ON l.kind = 'launch' AND l.key = s.key\n"
        "JOIN mine h ON h.kind = 'hypothesis' AND h.key = l.record->>'$.hypothesis'\n"
        "LEFT JOIN mine f ON f.kind = 'forecast' AND f.key = h.key\n"
        "WHERE s.kind = 'score' AND s.record->>'$.valid' = 'true' ORDER BY l.n;"
    )


def people() -> str:
    """Return the query for everything that people said."""
    return (
        "SELECT to_timestamp(\"at\") AS said_at, kind, record->>'$.by' AS who,\n"
        "       coalesce(record->>'$.act', record->>'$.decision', 'rerun ' || (record->>'$.step')) AS said,\n"
        "       coalesce(record->>'$.launch_id', record->>'$.key', record->>'$.lever') AS about, record->>'$.why' AS why\n"
        "FROM mine WHERE kind IN ('directive', 'review', 'invalidated') ORDER BY n;"
    )


def versions() -> str:
    """Return the query for what the launches reported of their software and devices."""
    return (
        "SELECT v.key AS what, v.value AS reported, list(t.key ORDER BY t.n) AS launches\n"
        "FROM mine t, json_each(t.record, '$.versions') v WHERE t.kind = 'trial' GROUP BY ALL\n"
        "UNION ALL SELECT 'device', h.value, list(DISTINCT t.key) FROM mine t, json_each(t.record, '$.hardware') h\n"
        "WHERE t.kind = 'trial' GROUP BY ALL ORDER BY 1, 2;"
    )


def _text(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
