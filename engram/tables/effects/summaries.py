"""Summaries of every estimator for tables: of shared coefficients, a task, a column."""

from abc import abstractmethod
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from sklearn.utils.validation import check_is_fitted

from engram.core.arrays import Array, Bools, Ints
from engram.core.process_modes import own_modes
from engram.tables.effects.meta_analysis import MetaAnalysis, meta_analysis
from engram.tables.effects.summary import RATIOS, Summary, sidak, summarize
from engram.tables.families import FamilyName
from engram.tables.intervals import Intervals
from engram.tables.site import SiteEstimate

_NONE: Final = (
    "-: no interval: the rows do not determine it, too many tasks differ, or they are fewer than a "
    "median's interval needs (six of equal weight at level 0.95)"
)


class Summaries:
    """Base of estimators with tasks' own estimates, ``sites_``, beside their coefficients."""

    tasks_: npt.NDArray[Any]
    sites_: list[SiteEstimate]
    coef_: Array
    intercept_: Array
    shared_coef_: Array
    shared_intercept_: float
    missing_: Ints
    missing: str
    imputations: int

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
                Holm; of a task, they are those of its own estimates.
                For all columns of M independent tasks at once, take ``level ** (1 / M)``.

        Raises:
            ValueError: If the task was not fitted, or linear models are to have ratios.
        """
        check_is_fitted(self)
        names, known = self.column_names, self.tasks_.tolist()
        title, ratio = type(self).__name__, self._ratio(ratios)
        if task is None:
            each = sidak(level, len(names)) if simultaneous else level
            coef = np.append(self.shared_coef_, self.shared_intercept_)[: len(names)]
            given = names, coef, *self._shared_error(each), level, simultaneous
            found = summarize(f"{title}: shared by {len(known)} tasks", *given)
            counts = [f"{n} of {len(known)}" if n else "" for n in self._differs.sum(axis=0)]
            heading = "tasks that differ" if any(counts) else ""
            found = found._replace(heading=heading, marks=counts)
            return self._noted(found, ratio, self.missing_.sum(axis=0))
        if task not in known:
            raise ValueError(f"task {task!r} was not seen in fit")
        i = known.index(task)
        site, full = self.sites_[i], np.append(self.coef_[i], self.intercept_[i])[: len(names)]
        title = f"{title}: task {task!r}, {site.size:g} rows"
        title += f", sigma {site.sigma:.4g}" * (self._family == "linear")
        given = names, site.coef, site.covariance, site.freedom, level, simultaneous
        found = self._noted(summarize(title, *given), ratio, self.missing_[i])
        limits = None if simultaneous else self._task_limits(i, level)
        if limits is not None:
            marks = ["differs" if odd else "" for odd in self._differs[i]]
            return found._replace(coef=full, limits=limits, own=site.coef, marks=marks)
        if np.allclose(full, site.coef):
            return found
        marks = [f"fitted {value:.4g}" for value in full]
        return found._replace(title=f"{title}, its own estimates", marks=marks)

    def _noted(self, found: Summary, ratio: str, counts: Ints) -> Summary:
        """Adds the numbers of missing values by column, and their treatment."""
        each = [f"{n} of {name}" for name, n in zip(self.column_names, counts, strict=False) if n]
        done = {"complete": "rows left out", "impute": f"imputed {self.imputations} times"}
        missing = f"missing values: {', '.join(each)}; {done[self.missing]}" if each else ""
        return found._replace(ratio=ratio, none=_NONE, missing=missing)

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

    def _shared_error(self, level: float) -> tuple[Array, Array | float]:
        """Covariance (d', d') of the shared coefficients, infinite if unknown, and its freedom."""
        del level
        return np.diag(np.full(len(self.column_names), np.inf)), np.inf

    @property
    def _differs(self) -> Bools:
        """Mask of the coefficients that are a task's own rather than shared, shape (M, d')."""
        return np.zeros((len(self.tasks_), len(self.column_names)), dtype=bool)

    def _task_limits(self, i: int, level: float) -> Intervals | None:
        """The model's intervals of a task's coefficients; None if it has none."""
        del i, level
        return None
