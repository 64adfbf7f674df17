"""Flower strategies: who takes part in a round, which replies count, how they are merged."""
