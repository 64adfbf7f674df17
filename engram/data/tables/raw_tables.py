"""Tables as their sources have them: the one reader of their columns.

CSV files, data frames, and arrays that name their columns become the same arrays by name.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pandas as pd

from engram.core.checks import Fault, must
from engram.core.machine import check_rows
from engram.data.image_axes import CLASSES, PART, say_once
from engram.data.lazy import is_frame, whole
from engram.data.readers.csv_files import dialect
from engram.data.readers.npz import named
from engram.data.readers.table_files import EXCEL, read_columns
from engram.data.schema.cells import (
    check_columns,
    check_there,
    meant,
    named_cells,
    number,
    texts_of,
)
from engram.data.schema.columns import INPUTS, Column, Schema
from engram.data.schema.declared import Declared, check_client, fault_of_values, name_order
from engram.data.schema.encoding import read_cells, read_texts
from engram.data.schema.fitting import fit
from engram.data.schema.kinds import PARTS
from engram.data.schema.targets import classes
from engram.data.schema.typed import typed
from engram.data.tables.survival_columns import BESIDE, survival_columns
from engram.settings.errors import DataError, few_names

_Array = npt.NDArray[Any]
_DECLARE: Final = "set missing=median or missing=indicator"
_CLASSES: Final = ": text is a target of task=classification or, of two values, family=logistic"


def of_file(path: Path, declared: Declared) -> dict[str, Any]:
    """Reads a file; for its columns and errors see ``of_frame`` and ``read_rows``."""
    where, found = path, ""
    if path.suffix.lower() not in EXCEL and not declared.schema.file.separator:
        found = dialect(path, declared.schema.file).separator.removeprefix(",")
    if found:
        where = path.with_name(f"{path.name} (separator {json.dumps(found)})")
    table = of_frame(where, read_columns(path, declared.schema), declared)
    if found:
        shown = json.dumps(found)
        say_once(f"{path}: cells are parted by {shown}: write file.separator = {shown} to say so")
    return table


def of_frame(
    path: Path, frame: Any, declared: Declared, y: _Array | None = None, task: _Array | None = None
) -> dict[str, Any]:
    """Returns ``x``, its ``schema`` and ``y``; ``task``, ``PART``, ``CLASSES`` where it has them.

    Of columns ``x`` is a frame as ``read_cells`` returns it, which is encoded once it is known
    which rows are learned from. Of texts it is ``Texts``, without a schema. ``y`` and ``task`` are
    targets and clients that are given beside the frame; ``path`` is where it is, for messages.

    Raises:
        DataError: It lacks a column, the client or target of some rows, or values where none may
            be missing; or it may be read in several ways. It says which.
    """
    target, client = "" if y is not None else declared.target, declared.client
    check_columns(path, [target] if y is None else [], frame.columns)
    check_client(path, declared, frame.columns if task is None else [client])
    names = inputs_of(path, declared, frame.columns, target)
    if not len(frame):
        raise DataError(f"{path} must hold some rows")
    if client in frame:
        if task is not None:
            advice = f"leave out the column {client}, or set another task-column"
            raise DataError(f"{path} must name the clients of rows once: {advice}")
        written = replace(declared.schema, columns=(declared.schema.column(client),))
        one = fit(frame[[client]], written, others=[client])
        task = labels_of(path, one.schema.column(client), frame[client], one.notes)
    table = frame[[name for name in (*names, target) if name in frame]]
    _check_types(path, table)
    if beside := y is not None and y.ndim == 1 and declared.target not in frame:
        table = table.assign(**{declared.target: y})
    fitted = fit(
        table,
        declared.schema,
        target=target or declared.target * beside,
        is_written=declared.is_known,
        may_have_codes=declared.may_have_codes,
        of_all=not (declared.alone or declared.inputs),
        clients=task if table.index.nlevels == 1 else table.index.get_level_values(0).to_numpy(),
    )
    if constant := few_names(question.column for question in fitted.constants):
        unless = "unless the schema has their kind, or input-columns their names"
        say_once(f"{path}: columns of one value are left out ({constant}) {unless}")
    # Whether numbers are classes is for the run's task to say, and for no proposal.
    asked = [q for q in fitted.questions if declared.strict or q.rule == classes.__name__]
    for note in (*fitted.notes, *map(str, () if declared.strict else fitted.questions)):
        say_once(f"{path}: {note}")
    if asked:
        faults = [Fault((), str(each), (each.column,)) for each in asked]
        raise DataError(faults[0]._replace(text=f"{path}: {faults[0].text}"), *faults[1:])
    found = _targets(path, frame, declared, fitted.schema.column(target), y)
    found |= {} if task is None else {"task": task}
    schema = _of_inputs(path, names, fitted.schema, declared)
    if declared.text:
        if others := [n for n in frame if n not in (*declared.schema.names, target)]:
            say_once(f"{path}: {declared.text.name} is the only input, without {few_names(others)}")
        return {**found, "x": read_texts(path, frame, declared)}
    cells = read_cells(schema, path, frame)
    if schema.missing == "refuse":
        check_there(path, cells, "; ".join([_DECLARE, *fitted.notes]))
    return {**found, "x": cells, "schema": schema}


def _targets(
    path: Path, frame: Any, declared: Declared, column: Column, y: _Array | None
) -> dict[str, Any]:
    """Returns ``y``, and ``CLASSES``, ``PART`` and ``BESIDE`` where the frame has them."""
    found: dict[str, Any] = {"y": labels_of(path, column, frame[column.name]) if y is None else y}
    if y is None and column.kind == "category":
        written = declared.schema.column(column.name).values
        if frame[column.name].dtype == "category" or written:
            found[CLASSES] = np.array(column.values)
    if (part := parts_of(path, declared.schema, frame)) is not None:
        found[PART] = part
    if declared.survival:
        survival, paired = survival_columns(path, frame, declared.schema), declared.paired
        found |= {"y": survival.targets(path, found["y"])} if paired else {BESIDE: survival}
    return found


def _check_types(path: Path, frame: Any) -> None:
    """Refuses types that would be read as numbers with a unit, or as values, from their text."""
    ways = {
        "timedelta": "frame[{!r}] / pandas.Timedelta(days=1)",
        "duration": "frame[{!r}] / pandas.Timedelta(days=1)",
        "period": "frame[{!r}].dt.to_timestamp()",
        "complex": "its real and its imaginary part",
        "bytes": "frame[{!r}].str.decode('utf-8')",
    }
    types = {
        name: pd.api.types.infer_dtype(frame[name]) if dtype.kind == "O" else str(dtype)
        for name, dtype in frame.dtypes.items()
    }
    faults = [
        f"column {name} must be numbers, text or dates, got {dtype}: give {way.format(name)}"
        for name, dtype in types.items()
        for kind, way in ways.items()
        if dtype.startswith(kind)
    ]
    if faults:
        raise DataError(*(Fault((), f"{path}: {fault}") for fault in faults))


def _of_inputs(path: Path, names: Sequence[str], fitted: Schema, declared: Declared) -> Schema:
    """The schema of inputs, without columns that are none.

    Raises:
        DataError: Values had to be declared, or are too many; or what stands for a column that
            a table lacks is none of its values, or no number; it names all these columns.
    """
    found, faults = list[Column](), list[str]()
    for name in names:
        written = declared.schema.column(name)
        column = fitted.by_name.get(name, written)
        kind = column.kind or ("category" if column.values else "number")
        if kind not in INPUTS or column.role != "input":
            continue
        # Other sites' numbers may be others than whole ones.
        kind = "number" if kind == "whole" and not written.kind else kind
        column = replace(column, kind=kind)
        column = replace(column, default=_default(column))
        alone = declared.alone
        if column.is_category and (wrong := fault_of_values(written, column.values, alone=alone)):
            faults.append(wrong)
        elif written.default is not None and column.default is None:
            wanted = f"one of {few_names(column.values)}" if column.is_category else "a number"
            faults.append(must(f"columns.{name}.default", written.default, wanted))
        found.append(column)
    if not found and not declared.text:
        faults.append("some column must have several values, to learn from")
    if faults:
        raise DataError(*(Fault((), f"{path}: {fault}") for fault in faults))
    return replace(declared.schema, columns=tuple(found), closed=False)


def _default(column: Column) -> float | str | None:
    """Returns the default of an optional column; None if no cell of it may be that."""
    text = "" if column.default is None else str(column.default)
    if column.kind == "category":
        return text if text in column.values else None
    return number(column, text)


def labels_of(path: Path, column: Column, given: Any, notes: Sequence[str] = ()) -> _Array:
    """Returns a column of clients, or of classes: whole numbers, truth values, numbers or text.

    ``notes`` say which of its cells count as missing.

    Raises:
        DataError: Some are missing, or none of the column's values.
    """
    try:
        cells = typed(column, given)
    except DataError as error:
        numbers = column.role == "target" and column.kind == "number"
        raise DataError(f"{path}: {error}{_CLASSES if numbers else ''}") from error
    check_there(path, {column.name: cells}, "; ".join(["a row needs one", *notes]))
    kind: Any = {"whole": np.int64, "truth": bool}.get(column.kind, np.float64)
    return np.asarray(cells.to_numpy(dtype=kind if cells.dtype.kind == "f" else str))


def inputs_of(path: Path, declared: Declared, names: Any, target: str) -> list[str]:
    """Returns the names of the columns of inputs, those among them that the table may lack.

    Raises:
        DataError: If there is no such column.
    """
    optional, client = declared.defaults, declared.client
    check_columns(path, [name for name in declared.inputs if name not in optional], names)
    aside = {c.name for c in declared.schema.columns if c.role not in ("input", "target")}
    found = [name for name in names if name not in {target, client, *aside}]
    if not found:
        besides = f" besides {target}" if target else ""
        raise DataError(f"{path} must have a column{besides} to learn from")
    for name in declared.drop:
        if name not in found:
            has = few_names(found)
            raise DataError(f"{path} has no feature {name!r} to be left out; it has {has}")
    found = sorted(found, key=name_order) if declared.alone else found
    return [name for name in declared.inputs or found if name not in declared.drop]


def of_arrays(path: Path, arrays: Mapping[str, Any], declared: Declared) -> dict[str, Any]:
    """Returns arrays, by the names that an .npz file has for them, as a table.

    They are inputs ``x``, a data frame or an array (n, d) whose columns ``x_names`` may name;
    targets ``y``, of several columns the one that ``y_names`` calls as the target is; and clients,
    in an array of the task column's name or in a column of the frame.

    Raises:
        DataError: They are something else.
    """
    if missing := {"x", "y"} - arrays.keys():
        raise DataError(f"{path} must hold x and y (and task, if wanted); it lacks {min(missing)}")
    x, y, name = arrays["x"], arrays["y"], "task"
    if not is_frame(x):
        x, y, name = framed(path, arrays), _column(path, arrays, declared.target), declared.client
    task = arrays.get(name)
    if PART in arrays and (part := declared.schema.of_role("part")):
        raise DataError(f"{path}: test rows are given, and the column {part} names them, too")
    wrong = {"y": y} if y.shape[:1] != x.shape[:1] else {}
    wrong |= {name: task} if task is not None and task.shape != x.shape[:1] else {}
    for key, array in wrong.items():
        raise DataError(f"{path}: {key} must have shape {x.shape[:1]}, got {array.shape}")
    declared = declared._replace(is_known=declared.is_known or CLASSES in arrays)
    return of_frame(path, x, declared, y, task)


def framed(path: Path, arrays: Mapping[str, Any]) -> Any:
    """Converts an array ``x`` (n, d) with names ``x_names`` to a data frame.

    Raises:
        DataError: There is no such array, or its columns do not have so many names.
    """
    if "x" not in arrays:
        held = [name for name in arrays if name != "x_names"]
        raise DataError(f"{path} must hold x; it holds {few_names(held) or 'no arrays'}")
    x = whole(arrays["x"])
    if x.ndim != 2 or x.dtype.kind not in "buif":
        got = f"{x.dtype} of shape {x.shape}"
        raise DataError(f"{path}: x must be numbers of shape (rows, columns), got {got}")
    check_rows(f"{path} in float64", 8 * x.size)
    columns = named(path, arrays, "x_names", x.shape[1])
    return pd.DataFrame(x.astype(np.float64), columns=columns)


def _column(path: Path, arrays: Mapping[str, _Array], target: str) -> _Array:
    y = arrays["y"]
    if y.ndim != 2:
        names = ["y", *map(str, np.ravel(arrays.get("y_names", ())))]
        if target not in names:
            raise DataError(f"{path}: y is one column, {names[-1]}: there is no {target!r}")
        return y
    names = named(path, arrays, "y_names", y.shape[1])
    if target not in names:
        choose = f"choose one by target-column, got {target!r}"
        raise DataError(f"{path}: y has the columns {few_names(names)}: {choose}")
    return np.asarray(y[:, names.index(target)])


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
    parts = [PARTS.get((text or "").lower()) for text in meant(column, texts_of(different))]
    wrong = [k for k, part in enumerate(parts) if part is None] + [-1]
    if np.isin(rows, wrong).any():
        got = named_cells(frame[name], rows, wrong)
        raise DataError(f"{path}: column {name} must hold train, test or validation, got {got}")
    return np.asarray(np.array(parts)[rows], dtype=np.int64)
