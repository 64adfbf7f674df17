"""Environments that bandit policies play in: classification data, ratings, and drawn groups."""
