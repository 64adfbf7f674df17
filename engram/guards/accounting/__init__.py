"""Noise multipliers, and the epsilon of a run's releases."""
