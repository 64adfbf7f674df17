"""CSV files as they are written, of which columns are copied that nobody reads.

A cell keeps its quotes, leading zeros and blanks. Rows are called by the line of the file in which
they begin, as an editor counts.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from engram.data.schema.columns import File
from engram.data.schema.csv_files import below_titles, dialect
from engram.settings.errors import DataError
from engram.settings.files import open_file, read_file

if TYPE_CHECKING:
    import pandas as pd

_BLOCK: Final = 2**24  # bytes that are read at once
_END: Final = r"\r\n?|\n"


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

    def beside(self, columns: Sequence[int], added: "pd.DataFrame") -> bytes:
        """Returns a file of some of its columns, and others after the last.

        Args:
            columns: The numbers of those that are copied.
            added: The others, which are written as it is.

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
    try:
        text = below_titles(read_file(path).decode(file.encoding), file)
        rows = [*_rows(text, file.separator, file.skip + 1)]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"{path} is no table: {error}") from error
    _, header, end = rows[0]
    if file.names:
        header = _joined(file.names, file.separator)
    else:
        del rows[0]
    return CsvText(file, end or "\n", header, [r for _, r, _ in rows], [n for n, _, _ in rows])


def by_line(path: Path, file: File, frame: Any) -> Any:
    """Returns the rows of a file called by the lines in which they begin; 1 is the first of all.

    Args:
        path: The file.
        file: What is known of how it is written.
        frame: All of its rows.

    Raises:
        DataError: As for ``read_csv``.
    """
    count, last = 0, b"\n"
    try:
        with open_file(path) as opened:
            while some := opened.read(_BLOCK):
                count, last = count + some.count(b"\n"), some[-1:]
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
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
