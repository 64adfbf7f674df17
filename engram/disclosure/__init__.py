"""Attacks on privacy: what a model, or its change, tells about the rows that it learned from."""
