"""Adaptive MOLAR as exchanges between a server and sites; rows do not move.

A site tells the triangle R of the QR factorization of ``sqrt(D) (X z)``, with the working responses
``z = X b + D^-1 (y - psi'(X b))`` at its mode b, at first 0. The normal equations X'DX and X'Dz
follow from it, and the columns' means and scales. Of a linear model, D is I and z is y: all that
``adaptive.adapt`` needs, so that one exchange is enough. For other families the server fits linear
models of known noise: Fisher scoring, whose fixed point is that of ``adapt`` on all rows.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

import numpy as np

from engram.core.arrays import Array, Bools
from engram.core.checks import require
from engram.tables.adaptive import adapt
from engram.tables.families import FAMILIES, FamilyName
from engram.tables.random_effects import (
    Posterior,
    Prior,
    Usual,
    posterior,
    settle,
)
from engram.tables.site import Rows
from engram.tables.tables import Dependent, Scaling, dependent_columns

STILL: Final = 1e-6  # standard errors of the center, below which a change is none
_ACCURACY: Final = 1e-7  # likewise, of what a server computes between two exchanges
_STEP: Final = 2.0  # of a linear predictor that is not linear in the mean, per exchange
_FLAT: Final = 1e-12  # least working weight of a row
_ODD: Final = 1e4  # standard deviations of the median site, which are of other units


class Equations(NamedTuple):
    """The normal equations of a site's rows."""

    triangle: Array  # R, shape (d + 1, d + 1)
    weight: float  # the trace of D: of linear models, the number of rows
    apart: Bools  # coefficients that the likelihood has apart, shape (d,)

    def rows(self) -> Rows:
        """Returns d + 1 rows with these equations, where ones are not constant."""
        r, each = self.triangle, self.weight / len(self.triangle)
        return Rows(r[:, :-1] / each**0.5, r[:, -1] / each**0.5, np.full(len(r), each))


class Told(NamedTuple):
    """The server's answer to all sites: arrays of shape (d,), of standardized columns.

    Attributes:
        center: The shared coefficients; 0 for dropped columns.
        variance: Of the sites' true coefficients around it.
        middle: Of the sites' gaps, from which it counts who is apart.
        error: Standard errors of the center; 0 for dropped columns.
        limit: Largest precision of a site in the center; may be infinite.
        scaling: The standardization; its scale is infinite for columns dropped at all sites.
        sigma: The usual noise of linear models; 1 for other families.
        freedom: Degrees of freedom that a site's noise borrows from it; may be infinite.
        change: Of the center in the last exchange, in standard errors.
    """

    center: Array
    variance: Array
    middle: Array
    error: Array
    limit: Array
    scaling: Scaling
    sigma: float
    freedom: float
    change: float

    @property
    def kept(self) -> Bools:
        """Mask of the columns that are not dropped, shape (d,)."""
        return np.isfinite(self.scaling.scale)


class Answer(NamedTuple):
    """The result of an exchange, at the server."""

    told: Told
    coef: Array  # the shared coefficients in the columns' units, shape (d,)
    error: Array  # their standard errors; infinite for dropped columns
    freedom: Array  # the degrees of freedom of these
    dropped: list[Dependent]  # columns that the rows of all sites together do not determine
    capped: Bools  # sites whose weight is cut in some column, shape (M,)


def tell(rows: Rows, told: Told | None, *, family: FamilyName, reach: float) -> Equations:
    """Returns the normal equations of a site.

    Args:
        rows: The site's rows, any number of them; they need not determine its coefficients.
        told: The server's last answer; None before the first.
        family: The family of models.
        reach: How many standard deviations from the center make a coefficient the site's own.

    Raises:
        ValueError: If, in the first exchange, all targets of a linear model are the same, which
            shows no noise.
    """
    (x, y, counts), model = rows.counted(), FAMILIES[family]
    eta, apart = np.zeros(len(y)), np.zeros(x.shape[1], dtype=bool)
    if told is not None:
        plain = told.scaling.of_rows(Rows(x, y, counts))
        found, apart, _ = _settled(plain, told, family, reach)
        eta = plain.x @ found.coef
    elif family == "linear" and np.ptp(y) == 0:
        raise ValueError("its target is constant")
    curvature = np.maximum(model.curvature(eta), _FLAT)
    weights, z = counts * curvature, eta + (y - model.mean(eta)) / curvature
    r = np.asarray(np.linalg.qr(np.sqrt(weights)[:, None] * np.column_stack([x, z]), mode="r"))
    missing = np.zeros((r.shape[1] - len(r), r.shape[1]))  # of few rows
    return Equations(np.vstack([r, missing]), float(weights.sum()), apart)


def personal(rows: Rows, told: Told, *, family: FamilyName, reach: float) -> Array:
    """Computes a site's personal coefficients, shape (d,); they stay there.

    Where a site's weight in the center is cut to a share f, the center holds less than the site
    knows: there its prior is wider, by 1 - f times the squared error of the center.
    """
    plain = told.scaling.of_rows(rows)
    found, _, prior = _settled(plain, told, family, reach)
    left = 1 - np.minimum(1.0, told.limit * found.variance)
    if left.any():
        prior = Prior(prior.center, prior.variance + left * told.error**2)
        found = posterior(plain, prior, family=family, sigma=found.sigma)
    return told.scaling.unscaled(found.coef)


def _settled(
    rows: Rows, told: Told, family: FamilyName, reach: float
) -> tuple[Posterior, Bools, Prior]:
    """Returns a site's posterior by its own noise, its coefficients apart, and their prior."""
    by, base = partial(posterior, rows, family=family), Prior(told.center, told.variance)
    usual = Usual(told.sigma, told.freedom)
    return settle(by, base, told.middle, usual, family=family, reach=reach)


def answer(
    sites: Sequence[Equations],
    told: Told | None,
    *,
    family: FamilyName,
    reach: float,
    max_weight: float = np.inf,
    intercept: bool = True,
) -> Answer:
    """Computes the server's answer to the sites' equations.

    Args:
        sites: Their equations.
        told: The last answer, around which they tell them; None in the first exchange.
        family: The family of models.
        reach: As for ``tell``; sites farther away have no part in the center.
        max_weight: Largest weight of a site in a column, in units of the median site's.
        intercept: Whether the last coefficient is an intercept, which always scatters.

    Raises:
        ValueError: If there is no site.
    """
    require(len(sites) > 0, "number of sites", 0, "at least 1")
    dropped: list[Dependent] = []
    apart = None if family == "linear" else np.stack([site.apart for site in sites])
    if told is None:
        told, dropped = _begun(sites, linear=apart is None, intercept=intercept)
        apart = None if apart is None else ~apart  # whatever the gaps say
    found = adapt(
        [told.scaling.of_rows(site.rows()) for site in sites],
        family=family,
        c=reach,
        intercept=intercept,
        max_weight=max_weight,
        accuracy=_ACCURACY,
        begin=Prior(told.center, told.variance),
        confirmed_apart=apart,
    )
    scatter, error = found.heterogeneity, np.sqrt(np.diag(found.covariance))
    moved, change, scaling = found.center - told.center, found.change, told.scaling
    if apart is not None:
        moved *= min(1.0, _STEP / max(np.abs(moved).max(), _STEP))
        spread = np.abs(np.sqrt(scatter.variance) - np.sqrt(told.variance))
        change = float(np.max(np.maximum(np.abs(moved), spread)[told.kept] / error[told.kept]))
    state = told.center + moved, scatter.variance, scatter.center, error, found.limit
    errors, freedom = found.errors(scaling.unscaled(np.eye(len(error))).T)
    errors[~told.kept] = np.inf
    told = Told(*state, scaling, *found.usual, change)
    return Answer(told, scaling.unscaled(told.center), errors, freedom, dropped, found.capped)


def odd_sites(sites: Mapping[int, Equations], *, intercept: bool) -> dict[int, int]:
    """Finds sites far from the median site, and the first such column of each.

    The target is the column after the last. One site in other units, or one that lies, would make
    all others' columns constant by comparison.
    """
    each = [_moments([site], intercept=intercept) for site in sites.values()]
    means, spreads = (np.stack(parts) for parts in zip(*each, strict=True))
    usual = np.median(spreads, axis=0)
    far = np.maximum(np.abs(means - np.median(means, axis=0)), spreads) > _ODD * usual
    far &= usual > 0
    return {site: int(np.argmax(own)) for site, own in zip(sites, far, strict=True) if own.any()}


def _moments(sites: Sequence[Equations], *, intercept: bool) -> tuple[Array, Array]:
    """Returns means (0 without an intercept) and deviations from them of (X y) over all rows."""
    total, x = sum(site.weight for site in sites), np.vstack([site.triangle for site in sites])
    ones = x[:, -2] * intercept
    mean = x.T @ ones / total
    mean[-2] = 0.0
    return mean, np.sqrt(np.sum((x - np.outer(ones, mean)) ** 2, axis=0) / total)


def _begun(
    sites: Sequence[Equations], *, linear: bool, intercept: bool
) -> tuple[Told, list[Dependent]]:
    """Returns where exchanges begin: scales of columns and a weak prior; and dropped columns."""
    mean, deviation = _moments(sites, intercept=intercept)
    dropped = dependent_columns([site.rows() for site in sites], intercept=intercept)
    scale, nil = deviation[:-1].copy(), np.zeros(len(mean) - 1)
    scale[[one.column for one in dropped]] = np.inf
    center, variance = nil.copy(), np.where(scale < np.inf, 1.0, 0.0)
    if linear:
        center[-1], variance = mean[-1] * intercept, deviation[-1] ** 2 * variance
    scaling = Scaling(mean[:-1], scale)
    return Told(center, variance, nil, nil, nil, scaling, 1.0, np.inf, np.inf), dropped
