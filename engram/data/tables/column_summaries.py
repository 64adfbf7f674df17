"""A node's description of its table: figures and values that enough of its rows share."""

from collections.abc import Mapping
from dataclasses import replace
from math import floor, isfinite, log10
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from engram.core.checks import Fault
from engram.core.machine import rows_in_memory
from engram.data.readers.npz import read_npz
from engram.data.readers.table_files import read_columns
from engram.data.schema.cells import check_columns
from engram.data.schema.columns import Column, Schema
from engram.data.schema.fitting import fit
from engram.data.schema.typed import Cells, typed
from engram.data.schema.written import Question, read_schema
from engram.data.source import TABLES, Source
from engram.data.tables.raw_tables import framed
from engram.data.tables.survival_columns import events_of
from engram.data.tables.table_summary import LONGEST, MOST_VALUES, DescribedColumn, DescribedTable
from engram.settings.errors import DataError, one_line

_TENTHS: Final = 10  # rows: with fewer, a tenth of them would be less than one
_WHOLE: Final = 20  # different whole numbers that may be classes
_BINS: Final = 16  # between the tenths at either end, at least
_LONGEST_LINE: Final = 1000  # characters


class Description(NamedTuple):
    """A description of a site's table.

    Attributes:
        table: What may be told.
        rows: A hash of each row, as the site reads it.
        questions: Columns that are asked about, with their cells: they stay at the site.
    """

    table: DescribedTable
    rows: list[int]
    questions: list[Question]


def describe_table(source: Source, schema: Schema, cache: Path, least: int) -> Description:
    """Describes a site's table.

    Values of text are told where there are at most ``MOST_VALUES``, each in two rows or more on
    average, and whole numbers where there are at most 20. Of numbers, the mean, the deviation, and
    the numbers below which a tenth, half, and nine tenths of the rows lie are told, rounded to a
    hundredth of the distance of these tenths; and how many rows lie between multiples of a power
    of two, of which there are 16 or more in that distance. A column that is asked about is read as
    proposed. Of columns with the roles time and event, an event table is told instead.

    Args:
        source: The table.
        schema: What the site has written down; other columns are read as they look.
        cache: Folder in which Parquet is unpacked.
        least: Fewest rows behind whatever is told: those that have a value or lack one, those on
            either side of a figure, and between two numbers. A mean, or a deviation, of which fewer
            rows make up half is not told.

    Raises:
        DataError: It cannot be read, has fewer rows, or cells that its schema does not allow.
    """
    with rows_in_memory(one_line(source)):
        frame = frame_of(source, cache, schema)
        check_columns(source.path, schema.names, frame.columns)
        if len(frame) < least:
            raise DataError(f"{source}: a table that is described must have {least} rows or more")
        fitted = fit(frame, schema)
        cells = _typed(source, frame, fitted.schema)
        asked, found = {each.column: each for each in fitted.questions}, {}
        for name, given in frame.items():
            column = replace(fitted.schema.by_name[name], values=schema.column(name).values)
            found[name] = _described(column, given, cells[name], least)
            if name in asked and found[name].column.kind:
                choices = _choices(asked[name], given, least)
                found[name] = replace(found[name], asked=asked[name].rule, choices=choices)
        if events := events_of(source.path, frame, fitted.schema, least=least):
            time, entry = fitted.schema.of_role("time"), fitted.schema.of_role("entry")
            for name in filter(None, (time, entry)):  # other edges would tell of rows between
                found[name] = replace(found[name], edges=(), counts=())
            each = tuple(zip(*(part.tolist() for part in events), strict=True))
            found[time] = replace(found[time], events=each)
        return Description(DescribedTable(len(frame), found), _hashes(cells), fitted.questions)


def _typed(source: Source, frame: Any, schema: Schema) -> dict[str, Any]:
    """Returns the columns as ``typed`` does; identifiers and the like as numbers, if they are some.

    Raises:
        DataError: Cells are not what is written of them; it names them all.
    """
    wrong, found = dict[str, str](), dict[str, Any]()
    for name, given in frame.items():
        column = schema.column(name)
        if column.kind in ("identifier", "ignored", "text"):
            numbers = Cells.of(column, given).numbers is not None
            column = replace(column, kind="number" if numbers else "text", values=())
        try:
            found[name] = typed(column, given)
        except DataError as error:
            wrong[name] = str(error)
    if wrong:
        told = "; ".join(wrong.values())
        raise DataError(Fault((), f"{source}: {told}: correct it, or the schema", tuple(wrong)))
    return found


def _choices(question: Question, given: Any, least: int) -> tuple[str, ...]:
    """Returns a question's answers without rare cells; none if the first has one."""
    texts = given.dropna().map(lambda cell: f"{cell:g}" if isinstance(cell, float) else str(cell))
    counts = texts.value_counts()
    shared = {*counts[counts >= least].index}

    def is_shared(line: str) -> bool:
        (column,) = read_schema(line).columns
        return shared.issuperset((*column.missing, *column.codes)) and len(line) <= _LONGEST_LINE

    there = tuple(filter(is_shared, question.choices))
    return there if there[:1] == question.choices[:1] else ()


def frame_of(source: Source, cache: Path, schema: Schema) -> Any:
    """Reads a table as a data frame: columns of numbers alone, others as they are written.

    Raises:
        DataError: It cannot be read, has no rows, or its columns have no names.
    """
    if source.kind in TABLES:
        frame = read_columns(source.path, schema)
    elif source.kind == "npz":
        arrays = read_npz(source.path)
        frame, y = framed(source.path, arrays), arrays.get("y")
        frame = frame if y is None or y.ndim != 1 else frame.assign(y=y)
    elif source.has_columns:
        from engram.data.readers.hugging_face import read_table  # noqa: PLC0415 - slow to import

        frame = read_table(source.kind, source.path, cache)
    else:
        kinds = "csv, xlsx, parquet, arrow, hf, npz"
        raise DataError(f"{source} is no table with names of columns: {kinds}")
    if not len(frame):
        raise DataError(f"{source} must hold some rows")
    return frame.set_axis([*map(str, frame.columns)], axis=1)


def _described(column: Column, given: Any, cells: Any, least: int) -> DescribedColumn:
    there, told = cells.dropna(), column.told()
    missing = len(cells) - len(there)
    lacks = missing if min(missing, len(there)) >= least else None
    if len(there) < least:
        return DescribedColumn(replace(told, kind=""), missing=lacks)
    figures: dict[str, Any] = {"missing": lacks}
    counts = there.value_counts()
    shared, values = counts[counts >= least].index, list[str]()
    if column.kind == "category":
        few = len(counts) <= min(MOST_VALUES, len(there) / 2)
        values = sorted(value for value in shared if len(value) <= LONGEST) if few else []
        around = given.map(lambda cell: isinstance(cell, str) and cell != cell.strip())
        figures["blanks"] = bool(around.sum() >= least)
    elif column.kind in ("number", "whole", "date"):
        numbers = there.to_numpy(dtype=np.float64)
        numbers = numbers[np.isfinite(numbers)]
        whole = len(counts) <= _WHOLE and not (numbers % 1).any()
        values = [str(int(v)) for v in sorted(shared) if np.isfinite(v)] if whole else []
        figures |= _figures(numbers, least)
    return DescribedColumn(replace(told, values=told.values or tuple(values)), **figures)


def _figures(numbers: npt.NDArray[np.float64], least: int) -> dict[str, Any]:
    """Returns the figures of a column of numbers, by name; none of too few numbers."""
    if len(numbers) < _TENTHS * least:
        return {}
    low, middle, high = np.quantile(numbers, [0.1, 0.5, 0.9]).tolist()
    figures = {"low": low, "median": middle, "high": high}
    figures |= {
        "mean": float(numbers.mean()),
        "deviation": float(numbers.std(ddof=1) * (np.ptp(numbers) > 0)),
    }
    spread = high - low or figures["deviation"]
    if not all(map(isfinite, (spread, *figures.values()))):
        return {}
    apart = np.sort(abs(numbers - middle))
    for name, parts in (("mean", apart), ("deviation", apart**2)):
        if parts[len(parts) - (least - 1) :].sum() > parts.sum() / 2:
            del figures[name]
    # To a hundredth of their distance, or less: to a power of ten.
    digits = -floor(log10(spread / 100)) if spread else None
    rounded = {n: f if digits is None else round(f, digits) for n, f in figures.items()}
    return rounded | _counted(np.sort(numbers), low, high, least)


def _counted(
    numbers: npt.NDArray[np.float64], low: float, high: float, least: int
) -> dict[str, tuple[float, ...]]:
    """Returns counts of ascending numbers between multiples of a power of two, as ``edges`` says.

    All sites know beforehand which multiples there may be. Next to each other are those between
    which there are ``least`` numbers.
    """
    if high == low:
        return {}
    step = 2.0 ** np.floor(np.log2((high - low) / _BINS))
    ends = np.floor((2 * low - high) / step), np.ceil((2 * high - low) / step)
    edges, counts, before = list[float](), list[int](), 0
    for edge in np.arange(ends[0], ends[1] + 1) * step:
        below = int(np.searchsorted(numbers, edge))
        if below - before >= least and len(numbers) - below >= least:
            edges.append(float(edge))
            counts.append(below - before)
            before = below
    return {"edges": tuple(edges), "counts": (*counts, len(numbers) - before)} if edges else {}


def _hashes(cells: Mapping[str, Any]) -> list[int]:
    """Returns a hash of each row, by numbers' values and not by their type."""
    plain = {
        name: column.to_numpy(np.float64, na_value=np.nan)
        if column.dtype.kind == "f"
        else column.astype(object).where(column.notna(), None)
        for name, column in cells.items()
    }
    return [*pd.util.hash_pandas_object(pd.DataFrame(plain), index=False).tolist()]
