"""pandas' data frames: those of several clients as one. Whoever gives some has loaded pandas."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engram.core.checks import must
from engram.data.lazy import is_column, is_frame
from engram.settings.errors import DataError, few_names


def categories_of(y: Any) -> "npt.NDArray[Any] | None":
    """Returns the categories of a series, or of a frame's one column, of type ``category``."""
    column = y.iloc[:, 0] if (of_frame := is_frame(y)) and y.shape[1] == 1 else y
    if not is_column(column) or column.dtype != "category":
        return None
    names = np.asarray(column.cat.categories)
    return names.astype(str) if of_frame or names.dtype.kind not in "iuf" else names


def in_one_order(whose: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Brings a client's frames and series into one order of rows.

    Frames and series with equal indexes go together by place. One whose index has the same labels
    in another order takes that of the first.

    Raises:
        DataError: Some have as many rows, and other labels.
    """
    labelled = {name: part for name, part in parts.items() if is_frame(part) or is_column(part)}
    found = dict(parts)
    for name, part in labelled.items():
        first, index = next((other, like.index) for other, like in labelled.items())
        if len(part) != len(index) or part.index.equals(index):
            continue
        if not (part.index.is_unique and index.is_unique and index.isin(part.index).all()):
            raise DataError(
                f"{name} of {whose} must have the labels of {first}'s index, each once: give "
                f"{name}.set_axis({first}.index) if its rows are in the same order"
            )
        found[name] = part.reindex(index)
    return found


def joined(called: Sequence[str], given: Sequence[Any]) -> Any:
    """Joins frames, with the columns of the first in their order.

    A column that is of type ``category`` in some frames is so of all values of these types.

    Raises:
        DataError: Some frames have other columns than the first; it names these columns.
    """
    pd = sys.modules["pandas"]
    frames = [frame.set_axis([*map(str, frame.columns)], axis=1) for frame in given]
    columns = list(frames[0].columns)
    faults = [
        f"{called[0]} has several columns {name}"
        for name in dict.fromkeys(columns)
        if columns.count(name) > 1
    ]
    for whose, frame in zip(called, frames, strict=True):
        lacking = [name for name in columns if name not in frame]
        others = [name for name in frame if name not in columns]
        lacks = f"lacks {few_names(lacking)}" if lacking else ""
        has = f"has {few_names(others)}, which {called[0]} lacks" if others else ""
        faults += [f"{whose} {' and '.join(filter(None, (lacks, has)))}"] * bool(lacks or has)
    if faults:
        raise DataError(f"data frames must have the same columns: {'; '.join(faults)}")
    same = [frame[columns].reset_index(drop=True) for frame in frames]
    for name in columns:
        if any(frame[name].dtype == "category" for frame in same):
            _unite(same, name)
    return same[0] if len(same) == 1 else pd.concat(same, keys=called)


def _unite(frames: Sequence[Any], name: str) -> None:
    """Gives a column of all frames one type ``category``, of texts in their order."""
    pd = sys.modules["pandas"]
    texts = [frame[name].convert_dtypes().astype("string") for frame in frames]
    values = {value for text in texts for value in text.dropna().unique()}
    for frame in frames:
        values.update(map(str, getattr(frame[name].dtype, "categories", ())))
    for frame, text in zip(frames, texts, strict=True):
        frame[name] = pd.Categorical(text, sorted(values))


def hashed(frame: Any) -> bytes:
    """Returns a hash of the cells, without the index.

    Raises:
        DataError: A cell holds several values, as a list does.
    """
    pd = sys.modules["pandas"]
    try:
        return bytes(pd.util.hash_pandas_object(frame, index=False).to_numpy().tobytes())
    except TypeError as error:
        fits = pd.api.types.is_hashable
        name, cell = next((n, c) for n, given in frame.items() for c in given if not fits(c))
        raise DataError(must(f"column {name}", cell, "one value in each cell")) from error


def targets_in(frame: Any) -> dict[str, npt.NDArray[Any]]:
    """Returns a frame of targets as arrays ``y``, (n,) of one column or (n, k), and ``y_names``."""
    columns = [targets_of(str(name), frame[name]) for name in frame]
    y = np.stack(columns, axis=1) if len(columns) > 1 else columns[0]
    return {"y": y, "y_names": np.array([*frame])}


def targets_of(name: str, column: Any) -> npt.NDArray[Any]:
    """Returns a series as an array of numbers or of text, with categories by their values.

    Raises:
        DataError: A value is missing; or it holds something else, such as dates.
    """
    found = column.reset_index(drop=True)
    if found.isna().any():
        raise DataError(f"{name} is missing in row {int(found.isna().argmax())}: a row needs one")
    if found.dtype == "category":
        found = found.astype(found.dtype.categories.dtype)
    array = np.asarray(found)
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind == "O" and all(isinstance(value, str) for value in array):
        return array.astype(str)
    if array.dtype.kind not in "iuf":
        raise DataError(must(name, found.iloc[0], "numbers, or text"))
    return array
