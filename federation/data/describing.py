"""A node's description of its table, which no fault in the table keeps from being made."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from federation.data.cells import known, means_number, sorted_out
from federation.data.frames import read_frame
from federation.data.npz import read_npz
from federation.data.raw_tables import framed
from federation.data.source import Source
from federation.data.values import Columns, row_name
from federation.described import LONGEST, MOST_VALUES, DescribedColumn, DescribedTable
from federation.errors import DataError, brief, one_line
from federation.machine import rows_in_memory

_TENTHS: Final = 10  # rows: with fewer, a tenth of them would be less than one
_SHOWN: Final = 3  # cells that are named
_WHOLE: Final = 20  # different whole numbers that may be classes


def describe_table(source: Source, columns: Columns, cache: Path, least: int = 1) -> DescribedTable:
    """Describes a site's table: names, types, values of text, missing values, and ranges.

    Values of text are told where there are at most ``MOST_VALUES`` and each is in two rows or more
    on average, so that neither names nor notes are. Of numbers, four figures are told, to three
    digits: the mean, and those below which a tenth, half, and nine tenths of the rows lie.

    Args:
        source: The table.
        columns: What settings say of its columns.
        cache: Folder in which Parquet is unpacked.
        least: Fewest rows behind whatever is told: those with a value, and those on either side of
            a figure. If it is above 1, cells that are no numbers are not shown, and fewer missing
            values are told as so many.

    Raises:
        DataError: It cannot be read, or is none.
    """
    with rows_in_memory(one_line(source)):
        frame = _frame(source, columns, cache)
        each = [_column(str(name), frame[name], columns, least) for name in frame.columns]
    return DescribedTable.of(len(frame), each)


def _frame(source: Source, columns: Columns, cache: Path) -> Any:
    if source.kind == "csv":
        declared = columns.values.declared
        return read_frame(
            source.path, texts={n: v for n, v in declared.items() if n != columns.target}
        )
    if source.kind == "npz":
        arrays = read_npz(source.path)
        frame = framed(source.path, arrays)
        y = arrays.get("y")
        return frame if y is None or y.ndim != 1 else frame.assign(**{columns.target: y})
    if source.has_columns:
        from federation.data.hugging_face import read_table  # noqa: PLC0415 - slow to import

        return read_table(source.kind, source.path, cache)
    raise DataError(f"{source} is no table with names of columns: csv, parquet, arrow, hf, npz")


def _column(name: str, given: Any, columns: Columns, least: int) -> DescribedColumn:
    found = _described(name, given, columns)
    return found if least == 1 else _veiled(found, known(given, columns.missing_values), least)


def _veiled(column: DescribedColumn, cells: Any, least: int) -> DescribedColumn:
    """Returns a column without what fewer than ``least`` rows tell."""
    rarest = cells.value_counts().min() if column.values else 0
    there = len(cells) - column.missing
    if there < _TENTHS * least:
        column = replace(column, mean=None, low=None, median=None, high=None)
    return replace(
        column,
        missing=min(len(cells), max(column.missing, least)) if column.missing else 0,
        values=column.values if rarest >= least else (),
        odd="cells of another type" if column.odd else "",
        odd_values=(),
    )


def _described(name: str, given: Any, columns: Columns) -> DescribedColumn:
    text = name in columns.values.declared
    column, wrong = sorted_out(given, columns.missing_values, text=text)
    cells = known(given, columns.missing_values)
    missing = int(cells.isna().sum())
    if column is None:
        return DescribedColumn(name, "other", missing, odd=_short(wrong))
    if str(column.dtype) == "string" and not wrong:
        held = sorted(column.dropna().unique())
        told = len(held) <= min(MOST_VALUES, (len(column) - missing) / 2) or text
        told = told and len(held) <= MOST_VALUES and max(map(len, held), default=0) <= LONGEST
        values = tuple(map(str, held)) if told else ()
        return DescribedColumn(name, "text", missing, len(held), values)
    odd, odd_values = "", tuple[str, ...]()
    if wrong:
        there = cells.dropna()
        strange = there[~there.map(means_number).to_numpy(dtype=bool)]
        odd, odd_values = _odd(strange) if len(strange) else (wrong, ())
        column = there.where(there.map(means_number)).map(float, na_action="ignore")
    numbers = np.asarray(column.dropna().to_numpy(dtype=np.float64))
    numbers = numbers[np.isfinite(numbers)]
    different = np.unique(numbers)
    few = name == columns.target and len(different) <= _WHOLE and not (different % 1).any()
    values = tuple(str(int(value)) for value in different) if few else ()
    figures: list[float | None] = [None] * 4
    if len(numbers) >= _TENTHS:
        exact = [numbers.mean(), *np.quantile(numbers, [0.1, 0.5, 0.9])]
        figures = [float(f"{figure:.3g}") for figure in exact]
    return DescribedColumn(
        name, "number", missing, len(different), values, _short(odd), odd_values, *figures
    )


def _odd(cells: Any) -> tuple[str, tuple[str, ...]]:
    """Describes the first of some cells that are no numbers, and returns these texts."""
    told = ", ".join(f"{brief(cell)} in {row_name(k)}" for k, cell in cells[:_SHOWN].items())
    told += f" and {len(cells) - _SHOWN} more" if len(cells) > _SHOWN else ""
    texts = [str(cell) for cell in cells.unique()[:_SHOWN]]
    return told, tuple(text for text in texts if len(text) <= LONGEST)


def _short(text: str) -> str:
    return one_line(text, longest=LONGEST * 3)
