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
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from engram.core.arrays import Array, Bools
from engram.core.checks import require
from engram.guards.robust.weight_limit import weight_limit
from engram.tables.families import FamilyName
from engram.tables.heterogeneity import Heterogeneity, estimate_heterogeneity
from engram.tables.random_effects import (
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
from engram.tables.site import Rows, condense, stacked

_REPETITIONS: Final = 200
_STILL: Final = 0.01  # standard errors of the center are no change
_STEP: Final = 2.0  # of a linear predictor that is not linear in the mean, per exchange
_FAR: Final = 100.0  # squared standard deviations of a task that is apart, divided by M - 1
_UNSEEN: Final = 0.5  # standard errors of a scatter that it may be larger than it seems
_LEAST: Final = float(np.finfo(np.float64).tiny)  # variance of y
_RIDGE: Final = 1e-9  # of a column's information, where the tasks together do not determine it


class Adapted(NamedTuple):
    """The result for M tasks and d columns.

    Attributes:
        coefs: Shape (M, d).
        center: The shared parameter, shape (d,).
        covariance: Of its error, given the scatter, shape (d, d).
        grown: The factor of its standard errors that is due to the gaps' spread, shape (d,).
        noise: Share of its variance that is due to the tasks' noise, shape (d,); the scatter has
            the rest.
        heterogeneity: The scatter of the tasks' parameters around it.
        usual: The noise of most tasks, to which each task's is moderated.
        limit: Largest precision 1 / v of a task in the center, shape (d,); infinite without one.
        capped: Tasks with a larger one in some column, shape (M,).
        change: Largest change in the last repetition, in standard errors of the center.
    """

    coefs: Array
    center: Array
    covariance: Array
    grown: Array
    noise: Array
    heterogeneity: Heterogeneity
    usual: Usual
    limit: Array
    capped: Bools
    change: float

    def covariance_of(self, back: Array) -> Array:
        """Covariance of ``back @ center``, ``back`` (k, d)."""
        back = back * self.grown
        return np.asarray(back @ self.covariance @ back.T)

    def errors(self, back: Array) -> tuple[Array, Array]:
        """Returns standard errors and degrees of freedom of ``back @ center``, ``back`` (k, d).

        The part of its variance that is due to the tasks' noise is known well, and that of their
        scatter with M - 1 degrees of freedom; of the sum they are Satterthwaite's (1946).
        """
        variance, back = np.diag(self.covariance_of(back)), back * self.grown
        scatter = back**2 @ np.diag((1 - self.noise) * np.diag(self.covariance))
        squares = (scatter**2).sum(axis=1) / max(len(self.coefs) - 1, 1)
        unknown = np.full_like(variance, np.inf)
        freedom = np.divide(variance**2, squares, out=unknown, where=squares > 0)
        return np.sqrt(variance), freedom


def adapt(
    tasks: Sequence[Rows],
    *,
    family: FamilyName,
    c: float = np.inf,
    alike: float = 1.0,
    intercept: bool = True,
    max_weight: float = np.inf,
    accuracy: float = _STILL,
    begin: Prior | None = None,
    confirmed_apart: Bools | None = None,
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
        begin: The state to begin with. None: ``start`` of all rows.
        confirmed_apart: Coefficients that the tasks' likelihood has apart, shape (M, d), of
            working responses with noise 1, which stand for rows of a family that is not linear.

    Raises:
        ValueError: If c or alike is out of range, or there is no task.
    """
    require(len(tasks) > 0, "number of tasks", 0, "at least 1")
    dim, working = tasks[0].x.shape[1], confirmed_apart is not None
    reach, scattered = float(c), np.arange(dim) >= dim - intercept
    solved: FamilyName = "linear" if working else family
    if solved == "linear":
        tasks = [condense(rows) if len(rows.y) > dim + 1 else rows for rows in tasks]
    base = start(stacked(tasks), family) if begin is None else begin
    first = np.sqrt(max(base.variance.max(), _LEAST)) if family == "linear" else 1.0
    sigmas = np.full(len(tasks), first)
    priors, coefs = [base] * len(tasks), [base.center] * len(tasks)
    center, variance, usual, direct = *base, Usual(1.0, np.inf), not working
    for _ in range(_REPETITIONS):
        found = _asked(tasks, priors, solved, sigmas, coefs)
        coefs = [each.coef for each in found]
        if family == "linear":
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
        moved = scatter.center if direct else _step(found, linear=solved == "linear")
        change = np.maximum(np.abs(moved), np.abs(np.sqrt(scatter.variance) - np.sqrt(variance)))
        center, variance, direct = center + moved, scatter.variance, False
        base = Prior(center, variance)
        wide = np.stack([free_variance(gap, base, family) for gap in gaps])
        if confirmed_apart is not None:
            apart = scatter.apart & confirmed_apart
        else:
            by = [partial(posterior, rows, family=family) for rows in tasks]
            each = zip(by, wide, scatter.apart, strict=True)
            apart = np.stack(
                [confirmed(p, base, w, a, family=family, reach=reach) for p, w, a in each]
            )
        scatter = scatter._replace(apart=apart)
        priors = [Prior(center, own) for own in np.where(apart, wide, variance)]
        still = float(np.max(change * np.sqrt(np.diag(_information(found)))))
        if still <= accuracy:
            break
    found = _asked(tasks, priors, solved, sigmas, coefs)
    own = np.stack([each.coef for each in found])
    covariance = np.linalg.pinv(_information([_bounded(each, limit) for each in found]))
    error = np.asarray(covariance), *_spread(gaps, variances, scatter, scattered)
    return Adapted(own, center, *error, scatter, usual, limit, capped, still)


def _spread(
    gaps: Array, variances: Array, scatter: Heterogeneity, scattered: Bools
) -> tuple[Array, Array]:
    """Returns ``grown`` and ``noise`` of ``Adapted``.

    The center's variance is that of Hartung and Knapp (2001), by the gaps' spread: of an intercept
    (its scatter is pulled away from 0, so that it is no estimate), and of other columns where it is
    the larger one. Tasks that are apart count, the less the more tasks there are: without the
    farthest, few others look too much alike. Where M tasks show no scatter, there may be some:
    its standard error is ``(v + t) sqrt(2 / (M - 1))``.
    """
    t, rest = scatter.variance, max(len(gaps) - 1, 1)
    squares = (gaps - scatter.center) ** 2 / (variances + t)
    squares = np.where(scatter.apart, np.minimum(squares, _FAR / rest), squares)
    grown = np.maximum(squares.sum(axis=0) / rest, ~scattered | (len(gaps) == 1))
    weights = ~scatter.apart / (variances + t)
    noise = 1 - t * (weights**2).sum(axis=0) / weights.sum(axis=0)
    noise = noise / grown / (1 + _UNSEEN * np.sqrt(2 / rest))
    return np.sqrt(grown), np.where(scattered, 0.0, noise)


def _bounded(found: Posterior, limit: Array) -> Posterior:
    """Returns the part of a task's information that has a precision of the limit at most."""
    part = np.sqrt(np.minimum(1.0, limit * found.variance))
    if (part == 1).all():
        return found  # to the digit
    gap = np.linalg.lstsq(found.information, found.score)[0]
    less = part[:, None] * found.information * part
    return found._replace(information=less, score=less @ gap)


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
