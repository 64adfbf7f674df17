"""Engines in one process, on all cores and on Ray; presets, and the project of `engram new`."""
