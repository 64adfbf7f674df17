"""CSV files cut into cells as they are written, for columns that are copied and not read.

A cell keeps its bytes: leading zeros, quotes, blanks, its encoding. Rows are called by the line of
the file in which they begin, as an editor counts: the header is line 1.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from federation.data.frames import read_frame
from federation.errors import DataError
from federation.files import read_file

_BOM: Final = b"\xef\xbb\xbf"
# As pandas reads them: a quote matters at the beginning of a cell alone.
_ANY: Final = rb'(?:"(?:[^"]++|"")*+"[^,\r\n]*+|[^",\r\n][^,\r\n]*+|)'
_CELL: Final = re.compile(rb"(?:^|,)(%b)" % _ANY)
_ROW: Final = re.compile(rb"%b(?:,%b)*+(\r\n?|\n|\Z)" % (_ANY, _ANY))


class CsvCells(NamedTuple):
    """A CSV file with a header, as it is written.

    Attributes:
        start: The mark of its encoding, if it begins with one.
        end: What ends its lines.
        header: The header.
        names: What its columns are called, each in its own way.
        rows: The other lines without their ends; of a row with line breaks, all its lines.
        lines: The number of the first line of each row.
    """

    start: bytes
    end: bytes
    header: bytes
    names: list[str]
    rows: list[bytes]
    lines: list[int]

    def cells(self, row: bytes) -> list[bytes]:
        """Returns the cells of a row; those that it lacks are empty."""
        found = row.split(b",") if b'"' not in row else _CELL.findall(row)
        return found + [b""] * (len(self.names) - len(found))

    def columns(self, names: Collection[str]) -> bytes:
        """Returns a CSV file of some columns, a row a line."""
        wanted = {*names}
        some = [k for k, name in enumerate(self.names) if name in wanted]
        header = ('"' + self.names[k].replace('"', '""') + '"' for k in some)
        rows = (b",".join(cells[k] for k in some) for cells in map(self.cells, self.rows))
        return b"\n".join([",".join(header).encode(), *rows])

    def beside(self, left_out: Collection[str], added: bytes) -> list[bytes]:
        """Returns the file's lines without some columns, and with others after the last.

        Args:
            left_out: Names of columns.
            added: A CSV file with as many rows.
        """
        without = {*left_out}
        some = [k for k, name in enumerate(self.names) if name not in without]
        rows = (self.cells(row) for row in (self.header, *self.rows))
        more = (row for _, row, _ in _rows(added))
        lines = (
            b",".join([*(cells[k] for k in some), row]) + self.end
            for cells, row in zip(rows, more, strict=True)
        )
        return [self.start, *lines]


def read_cells(path: Path) -> CsvCells:
    """Reads a CSV file with a header; blank lines are no rows.

    Raises:
        DataError: It cannot be read, or is no table: a quote is not closed, or a row is longer than
            the header.
    """
    try:
        data = read_file(path)
        start = _BOM if data.startswith(_BOM) else b""
        (_, header, end), *rows = [*_rows(data.removeprefix(start))] or [(1, b"", b"")]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"{path} is no table: {error}") from error
    names = list(read_frame(path, data=header).columns)
    lines, contents, _ = zip(*rows, strict=True) if rows else ((), (), ())
    found = CsvCells(start, end or b"\n", header, names, list(contents), list(lines))
    for line, row in zip(lines, contents, strict=True):
        if (count := len(found.cells(row))) > len(names):
            many = f"row {line} has {count} cells, and its header {len(names)}"
            raise DataError(f"{path} is no table: {many}")
    return found


def read_beside(
    path: Path, parsed: Collection[str], texts: Mapping[str, Collection[str]]
) -> tuple[Any, CsvCells]:
    """Reads a CSV file, of which some columns are parsed, and the others are text.

    Args:
        path: The file.
        parsed: Names of columns that are parsed where they are there.
        texts: As for ``read_frame``.

    Returns:
        A data frame whose rows are called by their lines, and the file as it is written.

    Raises:
        DataError: As ``read_frame`` and ``read_cells``.
    """
    import pandas as pd  # noqa: PLC0415 - slow to import

    file = read_cells(path)
    read = {*parsed}
    there = [name for name in file.names if name in read]
    copied = [name for name in file.names if name not in read]
    as_text: dict[str, Any] = {"dtype": str, "na_filter": False}
    as_text["encoding_errors"] = "backslashreplace"  # the file keeps its bytes
    parts = [read_frame(path, texts=texts, data=file.columns(there))] if there else []
    parts += [read_frame(path, data=file.columns(copied), **as_text)] if copied else []
    return pd.concat(parts, axis=1)[file.names].set_axis(file.lines), file


def _rows(data: bytes) -> Iterator[tuple[int, bytes, bytes]]:
    """Yields rows that are not blank: the line where each begins, its bytes, and its end.

    Raises:
        ValueError: A quote is not closed.
    """
    at, line = 0, 1
    while at < len(data):
        found = _ROW.match(data, at)
        if found is None:
            raise ValueError(f"a quote in row {line} is not closed")
        row = data[at : found.start(1)]
        if row.strip(b" \t"):
            yield line, row, found[1]
        at, line = found.end(), line + (len(found[0].splitlines()) if b'"' in row else 1)
