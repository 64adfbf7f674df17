"""Losses of a prediction p for a target y: a number, or -1 and 1 for two classes.

All are convex in p. Functions take arrays of the same shape and work elementwise.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy.special import expit

from engram.core.arrays import Array
from engram.core.checks import require


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


def _squared(p: Array, y: Array) -> Array:
    return (p - y) ** 2 / 2


def _squared_derivative(p: Array, y: Array) -> Array:
    return p - y


def _squared_second(p: Array, y: Array) -> Array:
    return np.ones_like(p - y)


def _straight(p: Array, y: Array) -> Array:
    return np.zeros_like(p - y)


def _absolute(p: Array, y: Array) -> Array:
    return np.abs(p - y)


def _absolute_derivative(p: Array, y: Array) -> Array:
    return np.sign(p - y)


def _logistic(p: Array, y: Array) -> Array:
    return np.logaddexp(0.0, -y * p)


def _logistic_derivative(p: Array, y: Array) -> Array:
    derivative: Array = -y * expit(-y * p)
    return derivative


def _logistic_second(p: Array, y: Array) -> Array:
    second_derivative: Array = expit(p) * expit(-p) * y**2
    return second_derivative


def _hinge(p: Array, y: Array) -> Array:
    return np.maximum(0.0, 1 - y * p)


def _hinge_derivative(p: Array, y: Array) -> Array:
    return np.where(y * p < 1, -y, 0.0)


def _pinball(q: float, p: Array, y: Array) -> Array:
    return np.maximum(q * (y - p), (1 - q) * (p - y))


def _pinball_derivative(q: float, p: Array, y: Array) -> Array:
    return np.where(p > y, 1 - q, np.where(p < y, -q, 0.0))


NONE = Loss(_straight, _straight, _straight, 0.0)
SQUARED = Loss(
    _squared, _squared_derivative, _squared_second, np.inf, "squared"
)  # its best constant is the mean
ABSOLUTE = Loss(_absolute, _absolute_derivative, _straight, 1.0, "absolute")  # the median
LOGISTIC = Loss(
    _logistic, _logistic_derivative, _logistic_second, 1.0, "logistic"
)  # the log-odds of class 1
HINGE = Loss(_hinge, _hinge_derivative, _straight, 1.0, "hinge")


def quantile(q: float) -> Loss:
    """Returns the loss whose best constant is the ``q`` quantile of targets.

    Args:
        q: In (0, 1); 1/2 gives half the absolute loss.

    Raises:
        ValueError: If ``q`` is not in (0, 1).
    """
    require(0 < q < 1, "quantile", q, "in (0, 1)")
    return Loss(
        partial(_pinball, q),
        partial(_pinball_derivative, q),
        _straight,
        max(q, 1 - q),
        "quantile",
        q,
    )
