"""Summaries that every estimator for tables has: of what is shared, of a task, of a column."""

from abc import abstractmethod
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from engram.core.arrays import Array
from engram.core.process_modes import own_modes
from engram.tables.effects import RATIOS, Summary, summarize
from engram.tables.families import FamilyName
from engram.tables.meta_analysis import MetaAnalysis, meta_analysis
from engram.tables.site import SiteEstimate

_NO_ERRORS: Final = (
    "-: a median or mean over tasks, without a standard error; meta_analysis(column) has one"
)
_NOT_DETERMINED: Final = "-: no interval: the task's rows do not determine it"


class Summaries:
    """Base of estimators with tasks' own estimates, ``sites_``, beside their coefficients."""

    tasks_: npt.NDArray[Any]
    sites_: list[SiteEstimate]
    coef_: Array
    intercept_: Array
    shared_coef_: Array
    shared_intercept_: float
    fit_intercept: bool

    @property
    @abstractmethod
    def _family(self) -> FamilyName: ...

    @property
    @abstractmethod
    def column_names(self) -> list[str]:
        """Names of the coefficients."""

    @own_modes()
    def summary(
        self,
        task: Any = None,
        *,
        level: float = 0.95,
        ratios: bool = False,
        simultaneous: bool = False,
    ) -> Summary:
        """Returns a printable table of the shared coefficients, or of those of one task.

        Of a task, standard errors and p-values are those of its own estimate (OLS or maximum
        likelihood), whose columns say so; the intervals are the model's.

        Args:
            task: A task's label; None for the shared coefficients.
            level: Level of the intervals, in (0, 1).
            ratios: Whether to print exponentials of coefficients and limits: odds ratios of
                classes, rate ratios of counts. Standard errors stay those of the logarithms.
            simultaneous: Whether intervals and p-values hold for all columns at once, by max-t and
                Holm (``engram.tables.effects``); of a task, they are those of its own estimates.
                For all columns of M independent tasks at once, take ``level ** (1 / M)``.

        Raises:
            ValueError: If the task was not fitted, or linear models are to have ratios.
        """
        check_is_fitted(self)
        name, ratio = type(self).__name__, self._ratio(ratios)
        if task is None:
            title = f"{name}: shared by {len(self.tasks_)} tasks"
            return self._shared_summary(level, simultaneous)._replace(title=title, ratio=ratio)
        known = self.tasks_.tolist()
        if task not in known:
            raise ValueError(f"task {task!r} was not seen in fit")
        i = known.index(task)
        site = self.sites_[i]
        noise = f", sigma {site.sigma:.4g}" if self._family == "linear" else ""
        own = summarize(
            f"{name}: task {task!r}, {site.size:g} rows{noise}",
            self.column_names,
            site.coef,
            site.covariance,
            freedom=site.freedom,
            level=level,
            simultaneous=simultaneous,
        )._replace(ratio=ratio, none=_NOT_DETERMINED)
        if simultaneous:
            return own._replace(title=f"{own.title}, its own estimates")
        return self._task_summary(i, own)

    @own_modes()
    def meta_analysis(
        self,
        column: str,
        *,
        level: float = 0.95,
        ratios: bool = False,
        simultaneous: bool = False,
    ) -> MetaAnalysis:
        """Returns tasks' own estimates of one column, and their fixed and random effects.

        Print it, or draw it with ``engram.tables.studies.forest.draw_forest``.

        Args:
            column: The column's name.
            level: Level of the intervals, in (0, 1).
            ratios: As for ``summary``.
            simultaneous: Whether intervals and p-values hold for all tasks at once, by Sidak and
                Holm.

        Raises:
            ValueError: If there is no such column, or fewer than two tasks determine its
                coefficient, or linear models are to have ratios.
        """
        check_is_fitted(self)
        names, full = self.column_names, np.append(self.shared_coef_, self.shared_intercept_)
        if column not in names:
            raise ValueError(f"column must be one of {', '.join(names)}, got {column!r}")
        k = names.index(column)
        return meta_analysis(
            column,
            [str(task) for task in self.tasks_.tolist()],
            np.array([site.coef[k] for site in self.sites_]),
            np.array([site.standard_error[k] for site in self.sites_]),
            freedom=np.array([site.freedom for site in self.sites_]),
            level=level,
            ratio=self._ratio(ratios),
            simultaneous=simultaneous,
            shared=float(full[k]),
        )

    def _ratio(self, wanted: bool) -> str:
        if wanted and self._family not in RATIOS:
            raise ValueError("ratios must be False for linear models, got True")
        return RATIOS[self._family] if wanted else ""

    def _shared_summary(self, level: float, simultaneous: bool) -> Summary:
        names = self.column_names
        coef = np.append(self.shared_coef_, self.shared_intercept_)[: len(names)]
        nothing = np.diag(np.full(len(names), np.inf))
        found = summarize("", names, coef, nothing, level=level, simultaneous=simultaneous)
        return found._replace(none=_NO_ERRORS)

    def _task_summary(self, i: int, own: Summary) -> Summary:
        """Adds the model's coefficients of a task to its own estimates."""
        full = np.append(self.coef_[i], self.intercept_[i])[: len(own.names)]
        if np.allclose(full, own.coef):
            return own
        marks = [f"fitted {value:.4g}" for value in full]
        return own._replace(title=f"{own.title}, its own estimates", marks=marks)
