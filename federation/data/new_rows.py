"""Rows that a model has not seen, read as those were that it has learned from."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_leaves

from engram.models.base import Inputs
from engram.tasks import TASKS
from federation.data.arrays import Own, held_out
from federation.data.cells import check_there, known, numbers, typed
from federation.data.csv_rows import TableRows, framed, indicators, parted, usual
from federation.data.datasets import read_given
from federation.data.federated import seen_as
from federation.data.frames import is_frame, read_frame
from federation.data.images import decoded_images, images_in
from federation.data.lazy import Lazy
from federation.data.npy import read_npy
from federation.data.npz import read_npz
from federation.data.places import Place
from federation.data.shaping import Shaping
from federation.data.values import Columns, Values, listed
from federation.errors import DataError, few_names
from federation.experiment import Experiment
from federation.roster import Kind
from federation.shapes import described

__all__ = ["InputColumn", "NewRows", "input_columns", "read_new_rows"]

_LACKING: Final = "the model has learned from rows where none is missing"


class InputColumn(NamedTuple):
    """A column of a table, as a network is given it.

    Attributes:
        name: Its name.
        values: Those of a column of text, each of which is an input of its own; None of numbers.
        fill: What stands for a missing value, where the setting ``missing`` is ``median``.
    """

    name: str
    values: tuple[str, ...] | None = None
    fill: float | str | None = None

    def numeric(self, missing: str) -> list[bool]:
        """Returns of each of its inputs whether it is a number, and no indicator."""
        values = [True] if self.values is None else [False] * len(self.values)
        return values + [False] * (missing == "indicator")

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Self:
        """Reads what JSON makes of it."""
        values = found["values"]
        return cls(found["name"], None if values is None else tuple(values), found["fill"])


class NewRows(NamedTuple):
    """Rows that a model has not seen.

    Attributes:
        x: As a network takes them.
        size: How many there are.
        others: Columns of a table that are no inputs, by name, or ``file`` of images.
        targets: ``y`` and ``y_names`` as the source has them, as far as it does: of a table a
            column of ``others``, of images the names of their folders.
        columns: The inputs of a table, with what stands for a missing value here.
    """

    x: Inputs
    size: int
    others: Mapping[str, Any] = MappingProxyType({})
    targets: Mapping[str, Any] = MappingProxyType({})
    columns: Sequence[InputColumn] = ()


def input_columns(experiment: Experiment, client: int | None = None) -> list[InputColumn]:
    """Returns the columns of inputs of an experiment's table; none of other data.

    A table is a CSV file, frames, or columns of numbers and text of Parquet or Arrow.

    Args:
        experiment: The settings.
        client: Whose training rows missing values are taken from, where clients are tasks of the
            table; by default, everybody's.

    Raises:
        DataError: If the table cannot be read.
    """
    table = _table_of(experiment)
    if not isinstance(table, TableRows):
        return [InputColumn(name) for name in table]
    columns, owners, known = table.columns, table.owner, table.learned
    if client is not None:
        known &= owners == np.unique(owners)[client]
    found = []
    for name, column in typed(table.path, table.inputs, columns).items():
        values, fill = None, None
        if column.dtype == "string":
            values = columns.values.of(table.path, name, column.dropna().to_numpy(dtype=str))
        if columns.missing == "median":
            fill = fill_of(column[known], text=values is not None)
        found.append(InputColumn(name, values, fill))
    return found


def _table_of(e: Experiment) -> TableRows | list[str]:
    """Returns the table of an experiment, or of one that is not in memory its columns' names."""
    source, path = e.source, e.source.path
    split = partial(held_out, fraction=e.test_fraction, seed=e.seed)
    columns, targets = Columns.of(e), TASKS[e.task].targets
    if source.kind == "csv":
        return parted(path, read_frame(path), columns, targets, split)
    if source.has_columns:
        from federation.data.hugging_face import read_names  # noqa: PLC0415 - slow to import

        read = read_names(source.kind, path, columns, targets, split, Path(e.data_dir))
        return read.table or (read.names if read.plain and _are_float(read.types, e) else [])
    arrays = read_given(source, range(e.num_clients)) if source.is_given else {}
    if not is_frame(arrays.get("x")):
        return []
    return framed(path, arrays, columns, targets, split)


def _are_float(types: Collection[str], e: Experiment) -> bool:
    """Returns whether numbers of these types are float32 to a network, as a CSV file's are."""
    whole = all(kind.startswith(("int", "uint", "bool")) for kind in types)
    grey = set(types) == {"uint8"}
    return not grey and not (whole and Shaping.of(e.model, e.images).whole_numbers)


def fill_of(column: Any, *, text: bool) -> float | str | None:
    """Returns what stands for missing values: 0, or nothing, where there is no value at all."""
    if column.isna().all():
        return None if text else 0.0
    return str(usual(column)) if text else float(usual(column))


def read_new_rows(
    path: Path,
    kind: Kind,
    columns: Sequence[InputColumn],
    settings: Mapping[str, Any],
    *,
    of_one_client: bool = False,
) -> NewRows:
    """Reads rows: a .csv or .npz file, a folder of .npy files, or one of images.

    Args:
        path: Where they are.
        kind: What the rows are like that the model has learned from.
        columns: The inputs, where those were a table's.
        settings: Those of the run, by key, as its exports have them.
        of_one_client: Whether medians of these rows stand for values that are missing in them.

    Raises:
        DataError: If they cannot be read, or are other rows; it says everything that is wrong.
    """
    if path.suffix == ".csv":
        target = settings.get("target-column", "")
        if kind.columns:
            return _table(path, [InputColumn(name) for name in kind.columns], target, np.float64)
        if not columns:
            expected = "an .npz file or a folder, since the model's inputs have no names"
            raise DataError(f"{path} must be {expected}")
        missing_values = listed(settings.get("missing-values", ""), "|")
        missing = settings.get("missing", "refuse")
        return _table(path, columns, target, np.float32, missing, missing_values, of_one_client)
    if path.is_dir() and not kind.columns and not any(path.glob("x*.npy")):
        files = images_in(path)
        found: Mapping[str, Any] = {"x": decoded_images(files)}
        others = {"file": [str(file) for file in files]}
        folders = [file.parent for file in files]
        names = np.array([folder.name for folder in folders])
        targets: Mapping[str, Any] = {} if path in folders else {"y": names}
    else:
        found, others = read_npy(path) if path.is_dir() else read_npz(path), {}
        targets = {name: found[name] for name in ("y", "y_names") if name in found}
    if kind.columns:
        return _matrix(path, found, kind)._replace(targets=targets)
    shaping = Shaping.of(settings.get("model", ""), settings.get("images", "auto"))
    whole = kind.inputs.startswith("int64")  # the network may be unknown here
    own = Own(path, "values", shaping=shaping._replace(whole_numbers=whole))
    x = seen_as(own.inputs(found))
    if described(x) != kind.inputs:
        raise DataError(f"{path} must hold rows of {kind.inputs}, got {described(x)}")
    return NewRows(x, len(tree_leaves(x)[0]), others, targets)


def _table(
    path: Path,
    columns: Sequence[InputColumn],
    target: str,
    dtype: Any,
    missing: str = "refuse",
    missing_values: tuple[str, ...] = (),
    of_one_client: bool = False,
) -> NewRows:
    frame = read_frame(path)
    raw = read_frame(path, text=True)  # as numbers, 01 would be 1
    wanted = [column.name for column in columns]
    others = [str(name) for name in frame.columns if name not in wanted]
    lacking = [name for name in wanted if name not in frame.columns]
    if lacking:
        but = f"; it has {few_names(others)}, which the model does not know" if others else ""
        raise DataError(f"{path} lacks the columns {few_names(lacking)}{but}")
    if of_one_client and missing == "median":
        columns = _filled(path, frame, columns, missing_values)
    parts: list[npt.NDArray[Any]] = []
    faults = []
    for column in columns:
        try:
            given = known(frame[column.name], missing_values)
            parts += _inputs(path, given, raw[column.name], column, missing)
        except DataError as error:
            faults += error.faults
    if faults:
        raise DataError(*faults)
    x = np.stack(parts, axis=1).astype(dtype)
    beside = {name: frame[name] for name in others}
    targets = {"y": beside[target]} if target in beside else {}
    return NewRows(torch.from_numpy(x), len(frame), beside, targets, columns)


def _filled(
    path: Path, frame: Any, columns: Sequence[InputColumn], missing_values: tuple[str, ...]
) -> list[InputColumn]:
    """Returns the columns with the frame's own values for what is missing in it."""
    texts = {column.name: column.values for column in columns if column.values is not None}
    read = Columns(values=Values(texts), missing_values=missing_values)
    own = typed(path, frame[[column.name for column in columns]], read)

    def filled(column: InputColumn) -> InputColumn:
        if own[column.name].isna().all():  # the run's stands for it
            return column
        return column._replace(fill=fill_of(own[column.name], text=column.values is not None))

    return list(map(filled, columns))


def _inputs(
    path: Path, given: Any, raw: Any, column: InputColumn, missing: str
) -> list[npt.NDArray[Any]]:
    """Returns what a column, as pandas has it and as it is written, is to a network."""
    name, lacks = column.name, given.isna().to_numpy()
    if missing == "refuse":
        check_there(path, {name: given}, _LACKING)
    flags = [lacks] if missing == "indicator" else []
    if column.values is not None:
        text = given.convert_dtypes().astype("string")
        text = text.mask(raw.isin(column.values) & ~lacks, raw)
        text = text if column.fill is None else text.fillna(column.fill)
        columns = Columns(values=Values({name: column.values}))
        return [*indicators(path, name, text, columns).values(), *flags]
    values = numbers(path, name, given, "the model has learned from numbers")
    if np.isinf(values).any():
        raise DataError(f"{path}: {name} is infinite in row {int(np.argmax(np.isinf(values)))}")
    return [np.where(lacks, column.fill or 0.0, values), *flags]


def _matrix(path: Path, found: Mapping[str, Any], kind: Kind) -> NewRows:
    """Returns rows of columns, as arrays have them: those without names are in the run's order."""
    if "x" not in found:
        raise DataError(f"{path} must hold x; it holds {few_names(found) or 'no arrays'}")
    x, width = found["x"], len(kind.columns)
    x = x.take(np.arange(len(x))) if isinstance(x, Lazy) else x
    names = tuple(map(str, found.get("x_names", kind.columns)))
    if names != kind.columns:
        expected = f"the columns {few_names(kind.columns)}, in this order"
        raise DataError(f"{path} must have {expected}, got {few_names(names)}")
    if x.ndim != 2 or x.shape[1] != width or x.dtype.kind not in "buif":
        expected = f"x of numbers, of shape (rows, {width})"
        raise DataError(f"{path} must hold {expected}, got {x.dtype} of shape {x.shape}")
    if not (finite := np.isfinite(x)).all():
        place = Place(path, "x")
        raise place.fault("finite", place.first(x, ~finite))
    return NewRows(torch.from_numpy(x.astype(np.float64)), len(x))
