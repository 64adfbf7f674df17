"""The LASSO of one task, around zero or around what all tasks share (Appendices E and J.1)."""

from typing import Final

import numpy as np

from engram.core.arrays import Array, Bools
from engram.core.checks import require
from engram.tables.site import Rows

LASSO_SCALE: Final = 0.05
"""c_lambda of a task's own LASSO, in units of sigma_m, as J.1 tuned it."""
DEBIASING_SCALE: Final = 0.35
"""c_lambda of RM's debiasing, in units of sigma_m, as J.1 tuned it."""

_TOLERANCE: Final = 1e-10  # of the duality gap, beside the square of what is to be explained
_PASSES: Final = 100_000  # over the coefficients, at most
_NIL: Final = 1e-12  # of the largest gradient: a strength lost in rounding


def lasso_strength(size: float, dim: int, scale: float) -> float:
    """Returns lambda_m = c_lambda sqrt(ln(d) / n_m) of Appendix J.1.

    Args:
        size: n_m, > 0.
        dim: d, at least 1. A single coefficient is not penalized: ln(1) = 0.
        scale: c_lambda in the unit of y, at least 0: ``LASSO_SCALE * sigma_m`` or
            ``DEBIASING_SCALE * sigma_m``.
    """
    return float(scale * np.sqrt(np.log(dim) / size))


def lasso(rows: Rows, strength: float, *, free: Bools | None = None) -> Array:
    """Minimizes ``||X b - y||^2 / (2 n) + strength ||b||_1``: ``lasso_debiasing`` around zero."""
    return lasso_debiasing(rows, np.zeros(rows.x.shape[1]), strength, free=free)


def lasso_debiasing(
    rows: Rows, center: Array, strength: float, *, free: Bools | None = None
) -> Array:
    """Minimizes ``||X b - y||^2 / (2 n) + strength ||b - center||_1`` over b (Appendix E).

    A row of weight c counts as c rows, in the sum and in n. If columns are linearly dependent,
    several b may be minimal, and one of them is returned.

    Args:
        rows: The task's rows; there may be fewer rows than columns.
        center: Shape (d,), finite.
        strength: lambda_m, at least 0. With 0, or a value lost in rounding, it is least squares (of
            several solutions, the one nearest to ``center``). Above some finite value, the result
            is ``center``.
        free: Mask of the coefficients that are not penalized, such as an intercept, shape (d,);
            their values in ``center`` do not matter. None: all are penalized.

    Returns:
        Shape (d,).

    Raises:
        ValueError: If the strength is negative, or a shape is wrong.
    """
    x, y, counts = rows.counted()
    shape = (x.shape[1],)
    require(strength >= 0, "strength", strength, "at least 0")
    require(center.shape == shape, "center.shape", center.shape, str(shape))
    free = np.zeros(shape, dtype=bool) if free is None else free
    require(free.shape == shape, "free.shape", free.shape, str(shape))
    root = np.sqrt(counts / counts.mean())
    x, left = root[:, None] * x, root * (y - x @ center)
    free = free | (strength <= _NIL * np.abs(x.T @ left).max() / len(left))
    # Whatever the others are, the free ones are least squares: solved for, they leave a LASSO.
    fit = np.linalg.lstsq(x[:, free], np.column_stack([x[:, ~free], left]))[0]
    rest = x[:, ~free] - x[:, free] @ fit[:, :-1]
    moved = np.zeros(shape)
    moved[~free] = _penalized(rest, left - x[:, free] @ fit[:, -1], strength)
    moved[free] = fit[:, -1] - fit[:, :-1] @ moved[~free]
    return center + moved


def _penalized(x: Array, y: Array, strength: float) -> Array:
    if np.abs(x.T @ y).max(initial=0.0) <= strength * len(y):
        return np.zeros(x.shape[1])
    from sklearn.linear_model import Lasso  # noqa: PLC0415 - a second to import

    # It goes through columns in turn, but draws from the process's generator without a seed.
    solver = Lasso(strength, fit_intercept=False, tol=_TOLERANCE, max_iter=_PASSES, random_state=0)
    coef: Array = solver.fit(x, y).coef_
    return coef
