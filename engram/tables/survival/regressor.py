"""Cox's model with scikit-survival's interface, stratified by a column of sites."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from engram.core.arrays import Array, Bools, Ints
from engram.core.checks import require
from engram.core.process_modes import own_modes
from engram.scoring.survival_scores import concordant_pairs
from engram.tables.effects.summary import RATIOS, Summary, summarize
from engram.tables.model import feature_names, finite_features, weights_of
from engram.tables.site import Rows
from engram.tables.survival.baseline import Baseline, StepFunction, baseline_hazard
from engram.tables.survival.comparison import SiteComparison, compare_sites
from engram.tables.survival.newton import fit
from engram.tables.survival.partial import Ties
from engram.tables.survival.sharing import share
from engram.tables.survival.site_effects import site_sums
from engram.tables.tables import Labels, check_weights, codes_of, distinct, shown, take_tasks

_FIELDS = "fields event (truth values), time and, where subjects enter late, entry"

_SHARING = (
    "none or adaptive for hazards (hard and soft thresholds need normal estimates, most of which "
    "agree: three sites with few events are too few)"
)


@dataclass(kw_only=True, eq=False, repr=False)
class CoxRegressor(BaseEstimator):
    """Cox's model of proportional hazards, stratified by task.

    In task m the hazard is ``h(t | x) = h_m(t) exp(<x, beta>)``.
    All tasks share the coefficients, and each has a baseline hazard of its own: the model is
    stratified by task. Without tasks there is one stratum.

    Args:
        ties: How tied events count: ``efron`` or ``breslow``.
        firth: Whether to add Firth's penalty: with it the likelihood has a finite maximum always,
            also where a group has no event.
        sharing: ``none``: all tasks are predicted by the shared coefficients; or ``adaptive``: by
            their own, see ``engram.tables.survival.sharing``.

    Attributes:
        coef_: Log hazard ratios, shape (d,).
        task_coef_: Those that predict each task, shape (M, d).
        covariance_: The inverse of the information, shape (d, d).
        standard_error_: The root of its diagonal, shape (d,).
        loglik_: Log partial likelihood, with the penalty if there is one; ``null_loglik_`` is that
            of coefficients 0.
        events_: Number of events.
        tasks_: Labels of the tasks, shape (M,), sorted; None without tasks.
        baselines_: Each task's ``engram.tables.survival.baseline.Baseline``.
        unique_times_: The times of events in any task, ascending.
        n_features_in_, feature_names_in_: As scikit-learn has them.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> x, site = rng.normal(size=(600, 2)), np.repeat(["a", "b", "c"], 200)
        >>> time = rng.exponential(np.exp(-x @ [0.5, -1.0]))
        >>> y = survival_target(event=time < 2, time=np.minimum(time, 2))
        >>> CoxRegressor().fit(x, y, site).coef_.round(1).tolist()
        [0.5, -1.0]
    """

    ties: Ties = "efron"
    firth: bool = False
    sharing: Literal["none", "adaptive"] = "none"

    @own_modes()
    def fit(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> Self:
        """Fits the coefficients, and each task's baseline hazard.

        Args:
            X: Features, shape (n, d), finite; an array, or a frame with column names.
            y: Structured array, shape (n,), as ``survival_target`` makes it or scikit-survival.
            task: Each row's task, shape (n,); or the name of a column of X, which then is not a
                feature. None: all rows are one stratum.
            sample_weight: Shape (n,), at least 0: a row of weight c counts as c rows.

        Raises:
            ValueError: An input is invalid, or the likelihood has no maximum: the message names
                the column.
        """
        require(self.sharing in ("none", "adaptive"), "sharing", self.sharing, _SHARING)
        tasks, strata = self._split(X, y, task, sample_weight, reset=True)
        found = fit(strata, self.ties, penalized=self.firth, names=self.column_names)
        self.tasks_, self.coef_, self.covariance_ = tasks, found.coef, found.covariance
        self.standard_error_ = found.standard_error
        self.loglik_, self.null_loglik_ = found.sums.loglik, found.first.loglik
        self.events_ = found.sums.events
        self.task_coef_ = np.tile(self.coef_, (len(strata), 1))
        if self.sharing == "adaptive":
            require(len(strata) > 1, "number of tasks", len(strata), "at least 2 to share")
            self.task_coef_ = share(site_sums(strata, self.ties), len(self.coef_)).coef
        self.baselines_ = list(map(baseline_hazard, strata, self.task_coef_))
        self.unique_times_ = np.unique(np.concatenate([one.time for one in self.baselines_]))
        return self

    def _split(
        self, X: Any, y: Any, task: Any, sample_weight: Any, *, reset: bool
    ) -> tuple[Labels | None, list[Rows]]:
        """Returns the tasks' labels, and their subjects."""
        X, labels = (X, None) if task is None else take_tasks(X, task, fitting=True)
        x = finite_features(self, X, labels, reset=reset)
        check_consistent_length(x, y)
        weights = weights_of(sample_weight, x)
        check_weights(weights)
        tasks, codes = (None, np.zeros(len(x), np.intp)) if labels is None else distinct(labels)
        return tasks, split_strata(x, y, weights, codes)

    @own_modes()
    def compare_sites(
        self, X: Any, y: Any, task: Any, sample_weight: Any = None, *, level: float = 0.95
    ) -> SiteComparison:
        """Returns a printable table of each task's hazard ratios, and of which tasks differ.

        The rows, which may be those of ``fit``, are given as there, of at least two tasks;
        ``level`` is that of the intervals, in (0, 1).

        Raises:
            ValueError: An input is invalid, there is one task, or the likelihood has no maximum.
        """
        check_is_fitted(self)
        tasks, strata = self._split(X, y, task, sample_weight, reset=False)
        labels = [] if tasks is None else tasks.tolist()
        return compare_sites(strata, self.column_names, labels, ties=self.ties, level=level)

    @property
    def column_names(self) -> list[str]:
        """Names of the coefficients."""
        return feature_names(self)

    def summary(
        self, *, level: float = 0.95, ratios: bool = False, simultaneous: bool = False
    ) -> Summary:
        """Returns a printable table of the shared coefficients; ``compare_sites`` has the tasks'.

        The arguments are as of other estimators for tables; ratios are hazard ratios.
        """
        check_is_fitted(self)
        title = f"{type(self).__name__}: {self.events_:g} events in {len(self.baselines_)} strata"
        given = self.column_names, self.coef_, self.covariance_, np.inf, level, simultaneous
        return summarize(title, *given, RATIOS["hazards"] if ratios else "")

    @own_modes()
    def predict(self, X: Any, task: Any = None) -> Array:
        """Returns the risk score ``<x, beta>`` of each row, shape (n,): higher is worse.

        Args:
            X: As for ``fit``.
            task: The name of the frame's column of tasks, if it has one; labels are not needed, but
                with ``sharing="adaptive"``.

        Raises:
            ValueError: With ``sharing="adaptive"``, a task was not fitted.
        """
        check_is_fitted(self)
        table, labels = (X, None) if task is None else take_tasks(X, task)
        x = finite_features(self, table, labels)
        if self.sharing == "none":
            return np.asarray(x @ self.coef_)
        return np.asarray((x * self.task_coef_[self._strata(X, task, len(x))]).sum(axis=1))

    def predict_survival_function(
        self, X: Any, task: Any = None, *, return_array: bool = False
    ) -> list[StepFunction] | Array:
        """Returns each row's survival curve, by its task's baseline hazard.

        Args:
            X: As for ``fit``.
            task: As for ``fit``; not needed where there is one stratum.
            return_array: Whether to return the curves at ``unique_times_``, shape (n, T), with NaN
                beyond the last time at which anybody of a task was observed.

        Raises:
            ValueError: A task was not fitted: it has no baseline hazard.
        """
        return self._curves(X, task, Baseline.survival, return_array)

    def predict_cumulative_hazard_function(
        self, X: Any, task: Any = None, *, return_array: bool = False
    ) -> list[StepFunction] | Array:
        """Returns each row's cumulative hazard; see ``predict_survival_function``."""
        return self._curves(X, task, Baseline.cumulative_hazard, return_array)

    def _curves(
        self, X: Any, task: Any, curve: Callable[[Baseline, float], StepFunction], as_array: bool
    ) -> list[StepFunction] | Array:
        eta = self.predict(X, task).tolist()
        pairs = zip(self._strata(X, task, len(eta)), eta, strict=True)
        curves = [curve(self.baselines_[m], each) for m, each in pairs]
        return np.stack([one(self.unique_times_) for one in curves]) if as_array else curves

    def _strata(self, X: Any, task: Any, size: int) -> Ints:
        if self.tasks_ is None or (task is None and len(self.tasks_) == 1):
            return np.zeros(size, np.intp)
        _, labels = take_tasks(X, task)
        codes = codes_of(labels, self.tasks_, unseen="shared")
        if (codes < 0).any():
            label = shown(labels[int(np.argmax(codes < 0))])
            raise ValueError(f"task {label} was not seen in fit: it has no baseline hazard")
        return codes

    def score(self, X: Any, y: Any, task: Any = None, sample_weight: Any = None) -> float:
        """Returns the concordance index (Harrell's), from pairs within tasks."""
        eta = self.predict(X, task)
        weights = weights_of(sample_weight, eta)
        parts = split_strata(eta[:, None], y, weights, self._strata(X, task, len(eta)))
        each = list[Array]()
        for rows in parts:
            time, event, entry, counts = rows.survival()
            each.append(concordant_pairs(time, event, rows.x[:, 0], entry, counts))
        pairs = np.sum(each, axis=0)
        require(bool(pairs[1] > 0), "y", "none", "of subjects of whom pairs can be compared")
        return float(pairs[0] / pairs[1])


def survival_target(event: Any, time: Any, entry: Any = None) -> npt.NDArray[Any]:
    """Returns the structured array that ``CoxRegressor.fit`` takes.

    Args:
        event: Whether each subject left by an event, shape (n,); otherwise it was censored.
        time: Times of exit, shape (n,).
        entry: Times of entry, shape (n,): a subject is at risk on (entry, time].
    """
    given = {"event": event, "time": time} | ({} if entry is None else {"entry": entry})
    kinds = [(name, bool if name == "event" else np.float64) for name in given]
    found = np.empty(len(event), dtype=kinds)
    for name, values in given.items():
        found[name] = values
    return found


def read_target(y: Any) -> tuple[Array, Bools, Array | None]:
    """Reads times, events and entries of a structured array.

    Raises:
        ValueError: It is none, or a time is not finite, negative, or not after its entry.
    """
    fields = list(getattr(getattr(y, "dtype", None), "names", None) or ())
    others = [name for name in fields if name != "entry"]
    events = [name for name in others if y[name].dtype == bool]
    if len(others) != 2 or len(events) != 1:
        got = f"fields {', '.join(fields)}" if fields else type(y).__name__
        raise ValueError(f"y must be a structured array with {_FIELDS}, got {got}")
    (name,) = (name for name in others if name not in events)
    time = np.asarray(y[name], dtype=np.float64)
    entry = np.asarray(y["entry"], dtype=np.float64) if "entry" in fields else None
    bad = ~(np.isfinite(time) & (time >= 0))
    late = np.zeros(len(time), dtype=bool) if entry is None else ~(entry < time)
    for wrong, what in ((bad, "finite and at least 0"), (late, "after the time of entry")):
        if wrong.any():
            row = int(np.argmax(wrong))
            raise ValueError(f"time must be {what}, got {time[row]:g} in row {row}")
    return time, np.asarray(y[events[0]]), entry


def split_strata(x: Array, y: Any, weights: Array | None, codes: Ints) -> list[Rows]:
    """Returns the rows of each stratum; ``codes`` number the strata from 0, none is empty."""
    time, event, entry = read_target(y)
    rows = Rows(x, time, weights, event, entry)
    return [rows.take(np.flatnonzero(codes == code)) for code in range(int(codes.max()) + 1)]
