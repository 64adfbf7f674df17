"""A Bayesian mixture of linear models, which learns a stream of rows with columns in any units.

Numbers are standardized by mean and standard deviation of the rows so far. A number z that is more
than c = 5 standard deviations away may be a wrong cell, or may inform. For losses of classes it is
cut to c. The squared, absolute and quantile loss are homogeneous: a row and its target, both times
s = c / max |z|, have s^2 or s times the row's loss. Such a row is learned, which says what it says
with the weight of a near one, so that one wrong cell changes little. When a row is predicted,
numbers are cut to c 4^i, where i has the least

    (losses of rows with far numbers if cut to c 2^i, each row's times 0.99 for each later one)
    + 10 i L,

and L is the mean loss: how far linearity reaches is learned from the rows, and on a log scale twice
as much is believed. The first far number still counts as nearer; and where far numbers inform, a
wrong one spoils the prediction of its own row.

Every loss f, divided by its scale, counts as a negative log-likelihood: the logistic loss as it is,
the squared loss by the running mean of squared errors, and others by their running mean. Several
experts learn at once:

- A bettor per column, with coins g = f' z_j / 4, cut to [-1, 1] (COCOB; Orabona and Tommasi, 2017):

      w_j = (sum of -g) / (1 + sum of |g|) (W + reward) / 4,  reward <- max(reward - 4 g w_j, 0),

  with a first wealth of W = 1 / sqrt(d + 1). There is no step size. A column bets much only after
  it has won, so one that says nothing costs no more than about its first wealth.
- Kalman filters (for the logistic loss the extended one; de Vilmarest and Wintenberger, 2021), one
  for each variance q by which predictions may drift per row. Before the first row coefficients have
  covariance P_1, which is r^2 / (d + 1) for each column, so that predictions vary by r, however
  many columns there are, and r^2 for the intercept. With derivatives f', f'' by the prediction,

      u = P z,  w <- w - u f' / (1 + f'' u'z),  P <- P - u u' f'' / (1 + f'' u'z) + (q / r^2) P_1,

  where P's diagonal stays at most that of P_1. For squared losses and q = 0 this is ridge
  regression of rows weighted by s^2, whose regret in these losses grows as d log T. P is a matrix,
  or, for many columns, a diagonal, so that a row takes O(d). Where f'' is 0, the mean of (f')^2 so
  far is taken instead: if f is a negative log-likelihood, both have the same mean.

The mixture's coefficients are the weighted mean of the experts'. Weights follow Bayes' rule, and a
thousandth of them is spread evenly after each row (fixed share; Herbster and Warmuth, 1998). Where
exp(-f) is concave, this costs ln N + 0.001 T against the best of N experts, and ln(1000 N) for each
time that another becomes best. At last, log-odds p are calibrated: one more filter learns a p + b,
with (a, b) near (1, 0).
"""

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from engram.core.arrays import Array
from engram.online.compiled_updates import (
    HINGE,
    LOGISTIC,
    PINBALL,
    SQUARED,
    Experts,
    learn_rows,
    predict_rows,
)
from engram.online.losses import LinearTask, RunningMoments, no_moments

_DRIFTS: Final = np.array([0.0, 1e-4, 1e-3, 1e-2, 1e-1])  # q
_MOST_CELLS: Final = 2**14  # of a filter's matrices, if it is for ``full_matrix`` to be None
_OUTLIER: Final = 5.0  # c
_CAUTION: Final = 10.0  # rows' losses that each doubling must save, which chance does not
_LENGTHS: Final = 24  # tried cuts of far numbers: ``_OUTLIER`` times 1, 2, 4, ...
_DOUBT: Final = 0.1  # standard deviation of the calibration's scale and shift before the first row
_BY_COLUMN: Final = ("coefficients", "bets", "covariances")  # what grows with the columns
_KINDS: Final = {
    "squared": SQUARED,
    "absolute": PINBALL,
    "quantile": PINBALL,
    "logistic": LOGISTIC,
    "hinge": HINGE,
}


class Mixture(NamedTuple):
    """State of the mixture."""

    columns: RunningMoments  # moments of the d columns
    targets: RunningMoments  # moments of the m targets; 0 if targets are not standardized
    unit: float  # weight of the first row; 0 before
    experts: Experts


def full_matrix(task: LinearTask, dim: int) -> bool:
    """Whether filters keep covariances of coefficients, which takes O(d^2) per row."""
    small = task.outputs * (dim + 1) ** 2 <= _MOST_CELLS
    return small if task.full_matrix is None else task.full_matrix


@lru_cache(maxsize=256)
def _prior(radius: float, dim: int) -> Array:
    """Returns the variance of coefficients before the first row, shape (d + 1,)."""
    prior = np.full(dim + 1, radius**2 / (dim + 1))
    prior[-1] = radius**2
    return prior


def started(task: LinearTask, dim: int) -> Mixture:
    """Returns the initial model, of predictions 0."""
    m, n, k = task.outputs, dim + 1, len(_DRIFTS)
    prior = _prior(task.radius, dim)
    prior = np.diag(prior) if full_matrix(task, dim) else prior[None]
    experts = Experts(
        coefficients=np.zeros((m, 1 + k, n)),
        bets=np.zeros((m, 3, n)),
        covariances=np.tile(prior, (m, k, 1, 1)),
        shares=np.full((m, 1 + k), 1 / (1 + k)),
        noise=np.tile([1.0, 0.5, 0.25], (m, 1)),
        calibration=np.tile([1.0, 0.0], (m, 1)),
        doubt=np.tile(_DOUBT**2 * np.eye(2), (m, 1, 1)),
        far=np.zeros(_LENGTHS),
    )
    return Mixture(no_moments(dim), no_moments(m), 0.0, experts)


def coefficients(task: LinearTask, model: Mixture) -> Array:
    """Returns W, for standardized columns and a column of ones, shape (m, d + 1)."""
    del task
    experts = model.experts
    w: Array = np.vecmat(experts.shares, experts.coefficients)
    w *= experts.calibration[:, :1]
    w[:, -1] += experts.calibration[:, 1]
    return w


def predictions(task: LinearTask, model: Mixture, x: Array) -> Array:
    """Returns p of each row, in units of the target, shape (n, m)."""
    columns, targets = model.columns, model.targets
    w = coefficients(task, model)
    reach = _OUTLIER * 4.0 ** _trusted(model.experts)
    return predict_rows(_by_rows(x), w, reach, columns[1:], targets[1:], columns.weight)


def _trusted(experts: Experts) -> int:
    """Returns the best number of doublings of the cut for rows with far numbers."""
    if not experts.far.any():
        return 0
    usual = (experts.noise[:, 1] / experts.noise[:, 0]).sum()  # a row's loss
    return int((experts.far + _CAUTION * usual * np.arange(_LENGTHS)).argmin())


def _by_rows(array: Array) -> Array:
    """Returns a writable array in C order, as compiled functions take it."""
    return array if array.flags.carray else np.array(array, order="C")


@lru_cache(maxsize=256)
def _drifts(radius: float) -> Array:
    """Returns the drift variance of coefficients per row, in parts of the prior: (K,)."""
    return _DRIFTS / radius**2


def _copied(model: Mixture) -> Mixture:
    columns, targets = (
        RunningMoments(of.weight, of.mean.copy(), of.squares.copy())
        for of in (model.columns, model.targets)
    )
    experts = Experts(*(array.copy() for array in model.experts))
    return Mixture(columns, targets, model.unit, experts)


def learned(
    task: LinearTask, model: Mixture, x: Array, y: Array, weights: Array, *, in_place: bool = False
) -> Mixture:
    """Returns the model after more rows, one after the other.

    Args:
        task: The learning task.
        model: The model.
        x: Rows, shape (n, d); squares times weights must be finite.
        y: Their targets, shape (n, m), likewise; -1 and 1 for classes.
        weights: Factors of the rows' losses, > 0, shape (n,).
        in_place: Whether the given model's arrays are changed; rows must then be in C order.
    """
    if len(x) == 0:
        return model
    if not in_place:
        model, (x, y, weights) = _copied(model), map(_by_rows, (x, y, weights))
    columns, targets, unit, experts = model
    unit = unit or float(weights[0])
    kind, level = _KINDS[task.loss.name], task.loss.level
    units = unit, _OUTLIER, task.standardized, columns.weight
    filters = _drifts(task.radius), _prior(task.radius, x.shape[1])
    learn_rows(kind, level, x, y, weights, *units, *filters, *columns[1:], *targets[1:], *experts)
    total = columns.weight + float(weights.sum() if len(weights) > 1 else weights[0])
    columns = RunningMoments(total, columns.mean, columns.squares)
    targets = RunningMoments(total, targets.mean, targets.squares)
    return Mixture(columns, targets, unit, experts)


def widened(task: LinearTask, model: Mixture, dim: int) -> Mixture:
    """Extends the model by columns that were 0 in all rows so far.

    Its predictions stay the same. New coefficients begin with their prior; those of the others keep
    what was learned.
    """
    had, old, new = len(model.columns.mean), model.experts, started(task, dim).experts
    kept = [*range(had), dim]  # the last column is that of ones
    new.coefficients[..., kept] = old.coefficients
    new.bets[..., kept] = old.bets
    if full_matrix(task, dim):
        new.covariances[..., np.array(kept)[:, None], kept] = old.covariances
    elif full_matrix(task, had):
        new.covariances[..., 0, kept] = np.diagonal(old.covariances, axis1=-2, axis2=-1)
    else:
        new.covariances[..., kept] = old.covariances
    experts = old._replace(**{name: getattr(new, name) for name in _BY_COLUMN})
    return model._replace(columns=model.columns.widened(dim - had), experts=experts)
