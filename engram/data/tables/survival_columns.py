"""Columns of survival beside the time: events, entries and weights of rows."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.data.schema.cells import check_columns, check_there
from engram.data.schema.columns import Column, Role, Schema
from engram.data.schema.fitting import fit
from engram.data.schema.typed import typed
from engram.data.schema.written import key
from engram.scoring.event_tables import EventTable, event_table
from engram.settings.errors import DataError

BESIDE: Final = "beside"
"""The key of these columns beside ``x`` and ``y``."""

_COUNTED: Final[tuple[Role, ...]] = ("time", "event", "entry")


class Survival(NamedTuple):
    """Columns of n rows, in the order of ``engram.tables.site.Rows``; None without one."""

    weights: npt.NDArray[np.float64] | None
    event: npt.NDArray[np.bool_]
    entry: npt.NDArray[np.float64] | None

    def targets(self, path: Path, times: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Returns targets of networks: times, with 1 for an event and 0 for none, shape (n, 2).

        Raises:
            DataError: Rows enter late or have weights, which no loss of networks counts.
        """
        for role, column in (("weight", self.weights), ("entry", self.entry)):
            if column is not None:
                advice = 'write kind = "ignored" for its column, or choose a method of survival'
                raise DataError(f"{path}: networks have no use for the role {role}: {advice}")
        return np.column_stack([times, self.event]).astype(np.float64)


def survival_columns(path: Path, frame: Any, schema: Schema) -> Survival:
    """Reads the columns of the roles event, weight and entry.

    Raises:
        DataError: There is no such column, a cell is missing, or none that its role allows.
    """
    roles: tuple[Role, ...] = ("weight", "event", "entry")
    weights, event, entry = (_numbers(path, frame, schema, role) for role in roles)
    if event is None or not np.isin(event, (0, 1)).all():
        raise _ambiguous(path, schema.column(schema.of_role("event")))
    return Survival(weights, event > 0, entry)


def events_of(path: Path, frame: Any, schema: Schema, *, least: int) -> EventTable | None:
    """Counts rows with an event, and rows without, in cells of time; weights do not count.

    Returns:
        The counts; None where the schema has no column of time or event, or too few rows behind
        some count, those that lack a cell included.

    Raises:
        DataError: Some cells are none of their roles.
    """
    time, event, *_ = names = [schema.of_role(role) for role in _COUNTED]
    if not (time and event):
        return None
    each = [typed(schema.column(name), frame[name]) for name in filter(None, names)]
    lack = np.any([cells.isna() for cells in each], axis=0)
    if 0 < lack.sum() < least or lack.all():
        return None
    there = frame[~lack]
    times, found = _numbers(path, there, schema, "time"), survival_columns(path, there, schema)
    try:
        return event_table(np.asarray(times), found.event, found.entry, least=least)
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _numbers(path: Path, frame: Any, schema: Schema, role: Role) -> npt.NDArray[np.float64] | None:
    if not (name := schema.of_role(role)):
        return None
    check_columns(path, [name], frame.columns)
    column = schema.column(name)
    column = _event(path, column, frame) if role == "event" else replace(column, kind="number")
    try:
        cells = typed(column, frame[name])
    except DataError as error:
        raise DataError(f"{path}: {error}") from error
    check_there(path, {name: cells})
    return np.asarray(cells.to_numpy(dtype=np.float64))


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
