"""MOLAR as scikit-learn estimators, for tables with a column of task labels."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from sklearn.utils.validation import check_is_fitted

from engram.core.arrays import Array, Bools
from engram.core.checks import require
from engram.core.process_modes import own_modes
from engram.scoring.intervals import quantile
from engram.tables.borrowing_intervals import honest_intervals
from engram.tables.intervals import IntervalMethod, Intervals, shared_half_width, site_interval
from engram.tables.model import MultitaskModel, Numbers, TwoClasses, weights_of
from engram.tables.shrinkage import Option, Shared, combine, median_weights, personalize_rows
from engram.tables.site import Rows, SiteEstimate, estimate_site, why_undetermined
from engram.tables.tables import rows_of_tasks, shown

__all__ = ["MolarClassifier", "MolarRegressor"]

Undetermined = Literal["error", "shared"]


@dataclass(kw_only=True, eq=False, repr=False)
class _Molar(MultitaskModel):
    """The common part of both estimators: Algorithms 1 and 4 on the tasks' rows."""

    option: Option = "hard"
    c: float = 1.0
    undetermined: Undetermined = "error"

    def _estimate(self, rows: list[Rows]) -> tuple[Array, Array]:
        require(self.option in ("hard", "soft"), "option", self.option, "hard or soft")
        require(self.c >= 0, "c", self.c, "at least 0")
        known = self.undetermined in ("error", "shared")
        require(known, "undetermined", self.undetermined, "error or shared")
        self._check_several()
        tasks, names = zip(rows, self.tasks_.tolist(), strict=True), self.column_names
        self.sites_ = [self._site(own, task) for own, task in tasks]
        nowhere = (median_weights(self.sites_) == 0).all(axis=0)
        if nowhere.any():
            name = names[int(np.argmax(nowhere))]
            reason = why_undetermined(rows[0], names, family=self._family)
            raise ValueError(
                f"column {name} is determined by no task: of {shown(self.tasks_[0])}, for "
                f"instance, {reason}"
            )
        self.shared_: Shared = combine(self.sites_)
        pairs = zip(rows, self.sites_, strict=True)
        self._full: Array = np.stack([self._personal(own, site) for own, site in pairs])
        return self._full, self.shared_.coef

    def _personal(self, rows: Rows, site: SiteEstimate) -> Array:
        return personalize_rows(
            rows,
            site,
            self.shared_,
            family=self._family,
            intercept=self.fit_intercept,
            option=self.option,
            c=self.c,
        )

    def _pool(self, fits: Sequence[Self]) -> None:
        super()._pool(fits)
        center = np.mean([fit.shared_.coef for fit in fits], axis=0)
        self.shared_ = fits[0].shared_._replace(coef=center)
        self._full = np.mean([fit._full for fit in fits], axis=0)

    def _site(self, rows: Rows, task: Any) -> SiteEstimate:
        site = self._own_estimate(rows)
        if self.undetermined == "error" and not site.determined.all():
            reason = why_undetermined(rows, self.column_names, family=self._family)
            raise ValueError(
                f"task {task!r}: {reason}; with undetermined='shared' it takes what its rows do "
                "not determine from the other tasks"
            )
        return site

    @property
    def individual_coef_(self) -> Array:
        """Each task's own estimate (OLS or maximum likelihood), shape (M, d)."""
        return np.stack([site.coef for site in self.sites_])[:, : self.n_features_in_]

    @property
    def support_(self) -> Bools:
        """Whether a task's coefficient differs from the shared one, shape (M, d)."""
        return np.asarray(self.coef_ != self.shared_coef_)

    @property
    def sigma_(self) -> Array:
        """Standard deviation of each task's noise, shape (M,); infinite if unknown."""
        return np.array([site.sigma for site in self.sites_])

    @own_modes()
    def confidence_intervals(
        self, level: float = 0.95, method: IntervalMethod | Literal["honest"] = "practical"
    ) -> Intervals:
        """Returns an interval for each task's coefficients, each limit of shape (M, d).

        Args:
            level: Level of each interval, in (0, 1).
            method: ``practical`` ones are short, and cover coefficients that are shared or differ
                by many standard errors, but mostly miss those that differ by about three
                (``engram.tables.intervals``). ``honest`` ones cover all alike, and are at most 15 %
                shorter than a task's own (``engram.tables.borrowing_intervals``). ``paper``: the
                paper's constants, too wide in practice.
        """
        check_is_fitted(self)
        if method == "honest":
            low, high = honest_intervals(self.sites_, level=level, intercept=self.fit_intercept)
        else:
            half = shared_half_width(self.sites_, self.shared_, level=level, method=method)
            each = [self._limits(site, half, level, method) for site in self.sites_]
            low, high = (np.stack(ends) for ends in zip(*each, strict=True))
        d = self.n_features_in_
        return Intervals(low[:, :d], high[:, :d])

    def _limits(
        self, site: SiteEstimate, half: Array, level: float, method: IntervalMethod = "practical"
    ) -> Intervals:
        return site_interval(
            site, self.shared_, half, level=level, method=method, intercept=self.fit_intercept
        )

    def _shared_error(self, level: float) -> tuple[Array, float]:
        """The half widths of Appendix F over the normal quantile, as if columns did not depend."""
        half = shared_half_width(self.sites_, self.shared_, level=level)
        return np.diag((half / quantile((1 + level) / 2, np.inf)) ** 2), np.inf

    @property
    def _differs(self) -> Bools:
        differs = self._full != self.shared_.coef
        differs[:, self.n_features_in_ :] = False  # every task has its own intercept
        return np.asarray(differs)

    def _task_limits(self, i: int, level: float) -> Intervals:
        half = shared_half_width(self.sites_, self.shared_, level=level)
        return self._limits(self.sites_[i], half, level)

    @own_modes()
    def transfer(self, X: Any, y: Any, task: Any, sample_weight: Any = None) -> Self:
        """Returns a copy with one more task, estimated from a few rows (Corollary 2).

        The shared coefficients and those of other tasks stay the same.

        Args:
            X: The task's features, shape (n, d).
            y: Its target, shape (n,).
            task: Its label, a new one.
            sample_weight: As for ``fit``.

        Raises:
            ValueError: If the label was fitted already, or for the reasons given in ``fit``.
        """
        check_is_fitted(self)
        if task in self.tasks_.tolist():
            raise ValueError(f"task {task!r} was fitted already")
        label = np.array([task])
        if label.shape != (1,) or (label.dtype.kind in "UO") != (self.tasks_.dtype.kind in "UO"):
            some = shown(self.tasks_[0])
            raise ValueError(f"task must be one label, such as {some}, got {task!r}")
        x, target = self._checked(X, y, reset=False)
        self._check_rows(x, target, np.full(len(x), task))
        weights = weights_of(sample_weight, x)
        (rows,) = rows_of_tasks(self._design(x), target, weights, np.zeros(len(x), np.intp), label)
        site = self._site(rows, task)
        more = copy(self)
        more.tasks_ = np.append(self.tasks_, label)
        more.sites_ = [*self.sites_, site]
        more.missing_ = np.vstack([self.missing_, np.zeros_like(self.missing_[:1])])
        more._full = np.vstack([self._full, self._personal(rows, site)])
        more.coef_, more.intercept_ = more._apart(more._full)
        return more


@dataclass(kw_only=True, eq=False, repr=False)
class MolarRegressor(Numbers, _Molar):
    """MOLAR (Algorithm 1, and 4 for counts): a linear model for each task, most of it shared.

    ``y = <x, beta_m> + noise`` in task m, where beta_m differs from a shared beta in few
    coordinates. Each task is fitted alone, and the weighted median of the estimates is the shared
    parameter. Where a task's own estimate is within its noise of the shared one, it is replaced by
    the shared one.

    Args:
        family: ``linear``; or ``poisson``, for ``log E[y] = <x, beta_m>``.
        option: ``hard`` thresholding (a coefficient is shared, or the task's own) or ``soft``.
        c: Scale of the threshold, >= 0: 0 gives individual fits, infinity the shared parameter for
            all tasks.
        sigma: Standard deviation of the noise in linear models, > 0, or None to estimate it for
            each task.
        fit_intercept: Whether each task has an intercept of its own, refitted after the other
            coefficients; see ``engram.tables.shrinkage``.
        standardize: Whether columns are centered and scaled by their mean and standard deviation
            over all tasks. Coefficients are then those of standardized columns.
        undetermined: How to treat a task whose rows do not determine all coefficients (too few
            rows, or constant or linearly dependent columns): ``error``, or ``shared``: take these
            coefficients from the other tasks. The task then has no weight in their median.
        unseen: How to treat a new task in ``predict``: ``error``, or ``shared``: predict with the
            shared parameter.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x, site = rng.normal(size=(600, 3)), np.repeat(["a", "b", "c"], 200)
        >>> y = x @ [1.0, 2.0, 3.0] + 5 * (site == "c") * x[:, 0] + rng.normal(size=600)
        >>> model = MolarRegressor().fit(x, y, site)
        >>> model.support_.tolist()
        [[False, False, False], [False, False, False], [True, False, False]]
    """

    family: Literal["linear", "poisson"] = "linear"
    sigma: float | None = None

    def _own_estimate(self, rows: Rows) -> SiteEstimate:
        require(self.sigma is None or 0 < self.sigma < np.inf, "sigma", self.sigma, "positive")
        return estimate_site(rows, family=self._family, sigma=self.sigma, robust=self.robust)


@dataclass(kw_only=True, eq=False, repr=False)
class MolarClassifier(TwoClasses, _Molar):
    """MOLAR for two classes (Algorithm 4): a logistic regression for each task, most of it shared.

    Arguments and attributes are as in ``MolarRegressor``; ``classes_`` holds the two classes,
    sorted, and coefficients are those of the log-odds of the second class.
    """
