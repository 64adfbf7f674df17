"""Baselines for MOLAR (Section 4.1, Appendix E), as estimators with the same interface."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np

from engram.core.arrays import Array, Bools
from engram.core.checks import require
from engram.tables.effects.imputation import pool_estimates
from engram.tables.lasso import DEBIASING_SCALE, LASSO_SCALE, debias, high_dim
from engram.tables.median import trimmed_mean
from engram.tables.model import Numbers
from engram.tables.shrinkage import combine
from engram.tables.site import Rows, SiteEstimate, estimate_site, pool
from engram.tables.tables import shown

__all__ = ["DebiasedRegressor", "IndividualRegressor", "LassoRegressor", "PooledRegressor"]

Center = Literal["median", "trimmed-mean", "transfer"]


class _Linear(Numbers):
    """A linear model for each task, with an intercept that is not penalized.

    Penalized models are standardized by default, since penalties depend on the columns' units.
    """

    family = "linear"

    @property
    def _free(self) -> Bools:
        free = np.zeros(self.n_features_in_ + self.fit_intercept, dtype=bool)
        free[self.n_features_in_ :] = True
        return free

    def _sites(self, rows: list[Rows], sigma: float | None) -> list[SiteEstimate]:
        """Returns each task's OLS estimate, with its noise as given or as estimated from its rows.

        Raises:
            ValueError: If it is not given and some task has no more rows than coefficients.
        """
        require(sigma is None or 0 < sigma < np.inf, "sigma", sigma, "positive and finite")
        self.sites_ = sites = [estimate_site(r, sigma=sigma, robust=self.robust) for r in rows]
        for task, own, site in zip(self.tasks_, rows, sites, strict=True):
            if site.sigma == np.inf:
                count, d = len(own.counted()[1]), own.x.shape[1]
                raise ValueError(
                    f"task {shown(task)} has {count} rows for {d} coefficients, which do not show "
                    "its noise: sigma must be given"
                )
        return sites


class IndividualRegressor(_Linear):
    """OLS of each task alone, of minimum norm; the shared coefficients are the median."""

    def _estimate(self, rows: list[Rows]) -> tuple[Array, Array]:
        self.sites_, own = [self._own_estimate(part) for part in rows], []
        for x, y, counts in (part.counted() for part in rows):
            root = np.sqrt(counts)
            own.append(np.linalg.lstsq(root[:, None] * x, root * y)[0])
        return np.stack(own), np.median(own, axis=0)


class PooledRegressor(_Linear):
    """One OLS fit to the rows of all tasks, with one intercept."""

    def _estimate(self, rows: list[Rows]) -> tuple[Array, Array]:
        self.sites_ = [self._own_estimate(own) for own in rows]
        self.pooled_ = site = pool(rows, robust=self.robust)
        if not site.determined.all():
            name = self.column_names[int(np.argmin(site.determined))]
            raise ValueError(f"column {name} is not determined by the rows of all tasks together")
        return np.tile(site.coef, (len(rows), 1)), site.coef

    def _pool(self, fits: Sequence[Self]) -> None:
        super()._pool(fits)
        self.pooled_ = pool_estimates([fit.pooled_ for fit in fits])

    def _shared_error(self, level: float) -> tuple[Array, float]:
        del level
        return self.pooled_.covariance, self.pooled_.freedom


@dataclass(kw_only=True, eq=False, repr=False)
class LassoRegressor(_Linear):
    """The LASSO of each task alone, with lambda_m = c sigma_m sqrt(ln(d) / n_m).

    The shared coefficients are the median. Other parameters are those of ``MolarRegressor``.

    Args:
        c: Scale of the penalty in units of the task's noise, >= 0; 0.05 as J.1 tuned it.
        sigma: Standard deviation of the noise, or None to estimate each task's.
    """

    c: float = LASSO_SCALE
    sigma: float | None = None
    standardize: bool = True

    def _estimate(self, rows: list[Rows]) -> tuple[Array, Array]:
        nothing = np.zeros(len(self._free))
        own = debias(rows, self._sites(rows, self.sigma), nothing, self.c, free=self._free)
        return own, np.median(own, axis=0)


@dataclass(kw_only=True, eq=False, repr=False)
class DebiasedRegressor(_Linear):
    """LASSO debiasing around a shared center (Appendix E), with ``LassoRegressor``'s lambda_m.

    Other parameters are those of ``MolarRegressor``.

    Args:
        center: ``trimmed-mean`` of the tasks' OLS: RM of Xu and Bastani (2024). ``median``,
            weighted like MOLAR's: ML (J.3.3). ``transfer``: Algorithm 3, for tasks with sparse
            parameters and fewer rows than columns; it needs cvxpy and ``sigma``, and has no
            intercept.
        c: Scale of the penalty in units of the task's noise, >= 0. None: 0.35, as J.1 tuned it;
            1 for ``transfer``.
        proportion: Share of tasks that are trimmed at either end.
        sigma: Standard deviation of the noise, or None to estimate each task's.
    """

    center: Center = "trimmed-mean"
    c: float | None = None
    proportion: float = 0.1
    sigma: float | None = None
    standardize: bool = True

    def _estimate(self, rows: list[Rows]) -> tuple[Array, Array]:
        centers = ("median", "trimmed-mean", "transfer")
        require(self.center in centers, "center", self.center, f"one of {', '.join(centers)}")
        if self.center == "transfer":
            require(self.sigma is not None, "sigma", None, "given for center='transfer'")
            require(not self.fit_intercept, "fit_intercept", True, "False for 'transfer'")
            sigma = float(self.sigma or 0)
            return high_dim(rows, sigma, c=1.0 if self.c is None else self.c)
        c = DEBIASING_SCALE if self.c is None else self.c
        sites = self._sites(rows, self.sigma)
        proportion = self.proportion if self.center == "trimmed-mean" else 0.0
        center = trimmed_center(sites, proportion, self.column_names)
        if self.center == "median":
            center = combine(sites).coef
        return debias(rows, sites, center, c, free=self._free), center


def trimmed_center(sites: Sequence[SiteEstimate], proportion: float, names: Sequence[str]) -> Array:
    """Returns the trimmed mean of the tasks' own estimates, shape (d,).

    Raises:
        ValueError: If the proportion is out of range, or a column is determined by no task.
    """
    known = np.stack([site.determined for site in sites])
    if not known.any(axis=0).all():
        name = names[int(np.argmin(known.any(axis=0)))]
        raise ValueError(f"column {name} is determined by the rows of no task")
    return trimmed_mean(np.where(known, [site.coef for site in sites], np.nan), proportion)
