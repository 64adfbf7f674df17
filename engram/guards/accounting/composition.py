"""Epsilon of releases together, and the noise multiplier that meets a target."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

from engram.guards.accounting.amplification import composed_epsilon
from engram.guards.accounting.gaussian import concentrated_epsilon
from engram.guards.accounting.releases import Plan, Release, hidden_by

MOST: Final = 1e6
"""Largest noise multiplier that is solved for; with more, models are noise alone."""


def costs(releases: Iterable[Release]) -> tuple[float, Mapping[tuple[float, float], int]]:
    """Returns the sum of mu^2 of those about known units, and numbers by multiplier and rate."""
    total, sampled = 0.0, Counter[tuple[float, float]]()
    for r in releases:
        known = r.influence  # which checks the multiplier
        if r.rate == 1:
            total += known
        elif r.times:
            sampled[r.multiplier, r.rate] += r.times
    return total, sampled


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
    if not all(r.normal for r in releases):
        return concentrated_epsilon(sum(r.influence for r in releases) / 2, delta)
    return composed_epsilon(*costs(releases), delta, replaced=neighbors == "replaced")


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
    total, sampled = costs(_repeated(releases(1.0), plan.rounds, plan.reports))
    low = 0.1 * max(1 / z for z, _ in sampled) if sampled else 1e-3 * math.sqrt(total)
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
