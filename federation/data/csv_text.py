"""CSV files as they are written, of which columns are copied that nobody reads.

A cell keeps its quotes, leading zeros and blanks. Rows are called by the line of the file in which
they begin, as an editor counts: the header is line 1.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from federation.errors import DataError
from federation.files import read_file

_BOM: Final = b"\xef\xbb\xbf"
_END: Final = r"\r\n?|\n"
# As pandas reads them: a quote matters at the beginning of a cell alone.
_ANY: Final = r'(?:"(?:[^"]++|"")*+"[^,\r\n]*+|[^",\r\n][^,\r\n]*+|)'
_CELL: Final = re.compile(rf"(?:^|,)({_ANY})")
_ROW: Final = re.compile(rf"{_ANY}(?:,{_ANY})*+({_END}|\Z)")


class CsvText(NamedTuple):
    """A CSV file.

    Attributes:
        encoding: The encoding of its text.
        end: What ends its lines.
        header: The row of names.
        rows: The others, without their ends, but for blank lines.
        lines: The number of each row's first line.
    """

    encoding: str
    end: str
    header: str
    rows: list[str]
    lines: list[int]

    def beside(self, columns: Sequence[int], added: str) -> list[bytes]:
        """Returns a file of some of its columns, and others after the last.

        Args:
            columns: The numbers of those that are copied.
            added: A CSV file of the others, with as many rows.
        """
        found = []
        more = (row for _, row, _ in _rows(added))
        for row, new in zip((self.header, *self.rows), more, strict=True):
            cells = row.split(",") if '"' not in row else _CELL.findall(row)
            copied = [cells[k] if k < len(cells) else "" for k in columns]
            found.append((",".join([*copied, new]) + self.end).encode())
        return [_BOM, *found] if self.encoding == "utf-8-sig" else found


def read_text(path: Path) -> CsvText:
    """Reads a CSV file with a header.

    Raises:
        DataError: It cannot be read, or is none: it is no UTF-8, or a quote is not closed.
    """
    try:
        data = read_file(path)
        encoding = "utf-8-sig" if data.startswith(_BOM) else "utf-8"
        (_, header, end), *rows = [*_rows(data.decode(encoding))] or [(1, "", "")]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"{path} is no table: {error}") from error
    return CsvText(encoding, end or "\n", header, [r for _, r, _ in rows], [n for n, _, _ in rows])


def _rows(text: str) -> Iterator[tuple[int, str, str]]:
    """Yields rows that are not blank: the line where each begins, its text, and its end.

    Raises:
        ValueError: A quote is not closed.
    """
    at, line = 0, 1
    while at < len(text):
        found = _ROW.match(text, at)
        if found is None:
            raise ValueError(f"a quote in row {line} is not closed")
        row = text[at : found.start(1)]
        if row.strip(" \t"):
            yield line, row, found[1]
        at, line = found.end(), line + 1 + ('"' in row and len(re.findall(_END, row)))
