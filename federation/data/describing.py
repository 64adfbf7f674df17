"""A node's description of its table: figures and values that enough of its rows share."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.checks import Fault
from federation import schema as columns
from federation.data.cells import check_columns
from federation.data.npz import read_npz
from federation.data.raw_tables import framed
from federation.data.schema.cells import Cells
from federation.data.schema.rules import dates, kind_of, mixed
from federation.data.schema.table_files import read_rows
from federation.data.schema.typed import typed
from federation.data.source import TABLES, Source
from federation.described import LONGEST, MOST_VALUES, DescribedColumn, DescribedTable
from federation.errors import DataError, one_line
from federation.machine import rows_in_memory
from federation.schema import Column

Schema = Mapping[str, DescribedColumn]

_KINDS: Final[Mapping[str, columns.ColumnKind]] = {
    "": "",
    "number": "number",
    "text": "category",
    "other": "ignored",
}
_FILE: Final = columns.File()
_TENTHS: Final = 10  # rows: with fewer, a tenth of them would be less than one
_WHOLE: Final = 20  # different whole numbers that may be classes


def describe_table(
    source: Source, schema: Schema, cache: Path, least: int
) -> tuple[DescribedTable, list[int]]:
    """Describes a site's table; returns a hash of each of its rows, too, as the site reads it.

    Values of text are told where there are at most ``MOST_VALUES``, each in two rows or more on
    average, and whole numbers where there are at most 20. Of numbers, four figures are told, to
    three digits: the mean, and those below which a tenth, half, and nine tenths of the rows lie.

    Args:
        source: The table.
        schema: The columns that the site has written down; others are read as they look.
        cache: Folder in which Parquet is unpacked.
        least: Fewest rows behind whatever is told: those that have a value or lack one, and those
            on either side of a figure. A mean of which fewer rows make up half is not told.

    Raises:
        DataError: It cannot be read, has fewer rows, or cells that its schema does not allow.
    """
    with rows_in_memory(one_line(source)):
        frame = frame_of(source, cache)
        check_columns(source.path, schema, frame.columns)
        if len(frame) < least:
            raise DataError(f"{source}: a table that is described must have {least} rows or more")
        cells = _typed(source, frame, schema)
        found = {name: _described(name, column, least) for name, column in cells.items()}
        return DescribedTable(len(frame), found), _hashes(cells)


def _typed(source: Source, frame: Any, schema: Schema) -> dict[str, Any]:
    """Returns the columns as ``typed`` does; one that is neither numbers nor a category as text.

    Raises:
        DataError: Cells are not what is written of them, or text among numbers; it names them all.
    """
    wrong, found = dict[str, str](), dict[str, Any]()
    for name in frame.columns:
        written = Column(name)
        if (said := schema.get(name)) is not None:
            written = Column(name, _KINDS[said.kind], said.values, missing=said.missing_values)
        cells = Cells.of(written, frame[name])
        column = replace(written, kind=written.kind or kind_of(cells))
        asked = None if written.kind else mixed(cells)
        try:
            found[name] = typed(column, frame[name]) if asked is None else None
        except DataError as error:
            wrong[name] = str(error)
        wrong |= {name: str(asked)} if asked else {}
        if column.kind == "ignored" or dates(cells):
            found[name] = frame[name].astype(str).where(frame[name].notna()).astype("object")
    if wrong:
        told = "; ".join(wrong.values())
        raise DataError(Fault((), f"{source}: {told}: correct it, or the schema", tuple(wrong)))
    return found


def frame_of(source: Source, cache: Path, file: columns.File = _FILE) -> Any:
    """Returns a table as a data frame, whose cells are as they are written in text files.

    Raises:
        DataError: It cannot be read, or its columns have no names.
    """
    if source.kind in TABLES:
        frame = read_rows(source.path, file)
    elif source.kind == "npz":
        arrays = read_npz(source.path)
        frame, y = framed(source.path, arrays), arrays.get("y")
        frame = frame if y is None or y.ndim != 1 else frame.assign(y=y)
    elif source.has_columns:
        from federation.data.hugging_face import read_table  # noqa: PLC0415 - slow to import

        frame = read_table(source.kind, source.path, cache)
    else:
        raise DataError(
            f"{source} is no table with names of columns: csv, xlsx, parquet, arrow, hf, npz"
        )
    return frame.set_axis([*map(str, frame.columns)], axis=1)


def _described(name: str, column: Any, least: int) -> DescribedColumn:
    there = column.dropna()
    missing = len(column) - len(there)
    told = missing if min(missing, len(there)) >= least else None
    if len(there) < least or str(column.dtype) == "object":
        return DescribedColumn(name, "other", missing=told)
    counts = there.value_counts()
    shared = counts[counts >= least].index
    if str(column.dtype) == "string":
        few = len(counts) <= min(MOST_VALUES, len(there) / 2)
        values = sorted(value for value in shared if len(value) <= LONGEST) if few else []
        return DescribedColumn(name, "text", tuple(values), missing=told)
    numbers = there.to_numpy(dtype=np.float64)
    numbers = numbers[np.isfinite(numbers)]
    whole = len(counts) <= _WHOLE and not (numbers % 1).any()
    values = [str(int(value)) for value in sorted(shared) if np.isfinite(value)] if whole else []
    return _with_figures(
        DescribedColumn(name, "number", tuple(values), missing=told), numbers, least
    )


def _with_figures(
    column: DescribedColumn, numbers: npt.NDArray[np.float64], least: int
) -> DescribedColumn:
    if len(numbers) < _TENTHS * least:
        return column
    low, median, high = np.quantile(numbers, [0.1, 0.5, 0.9])
    apart = np.sort(abs(numbers - median))
    most = apart[len(apart) - (least - 1) :].sum() > apart.sum() / 2
    low, median, high, mean = (float(f"{x:.3g}") for x in (low, median, high, numbers.mean()))
    return replace(column, low=low, median=median, high=high, mean=None if most else mean)


def _hashes(cells: Mapping[str, Any]) -> list[int]:
    """Returns a hash of each row, by numbers' values and not by their type."""
    import pandas as pd  # noqa: PLC0415 - slow to import, not always needed

    plain = {
        name: column.to_numpy(np.float64, na_value=np.nan)
        if column.dtype.kind == "f"
        else column.astype(object).where(column.notna(), None)
        for name, column in cells.items()
    }
    found: list[int] = pd.util.hash_pandas_object(pd.DataFrame(plain), index=False).tolist()
    return found
