"""Experiments that are not timed: ``python -m tests.evidence.NAME`` prints their tables."""
