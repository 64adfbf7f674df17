"""Rows that Python gives, of a caller or of a user's function, as the arrays of an npz file."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from engram.core.checks import must
from engram.data.image_axes import CLASSES, PART, TYPES
from engram.data.labels import is_text
from engram.data.plain import plain, shown
from engram.data.source import Source
from engram.data.tables.frames import (
    in_one_order,
    is_column,
    is_frame,
    joined,
    targets_in,
    targets_of,
)
from engram.settings.errors import DataError, brief, one_line

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    from engram.data.lazy import Lazy

    # Inputs may be an array, or a tuple or dictionary of arrays.
    WithTest = tuple[Any, npt.ArrayLike, Any, npt.ArrayLike]
    Rows = tuple[Any, npt.ArrayLike] | WithTest | Dataset[Any]
    Data = Rows | Sequence[Rows] | Mapping[str, Rows] | Mapping[int, Rows]
    Arrays = dict[str, npt.NDArray[Any] | Lazy]  # by the names that an npz file has for them

_PAIR: Final = "(x, y) or (x, y, x_test, y_test)"
_DATA: Final = f"{_PAIR}, or a list of such of each client, or these by the clients' names"


def read_given(source: Source, clients: Sequence[int]) -> "Mapping[str, Any]":
    """Returns rows that Python gives, by the names that an npz file has for their arrays.

    Args:
        source: Rows of a caller, or the name of a user's function.
        clients: Whose rows are read, ascending, where clients are read one by one. The array
            ``task`` then has their numbers.

    Raises:
        DataError: The function has failed, or returned something else than rows; or a caller has
            given them in another process.
    """
    function = source.function
    if function is None:
        if source.rows is None:
            raise DataError(
                f"the rows of {source} were given in memory: give them again, in Python, by "
                "engram.load_run(RUN, data) or engram.simulate(data, resume=RUN)"
            )
        return source.rows
    try:
        if not source.by_client:
            return arrays_of(function())
        arrays = arrays_of({client: function(client) for client in clients})
    except DataError as error:
        raise DataError(f"dataset {source}: {error}") from error
    except Exception as error:  # anybody's function
        why = one_line(f"{type(error).__name__}: {error}")
        raise DataError(f"dataset {source} cannot be read: {why}") from error
    numbers = np.asarray(arrays.pop("task_names"))
    return {**arrays, "task": numbers[np.asarray(arrays["task"])]}


def arrays_of(data: "Data") -> "Arrays":
    """Returns rows by the names that an npz file has for them; with ``task`` if clients have them.

    Where some have test rows of their own, ``PART`` says which those are.

    Args:
        data: As ``engram.simulate`` takes it.

    Raises:
        DataError: It is something else; a client has no rows, or other rows than the first has.
    """
    from torch.utils.data import Dataset  # noqa: PLC0415 - names are listed without torch

    if isinstance(data, Dataset) or (isinstance(data, tuple) and len(data) in (2, 4)):
        rows, _ = _in_parts([("data", data)])
        return rows
    named = isinstance(data, Mapping)
    if not (named or isinstance(data, Sequence)) or isinstance(data, tuple | str) or not data:
        raise DataError(f"data must be {_DATA}, got {shown(data)}")
    for name in data if named else ():
        if not np.isscalar(name):
            raise DataError(must("a client's name", name, "text or a number"))
    whose = [f"client {name}" for name in (data if named else range(len(data)))]
    parts = data.values() if isinstance(data, Mapping) else data
    rows, task = _in_parts(list(zip(whose, parts, strict=True)))
    names = {"task_names": np.array(list(data))} if named else {}
    return {**rows, "task": task, **names}


def _in_parts(clients: Sequence[tuple[str, Any]]) -> "tuple[Arrays, npt.NDArray[np.int64]]":
    """Returns all clients' rows, those for testing below the others of each, and whose they are."""
    parts: list[tuple[int, int, tuple[str, Any]]] = []
    for client, (whose, rows) in enumerate(clients):
        if isinstance(rows, tuple | list) and len(rows) == 4:
            parts.append((client, 0, (whose, rows[:2])))
            parts.append((client, 1, (f"the test set of {whose}", rows[2:])))
        else:
            parts.append((client, -1, (whose, rows)))
    owners, tested, given = zip(*parts, strict=True)
    found, sizes = _joined(given)
    if len(given) > len(clients):
        found[PART] = np.repeat(np.array(tested), sizes)
    return found, np.repeat(np.array(owners), sizes)


def _joined(parts: Sequence[tuple[str, Any]]) -> "tuple[Arrays, list[int]]":
    """Returns all rows, one part below the other, and how many each part has.

    Args:
        parts: What messages call each part, and its rows.
    """
    from torch.utils.data import Dataset  # noqa: PLC0415 - as above

    sets = [isinstance(part, Dataset) for _, part in parts]
    if all(sets):
        return _of_data_sets(parts)
    if any(sets):
        raise DataError("data must be (x, y) of every client, or a data set of every client")
    found = [_rows_of(whose, part) for whose, part in parts]
    first = found[0]
    for (whose, _), rows in zip(parts, found, strict=True):
        if rows.keys() != first.keys():
            each = f"{', '.join(first)} as {parts[0][0]} has"
            raise DataError(f"{whose} must have {each}, got {', '.join(rows)}")
        for name, array in rows.items():
            if is_frame(array) != is_frame(first[name]):
                raise DataError(f"{name} must be data frames of all clients, or arrays of all")
            if array.shape[1:] != first[name].shape[1:] and not is_frame(array):
                like = f"of shape {first[name].shape[1:]} as those of {parts[0][0]}"
                raise DataError(f"rows of {name} of {whose} must be {like}, got {array.shape[1:]}")
    called = [whose for whose, _ in parts]
    sizes = [len(rows["y"]) for rows in found]
    together: Arrays = {}
    for name in first:
        arrays = [rows[name] for rows in found]
        if is_frame(first[name]):
            together[name] = joined(called, arrays)
            continue
        together[name] = np.concatenate(arrays)
        if name != "y" and len(set(map(_type, arrays))) > 1:
            together[TYPES + name] = np.repeat([str(array.dtype) for array in arrays], sizes)
    if is_frame(together["y"]):
        together |= targets_in(together["y"])
    else:
        _check_targets([(whose, rows["y"]) for whose, rows in zip(called, found, strict=True)])
    return together | _class_names([_categories(y) for _, (_, y) in parts]), sizes


def _categories(y: Any) -> "npt.NDArray[Any] | None":
    """Returns the categories of a series, or of a frame's one column, of type ``category``."""
    column = y.iloc[:, 0] if (of_frame := is_frame(y)) and y.shape[1] == 1 else y
    if not is_column(column) or column.dtype != "category":
        return None
    names = np.asarray(column.cat.categories)
    return names.astype(str) if of_frame or names.dtype.kind not in "iuf" else names


def _class_names(each: Sequence["npt.NDArray[Any] | None"]) -> "Arrays":
    """Returns all clients' classes, each once, as ``CLASSES``; nothing unless all name theirs."""
    named = [names.tolist() for names in each if names is not None]
    if len(named) < len(each):
        return {}
    return {CLASSES: np.array([*dict.fromkeys(chain.from_iterable(named))])}


def _type(x: npt.NDArray[Any]) -> str:
    """Returns in which way a network is given numbers of a type."""
    return "uint8" if x.dtype == np.uint8 else "int64" if x.dtype.kind in "iu" else "float32"


def _check_targets(parts: Sequence[tuple[str, npt.NDArray[Any]]]) -> None:
    """Refuses text beside numbers, of which NumPy would make text."""
    (one, first), *others = parts
    for whose, y in others:
        if is_text(y) != is_text(first):
            raise DataError(f"y of {whose} must be {first.dtype} as that of {one}, got {y.dtype}")


def _of_data_sets(parts: Sequence[tuple[str, Any]]) -> "tuple[Arrays, list[int]]":
    from engram.data.lazy import Joined  # noqa: PLC0415 - as above
    from engram.data.map_style import class_names, inputs_of, targets_of  # noqa: PLC0415 - imports torch

    for whose, part in parts:
        if not hasattr(part, "__len__"):
            kind = type(part).__name__
            raise DataError(f"{whose} must be a data set whose rows have numbers, got {kind}")
        if not len(part):
            raise DataError(f"{whose} has no rows")
    inputs, ys, names = [], [], list[Any]()
    try:
        for whose, part in parts:
            try:
                inputs.append(inputs_of(part))
                ys.append(targets_of(part))
                names.append(class_names(part, ys[-1]))
            except DataError as error:
                raise DataError(f"{whose}: {error}") from error
        _check_targets([(whose, y) for (whose, _), y in zip(parts, ys, strict=True)])
        x = inputs[0] if len(inputs) == 1 else Joined(inputs)
        known = _class_names(names)
        if known:
            place = {name: k for k, name in enumerate(np.asarray(known[CLASSES]).tolist())}
            numbers = [np.array([place[name] for name in own]) for own in names]
            ys = [of[y] for of, y in zip(numbers, ys, strict=True)]
        return {"x": x, "y": np.concatenate(ys), **known}, [len(y) for y in ys]
    except DataError:
        raise
    except Exception as error:  # anybody's data sets
        why = one_line(f"{type(error).__name__}: {error}")
        raise DataError(f"data must be data sets of pairs (x, y), got {why}") from error


def _rows_of(whose: str, part: Any) -> dict[str, npt.NDArray[Any]]:
    """Returns the inputs and targets of a part, by the names that an npz file has for them."""
    if not (isinstance(part, tuple | list) and len(part) == 2):
        raise DataError(f"{whose} must be {_PAIR}, got {shown(part)}")
    x, y = part
    several = dict(enumerate(x)) if isinstance(x, tuple) else x
    inputs = {f"x.{k}": v for k, v in several.items()} if isinstance(several, Mapping) else {"x": x}
    given = in_one_order(whose, {**inputs, "y": y})
    rows = {name: _array(f"{name} of {whose}", leaf) for name, leaf in given.items()}
    count = len(rows["y"])
    for name, array in rows.items():
        if len(array) != count:
            wanted = f"a row for each of the {count} entries of y"
            raise DataError(f"{name} of {whose} must have {wanted}, got {len(array)} rows")
    if not count:
        raise DataError(f"{whose} has no rows")
    return rows


def _array(name: str, value: Any) -> Any:
    """Returns an array; a frame of inputs ``x`` or targets ``y`` as it is."""
    if is_frame(value):
        if not name.startswith(("x of", "y of")):
            raise DataError(f"{name} must be an array, where inputs are several: see to_numpy")
        return value
    if is_column(value):
        return targets_of(name, value)
    try:
        array = plain(value)
    except ValueError as error:  # numpy's
        unlike = f"{shown(value)} whose entries differ in length"
        raise DataError(f"{name} must be an array of numbers, got {unlike}") from error
    except (TypeError, RuntimeError) as error:  # such as torch's: it is on a GPU, or has a gradient
        raise DataError(f"{name} must be an array of numbers: {error}") from error
    if array.dtype.hasobject and array.ndim and all(isinstance(v, str) for v in array.flat):
        return array.astype(str)
    if array.ndim == 0 or array.dtype.hasobject:
        got = f"{array.dtype} of shape {array.shape}" if array.ndim else brief(value)
        raise DataError(f"{name} must be an array of numbers, got {got}")
    return array
