"""A linear model that learns a stream of rows by the universal ensemble, on a ball.

Each row t is a round of the universal ensemble. The decision is a matrix W of coefficients, one row
per output, for standardized columns and a last column of ones; the round's loss is that of
``p = W z_t``. Nothing is tuned, and nothing need be known of later rows:

- Columns, and a regression's target, are standardized by mean and standard deviation of the rows up
  to t. A comparator that is fixed in the stream's own units then drifts in those of W, which
  Theorems 1 and 2 do not cover; the drift falls as 1/t.
- If z is longer than twice its root mean square, it is shortened to that, so the row counts less.
- G then follows from the loss's largest derivative. The squared loss has none: a derivative above
  the current bound is cut to it, the bound is doubled, and the ensemble starts over from its
  current decision. So only few derivatives are cut.
- For mean and standard deviation, targets are clipped to 10 standard deviations from the mean,
  since an outlier would otherwise change the unit of all coefficients at once. If the target's
  level shifts by more, the model takes longer to follow.
- T is a large number, which only determines the guesses of curvature.
"""

from functools import lru_cache
from math import sqrt
from typing import NamedTuple

import numpy as np

from engram.core.arrays import Array
from engram.online.domains import ball
from engram.online.learner import Learner
from engram.online.losses import LinearTask, RunningMoments, no_moments
from engram.online.universal import Universal, universal_ensemble

_HORIZON = 2**16
_LENGTH = 2.0  # the longest z, in units of sqrt(d + 1), which is what it is in the mean square
_OUTLIER = 10.0  # standard deviations from the mean, beyond which targets count as nearer in units
_FIRST_BOUND = 4.0  # of the squared loss, where a target is two standard deviations away
# Maximum number of coefficients of all outputs for ``full_matrix`` to be None: a row takes half a
# millisecond, on the sphere ten times that.
_MOST_EXP_CONCAVE = 64


class LinearModel(NamedTuple):
    """State of a linear model."""

    columns: RunningMoments  # moments of the d columns
    targets: RunningMoments  # moments of the m targets; 0 if targets are not standardized
    derivative_bound: float  # the largest derivative that is not cut; 0 before the first row
    ensemble: Universal  # state of the ensemble for d + 1 coefficients per output


@lru_cache(maxsize=256)
def _learner(size: int, radius: float, bound: float, exp_concave: bool) -> Learner[Universal]:
    return universal_ensemble(
        ball(size, radius), gradient_bound=bound, horizon=_HORIZON, exp_concave=exp_concave
    )


def _learner_of(task: LinearTask, dim: int, derivative_bound: float) -> Learner[Universal]:
    bound = (derivative_bound or 1.0) * _LENGTH * sqrt(dim + 1)
    radius = task.radius * sqrt(task.outputs)
    return _learner(task.outputs * (dim + 1), radius, bound, full_matrix(task, dim))


def full_matrix(task: LinearTask, dim: int) -> bool:
    """Whether there are learners for exp-concave losses, which take O(d^2) per row."""
    few = task.outputs * (dim + 1) <= _MOST_EXP_CONCAVE
    return few if task.full_matrix is None else task.full_matrix


def started(task: LinearTask, dim: int) -> LinearModel:
    """Returns the initial model, of predictions 0."""
    columns, targets = no_moments(dim), no_moments(task.outputs)
    return LinearModel(columns, targets, 0.0, _learner_of(task, dim, 0.0).init(None))


def coefficients(task: LinearTask, model: LinearModel) -> Array:
    """Returns W, for standardized columns and a column of ones, shape (m, d + 1)."""
    dim = len(model.columns.mean)
    return _learner_of(task, dim, model.derivative_bound).act(model.ensemble).reshape(-1, dim + 1)


def predictions(task: LinearTask, model: LinearModel, x: Array) -> Array:
    """Returns p of each row, in units of the target, shape (n, m)."""
    columns, targets = model.columns, model.targets
    w = coefficients(task, model)
    p = (x - columns.mean) / columns.scale @ w[:, :-1].T + w[:, -1]
    return targets.mean + targets.scale * p


def learned(
    task: LinearTask,
    model: LinearModel,
    x: Array,
    y: Array,
    weights: Array,
    *,
    in_place: bool = False,
) -> LinearModel:
    """Returns the model after more rows, one after the other; see ``mixture.learned``."""
    del in_place  # nothing is gained by changing the ensemble's arrays
    for row, target, weight in zip(x, y, weights.tolist(), strict=True):
        model = _learned_row(task, model, row, target, weight)
    return model


def _learned_row(
    task: LinearTask, model: LinearModel, x: Array, y: Array, weight: float
) -> LinearModel:
    loss = task.loss
    columns, targets = model.columns.including(x, weight), model.targets
    if task.standardized:
        targets = targets.including(y, weight, _OUTLIER)
    z = np.ones(len(x) + 1)
    z[:-1] = (x - columns.mean) / columns.scale
    p = coefficients(task, model) @ z
    derivatives = weight * loss.derivative(p, (y - targets.mean) / targets.scale)
    z *= min(1.0, _LENGTH * sqrt(len(z)) / sqrt(z @ z))
    derivative_bound, state = model.derivative_bound, model.ensemble
    if derivative_bound == 0.0:
        derivative_bound = weight * (loss.lipschitz if loss.lipschitz < np.inf else _FIRST_BOUND)
    length = sqrt(derivatives @ derivatives)
    if length > derivative_bound:
        derivatives *= derivative_bound / length
        here = _learner_of(task, len(x), derivative_bound)
        derivative_bound *= 2
        state = here.init(here.act(state))
    learner = _learner_of(task, len(x), derivative_bound)
    state = learner.observe(state, (derivatives[:, None] * z).ravel())
    return LinearModel(columns, targets, derivative_bound, state)


def widened(task: LinearTask, model: LinearModel, dim: int) -> LinearModel:
    """Extends the model by columns that were 0 in all rows so far.

    Its predictions stay the same. The ensemble starts over from its current decision.
    """
    more = dim - len(model.columns.mean)
    w = np.insert(coefficients(task, model), [-1], np.zeros((task.outputs, more)), axis=1)
    ensemble = _learner_of(task, dim, model.derivative_bound).init(w.ravel())
    return model._replace(columns=model.columns.widened(more), ensemble=ensemble)
