"""Multiple imputation of a site's missing values by chained equations, and Rubin's rules.

Each column with missing values has a regression on all other columns and the outcome, on the rows
where it is known: linear, or logistic for columns of 0 and 1. Its parameters are drawn from their
posterior, and missing values from the model with these; columns take turns until the draws no
longer depend on where they began (van Buuren and Oudshoorn 1999). Without the outcome, effects
would be drawn towards 0 (Moons et al. 2006). For survival, the outcome is the event and the
Nelson-Aalen estimate of its cumulative hazard (White and Royston 2009).

A site draws by its own rows alone. Of m completed tables, estimates q with variances u have the
mean q and the variance ``mean u + (1 + 1/m) var q`` (Rubin 1987), with degrees of freedom that are
no more than a complete table's (Barnard and Rubin 1999).
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np
from scipy.special import expit

from engram.core.arrays import Array, Bools
from engram.core.checks import require
from engram.tables.random_effects import Prior, posterior
from engram.tables.site import Rows, SiteEstimate
from engram.tables.tables import Scaling

_ROUNDS: Final = 10  # of all columns, before a table counts as drawn
_WEAK: Final = 10.0  # prior variance of coefficients of standardized columns
_RIDGE: Final = 1e-5  # of a column's own information, where columns depend on each other


class Rubin(NamedTuple):
    """Pooled estimates of m completed tables."""

    coef: Array  # shape (d,)
    covariance: Array  # shape (d, d)
    freedom: Array  # shape (d,)


def rubin(coefs: Array, covariances: Array, freedom: Array | float = np.inf) -> Rubin:
    """Pools estimates by Rubin's rules.

    Args:
        coefs: Shape (m, d), m at least 2.
        covariances: Shape (m, d, d).
        freedom: Degrees of freedom of a complete table's estimates, a number or of shape (d,).
    """
    m = len(coefs)
    require(m > 1, "number of completed tables", m, "at least 2")
    within = covariances.mean(axis=0)
    between = np.atleast_2d(np.cov(coefs, rowvar=False)) * (1 + 1 / m)
    total = within + between
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.nan_to_num(np.diag(between) / np.diag(total))
        old = (m - 1) / part**2
        exact = np.asarray((freedom + 1) / (freedom + 3) * freedom * (1 - part))
        pooled = np.where(np.isinf(freedom), old, 1 / (1 / old + 1 / exact))
    return Rubin(coefs.mean(axis=0), total, pooled)


def pool_estimates(draws: Sequence[SiteEstimate]) -> SiteEstimate:
    """Pools a site's estimates of its completed tables.

    Its coefficients have the degrees of freedom of the one with the fewest.
    """
    coefs = np.stack([site.coef for site in draws])
    determined = np.all([site.determined for site in draws], axis=0)
    first = draws[0]
    # Of other families, whose estimates are taken for normal, as many as linear ones would have.
    freedom = min(*(site.freedom for site in draws), max(first.size - len(first.coef), 1.0))
    sigma = float(np.sqrt(np.mean([site.sigma**2 for site in draws])))
    if not determined.any() or not sigma:
        scale = np.full(len(determined), np.inf)
        return first._replace(coef=coefs.mean(axis=0) * determined, scale=scale)
    found = rubin(coefs, np.stack([site.covariance for site in draws]), freedom)
    root = np.zeros((len(determined), int(determined.sum())))
    root[determined] = np.linalg.cholesky(found.covariance[np.ix_(determined, determined)]) / sigma
    coef = np.where(determined, found.coef, 0.0)
    scale = np.sqrt(np.diag(found.covariance)) / sigma
    return SiteEstimate(coef, scale, first.size, sigma, float(found.freedom.min()), root)


def impute(rows: Rows, *, draws: int, seed: int = 0, beside: Array | None = None) -> list[Rows]:
    """Returns completed tables of one site.

    Args:
        rows: Its rows, NaN where a value is missing.
        draws: How many tables.
        seed: Seed of the draws.
        beside: Complete columns of the outcome, shape (n, k), such as the event and its cumulative
            hazard. None: the target.

    Raises:
        ValueError: If some column has fewer than two known values.
    """
    missing = np.isnan(rows.x)
    known = int((~missing).sum(axis=0).min(initial=2))
    require(known > 1, "number of known values of a column at a site", known, "at least 2")
    outcome = rows.y[:, None] if beside is None else beside
    seeds = [np.random.default_rng([seed, draw]) for draw in range(draws)]
    return [rows._replace(x=_completed(rows, missing, outcome, rng)) for rng in seeds]


def _completed(rows: Rows, missing: Bools, beside: Array, rng: np.random.Generator) -> Array:
    """Returns one table, begun with values drawn from those of each column."""
    x, some = rows.x.copy(), np.flatnonzero(missing.any(axis=0))
    counts = np.ones(len(x)) if rows.weights is None else rows.weights
    for k in some:
        gone = missing[:, k]
        x[gone, k] = rng.choice(x[~gone, k], int(gone.sum()))
    for _ in range(_ROUNDS if len(some) > 1 else 1):
        for k in some:
            gone = missing[:, k]
            others = np.column_stack([np.delete(x, k, axis=1), beside])
            others = others[:, np.ptp(others, axis=0) > 0]
            design = np.column_stack([Scaling.of(others, None).apply(others), np.ones(len(x))])
            known = design[~gone], x[~gone, k], counts[~gone]
            drawn = _draw_class if np.isin(known[1], (0, 1)).all() else _draw_number
            x[gone, k] = drawn(*known, design[gone], rng)
    return x


def _inverse_root(information: Array) -> Array:
    """Returns C with ``C C'`` the inverse of the information, its diagonal raised a little."""
    ridge = _RIDGE * np.diag(np.diag(information))
    return np.asarray(np.linalg.inv(np.linalg.cholesky(information + ridge)).T)


def _draw_number(x: Array, y: Array, counts: Array, new: Array, rng: np.random.Generator) -> Array:
    """Draws targets of new rows from the posterior of a linear model (Rubin 1987, 5.3)."""
    weighted = x * counts[:, None]
    root = _inverse_root(weighted.T @ x)
    coef = root @ (root.T @ (weighted.T @ y))
    freedom = max(float(counts.sum()) - x.shape[1], 1.0)
    sigma = float(np.sqrt(counts @ (y - x @ coef) ** 2 / rng.chisquare(freedom)))
    coef = coef + sigma * root @ rng.normal(size=len(coef))
    return np.asarray(new @ coef + sigma * rng.normal(size=len(new)))


def _draw_class(x: Array, y: Array, counts: Array, new: Array, rng: np.random.Generator) -> Array:
    """Draws classes of new rows from the normal posterior of a logistic model.

    A weak prior keeps coefficients finite where others tell the known classes apart.
    """
    prior = Prior(np.zeros(x.shape[1]), np.full(x.shape[1], _WEAK))
    coef = posterior(Rows(x, y, counts), prior, family="logistic").coef
    mean = expit(x @ coef)
    information = (x * (counts * mean * (1 - mean))[:, None]).T @ x + np.eye(len(coef)) / _WEAK
    coef = coef + _inverse_root(information) @ rng.normal(size=len(coef))
    return np.asarray(rng.random(len(new)) < expit(new @ coef), dtype=np.float64)
