"""A user's own table: which method predicts held-out rows best, over random splits (App. J.2)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from engram.molar.baselines import (
    DebiasedRegressor,
    IndividualRegressor,
    LassoRegressor,
    PooledRegressor,
)
from engram.molar.families import FAMILIES, FamilyName
from engram.molar.model import MultitaskModel
from engram.molar.regressor import MolarClassifier, MolarRegressor
from engram.molar.shrinkage import Option
from engram.molar.site import INTERCEPT, Rows, estimate_site, why_undetermined
from engram.molar.tables import Scaling, distinct, rows_of_tasks, shown
from federation.data.tables import Table
from federation.errors import DataError

Numbers = npt.NDArray[np.intp]  # of rows
Make = Callable[[float], MultitaskModel]
Molar = MolarRegressor | MolarClassifier
AnyModel = TypeVar("AnyModel", bound=MultitaskModel)

GRID: Final = (0.05, 0.35, 0.7, 1.0, 2.0)
"""Of each method's constant, in units of the noise, as J.2 has it."""


class Shares(NamedTuple):
    """Shares of each task's training and validation rows, 0.05 each in J.2; the rest are tests."""

    train: float
    validation: float


class Score(NamedTuple):
    """A method's result on one split."""

    c: float  # its constant; 0 if it has none
    loss: float  # mean over tasks of the loss (squared error, or deviance) on their test rows
    # Sum over tasks of the l1 distance of their coefficients (per standard deviation of a column,
    # without intercepts) to OLS on the test rows, where these determine it (J.2, Table 2). 0 for
    # models that are not linear.
    distance: float


def complete(table: Table, family: FamilyName, *, indicators: bool) -> Table:
    """Returns the table without NaN, checked to suit the family.

    Args:
        table: The table as it was read.
        family: The model.
        indicators: Put 0 where a value is missing, and add an indicator column (J.2), whose name
            ends in ``?``. Columns with values missing in the same rows share one.

    Raises:
        DataError: There are no rows or features; the target is missing somewhere, impossible for
            the family, or constant; or features are missing without ``indicators``.
    """
    if not table.x.size:
        rows, columns = table.x.shape
        raise DataError(f"the table has {rows} rows and {columns} features: nothing can be learned")
    valid = FAMILIES[family].valid(table.y) & np.isfinite(table.y)
    if not valid.all():
        row = int(np.argmin(valid))
        raise DataError(
            f"the target must be {FAMILIES[family].target} for family {family}, got "
            f"{table.y[row]:g} {_where(table, row)} ({(~valid).sum()} such rows)"
        )
    if np.ptp(table.y) == 0:
        raise DataError(f"the target is {table.y[0]:g} in all rows: nothing can be learned")
    missing = np.isnan(table.x)
    some = np.flatnonzero(missing.any(axis=0))
    if not len(some):
        return table
    if not indicators:
        names = ", ".join(table.columns[k] for k in some)
        row = int(np.argmax(missing[:, some].any(axis=1)))
        raise DataError(
            f"values are missing in {names}, first {_where(table, row)}: --missing indicator puts "
            "0 there, and adds columns that say where"
        )
    alike: dict[bytes, list[int]] = {}
    for k in some:
        alike.setdefault(np.packbits(missing[:, k]).tobytes(), []).append(int(k))
    flags = missing[:, [ks[0] for ks in alike.values()]].astype(np.float64)
    added = [f"{', '.join(table.columns[k] for k in ks)}?" for ks in alike.values()]
    x = np.hstack([np.where(missing, 0.0, table.x), flags])
    return table._replace(x=x, columns=[*table.columns, *added])


def _where(table: Table, row: int) -> str:
    return f"in row {row}, of task {shown(table.labels[row])}"


def molar(family: FamilyName, option: Option, c: float) -> Molar:
    """Returns MOLAR for a family; undetermined coefficients of a task are the shared ones."""
    options: dict[str, Any] = {"option": option, "c": c, "undetermined": "shared"}
    if family == "logistic":
        return MolarClassifier(**options)
    return MolarRegressor(family=family, **options)


def fit_all(table: Table, family: FamilyName, option: Option, c: float) -> Molar:
    """Fits MOLAR to all rows, in the table's own units.

    Raises:
        DataError: There is only one task, a column that no task determines, or infinity.
    """
    try:
        return _fitted(molar(family, option, c), table, np.arange(len(table.y)))
    except ValueError as error:
        raise DataError(str(error)) from error


def lacking(table: Table, model: Molar, family: FamilyName) -> dict[Any, str]:
    """Returns, by label, why the rows of some tasks do not determine all coefficients."""
    found = {}
    for label, site in zip(model.tasks_.tolist(), model.sites_, strict=True):
        if not site.determined.all():
            own = table.labels == label
            rows = Rows(np.column_stack([table.x[own], np.ones(own.sum())]), table.y[own])
            reason = why_undetermined(rows, [*table.columns, INTERCEPT], family=family)
            found[label] = reason or "its columns nearly depend on each other"
    return found


def methods_for(family: FamilyName) -> dict[str, tuple[Make, Sequence[float]]]:
    """Returns the methods that are compared, by name, and the constants to choose from."""
    shared: dict[str, tuple[Make, Sequence[float]]] = {
        "MOLAR, hard": (lambda c: molar(family, "hard", c), GRID),
        "MOLAR, soft": (lambda c: molar(family, "soft", c), GRID),
    }
    if family != "linear":
        return {"alone": (lambda c: molar(family, "hard", c), (0.0,)), **shared}
    return {
        "OLS": (lambda c: IndividualRegressor(), (0.0,)),
        "LASSO": (lambda c: LassoRegressor(c=c), GRID),
        "Pool": (lambda c: PooledRegressor(), (0.0,)),
        "RM": (lambda c: DebiasedRegressor(c=c), GRID),
        **shared,
    }


def compare(
    table: Table, family: FamilyName, shares: Shares, *, splits: int, seed: int = 0
) -> Iterator[dict[str, Score]]:
    """Yields the results of ``compare_once`` for each random split."""
    for split in range(splits):
        yield compare_once(table, family, shares, np.random.default_rng([seed, split]))


def compare_once(
    table: Table, family: FamilyName, shares: Shares, rng: np.random.Generator
) -> dict[str, Score]:
    """Fits every method to one share of each task's rows, and scores it on another.

    Columns are standardized over the training rows of all tasks. Constants are those of ``GRID``
    with the smallest loss on the validation rows.

    Raises:
        DataError: A method cannot be fitted to these rows; the message says which, and why.
    """
    train, validation, test = _split(table.labels, shares, rng)
    table = table._replace(x=Scaling.of(table.x[train], None).apply(table.x))
    reference = _reference(table, test) if family == "linear" else None
    found = {}
    for name, (make, constants) in methods_for(family).items():
        try:
            tried = {c: _fitted(make(c), table, train) for c in constants}
        except ValueError as error:
            raise DataError(f"{name} cannot be fitted to a split's rows: {error}") from error
        losses = {c: _loss(model, table, family, validation) for c, model in tried.items()}
        best = min(losses, key=lambda c: losses[c])
        gaps = np.zeros(1) if reference is None else tried[best].coef_ - reference
        loss = _loss(tried[best], table, family, test)
        found[name] = Score(best, loss, float(np.nansum(np.abs(gaps))))
    return found


def _fitted(model: AnyModel, table: Table, rows: Numbers) -> AnyModel:
    model.fit(_frame(table, rows), table.y[rows], table.labels[rows])
    return model


def _frame(table: Table, rows: Numbers) -> pd.DataFrame:
    return pd.DataFrame(table.x[rows], columns=table.columns)


def _reference(table: Table, rows: Numbers) -> npt.NDArray[np.float64]:
    """Returns each task's OLS, shape (M, d); NaN where its rows do not determine it."""
    tasks, codes = distinct(table.labels[rows])
    design = np.column_stack([table.x[rows], np.ones(len(rows))])
    sites = map(estimate_site, rows_of_tasks(design, table.y[rows], None, codes, tasks))
    return np.stack([np.where(site.determined, site.coef, np.nan)[:-1] for site in sites])


def _loss(model: MultitaskModel, table: Table, family: FamilyName, rows: Numbers) -> float:
    """Returns the mean over tasks of their rows' mean loss."""
    tasks = table.labels[rows]
    each = FAMILIES[family].loss(model.linear_predictor(_frame(table, rows), tasks), table.y[rows])
    labels, codes = distinct(tasks)
    return float(np.mean(np.bincount(codes, each) / np.bincount(codes, minlength=len(labels))))


def _split(
    tasks: npt.NDArray[Any], shares: Shares, rng: np.random.Generator
) -> tuple[Numbers, Numbers, Numbers]:
    """Splits each task's rows at random, with at least one in each part.

    Raises:
        DataError: A task has fewer than three rows.
    """
    labels, codes = distinct(tasks)
    parts: tuple[list[Numbers], ...] = ([], [], [])
    for code, label in enumerate(labels.tolist()):
        own = rng.permutation(np.flatnonzero(codes == code))
        if len(own) < 3:
            raise DataError(f"task {label!r} has {len(own)} rows, and 3 parts need one each")
        first = min(max(1, round(shares.train * len(own))), len(own) - 2)
        second = min(max(1, round(shares.validation * len(own))), len(own) - first - 1)
        for part, some in zip(parts, np.split(own, [first, first + second]), strict=True):
            part.append(some)
    train, validation, test = (np.sort(np.concatenate(part)) for part in parts)
    return train, validation, test
