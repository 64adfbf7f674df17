"""Algorithm 1: a global parameter by weighted median, and shrinkage of each task towards it."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from scipy.optimize import brentq
from scipy.special import logsumexp

from engram.core.arrays import Array, Bools
from engram.core.checks import require
from engram.guards.robust.weight_limit import bounded, weight_limit
from engram.tables.families import FAMILIES, FamilyName
from engram.tables.median import weighted_median
from engram.tables.site import Rows, SiteEstimate

_FARTHEST = 2.0**20  # from 0, where an intercept is looked for
Option = Literal["hard", "soft"]
Weights = Literal["precision", "equal"]

_PRIOR = 4.0  # degrees of freedom of the prior for variances


class Shared(NamedTuple):
    """The shared result: all that a server sends back.

    Attributes:
        coef: The global parameter beta*, shape (d,).
        size: n_[M], total number of rows of the tasks that took part.
    """

    coef: Array
    size: float


def median_weights(
    sites: Sequence[SiteEstimate], weights: Weights = "precision", max_weight: float = np.inf
) -> Array:
    """Returns the median's weights, shape (M, d); 0 where a coefficient is not determined.

    Args:
        sites: The tasks' estimates.
        weights: ``precision``: w_m = n_m / sigma_m^2 (Proposition 1), where sigma_m is moderated
            if it is estimated from few rows. If some tasks have no noise, they know the truth, and
            only they count, by their sizes. ``equal``: 1 for all, so that a task gains no influence
            by the size and noise that it claims.
        max_weight: Maximum weight of a task in a coordinate, in units of the median task's weight
            (``engram.guards.robust.weight_limit``): it bounds the influence that a task gains by
            the size and noise that it claims. Infinity if all tasks are trusted.
    """
    return bounded(_claimed_weights(sites, weights), max_weight)


def outweighing(sites: Sequence[SiteEstimate], weights: Weights, max_weight: float) -> Bools:
    """Mask of the tasks above ``max_weight`` in some coordinate, shape (M,)."""
    each = _claimed_weights(sites, weights)
    return np.asarray(np.any(each > weight_limit(each, max_weight), axis=1))


def _claimed_weights(sites: Sequence[SiteEstimate], weights: Weights) -> Array:
    known = np.stack([site.determined & np.isfinite(site.sigma) for site in sites])
    if weights == "equal":
        return known.astype(np.float64)
    variances = _moderated(sites)
    sizes = np.array([site.size for site in sites])
    exact = (variances == 0)[:, None] & known
    least = variances[variances > 0].min(initial=np.inf)
    # Beside the least, so that tiny noise cannot overflow.
    with np.errstate(invalid="ignore"):  # where no task knows its noise
        relative = np.where(variances > 0, least / np.where(variances > 0, variances, 1), 0)
    others = np.where(known, (sizes * np.nan_to_num(relative))[:, None], 0.0)
    return np.where(exact.any(axis=0), exact * sizes[:, None], others)


def _moderated(sites: Sequence[SiteEstimate]) -> Array:
    """Returns moderated variances of the tasks' noise, shape (M,).

    ``(f sigma_m^2 + 4 v) / (f + 4)``, where f are the degrees of freedom of sigma_m and v is the
    median of all tasks' sigma^2. Without moderation, a task with one row more than coefficients
    could by chance appear free of noise and outweigh all others. It matters if f is small.
    """
    with np.errstate(over="ignore"):  # a task may claim any noise
        variances = np.square([site.sigma for site in sites])
    freedom = np.array([site.freedom for site in sites])
    some = np.isfinite(variances)
    usual = float(np.median(variances[some])) if some.any() else 0.0
    share = np.where(np.isfinite(freedom), _PRIOR / (freedom + _PRIOR), 0.0)
    mixed = share * usual + (1 - share) * np.where(some, variances, 0.0)
    return np.where(some, mixed, np.inf)


def combine(
    sites: Sequence[SiteEstimate], weights: Weights = "precision", max_weight: float = np.inf
) -> Shared:
    """Returns the weighted median of the tasks' estimates by coordinate: the server's part.

    Tasks that do not determine a coefficient have no weight in its median.

    For the arguments see ``median_weights``; ``max_weight`` also bounds sizes.

    Raises:
        ValueError: If a coefficient is determined by no task, or there is no task.
    """
    require(len(sites) > 0, "number of tasks", 0, "at least 1")
    each = median_weights(sites, weights, max_weight)
    sizes = [site.size for site, own in zip(sites, each, strict=True) if own.any()]
    size = sum(bounded(sizes, max_weight).tolist())
    return Shared(weighted_median(np.stack([site.coef for site in sites]), each), float(size))


def threshold(
    site: SiteEstimate, total: float, *, option: Option = "hard", c: float = 1.0
) -> float:
    """Returns gamma_m, in the unit of the noise.

    ``c ln(min(n_[M] / n_m, d)) sigma_m`` for hard thresholding and
    ``c sqrt(ln(min(n_[M] / n_m, d))) sigma_m``, as Theorem 1 has it, for soft. (J.1 also divides
    by n_m, which makes thresholds so small that every task keeps its own estimate. The form for
    hard thresholding, with c = 1, comes near the error of an oracle that knows where tasks differ.)

    Args:
        site: The task's estimate.
        total: n_[M].
        option: Hard (Option I) or soft (Option II) thresholding.
        c: Scale of the threshold, >= 0: 0 keeps the task's estimate, infinity the shared one.
    """
    log = np.log(max(1.0, min(total / site.size, len(site.coef))))
    rate = float(log if option == "hard" else np.sqrt(log))
    return c * rate * site.sigma if c < np.inf else np.inf


def shrink(own: Array, shared: Array, radius: Array, option: Option = "hard") -> Array:
    """Moves a task's estimate towards the shared one, coordinate by coordinate.

    Args:
        own: The task's estimate, shape (d,).
        shared: The shared parameter, shape (d,).
        radius: gamma_m sqrt(v_k), at least 0, shape (d,).
        option: ``hard`` (Option I): within the radius the shared value replaces the task's own.
            ``soft`` (Option II): likewise, and values outside move towards it by the radius.

    Returns:
        Shape (d,). Radius 0 gives ``own``, an infinite one ``shared``.
    """
    gap = own - shared
    far = np.abs(gap) > radius
    nearer = own if option == "hard" else own - np.sign(gap) * np.where(far, radius, 0.0)
    return np.where(far, nearer, shared)


def personalize(
    site: SiteEstimate, shared: Shared, *, option: Option = "hard", c: float = 1.0
) -> Array:
    """Returns a task's coefficients, shape (d,), from its own estimate and the shared one.

    Coefficients that its rows do not determine are the shared ones. It also applies to a task that
    had no part in ``shared`` (Corollary 2): with few rows, it takes over most of ``shared``.
    """
    gamma = threshold(site, shared.size, option=option, c=c)
    radius = np.full_like(site.scale, np.inf)
    known = site.determined
    if np.isfinite(gamma):
        radius[known] = gamma * site.scale[known]
    return shrink(site.coef, shared.coef, radius, option)


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
