"""Epsilons by formulas of their own, and about samples in short."""

import math

from scipy.optimize import brentq
from scipy.stats import norm

from engram.guards.accounting.composition import epsilon_by_answers
from engram.guards.accounting.gaussian import epsilon_of
from engram.guards.accounting.releases import Release

DELTA = 1e-5


def gaussian(mu, delta=DELTA):
    """Balle and Wang, Thm. 8, solved for epsilon."""

    def excess(value):
        lower = norm.logcdf(-mu / 2 - value / mu)
        return norm.cdf(mu / 2 - value / mu) - math.exp(value + lower) - delta

    return brentq(excess, 0, mu**2 / 2 + 20 * mu, xtol=1e-13, rtol=1e-14)


def epsilon(multiplier, releases, delta):
    """That of a number of Gaussian releases."""
    return epsilon_of(math.sqrt(releases) / multiplier, delta)


def poisson_epsilon(multiplier, rate, releases, delta):
    """That of Gaussian mechanisms about Poisson samples."""
    return epsilon_by_answers([Release(multiplier, rate)], delta)(releases)


def subset_epsilon(multiplier, rate, releases, delta):
    """That of Gaussian mechanisms about samples of a fixed size."""
    return epsilon_by_answers([Release(multiplier, rate, neighbors="replaced")], delta)(releases)
