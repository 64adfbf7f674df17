"""Data sets of Hugging Face's library: Parquet and Arrow files, and those of its Hub.

Targets, and whose a row is, are read at once; inputs as they are drawn, from a file that is mapped
into memory. Parquet is packed, and therefore unpacked into a cache first. A table of numbers and
text is read as a CSV file is.
"""

import contextlib
import io
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import IO, Any, Final, TypeVar

import datasets
import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as files
from datasets import ClassLabel, Dataset, Image, Value
from datasets.data_files import DataFilesDict, get_data_patterns
from datasets.utils import logging

from engram.data.image_axes import CLASSES, CUT, PART, say_once
from engram.data.lazy import Images, Lazy, RowNumbers
from engram.data.readers.images import decoded_images
from engram.data.readers.parquet_cache import CACHE
from engram.data.schema.cells import check_columns, check_there
from engram.data.schema.declared import Declared, check_client
from engram.data.tables.raw_tables import inputs_of, of_frame, parts_of
from engram.scoring.metrics import Targets
from engram.settings.errors import DataError, few_names, one_line
from engram.settings.files import open_file

_Array = npt.NDArray[Any]
_T = TypeVar("_T")
_IPC_FILE: Final = b"ARROW1"  # how Arrow's file format begins; its other format is a stream


def read_columns(
    kind: str, path: Path, columns: Declared, targets: Targets, cache: Path, *, alpha: bool = False
) -> dict[str, _Array | Lazy]:
    """Reads x, y and task, and the part of each row.

    One column of inputs is the input; several of numbers are its columns; several others are
    inputs by name. Where targets are tokens, text is numbers: the bytes of its characters. A target
    that is shorter than the input is that of its last positions.

    Args:
        kind: ``parquet`` or ``arrow``, a file or a folder, or ``hf``, a data set of the Hub.
        path: Where it is; for ``hf`` its name, or NAME:SUBSET.
        columns: Its columns.
        targets: The kind of targets.
        cache: Folder to unpack to, and to download to.
        alpha: Whether transparency of images is a channel.

    Raises:
        DataError: If there is no such data set, or a column or a value is missing or not as it
            should be.
    """
    parts = _parts(kind, path, cache)
    cut, rows = len(parts[0]), datasets.concatenate_datasets(parts)
    part = columns.schema.of_role("part")
    check_columns(path, [columns.target], rows.column_names)
    check_client(path, columns, rows.column_names)
    names = inputs_of(path, columns, rows.column_names, columns.target)
    if part and cut < len(rows):
        raise DataError(f"{path} has test rows of its own, and the column {part} names them, too")
    kinds = {_kind(rows.features[name]) for name in names if name in rows.features}
    if targets != "tokens" and "array" not in kinds:
        used = {*names, *(c.name for c in columns.schema.columns if c.role != "input")}
        found = of_frame(path, _frame(path, rows, used), columns)
    else:
        _check_whole(path, rows, names)
        found = {"x": _inputs(path, rows, names, alpha=alpha)}
        y = _stacked(path, _column(path, rows, columns.target))
        found |= _class_names(rows.features[columns.target])
        found["y"] = _aligned(path, columns, y, found["x"].like) if targets == "tokens" else y
        if part:
            check_columns(path, [part], rows.column_names)
            found[PART] = parts_of(path, columns.schema, rows.select_columns([part]).to_pandas())
        if columns.client in rows.column_names:
            found["task"] = _stacked(path, _column(path, rows, columns.client))
    if cut < len(rows):
        found |= {PART: (np.arange(len(rows)) >= cut).astype(np.int64), CUT: cut}
    return found


def _frame(path: Path, rows: Dataset, used: Collection[str]) -> Any:
    wanted = [name for name in rows.column_names if name in used]
    for name in wanted:
        if _kind(rows.features[name]) == "array":
            raise DataError(f"{path}: {name} must be a number or a text in each row of a table")
    frame = rows.select_columns(wanted).to_pandas()
    for name in wanted:
        for called in _class_names(rows.features[name]).values():
            frame[name] = pd.Categorical.from_codes(frame[name].fillna(-1).astype(int), called)
    return frame


def _class_names(feature: Any) -> dict[str, _Array]:
    """Returns the names of a column of classes, as ``CLASSES``; nothing of another one."""
    labelled = isinstance(feature, ClassLabel) and feature.names
    return {CLASSES: np.array(feature.names)} if labelled else {}


def read_column(kind: str, path: Path, name: str, cache: Path) -> list[_Array]:
    """Returns a column of the data; nothing if it is not there. Parquet is not unpacked for it.

    For the other arguments and errors see ``read_columns``.
    """

    def packed() -> list[Dataset]:
        each: Mapping[str, Any] = {"train": str(path)}
        if path.is_dir():
            patterns = get_data_patterns(str(path.absolute()))
            each = DataFilesDict.from_patterns(patterns, str(path.absolute()))
        opened = [files.dataset(each[p], exclude_invalid_files=True) for p in _used(path, each)]
        there = [table for table in opened if name in table.schema.names]
        return [Dataset(table.to_table(columns=[name])) for table in there]

    parts = _read(kind, path, packed) if kind == "parquet" else _parts(kind, path, cache)
    there = [part for part in parts if name in part.column_names]
    return [_stacked(path, _column(path, part, name)) for part in there]


def read_table(kind: str, path: Path, cache: Path) -> Any:
    """Returns all rows as a data frame, without columns of images and lists."""
    parts = _parts(kind, path, cache)
    names = [n for n in parts[0].column_names if _kind(parts[0].features[n]) != "array"]
    return pd.concat([p.select_columns(names).to_pandas() for p in parts], ignore_index=True)


def _parts(kind: str, path: Path, cache: Path) -> list[Dataset]:
    found = _read(kind, path, lambda: _opened(kind, path, str(cache / CACHE)))
    parts = [_with_images(found[name]) for name in _used(path, found)]
    if len(parts) != 1 + ("test" in found and "train" in found):
        got = few_names(found)
        raise DataError(f"{path} must have a part train, and test if wanted, got {got}")
    if not all(map(len, parts)):
        raise DataError(f"{path} must hold some rows")
    if parts[0].features != parts[-1].features:
        raise DataError(f"{path}: train and test must have the same columns")
    return parts


def _used(path: Path, found: Collection[str]) -> list[str]:
    """Names of the parts that are read; others are said."""
    used = [name for name in ("train", "test") if name in found] or [*map(str, found)]
    if others := [str(name) for name in found if name not in used]:
        say_once(f"{path}: {few_names(used)} are read, and not {few_names(others)}")
    return used


def _read(kind: str, path: Path, read: Callable[[], _T]) -> _T:
    """Reads a data set, and keeps progress bars and the library's own errors off the terminal."""
    if kind != "hf" and not (path.is_file() or path.is_dir()):
        why = "is neither" if path.exists() else "is not there"
        raise DataError(f"{path} must be a file or a folder of {kind}, and {why}")
    local = Path(str(path).partition(":")[0])  # read by the library in place of the Hub's
    if kind == "hf" and local.exists():
        raise DataError(f"hf:{path} must name a data set of the Hub: for files there is parquet:")
    before = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return read()
    except Exception as error:  # from any of several libraries
        why = one_line(f"{type(error).__name__}: {error}")
        raise DataError(f"{path} cannot be read as {kind}: {why}") from error
    finally:
        logging.set_verbosity(before)


def _opened(kind: str, path: Path, cache: str) -> Mapping[str, Dataset]:
    if kind == "hf":
        name, _, subset = str(path).partition(":")
        return dict(datasets.load_dataset(name, subset or None, cache_dir=cache))
    if kind == "parquet":
        place = {"data_dir" if path.is_dir() else "data_files": str(path.absolute())}
        return dict(datasets.load_dataset("parquet", **place, cache_dir=cache))
    if path.is_dir():
        found = datasets.load_from_disk(str(path))
        parts = found if isinstance(found, Mapping) else {"train": found}
        for part in parts.values():
            part.data.table.validate(full=True)
        return parts
    mapped = pa.memory_map(str(path))
    ipc = pa.ipc.open_file if mapped.read(len(_IPC_FILE)) == _IPC_FILE else pa.ipc.open_stream
    mapped.seek(0)
    table = ipc(mapped).read_all()
    table.validate(full=True)  # offsets that lead out of a mapped file would end the process
    return {"train": datasets.Dataset(datasets.table.InMemoryTable(table))}


def _with_images(rows: Dataset) -> Dataset:
    """Keeps images, and bytes that may be such, from being decoded."""
    for name, feature in rows.features.items():
        struct = isinstance(feature, Mapping) and {*feature} == {"bytes", "path"}
        if struct or isinstance(feature, Image) or "binary" in getattr(feature, "dtype", ""):
            rows = rows.cast_column(name, Image(decode=False))
    return rows


def _check_whole(path: Path, rows: Dataset, names: list[str]) -> None:
    table = _in_arrow(rows, names)
    first = [(name, _first_missing(table.column(name))) for name in names]
    if lacking := [f"{name} is missing in row {row}" for name, row in first if row >= 0]:
        raise DataError(f"{path}: {few_names(lacking)}: a row needs one")


def _in_arrow(rows: Dataset, names: list[str]) -> Any:
    """Columns as a table of Arrow, mapped into memory."""
    return rows.select_columns(names).with_format("arrow")[:]


def _first_missing(column: Any) -> int:
    """The first row of a column of Arrow, or of lists, without a value; or -1."""
    if isinstance(column.type, pa.ExtensionType):
        column = pa.chunked_array([each.storage for each in column.chunks])
    is_struct = pa.types.is_struct(column.type)
    if is_struct and {field.name for field in column.type} == {"bytes", "path"}:  # an image
        empty = [pc.is_null(pc.struct_field(column, name)) for name in ("bytes", "path")]
        return int(pc.index(pc.and_(*empty), True).as_py())
    row = int(pc.index(pc.is_null(column, nan_is_null=True), True).as_py())
    if row < 0 and pa.types.is_nested(column.type) and not is_struct:
        values = pc.list_flatten(column)
        if values.null_count or pa.types.is_nested(values.type):  # NaN is told as it is drawn
            inner = _first_missing(values)
            return inner if inner < 0 else int(pc.list_parent_indices(column)[inner].as_py())
    return row


def _kind(feature: Any) -> str:
    if not isinstance(feature, Value | ClassLabel):
        return "array"
    return "text" if "string" in feature.dtype else "number"


def _pictures(path: Path, rows: Dataset, name: str, *, alpha: bool) -> Images:
    column = _in_arrow(rows, [name]).column(name)

    def opened(row: int) -> IO[bytes]:
        image = column[row].as_py()
        content = image["bytes"]
        return open_file(Path(image["path"])) if content is None else io.BytesIO(content)

    def called(row: int) -> str:
        return f"{path}: {name} of row {row}"

    return decoded_images(f"{path}: {name}", called, len(rows), opened, alpha=alpha)


def _inputs(path: Path, rows: Dataset, names: list[str], *, alpha: bool) -> Lazy:
    images = [name for name in names if isinstance(rows.features[name], Image)]
    pictures = {name: _pictures(path, rows, name, alpha=alpha) for name in images}
    if len(names) == len(images) == 1:
        return pictures[names[0]]
    others = [name for name in names if name not in images]
    drawn = rows.select_columns(others).with_format("numpy", dtype=None)  # not in float32

    def read(numbers: RowNumbers) -> dict[str, _Array]:
        try:
            found = drawn[numbers.tolist()] if others else {}
        except Exception as error:  # what decodes it raises what it likes
            raise DataError(f"{path}: {type(error).__name__}: {error}") from error
        taken = {name: pictures[name].take(numbers) for name in images}
        taken |= {name: _array(path, name, found[name]) for name in others}
        return {name: taken[name] for name in names}

    like = Lazy(read, None, np.arange(1)).take(np.zeros(1, dtype=np.int64))

    def combined(numbers: RowNumbers) -> Any:
        found = read(numbers)
        for name, first in like.items():
            if found[name].shape[1:] != first.shape[1:]:
                shapes = f"{first.shape[1:]}, as in row 0, got {found[name].shape[1:]}"
                raise DataError(f"{path}: {name} must be of shape {shapes}")
        return next(iter(found.values())) if len(found) == 1 else found

    return Lazy(combined, combined(np.zeros(1, dtype=np.int64)), np.arange(len(rows)))


def _array(path: Path, name: str, values: _Array) -> _Array:
    if values.dtype.kind == "U":
        values = _characters(path, name, values)
    try:
        values = values.astype(np.float64) if values.dtype == object else values
    except (TypeError, ValueError) as error:
        raise DataError(f"{path}: {name} must hold as many numbers in each row") from error
    if values.dtype.kind not in "biuf":
        raise DataError(f"{path}: {name} must hold numbers, got {values.dtype}")
    return values


def _characters(path: Path, name: str, texts: _Array) -> _Array:
    codes = [np.frombuffer(text.encode(), dtype=np.uint8) for text in texts.tolist()]
    if len(set(map(len, codes))) > 1:
        raise DataError(f"{path}: {name} must hold texts of one length")
    return np.stack(codes).astype(np.int64)


def _column(path: Path, rows: Dataset, name: str) -> Any:
    column = rows.select_columns([name]).to_pandas()[name]
    check_there(path, {name: column})
    return column


def _stacked(path: Path, column: Any) -> _Array:
    values = column.to_numpy()
    if values.dtype != object or isinstance(values[0], str):
        return np.asarray(values)
    try:
        return np.stack([np.asarray(value.tolist()) for value in values])
    except (AttributeError, ValueError) as error:
        raise DataError(f"{path}: {column.name} must hold as many numbers in each row") from error


def _aligned(path: Path, columns: Declared, y: _Array, like: Any) -> _Array:
    """Returns a token for each position of inputs that are like this one, -1 for none."""
    if y.dtype.kind not in "biuf":
        y = _characters(path, columns.target, y)
    y = y.reshape(len(y), -1)
    missing = max(0, like.shape[1] - y.shape[1]) if getattr(like, "ndim", 0) == 2 else 0
    return np.pad(y, ((0, 0), (missing, 0)), constant_values=-1)
