"""LASSO around a center (Appendix E): a task keeps to it but in few coordinates."""

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import Lasso

from engram.checks import require
from engram.molar.site import Rows

__all__ = ["lasso_debiasing"]

Array = npt.NDArray[np.float64]


def lasso_debiasing(rows: Rows, center: Array, strength: float) -> Array:
    """Minimizes ``1/(2n) ||X b - y||^2 + strength ||b - center||_1`` over b, shape (d,).

    Args:
        rows: The task's; n is the sum of their weights.
        center: Shape (d,). With zeros this is the LASSO.
        strength: lambda, at least 0; 0 gives least squares, of minimum norm about the center.
    """
    require(strength >= 0, "strength", strength, "at least 0")
    x, y, weights = rows.counted()
    if strength == 0:
        root = np.sqrt(weights)
        return center + np.asarray(np.linalg.lstsq(root[:, None] * x, root * (y - x @ center))[0])
    solver = Lasso(strength, fit_intercept=False, precompute=True, tol=1e-8, max_iter=10_000)
    away: Array = solver.fit(x, y - x @ center, sample_weight=weights).coef_
    return center + away
