"""A user's own table: which method predicts held-out rows best, over random splits (App. J.2)."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd
from sklearn.metrics import roc_auc_score

from engram.core.arrays import Array, Ints
from engram.data.tables.tables import Table
from engram.settings.errors import DataError, one_line
from engram.tables.adaptive_models import Adaptive
from engram.tables.families import FAMILIES, FamilyName
from engram.tables.model import MultitaskModel
from engram.tables.site import INTERCEPT, Rows, estimate_site, why_undetermined
from engram.tables.studies.contenders import (
    Choice,
    Contender,
    Make,
    Molar,
    choose,
    is_tie,
    methods_for,
)
from engram.tables.studies.preparation import independent, of_columns, site_level
from engram.tables.tables import Scaling, distinct, rows_of_tasks

Numbers = Ints  # of rows
AnyModel = TypeVar("AnyModel", bound=MultitaskModel)

_BINS: Final = 10  # of rows by their probability, for calibration


class Shares(NamedTuple):
    """Shares of each task's training and validation rows, 0.05 each in J.2; the rest are tests."""

    train: float
    validation: float


class SplitScore(NamedTuple):
    """A method's result on one split."""

    c: float  # its constant; 0 if it has none
    loss: float  # mean over tasks of the loss (squared error, or deviance) on their test rows
    # Sum over tasks of the l1 distance of their coefficients (per standard deviation of a column,
    # without intercepts) to OLS on the test rows, where these determine it (J.2, Table 2). 0 for
    # models that are not linear.
    distance: float
    variant: str = ""  # which of its variants was chosen
    edge: bool = False  # whether its constant is at an end of the grid
    tasks: tuple[float, ...] = ()  # each task's loss
    # For two classes: area under the ROC curve, mean squared error of probabilities, and mean
    # distance of predicted from observed shares in ten groups of rows by prediction.
    auc: float | None = None
    brier: float | None = None
    calibration: float | None = None
    reason: str | None = None  # why it could not be fitted; its loss is then NaN


def fit_all(table: Table, model: AnyModel) -> AnyModel:
    """Fits a model to all rows, in the table's own units.

    Raises:
        DataError: There is only one task, a column that no task determines, or infinity.
    """
    try:
        return _fitted(model, table, np.arange(len(table.y)))
    except ValueError as error:
        raise DataError(str(error)) from error


def lacking(table: Table, model: Molar | Adaptive, family: FamilyName) -> dict[Any, str]:
    """Returns, by label, why the rows of some tasks do not determine all coefficients."""
    found = {}
    for label, site in zip(model.tasks_.tolist(), model.sites_, strict=True):
        if not site.determined.all():
            own = table.labels == label
            rows = Rows(np.column_stack([table.x[own], np.ones(own.sum())]), table.y[own])
            reason = why_undetermined(rows, [*table.columns, INTERCEPT], family=family)
            found[label] = reason or "its columns nearly depend on each other"
    return found


def compare(
    table: Table,
    family: FamilyName,
    shares: Shares,
    *,
    splits: int,
    seed: int = 0,
    paper: bool = False,
) -> Iterator[dict[str, SplitScore]]:
    """Yields the results of ``compare_once`` for each random split."""
    for split in range(splits):
        rng = np.random.default_rng([seed, split])
        yield compare_once(table, family, shares, rng, paper=paper)


def compare_once(
    table: Table,
    family: FamilyName,
    shares: Shares,
    rng: np.random.Generator,
    *,
    paper: bool = False,
) -> dict[str, SplitScore]:
    """Fits every method to some of each task's rows, and scores it on others.

    Columns are standardized over the training rows of all tasks. Constants are chosen by the loss
    on validation rows, or by cross-validation within training and validation rows, from a grid that
    grows until its best is inside; then methods are fitted to both. With ``paper``, as in J.2, the
    grid is ``GRID``, and methods are fitted to the training rows alone. A method that cannot be
    fitted has a reason and no loss.
    """
    train, validation, test = _split(table.labels, shares, rng)
    wide = table
    if not paper:
        part = table._replace(x=table.x[train], y=table.y[train], task=table.labels[train])
        kept, _ = independent(part)
        wide = of_columns(table, [*kept.columns, *site_level(part, kept.columns)])
        table = of_columns(table, kept.columns)
    wide, table = (t._replace(x=Scaling.of(t.x[train], None).apply(t.x)) for t in (wide, table))
    reference = _reference(table, test) if family == "linear" else None
    learned = train if paper else rng.permutation(np.append(train, validation))
    found = {}
    for name, method in methods_for(family, paper=paper).items():
        seen = wide if method.site_level else table
        try:
            parts = [(train, validation)]
            if method.folds > 1:
                parts = _folds(learned, table.labels, method.folds)
            variant, choice = _chosen(method, seen, family, parts, widen=not paper)
            model = _fitted(method.variants[variant](choice.constant), seen, learned)
        except ValueError as error:
            found[name] = SplitScore(0.0, np.nan, np.nan, reason=one_line(str(error)))
            continue
        own = model.coef_[:, : len(table.columns)]
        distance = 0.0 if reference is None else float(np.nansum(np.abs(own - reference)))
        found[name] = _scored(model, seen, family, test)._replace(
            c=choice.constant, variant=variant, edge=choice.edge, distance=distance
        )
    return found


def _chosen(
    method: Contender,
    table: Table,
    family: FamilyName,
    parts: Sequence[tuple[Numbers, Numbers]],
    *,
    widen: bool,
) -> tuple[str, Choice]:
    """Returns the variant and the constant with the least mean loss over some parts.

    A part has rows to learn from, and rows to be scored on. Of a ``simplest`` method, ties go to
    the largest constant, and then to the last variant.
    """
    (first, make), *others = method.variants.items()
    if len(method.grid) == 1 and not others:
        return first, Choice(method.grid[0], np.zeros(1), edge=False)

    def losses(c: float, make: Make = make) -> Array:
        each = [_of_rows(_fitted(make(c), table, own), table, family, test) for own, test in parts]
        scored = np.concatenate([score for _, score in parts])
        return _by_task(np.concatenate(each), table.labels[scored])

    chosen = choose(losses, method.grid, simplest=method.simplest, widen=widen)
    found = {first: chosen}
    for name, other in others:
        with suppress(ValueError):  # it cannot be fitted to some part
            found[name] = chosen._replace(losses=losses(chosen.constant, other))
    best = min(found, key=lambda name: found[name].losses.mean())
    if method.simplest:
        best = [n for n, one in found.items() if is_tie(one.losses, found[best].losses)][-1]
    return best, found[best]


def _folds(rows: Numbers, tasks: npt.NDArray[Any], count: int) -> list[tuple[Numbers, Numbers]]:
    """Returns parts for cross-validation: every task's rows are dealt to the folds in turn.

    The rows come in random order.
    """
    _, codes = distinct(tasks[rows])
    order = np.argsort(codes, kind="stable")
    turn = np.empty(len(rows), dtype=np.intp)
    starts = np.searchsorted(codes[order], codes[order])
    turn[order] = (np.arange(len(rows)) - starts) % count
    return [(rows[turn != k], rows[turn == k]) for k in range(count)]


def _scored(model: MultitaskModel, table: Table, family: FamilyName, rows: Numbers) -> SplitScore:
    each = _by_task(_of_rows(model, table, family, rows), table.labels[rows])
    score = SplitScore(0.0, float(np.mean(each)), 0.0, tasks=tuple(each.tolist()))
    if family != "logistic":
        return score
    y = table.y[rows]
    eta = model.linear_predictor(_frame(table, rows), table.labels[rows])
    shares = FAMILIES[family].mean(eta)
    groups = np.array_split(np.argsort(eta, kind="stable"), _BINS)
    apart = [len(g) * abs(shares[g].mean() - y[g].mean()) for g in groups if len(g)]
    return score._replace(
        auc=float(roc_auc_score(y, eta)) if np.ptp(y) else None,
        brier=float(np.mean((shares - y) ** 2)),
        calibration=float(sum(apart) / len(y)),
    )


def _fitted(model: AnyModel, table: Table, rows: Numbers) -> AnyModel:
    model.fit(_frame(table, rows), table.y[rows], table.labels[rows])
    return model


def _frame(table: Table, rows: Numbers) -> pd.DataFrame:
    return pd.DataFrame(table.x[rows], columns=table.columns)


def _reference(table: Table, rows: Numbers) -> Array:
    """Returns each task's OLS, shape (M, d); NaN where its rows do not determine it."""
    tasks, codes = distinct(table.labels[rows])
    design = np.column_stack([table.x[rows], np.ones(len(rows))])
    sites = map(estimate_site, rows_of_tasks(design, table.y[rows], None, codes, tasks))
    return np.stack([np.where(site.determined, site.coef, np.nan)[:-1] for site in sites])


def _of_rows(model: MultitaskModel, table: Table, family: FamilyName, rows: Numbers) -> Array:
    eta = model.linear_predictor(_frame(table, rows), table.labels[rows])
    return FAMILIES[family].loss(eta, table.y[rows])


def _by_task(losses: Array, tasks: npt.NDArray[Any]) -> Array:
    labels, codes = distinct(tasks)
    return np.asarray(np.bincount(codes, losses) / np.bincount(codes, minlength=len(labels)))


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
