"""Columns of survival beside the time: events, entries and weights of rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.data.schema.cells import check_columns, check_there
from engram.data.schema.columns import Column, Schema
from engram.data.schema.fitting import fit
from engram.data.schema.typed import typed
from engram.data.schema.written import key
from engram.settings.errors import DataError

_FIELDS = {"event": "event", "entry": "entry", "weight": "weights"}


def survival_columns(path: Path, frame: Any, schema: Schema) -> dict[str, npt.NDArray[Any]]:
    """Returns ``event``, and ``entry`` and ``weights`` where columns have these roles, (n,) each.

    Raises:
        DataError: There is no such column, a cell is missing, or none that its role allows.
    """
    names = {field: schema.of_role(role) for role, field in _FIELDS.items()}  # type: ignore[arg-type]
    found = dict[str, npt.NDArray[Any]]()
    for field, name in names.items():
        if not name:
            continue
        check_columns(path, [name], frame.columns)
        column = schema.column(name)
        column = _event(path, column, frame) if field == "event" else replace(column, kind="number")
        try:
            cells = typed(column, frame[name])
        except DataError as error:
            raise DataError(f"{path}: {error}") from error
        check_there(path, {name: cells})
        numbers = cells.to_numpy(dtype=np.float64)
        if field == "event" and not np.isin(numbers, (0, 1)).all():
            raise _ambiguous(path, column)
        found[field] = numbers > 0 if field == "event" else numbers
    return found


def _event(path: Path, column: Column, frame: Any) -> Column:
    if len(column.values) == 2:
        return replace(column, kind="truth")
    fitted = fit(frame[[column.name]], Schema((column,))).schema.column(column.name)
    if fitted.kind not in ("number", "whole", "truth"):
        raise _ambiguous(path, column)
    return fitted


def _ambiguous(path: Path, column: Column) -> DataError:
    line = f'columns.{key(column.name)} = {{role = "event", values = ["CENSORED", "EVENT"]}}'
    return DataError(
        f"{path}: column {column.name} must hold 0 (censored) and 1 (event), or two values that "
        f"the schema names: {line}"
    )
