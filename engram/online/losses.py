"""Losses of a prediction p for a target y, and tasks of linear models of rows.

Targets are numbers, or -1 and 1 for two classes. All losses are convex in p. Their functions take
arrays of the same shape and work elementwise.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple, Self

import numpy as np
from scipy.special import expit

from engram.core.arrays import Array
from engram.core.checks import require
from engram.online.compiled_updates import deviations, include


class Loss(NamedTuple):
    """A loss.

    Attributes:
        value: ``(p, y) -> loss``, at least 0.
        derivative: ``(p, y) -> d loss / dp``; 0 at a kink that is a minimum.
        second_derivative: ``(p, y) -> d^2 loss / dp^2``; 0 at a kink.
        lipschitz: The largest absolute derivative; infinite if it is unbounded.
        name: What estimators call it; empty for a loss that they do not have.
        level: The quantile of targets that is its best constant, if it is one.
    """

    value: Callable[[Array, Array], Array]
    derivative: Callable[[Array, Array], Array]
    second_derivative: Callable[[Array, Array], Array]
    lipschitz: float
    name: str = ""
    level: float = 0.5

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles of estimators' losses name them."""
        return _named, (self.name, self.level)


def _straight(p: Array, y: Array) -> Array:
    return np.zeros_like(p - y)


NONE: Final = Loss(_straight, _straight, _straight, 0.0)
SQUARED: Final = Loss(  # its best constant is the mean
    lambda p, y: (p - y) ** 2 / 2,
    lambda p, y: p - y,
    lambda p, y: np.ones_like(p - y),
    np.inf,
    "squared",
)
ABSOLUTE: Final = Loss(  # the median
    lambda p, y: np.abs(p - y), lambda p, y: np.sign(p - y), _straight, 1.0, "absolute"
)
LOGISTIC: Final = Loss(  # the log-odds of class 1
    lambda p, y: np.logaddexp(0.0, -y * p),
    lambda p, y: -y * expit(-y * p),
    lambda p, y: expit(p) * expit(-p) * y**2,
    1.0,
    "logistic",
)
HINGE: Final = Loss(
    lambda p, y: np.maximum(0.0, 1 - y * p),
    lambda p, y: np.where(y * p < 1, -y, 0.0),
    _straight,
    1.0,
    "hinge",
)


def quantile(q: float) -> Loss:
    """Returns the pinball loss, with the ``q`` quantile of targets as its best constant.

    Args:
        q: In (0, 1); 1/2 gives half the absolute loss.

    Raises:
        ValueError: If ``q`` is not in (0, 1).
    """
    require(0 < q < 1, "quantile", q, "in (0, 1)")
    return Loss(
        lambda p, y: np.maximum(q * (y - p), (1 - q) * (p - y)),
        lambda p, y: np.where(p > y, 1 - q, np.where(p < y, -q, 0.0)),
        _straight,
        max(q, 1 - q),
        "quantile",
        q,
    )


def _named(name: str, level: float) -> Loss:
    losses = {loss.name: loss for loss in (NONE, SQUARED, ABSOLUTE, LOGISTIC, HINGE)}
    return quantile(level) if name == "quantile" else losses[name]


# --- Tasks ---------------------------------------------------------------------------------


class RunningMoments(NamedTuple):
    """Running mean and variance (Welford, 1962)."""

    weight: float  # total weight of all rows
    mean: Array  # shape (n,)
    squares: Array  # weighted sum of squared distances from the mean, shape (n,)

    @property
    def scale(self) -> Array:
        """Standard deviations; 1 for numbers that have been constant so far."""
        return deviations(self.mean, self.squares, self.weight)

    def including(self, x: Array, weight: float, reach: float = np.inf) -> Self:
        """Adds a row; a number further than ``reach`` deviations from the mean counts as nearer."""
        mean, squares = self.mean.copy(), self.squares.copy()
        include(mean, squares, self.weight, x, weight, reach)
        return type(self)(self.weight + weight, mean, squares)

    def widened(self, more: int) -> Self:
        """Adds ``more`` numbers that were 0 in all rows so far."""
        zeros = np.zeros(more)
        return type(self)(self.weight, np.append(self.mean, zeros), np.append(self.squares, zeros))


def no_moments(size: int) -> RunningMoments:
    """Returns the moments of ``size`` numbers before the first row."""
    return RunningMoments(0.0, np.zeros(size), np.zeros(size))


class LinearTask(NamedTuple):
    """A learning task."""

    loss: Loss  # loss of one output; with several outputs, losses are added up
    outputs: int  # number of outputs m >= 1
    standardized: bool  # whether targets are standardized
    # Size of an output's coefficients, in standard deviations of the target, if it is standardized,
    # per standard deviation of a column. For ``linear`` an upper bound on their Euclidean norm, the
    # intercept included (root mean square over outputs); for ``mixture`` the norm's root mean
    # square under the prior, without the intercept, whose deviation it is, too.
    radius: float
    full_matrix: bool | None  # whether to keep matrices of columns; None: if they are small
