"""Epsilon of releases together, and the noise multiplier that meets a target."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from engram.guards.accounting.amplification import composed_epsilon
from engram.guards.accounting.gaussian import concentrated_epsilon
from engram.guards.accounting.releases import Plan, Release, hidden_by

MOST: Final = 1e6
"""Largest noise multiplier that is solved for; with more, models are noise alone."""


class Costs(NamedTuple):
    """Costs of releases together, by kind."""

    total: float  # the sum of mu^2 of normal ones about known units
    # Numbers of those about samples, by multiplier and rate.
    sampled: Mapping[tuple[float, float], int]
    concentrated: Mapping[float, int]  # numbers of those that are not normal, by multiplier

    def epsilon(self, delta: float, *, replaced: bool = False) -> float:
        """Returns epsilon, as ``composed_epsilon``.

        Beside releases of which concentrated privacy alone is known, it is that of the sum of all
        rho = mu^2 / 2, which normal ones have too, and nothing is amplified.
        """
        if not self.concentrated:
            return composed_epsilon(self.total, self.sampled, delta, replaced=replaced)
        others = [*((z, n) for (z, _), n in self.sampled.items()), *self.concentrated.items()]
        return concentrated_epsilon((self.total + sum(n / z**2 for z, n in others)) / 2, delta)


def costs(releases: Iterable[Release]) -> Costs:
    """Sums up the costs of releases."""
    total, sampled, concentrated = 0.0, Counter[tuple[float, float]](), Counter[float]()
    for r in releases:
        known = r.influence  # which checks the multiplier
        if not r.times:
            continue
        if not r.normal:
            concentrated[r.multiplier] += r.times
        elif r.rate == 1:
            total += known
        else:
            sampled[r.multiplier, r.rate] += r.times
    return Costs(total, sampled, concentrated)


def spent(releases: Sequence[Release], answers: int, delta: float) -> float:
    """Returns epsilon of a unit after a number of answers: rounds, and reports of scores.

    A run's record of whom it asked does not tell them apart, so that all are of the dearer kind.

    Raises:
        Refused: It is amplified by sampling, and dp-accounting is not installed.
    """
    kinds = [[r for r in releases if r.each == each] for each in ("round", "report")]
    dearest = max(kinds, key=lambda some: sum(r.influence for r in some))
    return _composed(_repeated(dearest, answers, answers), delta)


def planned(releases: Sequence[Release], plan: Plan, delta: float) -> float:
    """Returns epsilon of a unit that is asked in all of a plan's rounds and reports."""
    return _composed(_repeated(releases, plan.rounds, plan.reports), delta)


def _repeated(releases: Sequence[Release], rounds: int, reports: int) -> tuple[Release, ...]:
    times = {"round": rounds, "report": reports}
    return tuple(r._replace(times=r.times * times[r.each]) for r in releases)


@lru_cache
def _composed(releases: tuple[Release, ...], delta: float) -> float:
    if not releases:
        return 0.0
    _, neighbors = hidden_by(releases)
    return costs(releases).epsilon(delta, replaced=neighbors == "replaced")


def solved(
    releases: Callable[[float], Sequence[Release]], plan: Plan, target: float, delta: float
) -> float:
    """Finds the least noise multiplier for a plan that costs at most ``target``.

    It is rounded up to four digits, so that all machines find the same; above ``MOST`` if no
    multiplier up to that meets the target.

    Args:
        releases: The mechanisms by noise multiplier. With more noise they cost less.
        plan: The plan.
        target: Epsilon, > 0.
        delta: In (0, 1).
    """
    once = _repeated(releases(1.0), plan.rounds, plan.reports)
    sampled = [1 / r.multiplier for r in once if r.rate < 1 and r.times]
    low = 0.1 * max(sampled) if sampled else 1e-3 * math.sqrt(sum(r.influence for r in once))
    found = _least(lambda z: planned(releases(z), plan, delta), target, low)
    if found > MOST:
        return found
    digits = 10.0 ** (math.floor(math.log10(found)) - 3)
    return float(f"{math.ceil(found / digits) * digits:.4g}")


def _least(cost: Callable[[float], float], target: float, low: float) -> float:
    """Finds the least argument, from ``low`` on, at which a falling ``cost`` meets ``target``."""
    high = low
    while cost(high) > target and high <= MOST:
        low, high = high, 2 * high
    while high > low * (1 + 1e-4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= target else (middle, high)
    return high
