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

from engram.arrays import Array, Bools
from engram.checks import require
from engram.molar.families import FamilyName
from engram.molar.heterogeneity import Heterogeneity, estimate_heterogeneity
from engram.molar.pooled import condense
from engram.molar.random_effects import (
    Posterior,
    Prior,
    Usual,
    confirmed,
    free_variance,
    moderated,
    posterior,
    start,
    usual_noise,
)
from engram.molar.site import Rows
from engram.shares import weight_limit

_EXCHANGES: Final = 30
_STILL: Final = 0.01  # standard errors of the center are no change
_STEP: Final = 2.0  # of a linear predictor that is not linear in the mean, per exchange
_FAR: Final = 100.0  # squared standard deviations, as which a farther intercept counts
_RIDGE: Final = 1e-9  # of a column's information, where the tasks together do not determine it


class Adapted(NamedTuple):
    """The result for M tasks and d columns.

    Attributes:
        coefs: Shape (M, d).
        center: The shared parameter, shape (d,).
        covariance: Of its error, given the scatter, shape (d, d).
        heterogeneity: The scatter of the tasks' parameters around it.
        exchanges: How often the steps were repeated.
        between: The share of the center's variance that is due to the scatter, shape (d,). Of an
            intercept it is 1, and the variance is that by Hartung and Knapp (2001): its scatter is
            pulled away from 0, so that it is no estimate.
        usual: The noise of most tasks, to which each task's is moderated.
        limit: Largest precision 1 / v of a task in the center, shape (d,); infinite without one.
        capped: Tasks with a larger one in some column, shape (M,).
        change: Largest change in the last repetition, in standard errors of the center.
    """

    coefs: Array
    center: Array
    covariance: Array
    heterogeneity: Heterogeneity
    exchanges: int
    between: Array
    usual: Usual
    limit: Array
    capped: Bools
    change: float

    def errors(self, back: Array) -> tuple[Array, Array]:
        """Returns standard errors and degrees of freedom of ``back @ center``.

        Its variance is due to the tasks' noise, which is known well, and to their scatter, which M
        tasks that are not apart show with M - 1 degrees of freedom; of the sum they are
        Satterthwaite's (1946).

        Args:
            back: Shape (k, d).
        """
        variance = np.diag(back @ self.covariance @ back.T)
        parts = back**2 * (self.between * np.diag(self.covariance))
        shown = np.maximum((~self.heterogeneity.apart).sum(axis=0) - 1, 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            freedom = variance**2 / (parts**2 / shown).sum(axis=1)
        return np.sqrt(variance), freedom


class Around(NamedTuple):
    """The state around which tasks of another family are told as linear ones, of noise 1."""

    base: Prior  # of tasks that are not apart
    first: Prior  # of no task yet
    confirmed: Bools  # coefficients that the tasks' likelihood has apart, shape (M, d)


def adapt(
    tasks: Sequence[Rows],
    *,
    family: FamilyName,
    c: float = np.inf,
    alike: float = 1.0,
    intercept: bool = True,
    max_weight: float = np.inf,
    accuracy: float = _STILL,
    most: int = _EXCHANGES,
    around: Around | None = None,
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
        max_weight: Largest weight of a task in a column's center, in units of the median task's.
        accuracy: Changes of the center that are none, in its standard errors.
        most: Largest number of repetitions.
        around: Where the rows are working responses, with noise 1, of another family.

    Raises:
        ValueError: If c or alike is out of range, or there is no task.
    """
    require(len(tasks) > 0, "number of tasks", 0, "at least 1")
    dim = tasks[0].x.shape[1]
    reach, scattered = float(c), np.arange(dim) >= dim - intercept
    first = start(stacked(tasks), family) if around is None else around.first
    linear = family == "linear" or around is not None
    solved: FamilyName = "linear" if linear else family
    if linear:
        tasks = [condense(rows) if len(rows.y) > dim + 1 else rows for rows in tasks]
    noisy = linear and around is None
    sigmas = np.full(len(tasks), _first_noise(first) if noisy else 1.0)
    base = first if around is None else around.base
    priors, begin = [base] * len(tasks), [base.center] * len(tasks)
    center, variance, usual = base.center, base.variance, Usual(1.0, np.inf)
    for count in range(1, most + 1):
        found = _asked(tasks, priors, solved, sigmas, begin)
        begin = [each.coef for each in found]
        if noisy:
            usual = usual_noise(found)
            sigmas = np.array([moderated(each, usual) for each in found])
        gaps = np.stack([each.gap for each in found])
        variances = np.stack([each.variance for each in found])
        limit = weight_limit(1 / variances, max_weight)
        capped: Bools = np.any(limit * variances < 1, axis=1)
        found = [_bounded(each, limit) for each in found]
        variances = np.maximum(variances, 1 / limit)
        scatter = estimate_heterogeneity(
            gaps, variances, reach=reach, alike=alike, scattered=scattered
        )
        direct = count == 1 and around is None
        moved = scatter.center if direct else _step(found, linear=linear)
        change = np.maximum(np.abs(moved), np.abs(np.sqrt(scatter.variance) - np.sqrt(variance)))
        center, variance = center + moved, scatter.variance
        base = Prior(center, variance)
        wide = np.stack([free_variance(gap, base, first, family) for gap in gaps])
        apart = scatter.apart
        if around is not None:
            apart = apart & around.confirmed
        elif not linear:
            each = zip(tasks, wide, apart, strict=True)
            apart = np.stack(
                [confirmed(r, base, w, a, family=family, reach=reach) for r, w, a in each]
            )
        scatter = scatter._replace(apart=apart)
        priors = [Prior(center, own) for own in np.where(apart, wide, variance)]
        still = float(np.max(change * np.sqrt(np.diag(_information(found)))))
        if still <= accuracy:
            break
    between, inflated = _center_error(gaps, variances, scatter, intercept=intercept)
    found = _asked(tasks, priors, solved, sigmas, begin)
    coefs = np.stack([each.coef for each in found])
    information = _information([_bounded(each, limit) for each in found])
    covariance = inflated[:, None] * np.linalg.pinv(information) * inflated
    return Adapted(coefs, center, covariance, scatter, count, between, usual, limit, capped, still)


def _center_error(
    gaps: Array, variances: Array, scatter: Heterogeneity, *, intercept: bool
) -> tuple[Array, Array]:
    """Returns ``between`` of ``Adapted``, and by what the standard errors of the center grow."""
    t, kept = scatter.variance, ~scatter.apart
    weights = kept / (variances + t)
    between, inflated = t * (weights**2).sum(axis=0) / weights.sum(axis=0), np.ones(len(t))
    if intercept and len(gaps) > 1:
        z = (gaps - scatter.center)[:, -1] / np.sqrt(variances + t)[:, -1]
        # Those that are apart count: without the farthest, few others look too much alike.
        squares = np.minimum(z**2, _FAR).sum()
        between[-1], inflated[-1] = 1.0, np.sqrt(squares / (len(gaps) - 1))
    return between, inflated


def _bounded(found: Posterior, limit: Array) -> Posterior:
    """Returns the part of a task's information that has a precision of the limit at most."""
    part = np.sqrt(np.minimum(1.0, limit * found.variance))
    if (part == 1).all():
        return found  # to the digit
    gap = np.linalg.lstsq(found.information, found.score)[0]
    less = part[:, None] * found.information * part
    return found._replace(information=less, score=less @ gap)


def _first_noise(prior: Prior) -> float:
    """Returns the standard deviation of y, or the least number if it is 0."""
    return float(np.sqrt(max(float(prior.variance.max()), np.finfo(np.float64).tiny)))


def stacked(tasks: Sequence[Rows]) -> Rows:
    """Returns the rows of all tasks."""
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
