"""Standard errors that hold where a model's noise does not: sandwich estimators.

With ``B = (X' D X)^-1``, D the working weights of all rows, and residuals ``r = y - mean`` of the
rows, the covariance of the coefficients is ``B (sum s s') B``. The sum is

- over rows, ``s = a x r`` (White 1980): a is 1 (HC0), ``sqrt(n / (n - k))`` (HC1),
  ``(1 - h)^-1/2`` (HC2) or ``(1 - h)^-1`` (HC3; MacKinnon and White 1985), with the leverage
  ``h = D x' B x`` of a row, n rows and k coefficients;
- or over clusters of rows, such as of one patient, with s the sum of ``x r`` in a cluster (Liang
  and Zeger 1986), times ``G / (G - 1) (n - 1) / (n - k)`` for G clusters, as Stata has it.

HC3 is the one to use with few rows (Long and Ervin 2000); clusters take some forty of them.
"""

from typing import Final, Literal, get_args

import numpy as np

from engram.core.arrays import Array, Ints
from engram.core.checks import require

Robust = Literal["none", "HC0", "HC1", "HC2", "HC3", "clusters"]
ROBUST: Final[tuple[str, ...]] = get_args(Robust)
_LEVERAGE: Final = 1e-10  # least 1 - h of a row


def sandwich_root(
    kind: Robust,
    x: Array,
    residuals: Array,
    curvature: Array,
    counts: Array,
    inverse: Array,
    clusters: Ints | None = None,
) -> Array:
    """Returns a matrix C, shape (k, m), with the covariance C C'.

    Args:
        kind: The form, but for ``none``.
        x: Shape (n, k), of full rank.
        residuals: Targets less their means, shape (n,).
        curvature: The working weight of a single row, shape (n,).
        counts: How many rows each stands for, > 0, shape (n,).
        inverse: Of R, with ``R'R = X' D X``, shape (k, k).
        clusters: The cluster of each row, shape (n,), for ``clusters``.

    Raises:
        ValueError: If there are no clusters, or fewer than two.
    """
    k, size = x.shape[1], float(counts.sum())
    spread = x @ inverse
    lines = (residuals[:, None] * spread) @ inverse.T  # of B x r
    small = size / max(size - k, 1.0)
    if kind == "clusters":
        if clusters is None:
            raise ValueError("robust='clusters' needs a cluster for each row: fit(..., cluster=)")
        codes = np.unique(clusters, return_inverse=True)[1]
        count = int(codes.max()) + 1
        require(count > 1, "number of clusters of a task", count, "at least 2")
        sums = np.zeros((count, k))
        np.add.at(sums, codes, counts[:, None] * lines)
        lines = sums * np.sqrt(count / (count - 1) * small * (size - 1) / size)
    else:
        left = np.maximum(1 - curvature * (spread**2).sum(axis=1), _LEVERAGE)
        power = {"HC2": 0.5, "HC3": 1.0}.get(kind, 0.0)
        factor = counts**0.5 * left**-power * (small**0.5 if kind == "HC1" else 1.0)
        lines = factor[:, None] * lines
    return np.asarray(np.linalg.qr(lines, mode="r")).T
