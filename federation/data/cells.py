"""Cells of tables that lack what a row needs, or hold no numbers.

The tables are pandas' data frames. A row's name is its number in the table, or, where the index
has two levels, that in its client's: ``row 3 of client north``.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.checks import Fault
from federation.data.schema.cells import row_name
from federation.errors import DataError, brief, few_names


def named_cells(cells: Any) -> str:
    """Names cells for a message."""
    return few_names(f"{brief(cell)} in {row_name(label)}" for label, cell in cells.items())


def numbers(path: Path, name: str, column: Any, advice: str) -> npt.NDArray[np.float64]:
    """Returns a column of a frame; NaN where it is empty.

    Raises:
        DataError: If it holds something else than numbers; it names all these cells, and adds the
            advice.
    """
    try:
        if column.dtype.kind in "mM":  # dates, which pandas takes for nanoseconds
            raise TypeError(str(column.dtype))
        return np.asarray(column.to_numpy(dtype=np.float64, na_value=np.nan))
    except (TypeError, ValueError, OverflowError) as error:
        there = column.dropna()
        cells = named_cells(there[~there.map(_is_number).to_numpy(dtype=bool)])
        text = f"{path}: column {name} must hold numbers, got {cells}: {advice}"
        raise DataError(Fault((), text, (name,))) from error


def _is_number(value: Any) -> bool:
    try:
        float(value)
    except (TypeError, ValueError, OverflowError):  # the last of whole numbers above 1e308
        return False
    return True


def check_there(path: Path, columns: Mapping[str, Any], advice: str = "a row needs one") -> None:
    """Refuses columns that lack a value, with a ``DataError`` that names the first of each."""
    lacking = {
        name: column[column.isna()].index for name, column in columns.items() if column.hasnans
    }
    first = [
        f"{name} is missing in {row_name(rows[0])}" for name, rows in lacking.items() if len(rows)
    ]
    if first:
        raise DataError(f"{path}: {few_names(first)}: {advice}")
