"""Differences between methods on the same clients, with simultaneous confidence intervals.

The score of method m for client i in seed s is taken as mu_m + a_mi + b_ms + e_mis: clients and
seeds are both drawn at random, and crossed. So the mean difference D of two methods over n clients
and S seeds has the variance sigma_a^2 / n + sigma_b^2 / S + sigma_e^2 / (n S), with the variances
of their differences. Two mean squares estimate it: that of the S seeds' means, s_b^2 / S, has the
expectation sigma_b^2 / S + sigma_e^2 / (n S), and that of the n clients' means, s_a^2 / n, has
sigma_a^2 / n + sigma_e^2 / (n S). Their sum counts the last term twice and is never too small
(Owen, Annals of Applied Statistics 2007; Cameron, Gelbach, Miller, JBES 2011). Where every seed
deals other rows to its clients, sigma_a is 0, and the same holds.

A half-width is ``sqrt(q_S^2 s_b^2 / S + q_n^2 s_a^2 / n)``, each part with its own critical value
(Graybill, Wang, JASA 1980). All intervals of a comparison hold together with probability 0.95:
``q_n`` is Student's with n - 1 degrees of freedom, divided among the pairs by Bonferroni; ``q_S``
is the quantile of the largest |t| over all pairs, by simulation: see
``engram.compare.critical_values``. A difference's p is the least probability of error at which its
interval excludes zero.

With this model, S' seeds of n' clients have a mean difference of variance ``sigma_a^2 / n' +
sigma_b^2 / S' + sigma_e^2 / (n' S')``, and mean squares that are drawn from chi-squared
distributions. The chance that the simultaneous interval excludes zero, if the true difference is
the one that was observed, is the mean over such draws of the normal distribution's.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr, ndtri

from engram.compare.critical_values import ALPHAS, AT, floor_of, of_clients, of_seeds
from engram.scoring.intervals import (
    LEVEL,
    Interval,
    error_of,
    means_of,
    quantile,
    variances_of,
    wilson,
)

Scores = Sequence[npt.NDArray[np.float64]]
"""Each client's score, (clients,), for each seed; NaN for a client that was not scored."""

LEAST_SEEDS: Final = 2
LEAST_CLIENTS: Final = 3
SHARE_SEEDS: Final = 3  # fewer do not tell how much a share varies over seeds


class Difference(NamedTuple):
    """The mean difference of two methods' scores, and its simultaneous interval.

    Attributes:
        mean: Mean over seeds of the mean over clients; NaN if no client has both scores.
        low: Lower limit; -infinity with fewer than ``LEAST_SEEDS`` or ``LEAST_CLIENTS``.
        high: Upper limit.
        clients: Number of clients that have both scores, in any seed.
        seeds: Number of seeds in which a client has both.
        p: Probability, if no two methods differ, that any difference is as clear as this one; below
            0.05 just where the interval excludes zero, and at least 0.0002. NaN without an
            interval.
    """

    mean: float
    low: float
    high: float
    clients: int
    seeds: int
    p: float = np.nan

    @property
    def shown(self) -> bool:
        """Whether the interval excludes zero."""
        return self.low > 0 or self.high < 0

    @property
    def turned(self) -> "Difference":
        """The difference of the same methods the other way around."""
        return self._replace(mean=-self.mean, low=-self.high, high=-self.low)


class Gap(NamedTuple):
    """A mean difference, and the parts of its variance.

    Attributes:
        mean: The difference.
        by_seeds: ``s_b^2 / S``.
        by_clients: ``s_a^2 / n``.
        seeds: S.
        clients: n.
        noise: ``s_e^2 / (n S)``, the part that both have in common.
        floor: The least that ``by_seeds`` is taken to be.
        skewness: Of the clients' mean differences.
    """

    mean: float
    by_seeds: float
    by_clients: float
    seeds: int
    clients: int
    noise: float = 0.0
    floor: float = 0.0
    skewness: float = 0.0

    @property
    def enough(self) -> bool:
        """Whether there are seeds and clients enough for an interval."""
        return self.seeds >= LEAST_SEEDS and self.clients >= LEAST_CLIENTS


def pairwise(scores: Mapping[str, Scores]) -> dict[tuple[str, str], Difference]:
    """Compares every method with every other one, client by client, seed by seed.

    The part of a variance that is due to seeds is at least ``floor_of`` all pairs'.
    All have the same seeds in the same order, and the same clients.

    Returns:
        The first method's scores less the second's, for each ordered pair.
    """
    found: dict[tuple[str, str], Difference] = {}
    for (a, b), gap in gaps_of(scores).items():
        half, p = _interval(gap, len(scores)) if gap.enough else (np.inf, np.nan)
        ends = gap.mean - half, gap.mean + half
        found[a, b] = Difference(gap.mean, *ends, gap.clients, gap.seeds, p)
        found[b, a] = found[a, b].turned
    return found


def gaps_of(scores: Mapping[str, Scores]) -> dict[tuple[str, str], Gap]:
    """Returns the mean difference of each pair of methods, and the parts of its variance."""
    gaps = {(a, b): _gap(scores[a], scores[b]) for a, b in combinations(scores, 2)}
    numbers = zip(gaps.values(), combinations(range(len(scores)), 2), strict=True)
    known = [(gap.by_seeds, *pair) for gap, pair in numbers if gap.enough]
    variances, *pairs = np.array(known).reshape(-1, 3).T
    floor = float(floor_of(variances, np.array(pairs, int))[0]) if known else 0.0
    return {pair: gap._replace(floor=floor) for pair, gap in gaps.items()}


def _gap(one: Scores, other: Scores) -> Gap:
    gaps = np.array(one) - np.array(other)
    known = np.isfinite(gaps)
    seeds, clients = known.any(axis=1), known.any(axis=0)
    if not seeds.any():
        return Gap(np.nan, 0.0, 0.0, 0, 0)
    gaps = np.where(known, gaps, np.nan)[seeds][:, clients]
    by_seed, by_client = means_of(gaps, 1), means_of(gaps, 0)
    rest = gaps - by_seed[:, None] - by_client + by_seed.mean()
    degrees = (gaps.shape[0] - 1) * (gaps.shape[1] - 1)
    noise = float(np.nansum(rest**2)) / degrees / gaps.size if degrees else 0.0
    parts = variances_of(gaps)
    spread = max(by_client.std(), 1e-9 * np.abs(by_client).max(), np.finfo(float).tiny)
    skewness = float((((by_client - by_client.mean()) / spread) ** 3).mean())
    return Gap(float(by_seed.mean()), *parts, len(by_seed), len(by_client), noise, 0.0, skewness)


def _interval(gap: Gap, methods: int) -> tuple[float, float]:
    by_seeds, mean = max(gap.by_seeds, gap.floor), abs(gap.mean)
    halves = np.hypot(
        of_seeds(methods, gap.seeds) * by_seeds**0.5,
        of_clients(methods, gap.clients) * gap.by_clients**0.5,
    )
    # They fall as the probability of error rises; without any variance they are all 0.
    p = np.exp(np.interp(mean, halves[::-1], np.log(ALPHAS)[::-1])) if mean > halves[-1] else 1.0
    return float(halves[AT]), float(p)


def share_worse(scores: Scores, base: Scores, sign: int) -> Interval | None:
    """Share of clients, over all seeds, that score below ``base``.

    The interval is Wilson's, with as many independent clients as have the share's variance over
    clients and seeds (Korn, Graubard, Survey Methodology 1998), at most the clients that there
    are, and with Student's quantile of Satterthwaite's degrees of freedom: seeds are the same
    clients again, or share a model. Few seeds may agree by chance: two pseudo-seeds are added to
    the variance over seeds, each with half that of a share that is 0 or 1.

    Args:
        scores: Each client's score, by seed.
        base: Those of the reference.
        sign: 1 where higher scores are better, else -1.

    Returns:
        The share, without limits for fewer than ``SHARE_SEEDS``; None if no client has both scores.
    """
    gaps = np.stack([sign * (mine - own) for mine, own in zip(scores, base, strict=True)])
    known = np.isfinite(gaps)
    if not known.any():
        return None
    worse = np.where(known, gaps < 0, np.nan)[known.any(axis=1)][:, known.any(axis=0)]
    seeds, clients = worse.shape
    share = float(np.nanmean(worse))
    if seeds < SHARE_SEEDS:
        return Interval(share, -np.inf, np.inf)
    by_seeds, by_clients = variances_of(worse)
    by_seeds = ((seeds - 1) * by_seeds + _binomial(share, clients) / seeds) / (seeds + 1)
    error, degrees = error_of(by_seeds, by_clients, seeds + 2, clients)
    count = min(_binomial(share, clients * seeds) / error**2, clients)
    return Interval(share, *wilson(share, count, float(quantile((1 + LEVEL) / 2, degrees))))


def _binomial(share: float, count: int) -> float:
    """Returns the variance of a draw, by the share with one more success and failure."""
    smooth = (share * count + 1) / (count + 2)
    return smooth * (1 - smooth)


_POWER: Final = 0.8  # share of comparisons in which the difference is to be shown
_SEEDS: Final = (*range(2, 13), 14, 16, 18, 20, 25, 30, 35, 40, 50, 60, 80, 100)
_TIMES: Final = (1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20)  # as many clients
_ENOUGH: Final = 10  # seeds, where clients are too few
_DRAWS: Final = 1000  # of the mean squares


class Needed(NamedTuple):
    """Number of seeds or clients with which a difference would be shown in 80 % of comparisons.

    Attributes:
        low: Its 10th percentile, about; infinity if more than ``most``.
        high: Its 90th percentile.
        most: The most that are tried: 100 seeds, or twenty times as many clients.
        more_clients: Whether clients are counted: no number of seeds is enough with those there.
    """

    low: float
    high: float
    most: int
    more_clients: bool = False

    def __str__(self) -> str:
        unit, known = "clients" if self.more_clients else "seeds", np.isfinite(self.low)
        ends = [
            f"{end:.0f}" if np.isfinite(end) else f"more than {self.most}"
            for end in dict.fromkeys((self.low, self.high))
        ]
        return f"{'about ' * bool(known)}{' to '.join(ends)} {unit}"


def needed(gap: Gap, methods: int) -> Needed | None:
    """Estimates the seeds or clients that show ``gap`` with 80 % power.

    The percentiles are those of Student's distribution of the true difference about the observed
    one. Where this may have either sign, by its own interval of 90 %, no number is told: without
    any difference, about one pair in ten has one.

    Returns:
        The numbers, each to about a quarter; None where there are too few seeds or clients to
        estimate them, or the difference may have either sign.
    """
    if not gap.enough:
        return None
    by_seeds, mean = max(gap.by_seeds, gap.floor), abs(gap.mean)
    error, degrees = error_of(by_seeds, gap.by_clients, gap.seeds, gap.clients)
    if not mean > quantile(0.95, degrees) * error:
        return None
    reach = float(quantile(0.9, degrees)) * error
    ends = [gap._replace(mean=mean + reach), gap._replace(mean=mean - reach)]
    # With ever more seeds, this is left of the interval and of the difference's deviation.
    left = max(gap.by_clients - gap.noise, 0.0) ** 0.5
    if mean > (of_clients(methods, gap.clients)[AT] + ndtri(_POWER)) * left:
        more = [seeds for seeds in _SEEDS if seeds > gap.seeds]
        low, high = (
            _first(more, partial(_power, end, methods, clients=gap.clients)) for end in ends
        )
        return Needed(low, high, _SEEDS[-1])
    seeds = max(gap.seeds, _ENOUGH)
    more = [round(times * gap.clients) for times in _TIMES]
    low, high = (_first(more, partial(_power, end, methods, seeds)) for end in ends)
    return Needed(low, high, more[-1], more_clients=True)


def _first(numbers: Sequence[int], power: Callable[[int], float]) -> float:
    low, high = 0, len(numbers)
    while low < high:
        middle = (low + high) // 2
        if power(numbers[middle]) >= _POWER:
            high = middle
        else:
            low = middle + 1
    return numbers[low] if low < len(numbers) else np.inf


def _power(gap: Gap, methods: int, seeds: int, clients: int) -> float:
    noise = gap.noise * (gap.seeds / seeds) * (gap.clients / clients)
    of_seed = max(gap.by_seeds - gap.noise, 0.0) * gap.seeds / seeds
    of_client = max(gap.by_clients - gap.noise, 0.0) * gap.clients / clients
    rng = np.random.default_rng(0)
    by_seeds = (of_seed + noise) * rng.chisquare(seeds - 1, _DRAWS) / (seeds - 1)
    by_clients = (of_client + noise) * rng.chisquare(clients - 1, _DRAWS) / (clients - 1)
    half = np.hypot(
        of_seeds(methods, seeds)[AT] * np.sqrt(np.maximum(by_seeds, gap.floor * gap.seeds / seeds)),
        of_clients(methods, clients)[AT] * np.sqrt(by_clients),
    )
    deviation = max((of_seed + of_client + noise) ** 0.5, np.finfo(float).tiny)
    return float(ndtr((abs(gap.mean) - half) / deviation).mean())
