"""The base of all multitask estimators: one linear predictor per task, as in scikit-learn."""

from abc import abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, d2_tweedie_score, r2_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import (
    _check_sample_weight,
    check_consistent_length,
    check_is_fitted,
    column_or_1d,
    validate_data,
)

from engram.core.arrays import Array, unmasked
from engram.core.checks import require
from engram.core.process_modes import own_modes
from engram.tables.effects.imputation import impute, pool_estimates
from engram.tables.effects.profile import firth_logistic_intervals
from engram.tables.effects.sandwich import Robust
from engram.tables.effects.summaries import Summaries
from engram.tables.families import FAMILIES, FamilyName
from engram.tables.intervals import Intervals
from engram.tables.site import INTERCEPT, Rows, SiteEstimate, estimate_site
from engram.tables.tables import (
    Scaling,
    check_finite,
    check_target,
    codes_of,
    distinct,
    rows_of_tasks,
    shown,
    take_tasks,
)


@dataclass(kw_only=True, eq=False, repr=False)
class MultitaskModel(Summaries, BaseEstimator):
    """Base of estimators with coefficients for each task and shared coefficients.

    A subclass defines its family, and computes coefficients from the tasks' rows (``_estimate``).
    An intercept is the coefficient of a last column of ones. In linear models it does what
    centering columns and target within tasks would do: least squares has the same slopes (Frisch
    and Waugh 1933).

    Args:
        robust: Form of the standard errors of tasks' own estimates, on which intervals and
            thresholds rest, too: ``none`` for the model's; ``HC0`` to ``HC3``; ``clusters``. See
            ``engram.tables.effects.sandwich``.
        missing: How to treat missing features in ``fit``: ``error``; ``complete``, to leave rows
            out; or ``impute``, multiple imputation in each task.
        imputations: How many completed tables there are with ``impute``.
        random_state: Seed of these.

    Attributes:
        tasks_: Labels of the tasks, shape (M,), sorted.
        sites_: Each task's own estimate (OLS or maximum likelihood).
        coef_: Shape (M, d), in the order of ``tasks_``.
        intercept_: Shape (M,).
        shared_coef_: Shape (d,).
        shared_intercept_: A number.
        missing_: Number of missing values of each task and column, shape (M, d); 0 where they are
            refused.
        scaling_: Center and scale of columns, or None if they are not standardized.
        n_features_in_, feature_names_in_: As scikit-learn has them.
    """

    fit_intercept: bool = True
    standardize: bool = False
    unseen: Literal["error", "shared"] = "error"
    robust: Robust = "none"
    missing: Literal["error", "complete", "impute"] = "error"
    imputations: int = 20
    random_state: int = 0

    def _own_estimate(self, rows: Rows) -> SiteEstimate:
        return estimate_site(rows, family=self._family, robust=self.robust)

    @abstractmethod
    def _estimate(self, rows: list[Rows]) -> tuple[Array, Array]:
        """Returns coefficients (M, d') of the tasks and shared ones (d',), d' with intercept."""

    @own_modes()
    def fit(
        self, X: Any, y: Any, task: Any = None, sample_weight: Any = None, cluster: Any = None
    ) -> Self:
        """Fits all tasks.

        Args:
            X: Features, shape (n, d), finite; an array, or a frame with column names.
            y: Target, shape (n,).
            task: Each row's task, shape (n,); or the name of a column of X, which then is not a
                feature.
            sample_weight: Shape (n,), at least 0: a row of weight c counts as c rows.
            cluster: For ``robust="clusters"``, each row's cluster within its task, such as its
                patient, as ``task`` is given.

        Raises:
            ValueError: If an input is invalid; the message names the task and the column.
        """
        require(self.unseen in ("error", "shared"), "unseen", self.unseen, "error or shared")
        ways = ("error", "complete", "impute")
        require(self.missing in ways, "missing", self.missing, "error, complete or impute")
        X, labels = take_tasks(X, task, fitting=True)
        if cluster is not None:
            X, clusters = take_tasks(X, cluster, what="cluster")
            numbers = distinct(clusters)[1]
        x, target = self._checked(X, y, reset=True)
        weights = weights_of(sample_weight, x)
        gone = np.isnan(x) & (self.missing != "error")
        self._check_rows(np.where(gone, 0.0, x), target, labels)
        self.tasks_, codes = distinct(labels)
        self.scaling_ = None
        if self.standardize:
            self.scaling_ = Scaling.of(np.where(gone, np.nan, x), weights)
        rows = rows_of_tasks(self._design(x), target, weights, codes, self.tasks_)
        for m in range(len(rows) if cluster is not None else 0):
            rows[m] = rows[m]._replace(clusters=numbers[codes == m])
        self.missing_ = np.stack([gone[codes == m].sum(axis=0) for m in range(len(rows))])
        parts = self._completed(rows) if gone.any() else [rows]
        own, shared = self._estimate(parts[0]) if len(parts) == 1 else self._pooled(parts)
        self.coef_, self.intercept_ = self._apart(own)
        self.shared_coef_, (self.shared_intercept_,) = self._apart(shared)
        return self

    def _completed(self, rows: list[Rows]) -> list[list[Rows]]:
        """Returns the tasks' complete rows, or their completed tables."""
        each, draws, seed = list[list[Rows]](), self.imputations, self.random_state
        for task, own in zip(self.tasks_, rows, strict=True):
            try:
                complete = self.missing == "complete"
                each.append([own.complete()] if complete else impute(own, draws=draws, seed=seed))
            except ValueError as error:
                raise ValueError(f"task {shown(task)}: {error}") from error
        return [list(table) for table in zip(*each, strict=True)]

    def _pooled(self, parts: Sequence[list[Rows]]) -> tuple[Array, Array]:
        """Fits every completed table, and pools the fits."""
        fits = [copy(self) for _ in parts]
        pairs = zip(fits, parts, strict=True)
        found = [fit._estimate(rows) for fit, rows in pairs]
        self._pool(fits)
        own, shared = (np.mean(each, axis=0) for each in zip(*found, strict=True))
        return own, shared

    def _pool(self, fits: Sequence[Self]) -> None:
        """Takes over the tasks' own estimates of several fits, by Rubin's rules."""
        each = zip(*(fit.sites_ for fit in fits), strict=True)
        self.sites_ = [pool_estimates(draws) for draws in each]

    def _apart(self, full: Array) -> tuple[Array, Array]:
        d = self.n_features_in_
        one = np.atleast_2d(full)
        return full[..., :d], one[:, d] if self.fit_intercept else np.zeros(len(one))

    def _checked(self, x: Any, y: Any, *, reset: bool) -> tuple[Array, Array]:
        if y is None:
            raise ValueError("y should be a 1d array, got None")
        _check_numbers(x)
        check = partial(validate_data, dtype=np.float64, ensure_all_finite=False)
        x = check(self, unmasked(x), reset=reset, ensure_min_samples=1 + reset)
        target = self._target(column_or_1d(unmasked(y), warn=True))
        check_consistent_length(x, target)
        return x, target

    def _target(self, y: npt.NDArray[Any]) -> Array:
        try:
            return np.asarray(y, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"y must be numbers, got {shown(y[0])}") from error

    def _check_rows(self, x: Array, y: Array, labels: npt.NDArray[Any]) -> None:
        check_finite(x, labels, self.column_names)
        check_target(y, labels, self._family)

    def _check_several(self) -> None:
        if len(self.tasks_) < 2:
            raise ValueError(
                f"task must have at least 2 different labels, got only {shown(self.tasks_[0])}: "
                "there is nothing to share"
            )

    @property
    def column_names(self) -> list[str]:
        """Names of the coefficients: of the columns, and of the intercept if there is one."""
        names = feature_names(self)
        return [*names, INTERCEPT] if self.fit_intercept else names

    def _design(self, x: Array) -> Array:
        x = x if self.scaling_ is None else self.scaling_.apply(x)
        return np.hstack([x, np.ones((len(x), 1))]) if self.fit_intercept else x

    @own_modes()
    def linear_predictor(self, X: Any, task: Any = None) -> Array:
        """Returns ``<x, beta>`` of each row with its task's coefficients, shape (n,).

        Args:
            X: As for ``fit``.
            task: As for ``fit``. If ``unseen`` is "shared", rows of tasks that were not fitted, and
                all rows if ``task`` is None, are predicted by the shared coefficients.

        Raises:
            ValueError: If a task was not fitted and ``unseen`` is "error".
        """
        check_is_fitted(self)
        alone = task is None and self.unseen == "shared"
        X, labels = (X, None) if alone else take_tasks(X, task)
        x = finite_features(self, X, labels)
        x = x if self.scaling_ is None else self.scaling_.apply(x)
        eta: Array = x @ self.shared_coef_ + self.shared_intercept_
        if labels is None:
            return eta
        codes = codes_of(labels, self.tasks_, unseen=self.unseen)
        order = np.argsort(codes, kind="stable")
        ends = np.cumsum(np.bincount(codes + 1, minlength=len(self.tasks_) + 1))
        for code, own in enumerate(np.split(order, ends[:-1])[1:]):  # the first are of no task
            eta[own] = x[own] @ self.coef_[code] + self.intercept_[code]
        return eta

    def predict(self, X: Any, task: Any = None) -> Array:
        """Returns the mean of the target for each row, shape (n,). See ``linear_predictor``."""
        return FAMILIES[self._family].mean(self.linear_predictor(X, task))


def feature_names(model: Any) -> list[str]:
    """Names of a fitted estimator's features: those of a frame, or numbered ones."""
    given: Sequence[str] | None = getattr(model, "feature_names_in_", None)
    return [f"x{k}" for k in range(model.n_features_in_)] if given is None else list(given)


def finite_features(
    model: Any, X: Any, labels: npt.NDArray[Any] | None, *, reset: bool = False
) -> Array:
    """Checks that features are finite, and those of an estimator, but if it takes them over.

    Messages name the rows' tasks by ``labels``, shape (n,).
    """
    x = validate_data(model, unmasked(X), reset=reset, dtype=np.float64, ensure_all_finite=False)
    labels = np.full(len(x), "not given") if labels is None else labels
    check_finite(x, labels, feature_names(model))
    return np.asarray(x)


def weights_of(sample_weight: Any, x: Array) -> Array | None:
    """Returns the weights of rows, shape (n,), or None if all count alike."""
    if sample_weight is None:
        return None
    return np.asarray(_check_sample_weight(sample_weight, x, dtype=np.float64))


def _check_numbers(x: Any) -> None:
    for name, kind in getattr(x, "dtypes", {}).items() if hasattr(x, "columns") else ():
        if getattr(kind, "kind", "O") not in "buif":
            raise ValueError(f"column {name} must hold numbers, got {kind}")


class Numbers(RegressorMixin, MultitaskModel):
    """A base that stands before the one with ``_estimate``: linear models, or those of counts."""

    family: Literal["linear", "poisson"]

    @property
    def _family(self) -> FamilyName:
        require(self.family in ("linear", "poisson"), "family", self.family, "linear or poisson")
        return self.family

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """Returns R^2 of the predictions; for counts D^2, the share of deviance explained."""
        found = self.predict(X, task)
        if self._family == "poisson":
            return float(d2_tweedie_score(y, found, sample_weight=sample_weight, power=1))
        return float(r2_score(y, found, sample_weight=sample_weight))


@dataclass(kw_only=True, eq=False, repr=False)
class TwoClasses(ClassifierMixin, MultitaskModel):
    """A base that stands before the one with ``_estimate``: labels, probabilities and scores.

    Args:
        firth: Whether each task's own estimate has Firth's penalty: it is finite where some column
            tells the task's classes apart.

    Attributes:
        classes_: The two classes, sorted; coefficients are those of the log-odds of the second.
    """

    firth: bool = False

    @property
    def _family(self) -> FamilyName:
        return "logistic"

    def _own_estimate(self, rows: Rows) -> SiteEstimate:
        return estimate_site(rows, family="logistic", robust=self.robust, firth=self.firth)

    @own_modes()
    def profile_intervals(
        self, X: Any, y: Any, task: Any, sample_weight: Any = None, *, level: float = 0.95
    ) -> Intervals:
        """Returns profile intervals of tasks' own estimates with Firth's penalty.

        They hold where Wald's are rough, such as where a column tells classes apart. The rows,
        which are those of ``fit``, are given as there: a fitted model has none.

        Returns:
            Limits, each of shape (M, d'), in the order of ``tasks_`` and ``column_names``.

        Raises:
            ValueError: An input is invalid, or ``firth`` is False.
        """
        check_is_fitted(self)
        require(self.firth, "firth", self.firth, "True for profile intervals")
        X, labels = take_tasks(X, task)
        x, target = self._checked(X, y, reset=False)
        self._check_rows(x, target, labels)
        codes = codes_of(labels, self.tasks_, unseen="error")
        given = self._design(x), target, weights_of(sample_weight, x), codes, self.tasks_
        each = [firth_logistic_intervals(own, level=level).limits for own in rows_of_tasks(*given)]
        return Intervals(*(np.stack(ends) for ends in zip(*each, strict=True)))

    def _checked(self, x: Any, y: Any, *, reset: bool) -> tuple[Array, Array]:
        if reset and y is not None:
            check_classification_targets(y)
            self.classes_ = np.unique(column_or_1d(y))
            if len(self.classes_) != 2:
                count = "1 class" if len(self.classes_) == 1 else f"{len(self.classes_)} classes"
                text = "Only binary classification is supported: y must have 2 classes"
                raise ValueError(f"{text}, got {count}")
        return super()._checked(x, y, reset=reset)

    def _target(self, y: npt.NDArray[Any]) -> Array:
        strange = ~np.isin(y, self.classes_)
        if strange.any():
            found = shown(y[strange][0])
            raise ValueError(f"y must be one of {self.classes_.tolist()}, got {found}")
        return np.asarray(y == self.classes_[1], dtype=np.float64)

    def decision_function(self, X: Any, task: Any = None) -> Array:
        """Returns the log-odds of the second class, shape (n,). See ``linear_predictor``."""
        return self.linear_predictor(X, task)

    def predict_proba(self, X: Any, task: Any = None) -> Array:
        """Returns the probabilities of both classes, shape (n, 2). See ``linear_predictor``."""
        second: Array = super().predict(X, task)
        return np.stack([1 - second, second], axis=1)

    def predict(self, X: Any, task: Any = None) -> npt.NDArray[Any]:
        """Returns the likelier class of each row, shape (n,)."""
        second = self.linear_predictor(X, task) > 0
        return np.asarray(self.classes_[second.astype(int)])

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """Returns the accuracy: the share of rows classified correctly."""
        return float(accuracy_score(y, self.predict(X, task), sample_weight=sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags
