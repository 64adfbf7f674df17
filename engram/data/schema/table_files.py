"""Tables in files: of text or, by the ending of their name, Excel's.

A cell of Excel's becomes the text that stands for it in a file of text, and so is taken for what it
would be there. Rows are called by the numbers that the sheet, or an editor, shows.
"""

import warnings
import zipfile
from collections.abc import Collection
from datetime import date, datetime, time
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import IO, Any, Final

from engram.core.machine import check_rows
from engram.data.csv_text import by_line
from engram.data.npz import UNREADABLE
from engram.data.schema.columns import File
from engram.data.schema.csv_files import check_names, read_csv
from engram.settings.errors import DataError, Refused, few_names, one_line
from engram.settings.files import open_file

EXCEL: Final = (".xlsx", ".xlsm")
TEXTS: Final = (".csv", ".tsv", ".txt")
TABLES: Final = (*TEXTS, *EXCEL)
"""Endings of the names of files with a line of names, and a row in each other one."""


def read_rows(
    path: Path, file: File, numbers: Collection[str] = (), only: Collection[str] = ()
) -> Any:
    """Reads a table as a data frame; for arguments and errors see ``read_csv``.

    Raises:
        Refused: Excel's are not read here, since a package is missing.
    """
    if path.suffix.lower() not in EXCEL:
        return by_line(path, file, read_csv(path, file, numbers, only).to_pandas())
    if find_spec("openpyxl") is None:
        raise Refused(f"{path} needs one more package: pip install 'engram[excel]'")
    try:
        with open_file(path) as opened:
            cells = _sheet(path, opened, file.sheet)
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except (*UNREADABLE, AttributeError) as error:  # what it says would not help
        raise DataError(f"{path} must be a workbook as Excel writes it (.xlsx)") from error
    return _table(path, cells, file, only)


def _sheet(path: Path, opened: IO[bytes], name: str) -> Any:
    """Returns the cells of a sheet; of the only one that holds a table, if none is named."""
    import pandas as pd  # noqa: PLC0415 - slow to import, not always needed

    with zipfile.ZipFile(opened) as archive:
        check_rows(str(path), sum(member.file_size for member in archive.infolist()))
    with warnings.catch_warnings(), pd.ExcelFile(opened, engine="openpyxl") as book:
        warnings.simplefilter("ignore")  # of styles and the like
        names = [str(each) for each in book.sheet_names]
        if name and name not in names:
            raise DataError(f"{path} has no sheet {name!r}; it has {few_names(names)}")
        how: dict[str, Any] = {"header": None, "dtype": object, "keep_default_na": False}
        found = {each: book.parse(each, **how) for each in ([name] if name else names)}
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
    """Returns the rows below the names of columns, as texts."""
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
    """Returns a cell as it stands in a file of text."""
    if isinstance(cell, datetime) and cell.time() == time():
        cell = cell.date()
    if isinstance(cell, date | time):
        return cell.isoformat()
    if isinstance(cell, float):
        return "" if isnan(cell) else repr(cell)
    return str(cell)
