"""A task's own estimate of its coefficients, which is all that leaves a site in a federation.

This is the site's part of Algorithm 1 (linear models) and Algorithm 4 (generalized linear models).
It costs one factorization of the site's rows, or one per Newton step in generalized linear models.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.linalg import qr, solve_triangular
from scipy.linalg.lapack import dtrtri

from engram.core.arrays import Array, Bools, Ints
from engram.core.checks import require
from engram.tables.effects.firth import FIRTH
from engram.tables.effects.sandwich import ROBUST, Robust, sandwich_root
from engram.tables.families import FAMILIES, Family, FamilyName, NoEstimate

INTERCEPT = "intercept"  # name of the coefficient of a column of ones

_DEPENDENT = 1e-10  # relative length of a column outside the span of the columns before it
_FEW = "it has no more rows than coefficients"


class Rows(NamedTuple):
    """A task's rows.

    Attributes:
        x: Shape (n, d), n >= 1, finite; a column of ones in it if there is to be an intercept.
        y: Targets in the family's range, shape (n,).
        weights: Shape (n,), at least 0, not all 0: a row of weight c counts as c rows. None: 1.
        event: Of survival: whether y is the time of an event, or of censoring, shape (n,).
        entry: Of survival: each is at risk on (entry, y], shape (n,); None: always there.
        clusters: Shape (n,): rows of one number may depend on each other. None: no two do.
    """

    x: Array
    y: Array
    weights: Array | None = None
    event: Bools | None = None
    entry: Array | None = None
    clusters: Ints | None = None

    def take(self, rows: Ints) -> "Rows":
        """Returns some of the rows, by number."""
        return Rows._make(None if part is None else part[rows] for part in self)

    def with_ones(self) -> "Rows":
        """Adds a last column of ones, for an intercept."""
        return self._replace(x=np.hstack([self.x, np.ones((len(self.x), 1))]))

    def positive(self) -> "Rows":
        """Returns the rows with positive weight."""
        return self if self.weights is None else self.take(np.flatnonzero(self.weights > 0))

    def counted(self) -> tuple[Array, Array, Array]:
        """Returns x, y and weights of the rows with positive weight."""
        x, y, weights, *_ = self.positive()
        return x, y, np.ones(len(y)) if weights is None else weights

    def survival(self) -> tuple[Array, Bools, Array | None, Array | None]:
        """Returns times, marks of events, entries and weights, of survival."""
        assert self.event is not None  # for mypy: as rows of survival have it
        return self.y, self.event, self.entry, self.weights

    def complete(self) -> "Rows":
        """Returns the rows without NaN.

        Raises:
            ValueError: If there are none.
        """
        some = ~np.isnan(self.x).any(axis=1)
        if not some.any():
            raise ValueError("it has no row without missing values")
        return self.take(np.flatnonzero(some))


class SiteEstimate(NamedTuple):
    """A task's own estimate (OLS or maximum likelihood) and its precision.

    Attributes:
        coef: Shape (d,); finite. 0 where the rows do not determine the coefficient.
        scale: Shape (d,), sqrt(v_k) with v = diag((X' D X)^-1), D = I for linear models: the
            standard error of ``coef`` is ``sigma * scale``, see (1). (Appendix F has
            another square root in the definition of v_k, which is a slip: with it, thresholds
            have the wrong unit.) Infinite where the rows do not determine the coefficient.
        size: n_m, the sum of the rows' weights; > 0.
        sigma: Standard deviation of the noise, >= 0; 1 for families other than linear. Infinite if
            it cannot be estimated: there are no more rows than coefficients, or the likelihood has
            no maximum. Then no coefficient counts as determined.
        freedom: Degrees of freedom in the estimate of ``sigma``; infinite if it is known.
        root: A matrix C, shape (d, m), with the covariance ``sigma^2 C C'`` of the determined
            coefficients; None if only ``scale`` is known, as at a server.
    """

    coef: Array
    scale: Array
    size: float
    sigma: float
    freedom: float = np.inf
    root: Array | None = None

    @property
    def determined(self) -> Bools:
        """Mask of the coefficients that the rows determine, shape (d,)."""
        return np.isfinite(self.scale)

    @property
    def standard_error(self) -> Array:
        """Standard error of each coefficient, shape (d,); infinite where it is not determined."""
        errors = np.full_like(self.scale, np.inf)
        errors[self.determined] = self.sigma * self.scale[self.determined]
        return errors

    @property
    def covariance(self) -> Array:
        """Covariance of the coefficients, (d, d); undetermined ones have an infinite variance.

        Without ``root`` it is diagonal.
        """
        known = self.determined
        if self.root is None or not known.any():
            return np.diag(self.standard_error**2)
        found = self.sigma**2 * self.root @ self.root.T
        found[~known] = found[:, ~known] = 0.0
        found[~known, ~known] = np.inf
        return np.asarray(found)


def estimate_site(
    rows: Rows,
    *,
    family: FamilyName = "linear",
    sigma: float | None = None,
    robust: Robust = "none",
    firth: bool = False,
) -> SiteEstimate:
    """Fits one task alone.

    Args:
        rows: The task's rows.
        family: The family of models.
        sigma: Standard deviation of the noise of a linear model, > 0; None to estimate it by
            ``sqrt(||X b - y||^2 / (n - d))``. Must be None for other families.
        robust: Form of the standard errors; ``none``: the model's.
        firth: Whether logistic models have Firth's penalty, by which classes that some column
            tells apart have estimates, too.

    Returns:
        The estimate. Too few rows are not an error: see ``SiteEstimate``.

    Raises:
        ValueError: If the rows have no clusters, or one, for errors by clusters.
    """
    require(sigma is None or family == "linear", "sigma", sigma, "None, but for family linear")
    require(robust in ROBUST, "robust", robust, f"one of {', '.join(ROBUST)}")
    x, y, counts = rows.counted()
    try:
        found = _estimated(x, y, counts, FIRTH if firth else FAMILIES[family], sigma)
        return found if robust == "none" else _robust(found, rows, family, robust)
    except NoEstimate:
        unknown = np.full(x.shape[1], np.inf)
        return SiteEstimate(np.zeros(x.shape[1]), unknown, float(counts.sum()), np.inf)


def _robust(site: SiteEstimate, rows: Rows, family: FamilyName, kind: Robust) -> SiteEstimate:
    """The estimate with robust standard errors; by clusters, these have G - 1 degrees of freedom.

    Without noise it stays as it is.
    """
    if site.root is None or not site.sigma:
        return site
    (x, y, counts), model, clusters = rows.counted(), FAMILIES[family], rows.positive().clusters
    kept, eta = (site.root != 0).any(axis=1), x @ site.coef
    residuals, curvature = y - model.mean(eta), model.curvature(eta)
    inverse = site.root[kept]
    part = sandwich_root(kind, x[:, kept], residuals, curvature, counts, inverse, clusters)
    root = np.zeros((len(kept), part.shape[1]))
    root[kept] = part / site.sigma
    scale = np.where(site.determined, np.linalg.norm(root, axis=1), np.inf)
    freedom = site.freedom
    if kind == "clusters" and clusters is not None:
        freedom = len(np.unique(clusters)) - 1.0
    return site._replace(scale=scale, root=root, freedom=freedom)


def _estimated(
    x: Array, y: Array, counts: Array, model: Family, sigma: float | None
) -> SiteEstimate:
    if reason := model.hopeless(y):
        raise NoEstimate(reason)
    if model.fit is None:
        return _least_squares(x, y, counts, sigma)
    kept, determined = independent(_triangle(x))
    if len(y) <= len(kept):
        raise NoEstimate(_FEW)
    coef = np.zeros(x.shape[1])
    coef[kept] = model.fit(x[:, kept], y, counts)
    r = _triangle(np.sqrt(counts * model.curvature(x @ coef))[:, None] * x[:, kept])
    if not _has_full_rank(r):
        raise NoEstimate("its likelihood is flat at the maximum")
    return _only(determined, kept, coef[kept], r, float(counts.sum()), 1.0)


def _least_squares(x: Array, y: Array, counts: Array, sigma: float | None) -> SiteEstimate:
    size, root, d = float(counts.sum()), np.sqrt(counts)[:, None], x.shape[1]
    # One factorization has all: R of X, Q'y beside it, and the residual's length below that.
    r = _triangle(np.hstack([root * x, root * y[:, None]]))
    kept, determined = independent(r[:, :d])
    rank, freedom = len(kept), np.inf
    if rank < d:
        r = _triangle(r[:, [*kept, d]])
    if sigma is None:
        if size <= rank or len(r) <= rank:
            raise NoEstimate(_FEW)
        freedom = size - rank
        sigma = float(abs(r[rank, rank]) / np.sqrt(freedom))
        if np.ptp(y) == 0 and sigma <= _DEPENDENT * np.abs(y).max():
            # An exact fit, which is no sign of knowing the truth.
            raise NoEstimate("its target is constant")
    coef = solve_triangular(r[:rank, :rank], r[:rank, rank])
    return _only(determined, kept, coef, r[:rank, :rank], size, sigma)._replace(freedom=freedom)


def _only(
    determined: Bools, kept: Ints, coef: Array, r: Array, size: float, sigma: float
) -> SiteEstimate:
    """Estimate from the coefficients of the columns ``kept``, and R of their information."""
    own, scale = np.zeros(len(determined)), np.full(len(determined), np.inf)
    root = np.zeros((len(determined), len(kept)))
    root[kept] = dtrtri(r)[0] * np.sign(np.diagonal(r))  # that of the triangle above 0
    own[kept], scale[kept] = coef, np.sqrt(np.einsum("ij,ij->i", root[kept], root[kept]))
    own[~determined], scale[~determined] = 0.0, np.inf
    return SiteEstimate(own, scale, size, sigma, root=root)


def _triangle(x: Array) -> Array:
    return np.asarray(np.linalg.qr(x, mode="r"))


def _has_full_rank(r: Array) -> bool:
    if len(r) < r.shape[1]:
        return False
    lengths = np.linalg.norm(r, axis=0)
    return bool((np.abs(np.diagonal(r)) > _DEPENDENT * lengths).all() and (lengths > 0).all())


def independent(r: Array) -> tuple[Ints, Bools]:
    """Returns columns that span all columns, and the mask of determined coefficients."""
    if _has_full_rank(r):
        return np.arange(r.shape[1]), np.ones(r.shape[1], dtype=bool)
    lengths = np.linalg.norm(r, axis=0)
    scaled = r / np.where(lengths > 0, lengths, 1.0)
    triangle, pivots = qr(scaled, mode="r", pivoting=True)
    diagonal = np.abs(np.diagonal(triangle))
    rank = int((diagonal > _DEPENDENT).sum())
    kept = np.sort(pivots[:rank])
    # Another column is a combination of these: those that it takes part in are not determined.
    others = solve_triangular(triangle[:rank, :rank], triangle[:rank, rank:])
    determined = np.zeros(r.shape[1], dtype=bool)
    determined[pivots[:rank]] = (np.abs(others) <= _DEPENDENT**0.5).all(axis=1)
    return kept, determined


def why_undetermined(rows: Rows, names: Sequence[str], *, family: FamilyName) -> str | None:
    """Returns the reason why a task does not determine all coefficients; None if it does."""
    x, y, counts = rows.counted()
    n, d = x.shape
    if reason := FAMILIES[family].hopeless(y):
        return reason
    if n <= d:
        return f"it has {n} rows for {d} coefficients"
    constant = np.ptp(x, axis=0) == 0
    if constant.sum() > 1 or (constant & (x[0] == 0)).any():  # the intercept alone may be
        k = int(np.flatnonzero(constant)[0])
        return f"column {names[k]} is constant"
    r = _triangle(x)
    dependent = np.abs(np.diagonal(r)) <= _DEPENDENT * np.linalg.norm(r, axis=0)
    if dependent.any():
        return f"column {names[int(np.argmax(dependent))]} is a linear combination of others"
    try:
        _estimated(x, y, counts, FAMILIES[family], None)
    except NoEstimate as error:
        return str(error)
    return None


def condense(rows: Rows) -> Rows:
    """Returns at most d + 1 rows that are equivalent for linear models.

    They are R of the QR factorization of (X y), with equal weights. X'X, X'y, y'y and n_m stay the
    same, and so do OLS, its standard errors, the LASSO and pooling, up to rounding.
    """
    x, y, counts = rows.counted()
    r = np.linalg.qr(np.sqrt(counts)[:, None] * np.column_stack([x, y]), mode="r")
    each = counts.sum() / len(r)
    r = r / np.sqrt(each)
    return Rows(r[:, :-1], r[:, -1], np.full(len(r), each))


def stacked(tasks: Sequence[Rows]) -> Rows:
    """Returns the rows of all tasks."""
    parts = zip(*(rows.counted() for rows in tasks), strict=True)
    clusters = [own for rows in tasks if (own := rows.positive().clusters) is not None]
    given = np.concatenate(clusters) if len(clusters) == len(tasks) else None
    x, y, counts = (np.concatenate(part) for part in parts)
    return Rows(x, y, counts, clusters=given)


def pool(
    tasks: Sequence[Rows], *, family: FamilyName = "linear", robust: Robust = "none"
) -> SiteEstimate:
    """Fits one model to the rows of all tasks: OLS on all data, or maximum likelihood.

    If tasks differ, its bias does not vanish with more rows or more tasks (Section 4.1).

    Raises:
        ValueError: If there is no task.
    """
    require(len(tasks) > 0, "number of tasks", 0, "at least 1")
    short = family == "linear" and robust == "none"
    rows = stacked([condense(own) if short else own for own in tasks])
    return estimate_site(rows, family=family, robust=robust)
