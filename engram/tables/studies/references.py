"""References that every method for tables has to beat: simple, well known, and well fitted."""

import warnings
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from sklearn.linear_model import (
    LassoCV,
    LogisticRegression,
    LogisticRegressionCV,
    PoissonRegressor,
    RidgeCV,
)
from sklearn.model_selection import GridSearchCV

from engram.core.arrays import Array
from engram.core.process_modes import filtering
from engram.tables.baselines import trimmed_center
from engram.tables.families import FAMILIES, FamilyName
from engram.tables.lasso import lasso_debiasing, lasso_strength
from engram.tables.mixed import fit_mixed
from engram.tables.model import MultitaskModel
from engram.tables.random_effects import link
from engram.tables.site import Rows, estimate_site, stacked

_WEAK: Final = 10.0  # prior variance of coefficients that pooling would else let go to infinity
_FOLDS: Final = 5
_STRENGTHS: Final = np.logspace(-4, 4, 13)
_TRIMMED: Final = 0.1
_NEWTON: Final = 50  # steps of RM's descent, at most


@dataclass(kw_only=True, eq=False, repr=False)
class Reference(MultitaskModel):
    """Base of references: a family, and an intercept for each task; see ``MultitaskModel``."""

    family: FamilyName = "linear"
    standardize: bool = True

    @property
    def _family(self) -> FamilyName:
        return self.family


class Constant(Reference):
    """Each task's mean, or base rate, with half a case of either kind added for classes."""

    def _estimate(self, rows: list[Rows]) -> tuple[Array, Array]:
        coefs = np.zeros((len(rows), self.n_features_in_ + 1))
        coefs[:, -1] = [link(self.family, own) for own in rows]
        return coefs, np.median(coefs, axis=0)


class Pooled(Reference):
    """One model for all tasks, with one intercept."""

    def _estimate(self, rows: list[Rows]) -> tuple[Array, Array]:
        shared = _weakly(*stacked(rows)[:2], self.family)
        return np.tile(shared, (len(rows), 1)), shared


class FixedEffects(Reference):
    """One model for all tasks, with an intercept for each."""

    def _estimate(self, rows: list[Rows]) -> tuple[Array, Array]:
        (x, y, *_), d = stacked(rows), self.n_features_in_
        codes = np.repeat(np.arange(len(rows)), [len(own.y) for own in rows])
        found = _weakly(np.hstack([x[:, :d], np.eye(len(rows))[codes]]), y, self.family)
        shared = np.append(found[:d], np.median(found[d:]))
        return np.column_stack([np.tile(found[:d], (len(rows), 1)), found[d:]]), shared


@dataclass(kw_only=True, eq=False, repr=False)
class Penalized(Reference):
    """Ridge regression or the LASSO of each task alone, its strength by cross-validation in it."""

    penalty: Literal["ridge", "lasso"] = "ridge"

    def _estimate(self, rows: list[Rows]) -> tuple[Array, Array]:
        fits = {"linear": _linear, "logistic": _logistic, "poisson": _poisson}
        coefs = np.stack([fits[self.family](own, self.penalty) for own in rows])
        return coefs, np.median(coefs, axis=0)


@dataclass(kw_only=True, eq=False, repr=False)
class Mixed(Reference):
    """A mixed model: independent random intercepts and slopes, by restricted likelihood.

    Columns that are constant within every task have one coefficient for all, and without
    ``slopes`` all columns have.
    """

    slopes: bool = True

    def _estimate(self, rows: list[Rows]) -> tuple[Array, Array]:
        scatters = np.any([np.ptp(own.x, axis=0) > 0 for own in rows], axis=0) & self.slopes
        scatters[-1] = True  # intercepts
        found = fit_mixed(rows, scatters, family=self.family)
        return found.shared + found.deviations, found.shared


@dataclass(kw_only=True, eq=False, repr=False)
class Robust(Reference):
    """RM for every family: each task's LASSO around the trimmed mean of their own estimates.

    For generalized linear models it is found by Newton's method: a LASSO per step, on working
    responses.
    """

    c: float = 0.35

    def _estimate(self, rows: list[Rows]) -> tuple[Array, Array]:
        sites = [estimate_site(own, family=self.family) for own in rows]
        center = trimmed_center(sites, _TRIMMED, self.column_names)
        sigmas = [site.sigma for site in sites if np.isfinite(site.sigma)]
        usual = float(np.median(sigmas))
        coefs = []
        for part, site in zip(rows, sites, strict=True):
            noise = site.sigma if np.isfinite(site.sigma) else usual
            strength = lasso_strength(site.size, len(center), self.c * noise)
            coefs.append(_around(part, center, strength, self.family))
        return np.stack(coefs), center


def _weakly(x: Array, y: Array, family: FamilyName) -> Array:
    """Fits one model; weakly penalized if classes or counts may let coefficients run away."""
    if family == "linear":
        return np.asarray(np.linalg.lstsq(x, y)[0])
    if family == "logistic":
        model = LogisticRegression(C=_WEAK, fit_intercept=False, max_iter=1000)
        return np.asarray(model.fit(x, y).coef_[0])
    model = PoissonRegressor(alpha=1 / (_WEAK * len(y)), fit_intercept=False, max_iter=1000)
    return np.asarray(model.fit(x, y).coef_)


def _linear(rows: Rows, penalty: str) -> Array:
    x, y = rows.x[:, :-1], rows.y
    if penalty == "ridge":
        model: Any = RidgeCV(_STRENGTHS)  # by leaving one out
    elif len(y) < _FOLDS or np.ptp(y) == 0:
        return np.append(np.zeros(x.shape[1]), y.mean())
    else:
        model = LassoCV(alphas=30, cv=_FOLDS, max_iter=5000, random_state=0)
    return _fitted(model, x, y)


def _logistic(rows: Rows, penalty: str) -> Array:
    x, y = rows.x[:, :-1], rows.y
    folds = min(_FOLDS, int(min(y.sum(), (1 - y).sum())))
    if folds < 2:  # too few cases to leave some out: its base rate
        return np.append(np.zeros(x.shape[1]), link("logistic", rows))
    model = LogisticRegressionCV(
        Cs=np.logspace(-4, 2, 7),
        cv=folds,
        scoring="neg_log_loss",
        solver="lbfgs" if penalty == "ridge" else "liblinear",
        l1_ratios=(0.0,) if penalty == "ridge" else (1.0,),
        use_legacy_attributes=False,
        max_iter=300,
    )
    return _fitted(model, x, y)


def _poisson(rows: Rows, penalty: str) -> Array:
    if penalty == "lasso":
        raise ValueError("scikit-learn has no LASSO for counts")
    x, y = rows.x[:, :-1], rows.y
    if len(y) < _FOLDS or not y.any():
        return np.append(np.zeros(x.shape[1]), link("poisson", rows))
    search = GridSearchCV(PoissonRegressor(max_iter=300), {"alpha": _STRENGTHS}, cv=_FOLDS)
    with filtering():
        warnings.simplefilter("ignore")
        best = search.fit(x, y).best_estimator_
    return np.append(best.coef_, best.intercept_)


def _fitted(model: Any, x: Array, y: Array) -> Array:
    with filtering():
        warnings.simplefilter("ignore")  # of fits that are not chosen
        model.fit(x, y)
    return np.append(np.ravel(model.coef_), model.intercept_)


def _around(rows: Rows, center: Array, strength: float, family: FamilyName) -> Array:
    """Minimizes the mean loss / 2 + strength ||b - center||_1, the intercept not penalized."""
    free = np.arange(len(center)) == len(center) - 1
    if family == "linear":
        return lasso_debiasing(rows, center, strength, free=free)
    model, x, y = FAMILIES[family], rows.x, rows.y

    def objective(b: Array) -> float:
        penalty = strength * np.abs((b - center)[~free]).sum()
        return float(model.loss(x @ b, y).mean() / 2 + penalty)

    coef = np.append(center[:-1], link(family, rows) - float(x[:, :-1].mean(0) @ center[:-1]))
    for _ in range(_NEWTON):
        eta = x @ coef
        weights = np.maximum(model.curvature(eta), 1e-6)
        work = Rows(x, eta + (y - model.mean(eta)) / weights, weights)
        # The inner LASSO divides by the sum of weights, not by the number of rows.
        step = lasso_debiasing(work, center, strength / float(weights.mean()), free=free) - coef
        value = objective(coef)
        while objective(coef + step) > value and np.abs(step).max() > 1e-8:
            step = step / 2
        coef = coef + step
        if np.abs(step).max() < 1e-6:
            break
    return coef
