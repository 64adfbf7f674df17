"""Trains clients: one, or a cohort at once."""
