"""Defenses against clients that send anything: comparisons, bounds and robust means."""
