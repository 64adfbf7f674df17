"""Columns and cells that a table lacks."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from engram.data.schema.cells import row_name
from engram.settings.errors import DataError, few_names


def check_columns(path: Path, wanted: Collection[str], names: Collection[str]) -> None:
    """Refuses a table that lacks columns, with a ``DataError`` that names them."""
    there = {*names}
    if lacking := [name for name in wanted if name not in there]:
        has = few_names(sorted(names, key=wanted.__contains__))
        raise DataError(f"{path} has no column {few_names(map(repr, lacking))}; it has {has}")


def check_there(path: Path, columns: Mapping[str, Any], advice: str = "a row needs one") -> None:
    """Refuses columns that lack a value, with a ``DataError`` that names the first of each."""
    first = [
        f"{name} is missing in {row_name(column.index[column.isna().argmax()])}"
        for name, column in columns.items()
        if column.hasnans
    ]
    if first:
        raise DataError(f"{path}: {few_names(first)}: {advice}")
