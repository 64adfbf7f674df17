"""Adaptive MOLAR as scikit-learn estimators, for tables with a column of task labels."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from engram.arrays import Array, Bools
from engram.molar.adaptive import adapt
from engram.molar.heterogeneity import REACH
from engram.molar.honest import honest_intervals
from engram.molar.intervals import Intervals
from engram.molar.model import MultitaskModel
from engram.molar.numbers import Numbers
from engram.molar.site import Rows, SiteEstimate, estimate_site
from engram.molar.tables import Scaling
from engram.molar.two_classes import TwoClasses


@dataclass(kw_only=True, eq=False, repr=False)
class Adaptive(MultitaskModel):
    """The common part of both estimators.

    Attributes:
        support_: Whether a task's coefficient is apart from the shared one, shape (M, d).
        spread_: Standard deviation of the other tasks' coefficients, shape (d,); 0: they are alike.
        p_value_: Of the test that they are alike, shape (d,).
        shared_error_: Standard error of each shared coefficient and of the intercept, shape (d',).
        sites_: Each task's own estimate (OLS or maximum likelihood).
    """

    c: float = REACH
    alike: float = 1.0

    def _estimate(self, rows: list[Rows]) -> tuple[Array, Array]:
        self._check_several()
        d = self.n_features_in_
        scaling = _common_scale(rows, d, center=self.fit_intercept)
        plain = [_scaled(own, scaling) for own in rows]
        chosen = {"c": self.c, "alike": self.alike}
        found = adapt(plain, family=self._family, **chosen, intercept=self.fit_intercept)
        self.support_: Bools = found.heterogeneity.apart[:, :d]
        self.spread_ = np.sqrt(found.heterogeneity.variance[:d]) / scaling.scale
        self.p_value_ = found.heterogeneity.p_value[:d]
        self.sites_: list[SiteEstimate] = [estimate_site(own, family=self._family) for own in rows]
        full = _unscaled(np.vstack([found.coefs, found.center]), scaling)
        back = _unscaled(np.eye(full.shape[1]), scaling).T
        self.shared_error_ = np.sqrt(np.diag(back @ found.covariance @ back.T))
        return full[:-1], full[-1]

    def confidence_intervals(self, level: float = 0.95) -> Intervals:
        """Returns an interval for each task's coefficients, each limit of shape (M, d).

        They hold at every distance from the shared value: see ``engram.molar.honest``. Those of
        coefficients that a task's rows do not determine by themselves are infinite.

        Args:
            level: Level of each interval, in (0, 1).
        """
        d = self.n_features_in_
        low, high = honest_intervals(self.sites_, level=level, intercept=self.fit_intercept)
        return Intervals(low[:, :d], high[:, :d])


@dataclass(kw_only=True, eq=False, repr=False)
class AdaptiveRegressor(Numbers, Adaptive):
    """MOLAR that shrinks as much as the tasks agree: see ``engram.molar.adaptive``.

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


class AdaptiveClassifier(TwoClasses, Adaptive):
    """``AdaptiveRegressor`` for two classes: a logistic regression for each task.

    Classes that some column tells apart, and tasks with one class only, are no obstacle.
    """


def _common_scale(rows: list[Rows], d: int, *, center: bool) -> Scaling:
    parts = [own.counted() for own in rows]
    x, counts = (np.concatenate([part[i] for part in parts]) for i in (0, 2))
    found = Scaling.of(x[:, :d], counts)
    return found if center else Scaling(np.zeros(d), found.scale)


def _scaled(rows: Rows, scaling: Scaling) -> Rows:
    d = len(scaling.scale)
    return rows._replace(x=np.hstack([scaling.apply(rows.x[:, :d]), rows.x[:, d:]]))


def _unscaled(coefs: Array, scaling: Scaling) -> Array:
    """Returns coefficients, shape (k, d'), of columns in their own units."""
    d = len(scaling.scale)
    slopes = coefs[:, :d] / scaling.scale
    rest = coefs[:, d:] - (slopes @ scaling.center)[:, None]
    return np.hstack([slopes, rest[:, : coefs.shape[1] - d]])
