"""The noise multiplier of a private run: given, or solved for its target ``epsilon``."""

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from engram.core.checks import must
from engram.guards.accounting.gaussian import epsilon
from engram.scoring.score_columns import Column
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.settings.run import RunSettings

_MOST: Final = 1e6
"""Largest noise multiplier that is solved for; with more, models are noise alone."""


def noise_multiplier(e: Experiment) -> float:
    """Returns the noise multiplier: the setting, or the least one that meets ``epsilon``.

    It is rounded up to four digits, so that all machines find the same.

    Raises:
        Refused: No multiplier up to 10^6 reaches the target.
    """
    if not e.epsilon:
        return e.noise_multiplier
    found = _solved(e.epsilon, e.delta, looks(e), e.sampling, sampling_rate(e)) * reach(e)
    if found > _MOST:
        expected = (
            f"larger: {e.rounds} rounds at delta {e.delta:g} would need a noise-multiplier above "
            f"{_MOST:g}; raise epsilon or delta, or lower num-rounds"
        )
        raise Refused(must("epsilon", e.epsilon, expected))
    digits = 10.0 ** (math.floor(math.log10(found)) - 3)
    return float(f"{math.ceil(found / digits) * digits:.4g}")


def sampling_rate(e: Experiment) -> float:
    """Returns the sampling rate of a secret cohort; 1 for other cohorts."""
    if not e.secret_cohorts:
        return 1.0
    return min(1.0, e.clients_per_round / (e.num_clients - e.unseen_clients))


def is_scored(e: Experiment, server_round: int) -> bool:
    """Whether a round is evaluated although scores cost part of a total epsilon.

    Untrained models are not, nor later ones unless ``eval-every`` is set to other than its default.
    """
    default = RunSettings.model_fields["eval_every"].default
    return e.privacy != "local" or (server_round > 0 and e.eval_every != default)


def looks(e: Experiment) -> int:
    """Returns the largest number of a run's releases of the same data of a client."""
    if e.own.turns and e.privacy == "example":
        return 1
    scored = e.privacy == "local" and e.epsilon and is_scored(e, 1)
    return e.rounds + (-(-e.rounds // e.eval_every) if scored else 0)


def noise_of(columns: Iterable[Column], multiplier: float) -> dict[str, float]:
    """Returns the deviation of local privacy's noise by column, of those with bounded metrics.

    Whatever the data of a client, a score of the k bounded ones moves by its metric's range at
    most, and all of them, each divided by its range, by sqrt(k). With normal noise of deviation
    ``multiplier sqrt(k) / 2`` ranges, they are one release with mu = 2 / multiplier, as an update
    of this multiplier is.
    """
    ranges = {column.name: column.metric.high - column.metric.low for column in columns}
    bounded = {name: size for name, size in ranges.items() if math.isfinite(size)}
    return {name: multiplier * math.sqrt(len(bounded)) / 2 * size for name, size in bounded.items()}


def row_rate(e: Experiment, rows: int) -> float:
    """Returns the sampling rate of rows in a noisy sum, under example privacy.

    A client's number of rows, >= 1, is taken to be known. Methods without batches sum over all.
    """
    return 1.0 if "batch_size" in e.own.unread else min(1.0, e.batch_size / rows)


def row_releases(e: Experiment) -> int:
    """Returns the number of noisy sums of a client and round, under example privacy."""
    return 1 if "local_steps" in e.own.unread else e.local_steps


def reach(e: Experiment) -> float:
    """Returns the sensitivity of the noised quantity to a client, in multiples of ``clip``.

    Central privacy hides from anyone who sees the models whether a client took part at all: adding
    or removing it moves the sum by ``clip``. Where it is drawn without replacement, another client
    would take its place; so what is hidden is which data it has, and their replacement by others
    moves the sum by up to ``2 clip``. So it is with local privacy, which hides them from the
    server: two clipped updates lie up to ``2 clip`` apart. Where privacy is example, it is the
    influence of a row that is added, or of a bandit's turn that is another.
    """
    if e.privacy == "example":
        return math.sqrt(2) if e.own.turns else 1.0  # see engram.tables.private
    return 2.0 if e.privacy == "local" or e.sampling == "without-replacement" else 1.0


def sampled_epsilon(
    sampling: str, multiplier: float, rate: float, releases: int, delta: float
) -> float:
    """Returns an epsilon of Gaussian releases about a sample that is drawn anew for each.

    Args:
        sampling: As the setting; samples are Poisson's unless it is ``without-replacement``.
        multiplier: Standard deviation of the noise over the largest influence on the noised sum.
        rate: Probability of being in a sample, in (0, 1]; at 1 epsilon is exact.
        releases: Number of releases; >= 0.
        delta: In (0, 1).

    Raises:
        Refused: The rate is below 1, and dp-accounting is not installed.
    """
    if rate == 1:
        return epsilon(multiplier, releases, delta)
    from engram.guards.accounting.amplification import poisson_epsilon, subset_epsilon  # noqa: PLC0415 - trainers do without

    amplified = subset_epsilon if sampling == "without-replacement" else poisson_epsilon
    return amplified(multiplier, rate, releases, delta)


@lru_cache
def _solved(target: float, delta: float, rounds: int, sampling: str, rate: float) -> float:
    """Returns the least multiplier, for sensitivity 1, by bisection to a relative 10^-4."""
    if rate == 1:
        # Of k releases with multiplier z, epsilon is that of one with z / sqrt(k).
        return math.sqrt(rounds) * _least(lambda z: epsilon(z, 1, delta), target, 1e-3)
    return _least(lambda z: sampled_epsilon(sampling, z, rate, rounds, delta), target, 0.1)


def _least(cost: Callable[[float], float], target: float, low: float) -> float:
    """Finds the least argument, from ``low`` on, at which a falling ``cost`` meets ``target``."""
    high = low
    while cost(high) > target and high <= _MOST:
        low, high = high, 2 * high
    while high > low * (1 + 1e-4):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if cost(middle) <= target else (middle, high)
    return high
