"""Finds settings of methods, on validation rows: `engram tune`."""
