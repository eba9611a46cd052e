"""Ledgers: one DuckDB file that many processes share, and one in memory for tests and replay."""
