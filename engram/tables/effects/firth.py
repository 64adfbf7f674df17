"""Logistic regression with Firth's penalty, which is finite where columns tell classes apart.

Half the log-determinant of the information is added to the log-likelihood (Firth 1993), which
removes its bias of first order, too:

    l*(b) = sum c (y eta - log(1 + e^eta)) + log |X' D X| / 2,

with counts c and ``D = diag(c p (1 - p))``. Its slope is ``X' (c (y - p) + h (1/2 - p))``, h being
the leverages ``D x' (X' D X)^-1 x``. It is that of a logistic regression in which every row counts
``h / 2`` more for each of the two classes: such fits take turns with their leverages.
"""

from typing import Final

import numpy as np
from scipy.special import expit

from engram.core.arrays import Array
from engram.tables.families import FAMILIES, Family, NoEstimate, fit_logistic

_FITS: Final = 1000  # at most; some ten, or fifty where columns tell classes apart
_STILL: Final = 1e-9  # change of the linear predictor


def firth_logistic(x: Array, y: Array, counts: Array) -> Array:
    """Returns the coefficients of the greatest l*, for x of full rank, shape (d,).

    Raises:
        NoEstimate: If it was not found.
    """
    coef = np.zeros(x.shape[1])
    for _ in range(_FITS):
        p = expit(x @ coef)
        leverage = (np.linalg.qr(np.sqrt(counts * p * (1 - p))[:, None] * x)[0] ** 2).sum(axis=1)
        weights = [counts * y + leverage / 2, counts * (1 - y) + leverage / 2]
        both, before = np.repeat([1.0, 0.0], len(x)), coef
        coef = fit_logistic(np.vstack([x, x]), both, np.concatenate(weights))
        if np.abs(x @ (coef - before)).max() < _STILL:
            return coef
    raise NoEstimate("its penalized likelihood has no maximum that could be found")


FIRTH: Final[Family] = FAMILIES["logistic"]._replace(hopeless=lambda y: None, fit=firth_logistic)
"""Logistic models with the penalty, which have an estimate of a single class, too."""
