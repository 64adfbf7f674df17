"""MOLAR with shrinkage that the tasks themselves decide: for small tasks, and for rare classes.

MOLAR's three steps, each for tasks that need not determine their coefficients by themselves:

1. Each task shrinks its own estimate around what is shared so far (``random_effects``). With few
   rows, or classes that some column tells apart, that is defined where least squares or maximum
   likelihood is not. It tells the estimate of each column and its variance.
2. Column by column, the weighted median and who is far from it are found, the others' scatter is
   tested and estimated (``heterogeneity``), and the shared parameter is theirs: a weighted mean,
   which is more precise than the median. Columns without scatter are pooled outright; intercepts
   are not, as they nearly always scatter, and rare classes do not show it.
3. A task that is more than ``c`` standard deviations from the shared value keeps its own estimate,
   up to a factor ``1 - 1 / z^2`` or so, z being that distance; other coefficients are shrunk by
   what the scatter suggests.

The steps are repeated until nothing moves. With c = inf this is a mixed model with independent
random effects, whose variances are estimated by restricted likelihood; with ``alike = 0`` as well,
it is pooling with an intercept for each task (fixed effects) but for the intercepts, which scatter;
with much heterogeneity it is each task's own estimate.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from engram.arrays import Array
from engram.checks import require
from engram.molar.families import FamilyName
from engram.molar.heterogeneity import Heterogeneity, estimate_heterogeneity
from engram.molar.pooled import condense
from engram.molar.random_effects import (
    Posterior,
    Prior,
    confirmed,
    free_variance,
    moderate,
    posterior,
    start,
)
from engram.molar.site import Rows

_EXCHANGES: Final = 30
_STILL: Final = 0.01  # standard errors of the center are no change
_STEP: Final = 2.0  # of a linear predictor that is not linear in the mean, per exchange
_RIDGE: Final = 1e-9  # of a column's information, where the tasks together do not determine it


class Adapted(NamedTuple):
    """The result for M tasks and d columns.

    Attributes:
        coefs: Shape (M, d).
        center: The shared parameter, shape (d,).
        covariance: Of its error, given the scatter, shape (d, d).
        heterogeneity: The scatter of the tasks' parameters around it.
        exchanges: How often the steps were repeated.
    """

    coefs: Array
    center: Array
    covariance: Array
    heterogeneity: Heterogeneity
    exchanges: int


def adapt(
    tasks: Sequence[Rows],
    *,
    family: FamilyName,
    c: float = np.inf,
    alike: float = 1.0,
    intercept: bool = True,
) -> Adapted:
    """Fits all tasks.

    Columns should be standardized over the rows of all tasks.

    Args:
        tasks: Each task's rows, any number of them.
        family: The family of models.
        c: How many standard deviations from the shared value make a coefficient a task's own, > 0.
        alike: Columns of which the test of heterogeneity has a p-value above it are the same for
            all tasks that are not apart; from 0 (all columns are) to 1 (none is, but those whose
            estimated scatter is 0).
        intercept: Whether the last column consists of ones: it always scatters.

    Raises:
        ValueError: If c or alike is out of range, or there is no task.
    """
    require(len(tasks) > 0, "number of tasks", 0, "at least 1")
    dim = tasks[0].x.shape[1]
    reach, scattered = float(c), np.arange(dim) >= dim - intercept
    prior = start(_stacked(tasks), family)
    linear = family == "linear"
    if linear:
        tasks = [condense(rows) if len(rows.y) > dim + 1 else rows for rows in tasks]
    sigmas = np.full(len(tasks), _first_noise(prior) if linear else 1.0)
    priors, begin = [prior] * len(tasks), [prior.center] * len(tasks)
    center, variance, count = prior.center, prior.variance, 0
    for count in range(1, _EXCHANGES + 1):
        found = _asked(tasks, priors, family, sigmas, begin)
        begin, sigmas = [each.coef for each in found], moderate(found)
        gaps = np.stack([each.gap for each in found])
        variances = np.stack([each.variance for each in found])
        scatter = estimate_heterogeneity(
            gaps, variances, reach=reach, alike=alike, scattered=scattered
        )
        moved = scatter.center if count == 1 else _step(found, linear=linear)
        change = np.maximum(np.abs(moved), np.abs(np.sqrt(scatter.variance) - np.sqrt(variance)))
        center, variance = center + moved, scatter.variance
        base = Prior(center, variance)
        wide = np.stack([free_variance(gap, base, prior, family) for gap in gaps])
        each = zip(tasks, wide, scatter.apart, strict=True)
        apart = np.stack([confirmed(r, base, w, a, family=family, reach=reach) for r, w, a in each])
        scatter = scatter._replace(apart=apart)
        priors = [Prior(center, own) for own in np.where(apart, wide, variance)]
        if (change**2 * np.diag(_information(found)) <= _STILL**2).all():
            break
    found = _asked(tasks, priors, family, sigmas, begin)
    coefs = np.stack([each.coef for each in found])
    covariance = np.asarray(np.linalg.pinv(_information(found)), dtype=np.float64)
    return Adapted(coefs, center, covariance, scatter, count)


def _first_noise(prior: Prior) -> float:
    """Returns the standard deviation of y, or the least number if it is 0."""
    return float(np.sqrt(max(float(prior.variance.max()), np.finfo(np.float64).tiny)))


def _stacked(tasks: Sequence[Rows]) -> Rows:
    parts = zip(*(rows.counted() for rows in tasks), strict=True)
    return Rows(*(np.concatenate(part) for part in parts))


def _asked(
    tasks: Sequence[Rows],
    priors: Sequence[Prior],
    family: FamilyName,
    sigmas: Array,
    begin: Sequence[Array],
) -> list[Posterior]:
    each = zip(tasks, priors, sigmas.tolist(), begin, strict=True)
    return [posterior(rows, p, family=family, sigma=s, begin=b) for rows, p, s, b in each]


def _information(found: Sequence[Posterior]) -> Array:
    whole = np.sum([each.information for each in found], axis=0)
    return np.asarray(whole + _RIDGE * np.diag(np.diag(whole)))


def _step(found: Sequence[Posterior], *, linear: bool) -> Array:
    """Returns Newton's step of the center: generalized least squares over all tasks."""
    score = np.sum([each.score for each in found], axis=0)
    step = np.linalg.lstsq(_information(found), score)[0]
    return np.asarray(step if linear else step * min(1.0, _STEP / max(np.abs(step).max(), _STEP)))
