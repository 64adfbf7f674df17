"""Base of linear models of rows: their tasks, and the units of their columns."""

from typing import Any, NamedTuple, Protocol, Self

import numpy as np

from engram.core.arrays import Array
from engram.online.compiled_updates import deviations, include
from engram.online.losses import Loss


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


class Rules(Protocol):
    """A module that learns such tasks: ``mixture`` or ``linear``."""

    def full_matrix(self, task: LinearTask, dim: int) -> bool:
        """Returns whether matrices are kept, which take O(d^2) per row."""

    def started(self, task: LinearTask, dim: int) -> Any:
        """Returns the model before the first row, which predicts 0."""

    def coefficients(self, task: LinearTask, model: Any) -> Array:
        """Returns W, for standardized columns and a column of ones, shape (m, d + 1)."""

    def predictions(self, task: LinearTask, model: Any, x: Array) -> Array:
        """Returns predictions for rows, in units of the target, shape (n, m)."""

    def learned(self, task: LinearTask, model: Any, x: Array, y: Array, weights: Array) -> Any:
        """Returns the model after more rows."""

    def learned_in_place(
        self, task: LinearTask, model: Any, x: Array, y: Array, weights: Array
    ) -> Any:
        """Returns the model after one row or more, in C order; the given one may be changed."""

    def widened(self, task: LinearTask, model: Any, dim: int) -> Any:
        """Returns the model with more columns, which were 0 in all rows so far."""
