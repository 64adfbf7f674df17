"""Simulations: the in-process grid, the `engram` command, reports, and studies of papers."""
