"""Tables as rows of networks, which are encoded once it is known which of them are learned from."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.metrics import Targets
from federation.data.cells import check_there
from federation.data.declared import Declared
from federation.data.raw_tables import RawTable, labels_of
from federation.data.texts import texts_of
from federation.schema import Column

DECLARE: Final = "set missing=median or missing=indicator"
"""The way out where values are missing."""


def rows_of(table: RawTable, declared: Declared, targets: Targets) -> dict[str, Any]:
    """Returns ``x``, its ``schema``, ``y`` and, where rows name their client, ``task``.

    Of columns ``x`` is a frame for ``encode_learned``. Of texts it is ``Texts``, without a schema.

    Args:
        table: The table.
        declared: What settings say of its columns.
        targets: What targets are; classes may be text.

    Raises:
        DataError: As ``targets_of``; or values are missing where none may be.
    """
    path, cells = table.path, table.inputs
    found: dict[str, Any] = {"y": targets_of(path, table.target, table.y, targets)}
    if declared.text:
        found["x"] = texts_of(path, cells, declared)
    else:
        if table.schema.missing == "refuse":
            check_there(path, dict(cells.items()), DECLARE)
        found |= {"x": cells, "schema": table.schema}
    return found if table.task is None else {**found, "task": table.task}


def targets_of(path: Path, column: Column | None, y: Any, targets: Targets) -> npt.NDArray[Any]:
    """Returns the targets of rows, as their source has them.

    Args:
        path: Where they are, for messages.
        column: Their column; None of an array that was given beside a table.
        y: Its cells, or the array.
        targets: What targets are.

    Raises:
        DataError: Some are missing, or no numbers where these are wanted.
    """
    if column is None:
        return np.asarray(y)
    wanted = column if targets == "classes" else replace(column, kind="number", values=())
    return labels_of(path, wanted, y)
