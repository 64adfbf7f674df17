"""A task's rows under the assumption that its coefficients scatter around shared ones.

Task m has ``beta_m = center + delta``, where the deltas of different columns are independent with
mean 0 and the prior's variances ``T = diag(t)``. With G = X' D X / sigma^2 and the score u of the
rows at the center (D = I for linear models; else the working weights at the mode), two answers
follow, both without a matrix larger than d x d and with fewer rows than columns as well:

- the mode, ``center + T (I + G T)^-1 u``, which is ridge regression around the center;
- for each column by itself, what the rows say about it if the other columns are as uncertain as
  the prior has it: with ``A = G (I + T G)^-1 = X' S^-1 X``, ``S = sigma^2 D^-1 + X T X'``, and
  ``s = (I + G T)^-1 u``, it is ``gap_k = s_k / A_kk``, with mean ``delta_k`` and variance
  ``1 / A_kk - t_k``. (By Sherman and Morrison, these are generalized least squares of column k
  with the other columns as noise. In Gaussian models they are the "cavity" of expectation
  propagation.)

Limits: with t infinite, gap and variance are those of least squares, ``[G^-1]_kk``; with t = 0,
they are those of a regression on column k alone, after the shared effects of the others; and for
orthogonal columns, they do not depend on t. The sum of A over tasks is the information about the
center of a mixed model (Laird and Ware 1982; for generalized linear models, penalized
quasi-likelihood, Breslow and Clayton 1993).
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from engram.core.arrays import Array, Bools
from engram.core.checks import require
from engram.tables.families import FAMILIES, FamilyName
from engram.tables.site import Rows

_STEPS: Final = 100  # of Newton's method, at most
_HALVINGS: Final = 30
_TOLERANCE: Final = 1e-10  # of a step's gain, beside the objective
_HALF: Final = 0.5
_LEAST: Final = 1e-12  # of the information that rows have of a column, beside the largest
_PASSES: Final = 50  # over a task's noise, and over which of its coefficients are apart
_SAME: Final = 1e-9  # relative changes of variances that are none
_PRIOR: Final = 4.0  # least degrees of freedom that a task's noise borrows from the others


class Prior(NamedTuple):
    """Prior of a task's coefficients: independent, with these moments, shapes (d,)."""

    center: Array
    variance: Array  # at least 0, finite; 0: the coefficient is the center


class Posterior(NamedTuple):
    """Posterior of a task's coefficients, given a prior.

    Attributes:
        coef: Mode of the coefficients, shape (d,).
        gap: Of each column by itself, the estimate of its distance from the center, shape (d,).
        variance: The variance of ``gap`` around the true distance, > 0, shape (d,).
        information: The matrix A of the module's text, shape (d, d).
        score: The vector s, shape (d,).
        sigma: Standard deviation of a linear model's noise, from residuals; 1 for other families.
        freedom: Degrees of freedom of ``sigma``: rows less those that the fit takes up; infinite
            for other families.
    """

    coef: Array
    gap: Array
    variance: Array
    information: Array
    score: Array
    sigma: float
    freedom: float
    deviance: float  # of the rows at the mode


def start(rows: Rows, family: FamilyName) -> Prior:
    """Returns a prior that is weak beside any rows: each column may explain all of y by itself.

    Slopes have center 0 and variance ``var(y) / mean square of the column`` (for other families, of
    the linear predictor, 1 in place of var(y)), and a last column of ones has the link of the mean
    of y as its center. It does not depend on units.
    """
    x, y, counts = rows.counted()
    linear = family == "linear"
    mean = float(np.average(y, weights=counts))
    unit = float(np.average((y - mean) ** 2, weights=counts)) if linear else 1.0
    squares = np.average(x**2, axis=0, weights=counts)
    variance = np.divide(unit, squares, out=np.zeros_like(squares), where=squares > 0)
    center = np.zeros(x.shape[1])
    if (x[:, -1] == 1).all():
        offset = np.average(x[:, :-1], axis=0, weights=counts)
        variance[-1] = unit + float(variance[:-1] @ offset**2)
        center[-1] = link(family, rows)
    return Prior(center, variance)


def link(family: FamilyName, rows: Rows) -> float:
    """Returns the linear predictor of the mean of y, half a case away from impossible ones."""
    _, y, counts = rows.counted()
    mean, size = float(np.average(y, weights=counts)), float(counts.sum())
    if family == "linear":
        return mean
    others = size if family == "poisson" else (1 - mean) * size + 0.5
    return float(np.log((mean * size + 0.5) / others))


def posterior(
    rows: Rows, prior: Prior, *, family: FamilyName, sigma: float = 1.0, begin: Array | None = None
) -> Posterior:
    """Posterior of a task's coefficients, given its rows and a prior.

    Args:
        rows: The task's rows, any number of them.
        prior: What is assumed of its coefficients.
        family: The family of models.
        sigma: Standard deviation of the noise of linear models, > 0; 1 for other families.
        begin: Coefficients that the search for the mode begins with. None: the center.

    Raises:
        ValueError: If sigma or a variance is out of range.
    """
    require(0 < sigma < np.inf, "sigma", sigma, "positive and finite")
    t = prior.variance
    require(bool((t >= 0).all() and np.isfinite(t).all()), "variance", t, "finite and >= 0")
    x, y, counts = rows.counted()
    coef = prior.center if begin is None else np.where(t > 0, begin, prior.center)
    coef, g, u = _mode(x, y, counts / sigma**2, prior, family, coef)
    root = np.sqrt(t)
    inner = root[:, None] * g * root  # symmetric, as (I + G T)^-1 is not
    inverse = np.linalg.inv(np.eye(len(t)) + inner)
    scaled = g * root
    score = u - scaled @ (inverse @ (root * u))
    left = np.diag(inverse)  # 1 - t_k A_kk, by which a wide prior's A loses no digits
    wide, unit = left < _HALF, np.where(left < _HALF, root, 1)
    a = (np.eye(len(t)) - inverse) / unit[:, None] / unit
    a = np.where(wide[:, None] & wide, a, g - scaled @ inverse @ scaled.T)
    diagonal = np.maximum(np.diag(a), _LEAST * max(float(np.diag(g).max()), _LEAST))
    variance = np.maximum(left, _LEAST) / diagonal
    freedom = np.inf
    if family == "linear":
        freedom = max(float(counts.sum() - np.sum(inner * inverse)), _LEAST)
        sigma = float(np.sqrt(counts @ (y - x @ coef) ** 2 / freedom))
    gap = np.where(wide, (coef - prior.center) / np.where(wide, 1 - left, 1), score / diagonal)
    deviance = float(counts @ FAMILIES[family].loss(x @ coef, y))
    return Posterior(coef, gap, variance, a, score, sigma, freedom, deviance)


def free_variance(gap: Array, prior: Prior, family: FamilyName, most: Array | float = 1.0) -> Array:
    """Returns the prior variances of coefficients that are set free: their squared gaps, or more.

    The mode then is ``z^2 / (z^2 + 1)`` of a distance of z standard errors, as James and Stein have
    it but for terms of order ``z^-4``. For families other than linear, gaps overshoot where a
    likelihood is far from a parabola, so there is a ``most``: 1, as in ``start``, of standardized
    columns.
    """
    squares = gap**2 if family == "linear" else np.minimum(gap**2, most)
    return np.maximum(prior.variance, squares)


def confirmed(
    posterior_by: Callable[..., Posterior],
    prior: Prior,
    wide: Array,
    apart: Bools,
    *,
    family: FamilyName,
    reach: float,
) -> Bools:
    """Mask of the coefficients that are apart by the likelihood too, shape (d,).

    With rare classes, a gap's ratio to its standard error is far from normal: one case with an
    extreme value makes it large. So for families other than linear, setting a coefficient free
    must reduce the deviance by more than ``reach^2``, whose root is nearer to a normal.

    Args:
        posterior_by: Returns the task's posterior by its prior.
        prior: The prior of a task that is not apart.
        wide: The variances of coefficients that are set free, shape (d,).
        apart: Mask of the coefficients that are apart by their gaps, shape (d,).
        family: The family of models.
        reach: In standard deviations.
    """
    if family == "linear" or not apart.any():
        return apart
    before, found = posterior_by(prior).deviance, apart.copy()
    for k in np.flatnonzero(apart):
        free = Prior(prior.center, np.where(np.arange(len(wide)) == k, wide, prior.variance))
        found[k] = before - posterior_by(free).deviance > reach**2
    return found


def _mode(
    x: Array, y: Array, weights: Array, prior: Prior, family: FamilyName, coef: Array
) -> tuple[Array, Array, Array]:
    """Returns the mode, and there G and u, by Newton's method with halved steps."""
    model, root = FAMILIES[family], np.sqrt(prior.variance)
    some = root > 0

    def objective(at: Array) -> float:
        penalty = float(np.sum(((at - prior.center)[some] / root[some]) ** 2))
        return float(weights @ model.loss(x @ at, y)) + penalty

    with np.errstate(over="ignore", invalid="ignore"):
        value = objective(coef)
        for _ in range(_STEPS):
            eta = x @ coef
            g = (x * (weights * model.curvature(eta))[:, None]).T @ x
            u = x.T @ (weights * (y - model.mean(eta))) + g @ (coef - prior.center)
            inner = np.eye(len(root)) + root[:, None] * g * root
            step = prior.center + root * np.linalg.solve(inner, root * u) - coef
            for _ in range(_HALVINGS):
                new = objective(coef + step)
                if new <= value:
                    break
                step = step / 2
            else:
                return coef, g, u
            coef, gain, value = coef + step, value - new, new
            if family == "linear" or gain <= _TOLERANCE * (1 + abs(value)):
                return coef, g, u
    return coef, g, u


class Usual(NamedTuple):
    """The noise of most tasks, and how many degrees of freedom a task borrows from it."""

    sigma: float
    freedom: float  # infinite: all tasks have this noise


def usual_noise(found: list[Posterior]) -> Usual:
    """Estimates the usual noise, for ``moderated``.

    The usual variance is the mean of the tasks', weighted by their degrees of freedom f. How much
    it counts follows from how much they differ: if the true variances are inverse chi-squares with
    p degrees of freedom, the squared coefficient of variation of the estimates is about
    ``2 / f + 2 / (p - 4)``. If they differ no more than by chance, all have the usual one.
    """
    freedom = np.array([each.freedom for each in found])
    squares = np.array([each.sigma for each in found]) ** 2
    usual = float(np.average(squares, weights=freedom))
    if usual == 0:
        return Usual(float(np.finfo(np.float32).tiny), np.inf)
    spread = float(np.average((squares / usual - 1) ** 2, weights=freedom))
    excess = spread - float(np.average(2 / freedom, weights=freedom))
    return Usual(usual**0.5, _PRIOR + 2 / excess if excess > 0 else np.inf)


def moderated(found: Posterior, usual: Usual) -> float:
    """Returns a task's noise ``sqrt((f sigma^2 + p usual^2) / (f + p))``, f its freedom."""
    own = found.freedom / (found.freedom + usual.freedom)
    return float(np.sqrt(own * found.sigma**2 + (1 - own) * usual.sigma**2))


def settle(
    posterior_by: Callable[..., Posterior],
    base: Prior,
    middle: Array,
    usual: Usual,
    *,
    family: FamilyName,
    reach: float,
    most: Array | float = 1.0,
) -> tuple[Posterior, Bools, Prior]:
    """Returns a task's posterior by its own noise, its coefficients apart, and their prior.

    Args:
        posterior_by: Returns the task's posterior by its prior and, as ``sigma``, its noise.
        base: The prior of a task that is not apart.
        middle: Of the tasks' gaps, from which it counts who is apart, shape (d,).
        usual: The noise of most tasks, for linear models.
        family: The family of models.
        reach: In standard deviations from the middle.
        most: See ``free_variance``.
    """
    prior, sigma, apart = base, usual.sigma, np.zeros(len(middle), dtype=bool)
    found = posterior_by(prior, sigma=sigma)
    for _ in range(_PASSES):
        before = sigma, prior.variance
        if family == "linear":
            sigma = moderated(found, usual)
        far = np.abs(found.gap - middle) > reach * np.sqrt(found.variance + base.variance)
        wide = free_variance(found.gap, base, family, most)
        apart = confirmed(posterior_by, base, wide, far, family=family, reach=reach)
        prior = Prior(base.center, np.where(apart, wide, base.variance))
        found = posterior_by(prior, sigma=sigma)
        if np.allclose(prior.variance, before[1], _SAME, 0) and np.isclose(sigma, before[0], _SAME):
            break
    return found._replace(sigma=sigma), apart, prior
