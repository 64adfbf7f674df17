"""A user's own table: who predicts held-out rows best, over random splits (Appendix J.2)."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

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
from engram.molar.tables import Scaling, distinct
from federation.data.tables import Table
from federation.errors import DataError

__all__ = ["GRID", "Score", "Shares", "compare", "compare_once", "complete", "fit_all"]

Rows = npt.NDArray[np.intp]  # numbers of rows
Make = Callable[[float], MultitaskModel]

GRID: Final = (0.05, 0.35, 0.7, 1.0, 2.0)
"""Of each method's constant, in units of the noise, as J.2 has it."""


class Shares(NamedTuple):
    """Shares of each task's rows: to learn from, and to choose constants by; the rest are tests.

    J.2 has 0.05 and 0.05.
    """

    train: float
    validation: float


class Score(NamedTuple):
    """How a method did on one split.

    Attributes:
        c: Its constant; 0 if it has none.
        loss: Mean over tasks of the loss (squared error, or deviance) on their test rows.
        distance: Sum over tasks of the l1 distance of their coefficients (per standard deviation
            of a column, without intercepts) to OLS on the test rows (J.2, Table 2). Of linear
            models; otherwise 0.
    """

    c: float
    loss: float
    distance: float


def complete(table: Table, *, indicators: bool) -> Table:
    """Returns the table without NaN.

    Args:
        table: As it was read.
        indicators: Puts 0 where a value is missing, and adds for each such column one that says
            where (J.2); its name ends in ``?``.

    Raises:
        DataError: Values are missing, and ``indicators`` are not wanted; or the target lacks some.
    """
    if np.isnan(table.y).any():
        count, first = int(np.isnan(table.y).sum()), int(np.argmax(np.isnan(table.y)))
        raise DataError(f"the target is missing in {count} rows, first in row {first}")
    missing = np.isnan(table.x)
    some = missing.any(axis=0)
    if not some.any():
        return table
    names = [table.columns[k] for k in np.flatnonzero(some)]
    if not indicators:
        raise DataError(
            f"values are missing in the columns {', '.join(names)}: --missing indicator puts 0 "
            "there, and adds a column for each that says where"
        )
    x = np.hstack([np.nan_to_num(table.x), missing[:, some].astype(np.float64)])
    return table._replace(x=x, columns=[*table.columns, *(f"{name}?" for name in names)])


def molar(family: FamilyName, option: Option, c: float) -> MultitaskModel:
    """Returns MOLAR for a family, which lets tasks take from others what their rows lack."""
    options: dict[str, Any] = {"option": option, "c": c, "undetermined": "shared"}
    if family == "logistic":
        return MolarClassifier(**options)
    return MolarRegressor(family=family, **options)


def fit_all(table: Table, family: FamilyName, option: Option, c: float) -> MultitaskModel:
    """Fits MOLAR to all rows, in the table's own units."""
    return _fitted(molar(family, option, c), table, np.arange(len(table.y)))


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
    """Yields what each random split finds, as ``compare_once`` does."""
    for split in range(splits):
        yield compare_once(table, family, shares, np.random.default_rng([seed, split]))


def compare_once(
    table: Table, family: FamilyName, shares: Shares, rng: np.random.Generator
) -> dict[str, Score]:
    """Fits every method to one share of each task's rows, and scores it on another.

    Columns are standardized over the training rows of all tasks. Constants are those of ``GRID``
    with the smallest loss on the validation rows.

    Raises:
        DataError: A method cannot be fitted to these rows; it says which, and why.
    """
    train, validation, test = _split(_tasks(table), shares, rng)
    table = table._replace(x=Scaling.of(table.x[train], None).apply(table.x))
    reference = _fitted(IndividualRegressor(), table, test) if family == "linear" else None
    found = {}
    for name, (make, constants) in methods_for(family).items():
        try:
            tried = {c: _fitted(make(c), table, train) for c in constants}
        except ValueError as error:
            raise DataError(f"{name} cannot be fitted to the training rows: {error}") from error
        losses = {c: _loss(model, table, family, validation) for c, model in tried.items()}
        best = min(losses, key=lambda c: losses[c])
        gaps = np.zeros(1) if reference is None else tried[best].coef_ - reference.coef_
        loss = _loss(tried[best], table, family, test)
        found[name] = Score(best, loss, float(np.abs(gaps).sum()))
    return found


def _tasks(table: Table) -> Any:
    if table.task is None:
        raise DataError("the table has no task column")
    return table.task


def _fitted(model: MultitaskModel, table: Table, rows: Rows) -> MultitaskModel:
    return model.fit(table.x[rows], table.y[rows], _tasks(table)[rows])


def _loss(model: MultitaskModel, table: Table, family: FamilyName, rows: Rows) -> float:
    """Returns the mean over tasks of their rows' mean loss."""
    tasks = _tasks(table)[rows]
    each = FAMILIES[family].loss(model.linear_predictor(table.x[rows], tasks), table.y[rows])
    labels, codes = distinct(tasks)
    return float(np.mean(np.bincount(codes, each) / np.bincount(codes, minlength=len(labels))))


def _split(tasks: Any, shares: Shares, rng: np.random.Generator) -> tuple[Rows, Rows, Rows]:
    """Deals out each task's rows at random; one at least to every part.

    Raises:
        DataError: A task has fewer than three rows.
    """
    labels, codes = distinct(tasks)
    parts: tuple[list[Rows], ...] = ([], [], [])
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
