"""Tables in text files: the dialect is found where that is safe, and else asked about."""

import csv
import io
import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, Final

import pyarrow as pa
from pyarrow import csv as arrow

from engram.data.readers.text_columns import TextColumns
from engram.data.schema.cells import GROUPED, NUMBER
from engram.data.schema.columns import File, Schema
from engram.data.schema.kinds import may_be_grouped
from engram.data.schema.typed import is_plain
from engram.settings.errors import DataError, few_names, one_line
from engram.settings.files import open_file

SEPARATORS: Final = (",", ";", "\t", "|")  # that are looked for
_HEAD: Final = 2**20  # bytes that are looked at for the dialect
_RECORDS: Final = 100  # likewise
_BLOCK: Final = 2**24  # bytes that are read at once; a record must be shorter
_PACKED: Final = (b"PK\x03\x04", b"\x1f\x8b")
_MARKS: Final = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


def read_csv(path: Path, file: File, only: Collection[str] = ()) -> pa.Table:
    """Reads a text file with a header, or columns named by a schema, as texts.

    Args:
        path: The file.
        file: What is known of how it is written.
        only: Columns that are read, of which the file may lack some; all if none is named.

    Raises:
        DataError: It cannot be read, is no table, or may be read in several ways; it says which
            lines of a schema name one.
    """
    file, names, skip, _ = _opened(path, file)
    with _reading(path, file) as opened:
        return _arrow(opened, file, names, skip, only).read_all()


def read_frame(path: Path, file: File, schema: Schema) -> Any:
    """Reads a text file as a data frame: columns of numbers alone are float64, others are texts.

    Numbers are as programs write them, unless the schema says something else; NaN where a cell is
    empty. Those that may have points between thousands are texts. For the rest see ``read_csv``.
    """
    file, names, skip, rows = _opened(path, file)
    plain = [is_plain(schema.column(name)) for name in names]
    found = TextColumns(plain)
    with _reading(path, file) as opened:
        simple = file.encoding.startswith("utf-8")
        if not (simple and found.add_lines(opened, file.separator, skip)):
            found = TextColumns(plain)
            for batch in _arrow(opened, file, names, skip):
                found.add(pa.concat_arrays(batch.columns))
        for k in found.lost:
            texts = _arrow(opened, file, names, skip, [names[k]]).read_all()
            found.texts[k] = texts.column(0).chunks
        frame = found.frame(names)
        first = dict(zip(names, zip(*rows, strict=False), strict=False))
        some = [name for name in names if _are_grouped(first.get(name, ()))]
        if some := [name for name in some if may_be_grouped(frame[name])]:
            texts = _arrow(opened, file, names, skip, some).read_all().to_pandas()
            some = [name for name in some if _are_grouped(texts[name])]
            frame[some] = texts[some]
    return frame


def dialect(path: Path, file: File) -> File:
    """Detects the dialect of a file, but for entries of ``file``, in its first lines.

    Raises:
        DataError: It cannot be read, is empty, or may be read in several ways.
    """
    return _first_lines(path, file)[0]


def _first_lines(path: Path, file: File) -> tuple[File, str]:
    with reading_text(path, file), open_file(path) as opened:
        head = opened.read(_HEAD)
        if head.startswith(_PACKED):
            raise DataError(f"{path} is packed, or a workbook: unpack it, or name it .xlsx")
        file = _encoded(path, head, file)
        text = below_titles(head.decode(file.encoding, errors="ignore"), file)
        return _separated(path, text, file), text


def _are_grouped(cells: Iterable[str]) -> bool:
    """Whether points of numbers, if there are any, are between thousands."""
    return all(map(GROUPED.fullmatch, filter(None, map(str.strip, cells))))


def _opened(path: Path, file: File) -> tuple[File, list[str], int, list[list[str]]]:
    """Returns the dialect, the columns' names, the lines above the rows, and the first rows."""
    file, text = _first_lines(path, file)
    records = _by_line(text, file.separator)
    rows = [record for _, record in records]
    if file.names:
        return file, [*file.names], file.skip, rows
    if not records:
        raise DataError(f"{path} is no table: its line of names does not end")
    names = [name.strip() for name in records[0][1]]
    check_names(path, names, len(records))
    return file, names, file.skip + _lines_of_header(text, file), rows[1:]


@contextmanager
def reading_text(path: Path, file: File) -> Iterator[None]:
    """Turns errors of files and encodings into errors of data."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except (LookupError, UnicodeError) as error:
        why = f"file.encoding, which is {file.encoding}: {error}"
        raise DataError(f"{path} is not written in {why}") from error


def below_titles(text: str, file: File) -> str:
    """Returns a file's text without the lines above the names, or the rows."""
    lines = io.StringIO(text, newline="")
    for _ in range(file.skip):
        lines.readline()
    return lines.read()


@contextmanager
def _reading(path: Path, file: File) -> Iterator[IO[bytes]]:
    try:
        with reading_text(path, file), open_file(path) as opened:
            yield opened
    except pa.ArrowInvalid as error:
        if "UTF8" in str(error):
            raise _not_utf8(path, b"...") from error
        raise DataError(f"{path} is no table: {one_line(str(error))}") from error


def _arrow(
    opened: IO[bytes], file: File, names: list[str], skip: int, only: Collection[str] = ()
) -> arrow.CSVStreamingReader:
    opened.seek(0)
    encoding = file.encoding.removesuffix("-sig")
    only = [name for name in names if name in only or not only]
    return arrow.open_csv(
        opened,
        arrow.ReadOptions(block_size=_BLOCK, encoding=encoding, column_names=names, skip_rows=skip),
        arrow.ParseOptions(delimiter=file.separator, newlines_in_values=True),
        arrow.ConvertOptions(column_types=dict.fromkeys(only, pa.string()), include_columns=only),
    )


def _encoded(path: Path, head: bytes, file: File) -> File:
    found = next((name for mark, name in _MARKS.items() if head.startswith(mark)), file.encoding)
    if found == "utf-8" and b"\0" in head:
        advice = 'write file.encoding = "utf-16-le" into the schema if it is UTF-16'
        raise DataError(f"{path} has bytes of 0, which are no text: {advice}")
    try:
        if file.encoding == "utf-8" and found == "utf-8":
            head.decode()
    except UnicodeDecodeError as error:
        if error.reason != "unexpected end of data":
            raise _not_utf8(path, head[max(0, error.start - 20) : error.end + 20]) from error
    return replace(file, encoding=found)


def _not_utf8(path: Path, some: bytes) -> DataError:
    shown = one_line(some.decode("cp1252", errors="replace"))
    advice = f'write file.encoding = "cp1252" into the schema if {shown!r} is right'
    return DataError(f"{path} is not UTF-8: {advice}")


def _by_line(text: str, separator: str) -> list[tuple[int, list[str]]]:
    """The first records with their lines; the last may be cut off, and is not one."""
    found, line = list[tuple[int, list[str]]](), 1
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    try:
        for record in reader:
            found.append((line, record))
            line = reader.line_num + 1
            if len(found) > _RECORDS:
                break
    except csv.Error:  # a cell that is longer than any
        pass
    whole = [(line, record) for line, record in found if record]
    return whole[:-1] if len(text) >= _HEAD and len(whole) > 1 else whole


def _separated(path: Path, text: str, file: File) -> File:
    if not text.strip():
        raise DataError(f"{path} is empty: a table has a line of names")
    if file.separator:
        return file
    found = []
    for separator in SEPARATORS:
        widths = {len(record) for _, record in _by_line(text, separator)}
        if len(widths) == 1 and widths.pop() > 1:
            found.append(separator)
    if len(found) > 1:
        choices = ", or ".join(f'file.separator = "{each}"' for each in found)
        advice = f"write {choices} into the schema"
        raise DataError(f"{path} may be read with several separators: {advice}")
    if not found and (ragged := _ragged(text, file.skip)):
        raise DataError(f"{path} is no table: {ragged}")
    return replace(file, separator=found[0] if found else ",")


def _ragged(text: str, skip: int) -> str:
    """The line of a record with another number of cells; "" of one cell each."""
    below = [(line, mark) for mark in SEPARATORS if (line := _below_titles(text, mark))]
    named = [mark for mark in SEPARATORS if len(_by_line(text, mark)[0][1]) > 1]
    line, separator = min(below, default=(0, (*named, ",")[0]))
    records = _by_line(text, separator)
    first = len(records[0][1])
    for at, record in records:
        if len(record) != first:
            told = f"its line {skip + at} has {len(record)} cells, and its first one {first}"
            if (at, len(record) - first) == (records[1][0], 1) and first > 1:
                names = json.dumps(["", *records[0][1]], ensure_ascii=False)
                lines = f"file.skip = {skip + 1} and file.names = {names}"
                return f"{told}: if names of rows come first, as R writes them, write {lines}"
            title = f"; if the lines above line {skip + line} are titles, write file.skip = "
            return told + (f"{title}{skip + line - 1} into the schema" if line else "")
    return ""


def _below_titles(text: str, separator: str) -> int:
    """The first line below titles, from which records are long; 0 if none is."""
    records = _by_line(text, separator)
    lengths = [len(record) for _, record in records]
    odd = [k for k, length in enumerate(lengths) if length != lengths[-1]]
    begin = odd[-1] + 1 if odd and lengths[-1] > max(lengths[: odd[-1] + 1]) else 0
    return records[begin][0] if 0 < begin <= len(records) / 2 else 0


def check_names(path: Path, names: list[str], lines: int) -> None:
    """Refuses names in the first of some lines.

    Raises:
        DataError: It may be a row; or two names are alike.
    """
    numbered = names == [str(k) for k in range(len(names))]
    if all(NUMBER.fullmatch(name) for name in names) and not numbered and lines > 1:
        example = ", ".join(f'"x{k}"' for k in range(min(3, len(names))))
        raise DataError(
            f"{path} begins with a line of numbers ({few_names(names[:3])}): name its columns by "
            f"file.names = [{example}, ...] in the schema; or with all of the first line if these "
            "are names"
        )
    if names.count("") > 1:
        raise DataError(
            f"{path} begins with a line of {names.count('')} empty names: if it is a title above "
            "the header, write file.skip = 1 into the schema"
        )
    if again := [name for name, count in Counter(names).items() if count > 1]:
        raise DataError(
            f"{path} has several columns {few_names(again)}: rename them, or name all columns by "
            "file.names in the schema"
        )


def _lines_of_header(text: str, file: File) -> int:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=file.separator)
    return reader.line_num if any(reader) else 1
