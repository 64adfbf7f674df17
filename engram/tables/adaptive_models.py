"""Adaptive MOLAR as scikit-learn estimators, for tables with a column of task labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self

import numpy as np

from engram.core.arrays import Array, Bools
from engram.tables.adaptive import adapt
from engram.tables.borrowing_intervals import honest_intervals
from engram.tables.effects.imputation import rubin
from engram.tables.heterogeneity import REACH
from engram.tables.intervals import Intervals
from engram.tables.model import MultitaskModel, Numbers, TwoClasses
from engram.tables.site import Rows, stacked
from engram.tables.tables import Scaling, dependent_columns

_HALF: Final = 0.5  # of the completed tables


@dataclass(kw_only=True, eq=False, repr=False)
class Adaptive(MultitaskModel):
    """The common part of both estimators.

    Attributes:
        support_: Whether a task's coefficient is apart from the shared one, shape (M, d).
        spread_: Standard deviation of the other tasks' coefficients, shape (d,); 0: they are alike.
        p_value_: Of the test that they are alike, shape (d,).
        shared_covariance_: Covariance of the shared coefficients and the intercept, shape (d', d');
            variances are infinite where the rows of all tasks together do not determine them.
        shared_freedom_: Degrees of freedom of their errors, shape (d',); infinite without scatter.
    """

    c: float = REACH
    alike: float = 1.0

    def _estimate(self, rows: list[Rows]) -> tuple[Array, Array]:
        self._check_several()
        d = self.n_features_in_
        x, _, counts = stacked(rows).counted()
        scaling = Scaling.of(x, counts)
        scaling.center[d * self.fit_intercept :] = 0.0
        plain = [scaling.of_rows(own) for own in rows]
        found = adapt(
            plain, family=self._family, c=self.c, alike=self.alike, intercept=self.fit_intercept
        )
        self.support_: Bools = found.heterogeneity.apart[:, :d]
        self.spread_ = np.sqrt(found.heterogeneity.variance[:d]) / scaling.scale[:d]
        self.p_value_ = found.heterogeneity.p_value[:d]
        self.sites_ = [self._own_estimate(own) for own in rows]
        full = scaling.unscaled(np.vstack([found.coefs, found.center]))
        back = scaling.unscaled(np.eye(full.shape[1])).T
        _, self.shared_freedom_ = found.errors(back)
        self.shared_covariance_ = found.covariance_of(back)
        for one in dependent_columns(plain, intercept=self.fit_intercept):
            unknown = [one.column, *one.others]
            self.shared_covariance_[unknown, unknown] = np.inf
        self._shared = full[-1]
        return full[:-1], full[-1]

    def _pool(self, fits: Sequence[Self]) -> None:
        super()._pool(fits)
        self.support_ = np.mean([fit.support_ for fit in fits], axis=0) > _HALF
        self.spread_ = np.mean([fit.spread_ for fit in fits], axis=0)
        self.p_value_ = np.median([fit.p_value_ for fit in fits], axis=0)
        coefs = np.stack([fit._shared for fit in fits])
        covariances = np.stack([fit.shared_covariance_ for fit in fits])
        freedom = np.min([fit.shared_freedom_ for fit in fits], axis=0)
        _, self.shared_covariance_, self.shared_freedom_ = rubin(coefs, covariances, freedom)

    @property
    def shared_error_(self) -> Array:
        """Standard error of each shared coefficient and of the intercept, shape (d',)."""
        return np.sqrt(np.diag(self.shared_covariance_))

    def _shared_error(self, level: float) -> tuple[Array, Array]:
        del level
        return self.shared_covariance_, self.shared_freedom_

    @property
    def _differs(self) -> Bools:
        own = np.zeros((len(self.tasks_), len(self.column_names)), dtype=bool)
        own[:, : self.n_features_in_] = self.support_
        return own

    def _task_limits(self, i: int, level: float) -> Intervals:
        low, high = honest_intervals(self.sites_, level=level, intercept=self.fit_intercept)
        return Intervals(low[i], high[i])

    def confidence_intervals(self, level: float = 0.95) -> Intervals:
        """Returns an interval for each task's coefficients, each limit of shape (M, d).

        They hold at every distance from the shared value: see
        ``engram.tables.borrowing_intervals``. Those of coefficients that a task's rows do not
        determine by themselves are infinite.

        Args:
            level: Level of each interval, in (0, 1).
        """
        d = self.n_features_in_
        low, high = honest_intervals(self.sites_, level=level, intercept=self.fit_intercept)
        return Intervals(low[:, :d], high[:, :d])


@dataclass(kw_only=True, eq=False, repr=False)
class AdaptiveRegressor(Numbers, Adaptive):
    """MOLAR that shrinks as much as the tasks agree: see ``engram.tables.adaptive``.

    Any task may have fewer rows than coefficients.

    Args:
        family: ``linear``; or ``poisson``, for ``log E[y] = <x, beta_m>``.
        c: How many standard deviations from the shared value make a coefficient a task's own, > 0.
            Infinity gives a mixed model.
        alike: Columns of which the test of heterogeneity has a p-value above it are the same for
            all tasks that are not apart, in [0, 1]: with 0, all columns (fixed effects).
        fit_intercept: Whether each task has an intercept of its own, which scatters as well.
        standardize: Whether coefficients are those of columns that are centered and scaled over all
            tasks. It does not change predictions.
        unseen: How to treat a new task in ``predict``: ``error``, or ``shared``: predict with the
            shared parameter.
    """

    family: Literal["linear", "poisson"] = "linear"


@dataclass(kw_only=True, eq=False, repr=False)
class AdaptiveClassifier(TwoClasses, Adaptive):
    """``AdaptiveRegressor`` for two classes: a logistic regression for each task.

    Classes that some column tells apart, and tasks with one class only, are no obstacle.
    """
