"""Tables in files: of text or, by the ending of their name, Excel's.

A cell of Excel's becomes the text that stands for it in a file of text, and so is taken for what it
would be there. Rows are called by the numbers that the sheet, or an editor, shows.
"""

import csv
import io
import re
import warnings
import zipfile
from collections.abc import Collection, Iterator, Sequence
from datetime import date, datetime, time, timedelta
from functools import cache, partial
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

import pandas as pd

from engram.core.machine import check_rows
from engram.data.readers.csv_files import (
    below_titles,
    check_names,
    dialect,
    read_csv,
    read_frame,
    reading_text,
)
from engram.data.readers.npz import reading
from engram.data.schema.cells import row_name
from engram.data.schema.columns import File, Schema
from engram.settings.errors import DataError, Refused, few_names, one_line
from engram.settings.files import open_file, read_file

_BLOCK: Final = 2**20  # bytes that are read at once
_END: Final = r"\r\n?|\n"
EXCEL: Final = (".xlsx", ".xlsm")
TEXTS: Final = (".csv", ".tsv", ".txt")
TABLES: Final = (*TEXTS, *EXCEL)
"""Endings of the names of files with a line of names, and a row in each other one."""


def read_rows(path: Path, file: File, only: Collection[str] = ()) -> Any:
    """Reads a table as a data frame; for arguments and errors see ``read_csv``.

    Raises:
        Refused: Excel's are not read here, since a package is missing.
    """
    if path.suffix.lower() not in EXCEL:
        return by_line(path, file, read_csv(path, file, only=only).to_pandas())
    if find_spec("openpyxl") is None:
        raise Refused(f"{path} needs one more package: pip install 'engram[excel]'")
    with reading(path, "a workbook as Excel writes it (.xlsx)"), open_file(path) as opened:
        cells = _sheet(path, opened, file.sheet)
    return _table(path, cells, file, only)


def read_columns(path: Path, schema: Schema) -> Any:
    """Reads a table as ``read_rows``, with columns of numbers as ``read_frame`` has them."""
    if path.suffix.lower() in EXCEL:
        frame = read_rows(path, schema.file)
    else:
        frame = by_line(path, schema.file, read_frame(path, schema.file, schema))
    if frame.shape[1] > 1 and all(dtype.kind == "O" for dtype in frame.dtypes):
        again = frame.index[(frame == [*frame]).all(axis=1)]
        for label in again[:1]:
            advice = "as where files were put one below the other: remove it"
            raise DataError(
                f"{path}: {row_name(label)} has the names of the columns again, {advice}"
            )
    return frame


def _sheet(path: Path, opened: IO[bytes], name: str) -> Any:
    """Returns the cells of a sheet; of the only one that holds a table, if none is named."""
    with zipfile.ZipFile(opened) as archive:
        check_rows(str(path), sum(member.file_size for member in archive.infolist()))
    with warnings.catch_warnings(), pd.ExcelFile(opened, engine="openpyxl") as book:
        warnings.simplefilter("ignore")  # of styles and the like
        names = [str(each) for each in book.sheet_names]
        if name and name not in names:
            raise DataError(f"{path} has no sheet {name!r}; it has {few_names(names)}")
        parse = partial(book.parse, header=None, dtype=object, keep_default_na=False)
        found = {each: parse(each) for each in ([name] if name else names)}
    sheets = {}
    for each, cells in found.items():
        there = cells.where(cells != "")
        sheets[each] = there.dropna(how="all").dropna(how="all", axis=1)
    tables = [each for each, cells in sheets.items() if min(cells.shape) > 1]
    tables = tables or [each for each, cells in sheets.items() if len(cells)]
    if not tables:
        raise DataError(f"{path} is empty: a table has a line of names")
    if len(tables) > 1:
        choices = ", or ".join(f'file.sheet = "{one_line(each)}"' for each in tables)
        raise DataError(f"{path} has tables in several sheets: write {choices} into the schema")
    return sheets[tables[0]]


def _table(path: Path, cells: Any, file: File, only: Collection[str]) -> Any:
    texts = cells[cells.index >= file.skip].map(_text)
    texts = texts.set_axis(texts.index + 1)
    names = [*file.names]
    if not names:
        names = [name.strip() for name in texts.iloc[0]]
        check_names(path, names, len(texts))
        texts = texts.iloc[1:]
    if len(names) != texts.shape[1]:
        wanted = f"name each of the {texts.shape[1]} columns of {path}"
        raise DataError(f"file.names must {wanted}, got {few_names(names)}")
    texts = texts.set_axis(names, axis=1)
    return texts[[name for name in names if not only or name in only]]


def _text(cell: Any) -> str:
    if isinstance(cell, datetime) and cell.time() == time():
        cell = cell.date()
    if isinstance(cell, date | time):
        return cell.isoformat()
    if isinstance(cell, timedelta):
        return f"{cell / timedelta(hours=1):.10g} h"
    if isinstance(cell, float):
        return "" if isnan(cell) else repr(cell)
    return str(cell)


class CsvText(NamedTuple):
    """A CSV file.

    Attributes:
        file: How it is written.
        end: What ends its lines.
        header: The row of names.
        rows: The others, without their ends, but for blank lines.
        lines: The number of each row's first line.
    """

    file: File
    end: str
    header: str
    rows: list[str]
    lines: list[int]

    def beside(self, columns: Sequence[int], added: pd.DataFrame) -> bytes:
        """Copies columns of these numbers, and adds others after the last.

        Raises:
            UnicodeEncodeError: Its encoding lacks a letter of the others.
        """
        mark = self.file.separator
        cell, _ = _patterns(mark)
        more = _rows(added.to_csv(index=False, sep=mark, decimal=self.file.decimal), mark)
        found = []
        for row, (_, new, _) in zip((self.header, *self.rows), more, strict=True):
            cells = row.split(mark) if '"' not in row else cell.findall(row)
            found += [mark.join([*(cells[k] for k in columns), new]), self.end]
        return "".join(found).encode(self.file.encoding)


def read_text(path: Path, file: File) -> CsvText:
    """Reads a CSV file that ``read_csv`` reads.

    Raises:
        DataError: As for ``read_csv``.
    """
    file = dialect(path, file)
    with reading_text(path, file):
        text = below_titles(read_file(path).decode(file.encoding), file)
    try:
        rows = [*_rows(text, file.separator, file.skip + 1)]
    except ValueError as error:
        raise DataError(f"{path} is no table: {error}") from error
    _, header, end = rows[0]
    if file.names:
        header = _joined(file.names, file.separator)
    else:
        del rows[0]
    return CsvText(file, end or "\n", header, [r for _, r, _ in rows], [n for n, _, _ in rows])


def by_line(path: Path, file: File, frame: Any) -> Any:
    """Labels rows by the lines where they begin, counted from 1.

    Raises:
        DataError: As for ``read_csv``.
    """
    count, last = 0, b"\n"
    with reading_text(path, file), open_file(path) as opened:
        while some := opened.read(_BLOCK):
            count, last = count + some.count(b"\n"), some[-1:]
    above = file.skip + (0 if file.names else 1)
    if count + (last != b"\n") == above + len(frame):  # each row is a line
        return frame.set_axis(range(above + 1, above + 1 + len(frame)))
    return frame.set_axis(read_text(path, file).lines)


def _joined(names: Sequence[str], separator: str) -> str:
    line = io.StringIO()
    csv.writer(line, delimiter=separator, lineterminator="").writerow(names)
    return line.getvalue()


@cache
def _patterns(separator: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Returns the pattern of a cell, at a row's start or behind a separator, and that of a row."""
    mark = re.escape(separator)
    # As Arrow reads them: a quote matters at the beginning of a cell alone.
    cell = rf'(?:"(?:[^"]++|"")*+"[^{mark}\r\n]*+|[^"{mark}\r\n][^{mark}\r\n]*+|)'
    return re.compile(f"(?:^|{mark})({cell})"), re.compile(rf"{cell}(?:{mark}{cell})*+({_END}|\Z)")


def _rows(text: str, separator: str, line: int = 1) -> Iterator[tuple[int, str, str]]:
    """Yields rows that are not empty: the line where each begins, its text, and its end.

    Raises:
        ValueError: A quote is not closed.
    """
    at, (_, pattern) = 0, _patterns(separator)
    while at < len(text):
        found = pattern.match(text, at)
        if found is None:
            raise ValueError(f"a quote in row {line} is not closed")
        row = text[at : found.start(1)]
        if row:
            yield line, row, found[1]
        at, line = found.end(), line + 1 + ('"' in row and len(re.findall(_END, row)))
