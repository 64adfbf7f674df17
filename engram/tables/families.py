"""Generalized linear models (Appendix G): ranges of targets, means and likelihoods."""

import warnings
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from scipy.optimize import linprog
from scipy.special import expit, xlogy
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, PoissonRegressor

from engram.core.arrays import Array, Bools
from engram.core.process_modes import filtering

FamilyName = Literal["linear", "logistic", "poisson"]

_TOLERANCE: Final = 1e-10  # of the gradient of the mean log-likelihood
_CERTAIN: Final = 15.0  # a linear predictor that is rare, unless the likelihood has no maximum
_RISE: Final = 1e-6  # of a sum of rows' predictors, each at most 1


class NoEstimate(Exception):
    """A task's likelihood has no maximum; the message says why, without naming the task."""


class Family(NamedTuple):
    """A model of the target given x, ``rho(y) exp(y <x, beta> - psi(<x, beta>))`` (59).

    Attributes:
        target: The valid values of y, in words.
        valid: Returns for each y whether it is valid.
        mean: psi', the mean of y for a linear predictor.
        curvature: psi'', the weight of a row in the information matrix X' D X.
        hopeless: Returns why no coefficients can be estimated from these y, or None.
        loss: The score of each row: squared error or deviance.
        fit: ``(x, y, weights) -> coefficients`` that maximize the likelihood for full-rank x, by a
            library's solver; None for least squares, which sites solve by factorization.
    """

    target: str
    valid: Callable[[Array], Bools]
    mean: Callable[[Array], Array]
    curvature: Callable[[Array], Array]
    hopeless: Callable[[Array], str | None]
    loss: Callable[[Array, Array], Array]
    fit: Callable[[Array, Array, Array], Array] | None


def fit_logistic(x: Array, y: Array, weights: Array) -> Array:
    """Returns the coefficients of greatest likelihood, for x of full rank, shape (d,).

    Raises:
        NoEstimate: There is no maximum, or it was not found.
    """
    solver = LogisticRegression(
        C=np.inf, fit_intercept=False, solver="newton-cholesky", tol=_TOLERANCE, max_iter=200
    )
    coef: Array = _solved(solver, x, y, weights).coef_[0]
    sided = np.where(y > 0, 1.0, -1.0)[:, None] * x
    if not np.isfinite(coef).all() or (
        np.abs(x @ coef).max() > _CERTAIN and _can_rise(sided, np.empty((0, x.shape[1])))
    ):
        raise NoEstimate("its features tell some classes apart with certainty")
    return coef


def _poisson(x: Array, y: Array, weights: Array) -> Array:
    # With an intercept of its own the solver starts at the mean, and not where exp overflows.
    ones = bool((x[:, -1] == 1).all())
    solver = PoissonRegressor(
        alpha=0, fit_intercept=ones, solver="newton-cholesky", tol=_TOLERANCE, max_iter=200
    )
    found = _solved(solver, x[:, :-1] if ones else x, y, weights)
    coef: Array = np.append(found.coef_, found.intercept_) if ones else found.coef_
    some = y > 0
    if not np.isfinite(coef).all() or (
        (x @ coef).min() < -_CERTAIN and _can_rise(-x[~some], x[some])
    ):
        raise NoEstimate("its features tell some counts of 0 with certainty")
    return coef


def _can_rise(rising: Array, fixed: Array) -> bool:
    """Returns whether some b has ``rising b >= 0``, not all 0, and ``fixed b = 0``.

    Along such a b a likelihood rises without end (Albert and Anderson 1984).
    """
    scale = np.abs(np.vstack([rising, fixed])).max(axis=0)
    rising, fixed = rising / np.where(scale > 0, scale, 1), fixed / np.where(scale > 0, scale, 1)
    count = len(rising)
    found = linprog(
        -rising.sum(axis=0),
        A_ub=np.vstack([-rising, rising]),
        b_ub=np.repeat([0.0, 1.0], count),
        A_eq=fixed if len(fixed) else None,
        b_eq=np.zeros(len(fixed)) if len(fixed) else None,
        bounds=(None, None),
    )
    return bool(found.success and -found.fun > _RISE)


def _solved(solver: Any, x: Array, y: Array, weights: Array) -> Any:
    """Returns one of scikit-learn's models, fitted.

    Raises:
        NoEstimate: If the solver has not converged.
    """
    with filtering():
        warnings.simplefilter("ignore")  # of numbers that overflow on the way
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            # The penalty is 0, but sklearn weighs its stopping rule by the weights' scale.
            return solver.fit(x, y, sample_weight=weights / weights.mean())
        except ConvergenceWarning as warning:
            raise NoEstimate("its likelihood has no maximum that could be found") from warning


FAMILIES: Final[dict[str, Family]] = {
    "linear": Family(
        "numbers",
        np.isfinite,
        lambda eta: eta,
        np.ones_like,
        lambda y: None,
        lambda eta, y: (eta - y) ** 2,
        None,
    ),
    "logistic": Family(
        "0 or 1",
        lambda y: (y == 0) | (y == 1),
        expit,
        lambda eta: expit(eta) * expit(-eta),
        lambda y: "all its rows are of one class" if np.ptp(y) == 0 else None,
        lambda eta, y: 2 * (np.logaddexp(0, eta) - y * eta),
        fit_logistic,
    ),
    "poisson": Family(
        "numbers, 0 or more",
        lambda y: (y >= 0) & np.isfinite(y),
        np.exp,
        np.exp,
        lambda y: None if y.any() else "all its counts are 0",
        lambda eta, y: 2 * (xlogy(y, y) - y * eta - y + np.exp(eta)),
        _poisson,
    ),
}
