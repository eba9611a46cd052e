"""Replay tables: read (`table`), as another machine would give them (`perturb`), made from a recorded campaign (`recorded`)."""

from attuner.tables.perturb import PERTURBATIONS, perturbed
from attuner.tables.recorded import Recorded, recorded
from attuner.tables.table import BREAKDOWN, DERIVED, PARTS, SHORT, About, Row, Table, load_table, model_arguments

__all__ = [
    "BREAKDOWN",
    "DERIVED",
    "PARTS",
    "PERTURBATIONS",
    "SHORT",
    "About",
    "Recorded",
    "Row",
    "Table",
    "load_table",
    "model_arguments",
    "perturbed",
    "recorded",
]
