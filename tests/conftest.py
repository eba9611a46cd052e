"""Puts tests/ on the path, so that every folder of tests may use `lab`."""
