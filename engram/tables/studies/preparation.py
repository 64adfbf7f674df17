"""A user's table made ready: without missing values, and without columns that say nothing."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from scipy.linalg import qr

from engram.data.tables.tables import Table
from engram.settings.errors import DataError
from engram.tables.families import FAMILIES, FamilyName
from engram.tables.tables import check_finite, dependent_columns, distinct, rows_of_tasks, shown

_NIL: Final = 1e-8  # standard deviations that are left of a column beside the others


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
    called = row if table.inputs is None else table.inputs.index[row]
    return f"in row {called}, of task {shown(table.labels[row])}"


def independent(table: Table) -> tuple[Table, list[str]]:
    """Returns the table without columns that all tasks' rows together do not determine.

    Returns:
        The table, and the columns left out, each with what it depends on.

    Raises:
        DataError: Some feature is infinite.
    """
    try:
        check_finite(table.x, table.labels, table.columns)
    except ValueError as error:
        raise DataError(str(error)) from error
    tasks, codes = distinct(table.labels)
    rows = rows_of_tasks(table.x, table.y, None, codes, tasks)
    found = dependent_columns([own.with_ones() for own in rows])
    if not found:
        return table, []
    left_out = {each.column for each in found}
    kept = [name for k, name in enumerate(table.columns) if k not in left_out]
    return of_columns(table, kept), [each.in_words(table.columns) for each in found]


def of_columns(table: Table, names: Sequence[str]) -> Table:
    """Returns the table with some of its features alone, in this order."""
    places = [table.columns.index(name) for name in names]
    return table._replace(x=table.x[:, places], columns=list(names))


def site_level(table: Table, kept: Sequence[str]) -> list[str]:
    """Returns the columns beside ``kept`` that a model with one intercept can use.

    They are those that ``independent`` drops because intercepts of the tasks' own explain them,
    such as a site's size, but for what the other columns explain with a single intercept.
    """
    others = [name for name in table.columns if name not in kept]
    some = of_columns(table, others).x
    spread = some.std(axis=0)
    varies = spread > _NIL * np.sqrt(np.mean(some**2, axis=0))
    if not varies.any():
        return []
    scaled = (some - some.mean(axis=0))[:, varies] / spread[varies]
    design = np.column_stack([of_columns(table, kept).x, np.ones(len(some))])
    left = scaled - design @ np.linalg.lstsq(design, scaled)[0]
    triangle, pivots = qr(left, mode="r", pivoting=True)
    lengths = np.abs(np.diagonal(triangle)) / len(left) ** 0.5
    found = set(np.flatnonzero(varies)[pivots[: len(lengths)][lengths > _NIL]].tolist())
    return [name for k, name in enumerate(others) if k in found]
