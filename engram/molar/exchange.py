"""Adaptive MOLAR as exchanges between a server and sites whose rows do not move.

A site tells the triangle R of the QR factorization of (X y), from which the normal equations X'X
and X'y follow, and its residual: of a linear model, all that ``adaptive.adapt`` needs, so that one
exchange is enough. For other families that first triangle, without weights, gives the columns'
means and scales, and where to begin; then sites tell triangles of ``sqrt(D) (X z)`` with the
working responses ``z = X b + D^-1 (y - psi'(X b))`` at their modes b, and the server fits them as
linear models of known noise: Fisher scoring, whose fixed point is that of ``adapt`` on all rows.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from engram.arrays import Array, Bools
from engram.checks import require
from engram.molar.adaptive import Adapted, Around, adapt, stacked
from engram.molar.columns import Dependent, dependent_columns
from engram.molar.families import FAMILIES, FamilyName
from engram.molar.random_effects import (
    Posterior,
    Prior,
    Usual,
    confirmed,
    free_variance,
    moderated,
    posterior,
    start,
)
from engram.molar.site import Rows
from engram.shares import bounded

STILL: Final = 1e-6  # standard errors of the center, below which a change is none
_ACCURACY: Final = 1e-7  # likewise, of what a server computes between two exchanges
_REPETITIONS: Final = 200
_PASSES: Final = 50  # of a site over its noise, and over which of its coefficients are apart
_STEP: Final = 2.0  # of a linear predictor that is not linear in the mean, per exchange
_FLAT: Final = 1e-12  # least working weight of a row
_ODD: Final = 1e4  # standard deviations of the median site, which are of other units
_SAME: Final = 1e-9  # relative changes of variances that are none


class Equations(NamedTuple):
    """The normal equations of a site: what it tells."""

    triangle: Array  # R of (X y), shape (d + 1, d + 1)
    size: float  # rows
    apart: Array  # 1 where the likelihood has a coefficient apart, else 0, shape (d,)


class Told(NamedTuple):
    """The server's answer to all sites: arrays of shape (d,), of standardized columns.

    Attributes:
        center: The shared coefficients; 0 for dropped columns.
        variance: Of the sites' true coefficients around it.
        first: Variances of a weak prior, of which coefficients are set free.
        middle: Of the sites' gaps, from which it counts who is apart.
        error: Standard errors of the center; infinite before it is known.
        limit: Largest precision of a site in the center; may be infinite.
        offset: What is subtracted from columns; 0 for an intercept.
        scale: What they are divided by; infinite for columns that are dropped at all sites.
        sigma: The usual noise of linear models; 1 for other families.
        freedom: Degrees of freedom that a site's noise borrows from it; may be infinite.
        size: Rows of all sites that took part.
        change: Of the center in the last exchange, in standard errors; infinite in the first.
    """

    center: Array
    variance: Array
    first: Array
    middle: Array
    error: Array
    limit: Array
    offset: Array
    scale: Array
    sigma: float
    freedom: float
    size: float
    change: float

    @property
    def kept(self) -> Bools:
        """Mask of the columns that are not dropped, shape (d,)."""
        return np.isfinite(self.scale)

    def standardized(self, rows: Rows) -> Rows:
        """Returns rows of standardized columns, without those that are dropped."""
        kept = self.kept
        return rows._replace(x=((rows.x - self.offset) / self.scale)[:, kept])

    def raw(self, coef: Array) -> Array:
        """Returns coefficients in the columns' units, shape (d,); 0 for dropped columns."""
        full = np.zeros(len(self.scale))
        full[self.kept] = coef
        full /= self.scale
        full[-1] -= full @ self.offset  # 0 without an intercept
        return full


class Answer(NamedTuple):
    """The result of an exchange, at the server."""

    told: Told
    coef: Array  # the shared coefficients in the columns' units, shape (d,)
    error: Array  # their standard errors; infinite where they are not known
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
    x, y, counts = rows.counted()
    size, dim = float(counts.sum()), x.shape[1]
    if told is None:
        if family == "linear" and np.ptp(y) == 0:
            raise ValueError("its target is constant")
        root = np.sqrt(counts)[:, None]
        return Equations(_triangle(root * np.column_stack([x, y])), size, np.zeros(dim))
    found, apart, _ = _settled(told.standardized(rows), told, family, reach)
    x, y, counts = told.standardized(rows).counted()
    eta = x @ found.coef
    weight = np.maximum(FAMILIES[family].curvature(eta), _FLAT)
    whole, flags = np.zeros((len(x), dim + 1)), np.zeros(dim)
    whole[:, :-1][:, told.kept], flags[told.kept] = x, apart
    whole[:, -1] = eta + (y - FAMILIES[family].mean(eta)) / weight
    triangle = _triangle(np.sqrt(counts * weight)[:, None] * whole)
    triangle[-1, -1] = 0  # the residuals' length, for which known noise has no use
    return Equations(triangle, size, flags)


def personal(rows: Rows, told: Told, *, family: FamilyName, reach: float) -> Array:
    """Returns a site's personal coefficients, shape (d,), which it keeps.

    Where a site's weight in the center is cut to a share f, the center holds less than the site
    knows: there its prior is wider, by 1 - f times the squared error of the center.
    """
    plain, kept = told.standardized(rows), told.kept
    found, _, prior = _settled(plain, told, family, reach)
    left = 1 - np.minimum(1.0, told.limit[kept] * found.variance)
    if left.any():
        prior = Prior(prior.center, prior.variance + left * told.error[kept] ** 2)
        found = posterior(plain, prior, family=family, sigma=found.sigma)
    return told.raw(found.coef)


def _settled(
    rows: Rows, told: Told, family: FamilyName, reach: float
) -> tuple[Posterior, Bools, Prior]:
    """Returns a site's posterior by its own noise, what is apart, and the prior that follows."""
    kept, usual = told.kept, Usual(told.sigma, told.freedom)
    center, variance, first, middle = (each[kept] for each in told[:4])
    base = prior = Prior(center, variance)
    sigma, apart = told.sigma, np.zeros(len(center), dtype=bool)
    found = posterior(rows, prior, family=family, sigma=sigma)
    for _ in range(_PASSES):
        before = sigma, prior.variance
        if family == "linear":
            sigma = moderated(found, usual)
        apart = np.abs(found.gap - middle) > reach * np.sqrt(found.variance + variance)
        wide = free_variance(found.gap, base, Prior(center, first), family)
        apart = confirmed(rows, base, wide, apart, family=family, reach=reach)
        prior = Prior(center, np.where(apart, wide, variance))
        found = posterior(rows, prior, family=family, sigma=sigma)
        if np.allclose(prior.variance, before[1], _SAME, 0) and np.isclose(sigma, before[0], _SAME):
            break
    return found._replace(sigma=sigma), apart, prior


def answer(
    sites: Sequence[Equations],
    told: Told | None,
    *,
    family: FamilyName,
    reach: float,
    max_weight: float = np.inf,
    intercept: bool = True,
) -> Answer:
    """Returns the server's answer to what sites tell.

    Args:
        sites: What they tell.
        told: The last answer, around which they tell it; None in the first exchange.
        family: The family of models.
        reach: As for ``tell``; sites farther away have no part in the center.
        max_weight: Largest weight of a site in a column, in units of the median site's.
        intercept: Whether the last coefficient is an intercept, which always scatters.

    Raises:
        ValueError: If there is no site.
    """
    require(len(sites) > 0, "number of sites", 0, "at least 1")
    dropped: list[Dependent] = []
    around = None
    if told is None:
        tasks = [_equivalent(site, intercept=intercept) for site in sites]
        told, dropped = _begun(tasks, sites, family, max_weight, intercept=intercept)
        tasks = [told.standardized(rows) for rows in tasks]
        if family != "linear":
            unknown = np.full_like(told.center, np.inf)
            nobody = np.zeros(len(sites), dtype=bool)
            begun = told.raw(told.center[told.kept])
            return Answer(told, begun, unknown, unknown, dropped, nobody)
    else:
        kept = told.kept
        center, variance, first = (each[kept] for each in told[:3])
        flags = np.stack([site.apart[kept] > 0 for site in sites])
        flags |= told.change == np.inf  # around a weak prior, a site has nothing apart yet
        around = Around(Prior(center, variance), Prior(center, first), flags)
        tasks = [Rows(s.triangle[:, :-1][:, kept], s.triangle[:, -1]) for s in sites]
    found = adapt(
        tasks,
        family=family,
        c=reach,
        intercept=intercept,
        max_weight=max_weight,
        accuracy=_ACCURACY,
        most=_REPETITIONS,
        around=around,
    )
    return Answer(*_answered(told, found, linear=family == "linear"), dropped, found.capped)


def odd_sites(sites: Sequence[Equations], *, intercept: bool) -> list[int | None]:
    """Returns the first column of each site that is far from the median site's; None if none is.

    Only in the first exchange. The target is the column after the last. One site in other units, or
    one that lies, would make all others' columns constant by comparison.
    """
    tasks = [_equivalent(site, intercept=intercept) for site in sites]
    tables = np.stack([np.column_stack([rows.x, rows.y]) for rows in tasks])
    means, spreads = tables.mean(axis=1), tables.std(axis=1)
    usual = np.median(spreads, axis=0)
    far = np.maximum(np.abs(means - np.median(means, axis=0)), spreads) > _ODD * usual
    far &= usual > 0
    return [int(np.argmax(each)) if each.any() else None for each in far]


def _answered(before: Told, found: Adapted, *, linear: bool) -> tuple[Told, Array, Array, Array]:
    """Returns what an adaptation of the columns that are not dropped tells, as ``Answer``."""
    kept = before.kept
    scatter, error = found.heterogeneity, np.sqrt(np.diag(found.covariance))
    moved, change = found.center - before.center[kept], found.change
    if not linear:
        moved *= min(1.0, _STEP / max(np.abs(moved).max(), _STEP))
        spread = np.sqrt(scatter.variance) - np.sqrt(before.variance[kept])
        change = float(np.max(np.maximum(np.abs(moved), np.abs(spread)) / error))
    center = before.center[kept] + moved
    parts = [center, scatter.variance, before.first[kept], scatter.center, error, found.limit]
    each = np.zeros((len(parts), len(kept)))
    each[:, kept] = parts
    told = Told._make([*each, before.offset, before.scale, *found.usual, before.size, change])
    errors, freedom = found.errors(np.stack([told.raw(unit) for unit in np.eye(kept.sum())]).T)
    return told, told.raw(center), np.where(kept, errors, np.inf), np.where(kept, freedom, np.inf)


def _begun(
    tasks: list[Rows],
    sites: Sequence[Equations],
    family: FamilyName,
    max_weight: float,
    *,
    intercept: bool,
) -> tuple[Told, list[Dependent]]:
    """Returns where exchanges begin: scales of columns and a weak prior; and dropped columns."""
    dim = tasks[0].x.shape[1]
    slopes = dim - intercept
    plain = [rows._replace(x=rows.x[:, :slopes]) for rows in tasks]
    dropped = dependent_columns(plain, intercept=intercept)
    x, _, counts = stacked(tasks)
    offset, scale = np.zeros(dim), np.ones(dim)
    if intercept:
        offset[:-1] = np.average(x[:, :-1], axis=0, weights=counts)
    root = np.sqrt(np.average((x[:, :slopes] - offset[:slopes]) ** 2, axis=0, weights=counts))
    scale[:slopes] = np.where(root > 0, root, 1.0)
    scale[[one.column for one in dropped]] = np.inf
    size = float(bounded([site.size for site in sites], max_weight).sum())
    nil = np.zeros(dim)
    told = Told(nil, nil, nil, nil, nil, nil, offset, scale, 1.0, np.inf, size, np.inf)
    center, variance, kept = nil.copy(), nil.copy(), told.kept
    prior = start(told.standardized(stacked(tasks)), family)
    center[kept], variance[kept] = prior
    unknown = np.full(dim, np.inf)
    told = told._replace(center=center, variance=variance, first=variance)
    return told._replace(error=unknown, limit=unknown), dropped


def _equivalent(site: Equations, *, intercept: bool) -> Rows:
    """Returns d + 1 rows with a site's equations, and with ones where there is an intercept.

    A reflection turns the triangle so that the column of ones, of length sqrt(n), is constant.
    """
    r, k = site.triangle, len(site.triangle)
    if intercept:
        order = [k - 2, *range(k - 2), k - 1]
        r = _triangle(r[:, order])
        mirror = np.full(k, -(k**-0.5))
        mirror[0] += np.sign(r[0, 0])
        r = r - np.outer(mirror, 2 / (mirror @ mirror) * (mirror @ r))
        r = r[:, np.argsort(order)]
    each = site.size / k
    r = r / np.sqrt(each)
    if intercept:
        r[:, -2] = 1.0
    return Rows(r[:, :-1], r[:, -1], np.full(k, each))


def _triangle(x: Array) -> Array:
    """Returns R of the QR factorization, with rows of zeros where x has few."""
    r = np.linalg.qr(x, mode="r")
    return np.vstack([r, np.zeros((x.shape[1] - len(r), x.shape[1]))])
