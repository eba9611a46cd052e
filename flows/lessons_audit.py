"""Every lesson held against every campaign's records, on a schedule: which stand, which are too broad or wrong."""

from __future__ import annotations

from prefect import flow
from prefect.artifacts import create_table_artifact

from attuner.cli.lessons_write import audit_lessons
from attuner.settings import load_settings


@flow(name="lessons-audit", persist_result=True)
def lessons_audit() -> dict[str, int]:
    """Audit the lessons; return how many came out as what. The record lies beside the lessons, for a person to read."""
    found = audit_lessons(load_settings())
    rows = [
        {"lesson": x.lesson.id, "result": audit.result, "why": audit.why, "text": x.lesson.text} for x, audit in found.lessons
    ]
    create_table_artifact(key="lessons-audit", table=rows, description=f"lessons against {found.campaigns} campaigns")
    return {str(k): n for k, n in found.counts().items()}
