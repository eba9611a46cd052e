"""Prefect flows: composition only."""
