"""Logistic regression with Firth's penalty, which is finite where columns tell classes apart.

Half the log-determinant of the information is added to the log-likelihood (Firth 1993), which
removes its bias of first order, too:

    l*(b) = sum c (y eta - log(1 + e^eta)) + log |X' D X| / 2,

with counts c and ``D = diag(c p (1 - p))``. Its slope is ``X' (c (y - p) + h (1/2 - p))``, h being
the leverages ``D x' (X' D X)^-1 x``.
"""

from typing import Final, NamedTuple

import numpy as np
from scipy.special import expit

from engram.core.arrays import Array
from engram.tables.families import NoEstimate

_STEPS: Final = 200  # of Newton's method, at most
_HALVINGS: Final = 30
_FAR: Final = 5.0  # longest step, in units of the linear predictor
_STILL: Final = 1e-16  # squared standard errors of a step
_LEAST: Final = float(np.finfo(np.float64).tiny)


class _Point(NamedTuple):
    value: float  # l*
    slope: Array
    information: Array


def _at(x: Array, y: Array, counts: Array, coef: Array) -> _Point:
    eta = x @ coef
    p = expit(eta)
    weights = counts * p * expit(-eta)
    information = (x * weights[:, None]).T @ x
    sign, volume = np.linalg.slogdet(information)
    if sign <= 0:
        return _Point(-np.inf, coef, information)
    leverage = weights * np.einsum("ij,ji->i", x, np.linalg.solve(information, x.T))
    value = float(counts @ (y * eta - np.logaddexp(0, eta))) + float(volume) / 2
    return _Point(value, x.T @ (counts * (y - p) + leverage * (0.5 - p)), information)


def firth_logistic(x: Array, y: Array, counts: Array) -> Array:
    """Returns the coefficients of the greatest l*, for x of full rank, shape (d,).

    Raises:
        NoEstimate: If it was not found.
    """
    coef = np.zeros(x.shape[1])
    far = _FAR / np.maximum(np.sqrt(np.mean(x**2, axis=0)), _LEAST)
    at = _at(x, y, counts, coef)
    for _ in range(_STEPS):
        step = np.linalg.lstsq(at.information, at.slope)[0]
        if step @ at.slope < _STILL:
            return coef
        step /= max(1.0, float(np.max(np.abs(step) / far)))
        for _ in range(_HALVINGS):
            new = _at(x, y, counts, coef + step)
            if new.value >= at.value - _STILL * abs(at.value):
                break
            step = step / 2
        coef, at = coef + step, new
    raise NoEstimate("its penalized likelihood has no maximum that could be found")
