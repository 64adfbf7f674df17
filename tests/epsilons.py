"""Epsilons of releases in short, for tests of what holds them together."""

from engram.guards.accounting import composition
from engram.guards.accounting.releases import Release
from engram.guards.presets import plan_of, protections


def spent(e, answers, rows=1):
    """That of a client, or of a row of one with so many rows, after a number of answers."""
    return composition.spent(protections(e).releases(plan_of(e, rows)), answers, e.delta)


def epsilon(multiplier, releases, delta):
    """That of Gaussian mechanisms."""
    return composition.spent([Release(multiplier)], releases, delta)


def poisson_epsilon(multiplier, rate, releases, delta):
    """That of Gaussian mechanisms about Poisson samples."""
    return composition.spent([Release(multiplier, rate)], releases, delta)


def subset_epsilon(multiplier, rate, releases, delta):
    """That of Gaussian mechanisms about samples of a fixed size."""
    release = Release(multiplier, rate, neighbors="replaced")
    return composition.spent([release], releases, delta)
