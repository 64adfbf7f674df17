"""Personal log hazard ratios: each site's coefficients shrink to what the sites share.

It is adaptive sharing (``engram.tables.adaptive``) with the partial likelihood in place of rows.
The center is the stratified fit in which coefficients that are apart belong to their sites. It is
made of the sites' scores at common coefficients, and not of their estimates: with ten events a
site's estimate is biased away from 0, and so is any mean of such, but the score is not.

The scatter follows from the same sums by restricted likelihood (``engram.tables.heterogeneity``). A
coefficient that is more than three standard deviations from the middle, by the site's partial
likelihood too, is the site's own, as James and Stein have it.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np

from engram.core.arrays import Array, Bools
from engram.tables.adaptive import adapt
from engram.tables.heterogeneity import REACH
from engram.tables.random_effects import Posterior, Prior, Usual, posterior, settle
from engram.tables.site import Rows
from engram.tables.survival.newton import SumsAt, square_root
from engram.tables.survival.partial import Sums, total
from engram.tables.survival.site_effects import SiteEffects, Sites, fit_effects, posterior_mode

_PASSES: Final = 20  # over scatter, and over who is apart


class Scatter(NamedTuple):
    """The shared model, as a server sends it to all sites; arrays of shape (d,)."""

    center: Array  # the shared coefficients
    variance: Array  # of the sites' true coefficients around it; 0: they are alike
    middle: Array  # from which it counts who is apart
    unit: Array  # squared coefficient of a column that is standardized among those at risk


class Sharing(NamedTuple):
    """Personal coefficients of all sites.

    Attributes:
        coef: Shape (M, d); (0,) of sites elsewhere.
        effects: The stratified fit with those apart as ``separate``; its ``center`` is shared.
        scatter: By which sites ``personalize``.
    """

    coef: Array
    effects: SiteEffects
    scatter: Scatter


def share(sites: Sites, columns: int, ask: Callable[[Scatter], Bools] | None = None) -> Sharing:
    """Fits the center, the scatter and all personal coefficients of d ``columns``.

    Sites elsewhere ``personalize`` themselves: ``ask`` returns what is apart there, shape (M, d).

    Raises:
        NoMaximum: There is no event, or columns are dependent.
    """
    confirmed = np.ones((len(sites), columns), dtype=bool)
    effects = fit_effects(sites, ~confirmed)
    for _ in range(_PASSES):
        scatter = estimate_scatter(effects, confirmed)
        each = [personalize(site, scatter) for site in sites]
        apart = np.stack([own for _, own in each]) if ask is None else ask(scatter)
        apart &= 2 * apart.sum(axis=0) < len(sites)  # a majority cannot be apart from it
        if np.array_equal(apart, effects.separate):
            break
        effects, confirmed = fit_effects(sites, apart, effects), apart
    return Sharing(np.array([coef for coef, _ in each]), effects, scatter)


def estimate_scatter(effects: SiteEffects, confirmed: Bools) -> Scatter:
    """Estimates the scatter of sites around the center of a fit: the server's part.

    Args:
        effects: The fit.
        confirmed: Coefficients that may be apart, shape (M, d).
    """
    whole = total(effects.sums)
    unit = whole.events / np.diag(whole.information)
    scale = np.sqrt(unit)
    rows = [_working_rows(*each) for each in zip(effects.sums, effects.coef, strict=True)]
    found = adapt(
        [own._replace(x=own.x * scale) for own in rows],
        family="poisson",
        c=REACH,
        intercept=False,
        begin=Prior(effects.center / scale, np.ones_like(unit)),
        confirmed_apart=confirmed,
    )
    middle, variance = found.center + found.heterogeneity.center, found.heterogeneity.variance
    return Scatter(effects.center, variance * unit, middle * scale, unit)


def personalize(sums_at: SumsAt, scatter: Scatter) -> tuple[Array, Bools]:
    """Computes a site's personal coefficients, which stay there, and which are apart."""

    def posterior_by(prior: Prior, sigma: float = 1.0) -> Posterior:
        mode, sums = posterior_mode(sums_at, prior)
        found = posterior(_working_rows(sums, mode), prior, family="linear", sigma=sigma)
        return found._replace(coef=mode, deviance=-2 * sums.loglik)

    center, variance, middle, unit = scatter
    given = posterior_by, Prior(center, variance), middle - center, Usual(1.0, np.inf)
    # As of counts, of which a partial likelihood is a profile.
    found, apart, _ = settle(*given, family="poisson", reach=REACH, most=unit)
    return found.coef, apart


def _working_rows(sums: Sums, coef: Array) -> Rows:
    """Returns rows of a linear model with noise 1 that has this score and information."""
    root = square_root(sums.information)
    return Rows(root, root @ coef + np.linalg.pinv(root).T @ sums.score)
