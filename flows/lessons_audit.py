"""Every lesson held against every campaign's records, on a schedule: which stand, which are too broad or wrong."""

from __future__ import annotations

from prefect import State, flow
from prefect.artifacts import create_table_artifact
from prefect.logging import get_run_logger
from prefect.states import Failed

from attuner.cli.lessons_write import Audited, audit_lessons
from attuner.settings import load_settings

UNUSED = "NotOnRecord"
"""Name of the state of an audit that found lessons which don't stand, and couldn't take them out of use."""


@flow(name="lessons-audit", persist_result=True)
def lessons_audit() -> dict[str, int] | State:
    """Audit the lessons; return how many came out as what. The record lies beside the lessons, for a person to read.

    Where the record can't be written nothing changes for campaigns: the run says so, and fails if a lesson that doesn't stand is
    read on.
    """
    found = audit_lessons(load_settings())
    if found.unwritten:
        get_run_logger().warning("the audit is not on record, so it holds for nobody: %s", found.unwritten)
    create_table_artifact(key="lessons-audit", table=rows(found), description=description(found))
    return outcome(found)


def rows(found: Audited) -> list[dict[str, str]]:
    """Return one row a lesson; of one that is read against its audit, so it says."""
    return [
        {
            "lesson": x.lesson.id,
            "result": f"{audit.result}, still read" if x.lesson.id in found.still_read else audit.result,
            "why": audit.why,
            "text": x.lesson.text,
        }
        for x, audit in found.lessons
    ]


def description(found: Audited) -> str:
    """Return what was held against what, and whether it is on record."""
    not_on_record = f"; not on record: {found.unwritten}" if found.unwritten else ""
    return f"lessons against {found.campaigns} campaigns{not_on_record}"


def outcome(found: Audited) -> dict[str, int] | State:
    """Return the counts, or a failed state if a lesson that doesn't stand stays in use."""
    if not found.still_read:
        return {str(k): n for k, n in found.counts().items()}
    count, names = len(found.still_read), ", ".join(found.still_read)
    which = f"{count} lesson{'' if count == 1 else 's'} that do{'es' if count == 1 else ''} not stand"
    return Failed(name=UNUSED, message=f"{which} stay{'s' if count == 1 else ''} in use ({names}): {found.unwritten}")
