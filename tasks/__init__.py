"""One thin Prefect task per step: ids in, ids and short words out. The work is in attuner.steps."""
