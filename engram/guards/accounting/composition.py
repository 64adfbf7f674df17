"""Epsilon of releases together, and the noise multiplier that meets a target."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Final, NamedTuple

from engram.guards.accounting.amplification import amplified_epsilon
from engram.guards.accounting.gaussian import concentrated_epsilon, epsilon_of
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
        """Returns epsilon, amplified where units are sampled: see ``amplified_epsilon``.

        Samples without replacement (``replaced``) beside releases about known units are not. Beside
        releases of which concentrated privacy alone is known nothing is, and epsilon is that of the
        sum of all rho = mu^2 / 2, which normal ones have too.
        """
        others = [*((z, n) for (z, _), n in self.sampled.items()), *self.concentrated.items()]
        total = self.total + sum(n / z**2 for z, n in others)
        if self.concentrated:
            return concentrated_epsilon(total / 2, delta)
        plain = epsilon_of(math.sqrt(total), delta)
        if plain == 0 or not self.sampled or (replaced and self.total):
            return plain
        return amplified_epsilon(plain, self.total, self.sampled, delta, replaced=replaced)


def costs(releases: Iterable[Release], rounds: int = 1, reports: int = 1) -> Costs:
    """Sums up the costs of releases, each applied in so many rounds, or reports."""
    total, sampled, concentrated = 0.0, Counter[tuple[float, float]](), Counter[float]()
    for r in releases:
        times = r.times * (rounds if r.each == "round" else reports)
        if not times:
            continue
        if not r.normal:
            concentrated[r.multiplier] += times
        elif r.rate == 1:
            total += times / r.multiplier**2
        else:
            sampled[r.multiplier, r.rate] += times
    return Costs(total, sampled, concentrated)


def epsilon_by_answers(releases: Sequence[Release], delta: float) -> Callable[[int], float]:
    """Returns ``answers -> epsilon`` of a unit; answers are rounds, and reports of scores.

    A run's record of whom it asked does not tell them apart, so that all are of the dearer kind.
    It raises ``Refused`` if epsilon is amplified by sampling, and dp-accounting is not installed.
    """
    kinds = [[r for r in releases if r.each == each] for each in ("round", "report")]
    dearest = max(kinds, key=lambda some: sum(r.influence for r in some))
    replaced = bool(dearest) and hidden_by(dearest)[1] == "replaced"
    return cache(lambda answers: costs(dearest, answers, answers).epsilon(delta, replaced=replaced))


@lru_cache
def planned(releases: tuple[Release, ...], plan: Plan, delta: float) -> float:
    """Returns epsilon of a unit that is asked in all of a plan's rounds and reports."""
    replaced = bool(releases) and hidden_by(releases)[1] == "replaced"
    return costs(releases, plan.rounds, plan.reports).epsilon(delta, replaced=replaced)


def solved(
    releases: Callable[[float], tuple[Release, ...]], plan: Plan, target: float, delta: float
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
    once = costs(releases(1.0), plan.rounds, plan.reports)
    known = once.total + sum(n / z**2 for z, n in once.concentrated.items())
    sampled = [1 / z for z, _ in once.sampled]
    low = 0.1 * max(sampled) if sampled else 1e-3 * math.sqrt(known)
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
