"""Adaptive MOLAR as exchanges between a server and sites whose rows do not move.

A site tells for each column what its rows say about it and how surely (``random_effects``): numbers
of the same kind as a plain estimate with its standard errors. The server tells a center, the
scatter around it, and the usual noise (``heterogeneity``). The first exchange begins with each
site's own weak prior; a second one, around what is shared, makes the shrinkage right, and further
ones bring the center near that of ``adaptive.adapt``, which uses all columns at once.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from engram.arrays import Array
from engram.checks import require
from engram.molar.families import FamilyName
from engram.molar.heterogeneity import estimate_heterogeneity
from engram.molar.random_effects import (
    Posterior,
    Prior,
    confirmed,
    free_variance,
    moderated,
    posterior,
    start,
)
from engram.molar.shrinkage import Weights
from engram.molar.site import Rows, SiteEstimate
from engram.shares import bounded

_PASSES: Final = 4  # of a fit, and of the noise of its residuals
_LEAST: Final = float(np.finfo(np.float32).tiny)  # of standard errors; a perfect fit has none
_MOST: Final = float(np.sqrt(np.finfo(np.float64).max))  # of noise, whose square is finite


class Told(NamedTuple):
    """The server's answer to all sites."""

    center: Array  # shape (d,)
    variance: Array  # of the sites' true coefficients around it, shape (d,)
    error: Array  # standard errors of the center, shape (d,)
    sigma: float  # the usual noise of linear models; 1 for other families
    size: float  # rows of all sites that took part


def tell(
    rows: Rows, told: Told | None, *, family: FamilyName, reach: float
) -> tuple[SiteEstimate, Array]:
    """Returns what a site tells, and its personal coefficients, shape (d,), which it keeps.

    Args:
        rows: The site's rows, any number of them; they need not determine its coefficients.
        told: The server's last answer; None before the first.
        family: The family of models.
        reach: How many standard deviations from the center make a coefficient the site's own.

    Raises:
        ValueError: If, in the first exchange, all targets of a linear model are the same, which
            shows no noise.
    """
    if told is None:
        if family == "linear" and np.ptp(rows.counted()[1]) == 0:
            raise ValueError("its target is constant")
        prior = start(rows, family)
        found = _fitted(rows, prior, family, None)
    else:
        prior = Prior(told.center, told.variance)
        found = _fitted(rows, prior, family, told.sigma)
        apart = np.abs(found.gap) > reach * np.sqrt(found.variance + prior.variance)
        wide = free_variance(found.gap, prior, start(rows, family), family)
        apart = confirmed(rows, prior, wide, apart, family=family, reach=reach)
        if apart.any():
            own = Prior(prior.center, np.where(apart, wide, prior.variance))
            found = _fitted(rows, own, family, told.sigma)
    size = float(rows.counted()[2].sum())
    scale = np.sqrt(found.variance) / found.sigma
    estimate = SiteEstimate(prior.center + found.gap, scale, size, found.sigma, found.freedom)
    return estimate, found.coef


def _fitted(rows: Rows, prior: Prior, family: FamilyName, usual: float | None) -> Posterior:
    """Returns the posterior by the noise of its own residuals, moderated by the usual one."""
    if family != "linear":
        return posterior(rows, prior, family=family)
    sigma = float(np.sqrt(rows.counted()[1].var())) if usual is None else usual
    found = posterior(rows, prior, family=family, sigma=sigma)
    for _ in range(_PASSES - 1):
        sigma = moderated(found, found.sigma if usual is None else usual)
        found = posterior(rows, prior, family=family, sigma=sigma)
    return found._replace(sigma=sigma)


def answer(
    sites: Sequence[SiteEstimate],
    before: Told | None,
    *,
    reach: float,
    weights: Weights = "precision",
    max_weight: float = np.inf,
    intercept: bool = True,
) -> Told:
    """Returns the server's answer to what sites tell.

    Args:
        sites: What they tell.
        before: The last answer, around which they tell it; None in the first exchange.
        reach: As for ``tell``; sites farther away have no part in the center.
        weights: ``precision``, by the errors that sites claim, or ``equal``.
        max_weight: Largest weight of a site in a column, in units of the median site's.
        intercept: Whether the last coefficient is an intercept, which always scatters.

    Raises:
        ValueError: If there is no site.
    """
    require(len(sites) > 0, "number of sites", 0, "at least 1")
    center = np.zeros(len(sites[0].coef)) if before is None else before.center
    gaps = np.stack([site.coef for site in sites]) - center
    errors = np.stack([site.standard_error for site in sites])
    with np.errstate(over="ignore"):
        precision = 1 / np.maximum(errors, _LEAST) ** 2
    if weights == "equal":
        precision = np.broadcast_to(np.median(precision, axis=0), precision.shape)
    with np.errstate(divide="ignore"):  # infinite where a site knows nothing
        variances = 1 / bounded(precision, max_weight)
    dim = gaps.shape[1]
    scattered = np.arange(dim) >= dim - intercept
    found = estimate_heterogeneity(gaps, variances, reach=reach, scattered=scattered)
    kept = (~found.apart / (variances + found.variance)).sum(axis=0)
    freedom = bounded([min(site.freedom, site.size) for site in sites], max_weight)
    squares = np.minimum([site.sigma for site in sites], _MOST) ** 2
    usual = float(np.sqrt(np.average(bounded(squares, 1.0), weights=freedom)))
    size = float(bounded([site.size for site in sites], max_weight).sum())
    return Told(center + found.center, found.variance, 1 / np.sqrt(kept), usual, size)
