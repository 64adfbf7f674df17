"""Epsilons about samples in short, for tests of what holds them together."""

from engram.guards.accounting.composition import spent
from engram.guards.accounting.releases import Release


def poisson_epsilon(multiplier, rate, releases, delta):
    """That of Gaussian mechanisms about Poisson samples."""
    return spent([Release(multiplier, rate)], releases, delta)


def subset_epsilon(multiplier, rate, releases, delta):
    """That of Gaussian mechanisms about samples of a fixed size."""
    return spent([Release(multiplier, rate, neighbors="replaced")], releases, delta)
