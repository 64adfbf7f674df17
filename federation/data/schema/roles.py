"""Columns that a schema gives another role than that of an input."""

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from federation.data.frames import check_columns
from federation.data.schema.cells import meant, named_cells, texts_of
from federation.errors import DataError
from federation.schema import Schema

_PARTS: Final = {"train": 0, "test": 1, "validation": 2, "val": 2, "valid": 2}


def check_roles(path: Path, schema: Schema, target: str, inputs: Collection[str]) -> None:
    """Refuses a schema that contradicts a run.

    Args:
        path: Where the columns are, for messages.
        schema: The schema.
        target: The column to predict.
        inputs: Columns that are named as inputs.

    Raises:
        DataError: A column to predict is an event; one of another role is named as an input; or
            rows have weights, which training has none for.
    """
    roles = {column.name: column.role for column in schema.columns if column.role != "input"}
    if roles.get(target) == "event":
        raise DataError(
            f"{path}: {target} is an event (columns.{target}.role), which no method predicts: "
            "choose another target-column, or give it the role target"
        )
    for name in inputs:
        if name in roles:
            raise DataError(
                f"{path}: {name} must be no input (input-columns), since its role is {roles[name]}"
            )
    if weight := schema.of_role("weight"):
        raise DataError(
            f"{path}: {weight} is the weight of rows (columns.{weight}.role), which training has "
            f'none for yet: write columns.{weight} = {{kind = "ignored"}}'
        )


def parts_of(path: Path, schema: Schema, frame: Any) -> npt.NDArray[np.int64] | None:
    """Returns the part that each row is of, as ``PART``; None if no column says it.

    Raises:
        DataError: There is no such column, or a row is of no part.
    """
    if not (name := schema.of_role("part")):
        return None
    check_columns(path, [name], frame.columns)
    column = schema.column(name)
    rows, different = frame[name].factorize()
    parts = [_PARTS.get(meant(column, text) or "") for text in texts_of(different)]
    wrong = [k for k, part in enumerate(parts) if part is None] + [-1]
    if np.isin(rows, wrong).any():
        got = named_cells(frame[name], rows, wrong)
        raise DataError(f"{path}: column {name} must hold train, test or validation, got {got}")
    return np.asarray(np.array(parts)[rows], dtype=np.int64)
