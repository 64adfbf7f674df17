"""A task's own intercept, refitted after its other coefficients have been personalized."""

import numpy as np
from scipy.special import logsumexp

from engram.core.arrays import Array
from engram.tables.families import FAMILIES, FamilyName
from engram.tables.shrinkage import Option, Shared, personalize
from engram.tables.site import Rows, SiteEstimate

_FARTHEST = 2.0**20  # from 0, where an intercept is looked for


def personalize_rows(
    rows: Rows,
    site: SiteEstimate,
    shared: Shared,
    *,
    family: FamilyName,
    intercept: bool,
    option: Option = "hard",
    c: float = 1.0,
) -> Array:
    """``personalize``, then refits the intercept to the task's rows; shape (d,).

    The paper has no intercept. Treated like any other coefficient it would be kept or shared
    regardless of the other coefficients, on which it depends, and results would depend on the
    columns' origins. (On reading scores of 41 countries errors were twice as large.) So it is the
    task's own, unless the task cannot estimate its noise and takes all coefficients from others.

    ``intercept`` says whether the last column of x consists of ones; for the rest see
    ``personalize``.
    """
    coef = personalize(site, shared, option=option, c=c)
    if not intercept or not np.isfinite(site.sigma):
        return coef
    x, y, counts = rows.counted()
    offset = x[:, :-1] @ coef[:-1]
    if family == "linear":
        coef[-1] = np.average(y - offset, weights=counts)
        return coef
    if family == "poisson":
        coef[-1] = np.log(counts @ y) - logsumexp(offset, b=counts)
        return coef
    from scipy.optimize import brentq  # noqa: PLC0415 - slow to import, not always needed

    mean = FAMILIES[family].mean

    def derivative(value: float) -> float:
        # Of the log-likelihood, downwards: it rises with the value.
        return float(counts @ (mean(offset + value) - y))

    reach = 1.0 + float(np.abs(site.coef[-1]))
    while derivative(-reach) > 0 or derivative(reach) < 0:
        if reach > _FARTHEST:  # all rows alike: no finite value is best
            return coef
        reach *= 2
    coef[-1] = brentq(derivative, -reach, reach, xtol=1e-13, rtol=1e-13)
    return coef
