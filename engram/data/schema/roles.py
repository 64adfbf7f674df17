"""The column of a table that says what each row is for."""

from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.data.cells import check_columns
from engram.data.schema.cells import meant, named_cells, texts_of
from engram.data.schema.columns import Schema
from engram.settings.errors import DataError

_PARTS: Final = {"train": 0, "test": 1, "validation": 2, "val": 2, "valid": 2}


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
