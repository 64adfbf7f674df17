"""Rows that Python gives, of a caller or of a user's function, as the arrays of an npz file."""

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from torch.utils._pytree import tree_leaves
from torch.utils.data import Dataset

from engram.core.checks import must
from engram.data.image_axes import CLASSES, PART, TESTS, say_once
from engram.data.labels import is_text
from engram.data.lazy import Lazy, UnreadableRow, is_column, is_frame, scaled
from engram.data.readers import frames, items
from engram.data.readers.items import plain, shown
from engram.data.row_trees import Joined
from engram.data.source import MEMORY, Source
from engram.settings.errors import DataError, brief, few_names, one_line

# Inputs may be an array, or a tuple or dictionary of arrays.
WithTest = tuple[Any, npt.ArrayLike, Any, npt.ArrayLike]
Rows = tuple[Any, npt.ArrayLike] | WithTest | Dataset[Any]
Data = Rows | Sequence[Rows] | Mapping[str, Rows] | Mapping[int, Rows]
Arrays = dict[str, npt.NDArray[Any] | Lazy]  # by the names that an npz file has for them

_SCALED: Final = 10  # numbers above it are no shares of 255
_LOOKED_AT: Final = 8  # rows that the digest of rows drawn later is of
_PAIR: Final = "(x, y) or (x, y, x_test, y_test), or a torch.utils.data.Dataset"
_DATA: Final = f"{_PAIR}, or a list of such of each client, or these by the clients' names"


def read_given(source: Source, clients: Sequence[int]) -> Mapping[str, Any]:
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
                "engram.load_run(RUN, data), engram.simulate(data, resume=RUN), or of a comparison "
                "by the call that began it, with resume=FOLDER in place of out"
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


def arrays_of(data: Data) -> Arrays:
    """Returns rows, as ``engram.simulate`` takes them, by the names that an npz file has for them.

    Several clients' have ``task``; and where some have test rows of their own, ``PART``.

    Raises:
        DataError: They are something else; a client has none, or other rows than the first has.
    """
    if isinstance(data, Dataset) or (isinstance(data, tuple) and len(data) in (2, 4)):
        rows, _ = _in_parts([("data", data)])
        return rows
    named = isinstance(data, Mapping)
    if not (named or isinstance(data, Sequence)) or isinstance(data, tuple | str) or not data:
        raise DataError(f"data must be {_DATA}, got {shown(data)}")
    if named and "train" in data and {*data} <= {"train", *TESTS}:
        wanted = "clients' names as keys, got parts of rows"
        raise DataError(f"data must have {wanted} ({few_names(data)}): give {_PAIR}")
    for name in data if named else ():
        if not np.isscalar(name):
            raise DataError(must("a client's name", name, "text or a number"))
    whose = [f"client {name}" for name in (data if named else range(len(data)))]
    parts = data.values() if isinstance(data, Mapping) else data
    rows, task = _in_parts(list(zip(whose, parts, strict=True)))
    names = {"task_names": np.array(list(data))} if named else {}
    return {**rows, "task": task, **names}


def _in_parts(clients: Sequence[tuple[str, Any]]) -> tuple[Arrays, npt.NDArray[np.int64]]:
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


def _joined(parts: Sequence[tuple[str, Any]]) -> tuple[Arrays, list[int]]:
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
            together[name] = frames.joined(called, arrays)
        else:
            together[name] = np.concatenate(arrays if name == "y" else _in_one_scale(name, arrays))
    if is_frame(together["y"]):
        together |= frames.targets_in(together["y"])
    else:
        _check_targets([(whose, rows["y"]) for whose, rows in zip(called, found, strict=True)])
    return together | _class_names([frames.categories_of(y) for _, (_, y) in parts]), sizes


def _class_names(each: Sequence[npt.NDArray[Any] | None]) -> Arrays:
    """Returns all clients' classes, each once, as ``CLASSES``; nothing unless all name theirs."""
    named = [names.tolist() for names in each if names is not None]
    if len(named) < len(each):
        return {}
    return {CLASSES: np.array([*dict.fromkeys(chain.from_iterable(named))])}


def _in_one_scale(name: str, arrays: Sequence[npt.NDArray[Any]]) -> Sequence[npt.NDArray[Any]]:
    """Returns arrays with grey levels, uint8, as shares of 255 where others have floats."""
    grey = [array.dtype == np.uint8 for array in arrays]
    if all(grey) or not any(grey) or any(x.dtype.kind not in "buif" for x in arrays):
        return arrays
    if any(x.dtype.kind in "iu" and not is_grey for x, is_grey in zip(arrays, grey, strict=True)):
        raise DataError(f"{name} has whole numbers of uint8 and of others: give all in one type")
    most = max(x.max(initial=0) for x, is_grey in zip(arrays, grey, strict=True) if not is_grey)
    if most > _SCALED:
        say_once(
            f"data: some rows of {name} go up to {most:g} and are used as they are, while those of "
            "uint8 are divided by 255: if all are grey levels, give all as uint8"
        )
    return [scaled(x) if is_grey else x for x, is_grey in zip(arrays, grey, strict=True)]


def _check_targets(parts: Sequence[tuple[str, npt.NDArray[Any]]]) -> None:
    """Refuses text beside numbers, of which NumPy would make text."""
    (one, first), *others = parts
    for whose, y in others:
        if is_text(y) != is_text(first):
            raise DataError(f"y of {whose} must be {first.dtype} as that of {one}, got {y.dtype}")


def _of_data_sets(parts: Sequence[tuple[str, Any]]) -> tuple[Arrays, list[int]]:
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
                inputs.append(items.inputs_of(part))
                ys.append(items.targets_of(part))
                names.append(items.class_names(part, ys[-1]))
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
    if not (isinstance(part, tuple | list) and len(part) == 2):
        raise DataError(f"{whose} must be {_PAIR}, got {shown(part)}")
    x, y = part
    several = dict(enumerate(x)) if isinstance(x, tuple) else x
    inputs = {f"x.{k}": v for k, v in several.items()} if isinstance(several, Mapping) else {"x": x}
    given = frames.in_one_order(whose, {**inputs, "y": y})
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
        return frames.targets_of(name, value)
    try:
        array = plain(value)
    except ValueError as error:  # numpy's
        unlike = f"{shown(value)} whose entries differ in length"
        raise DataError(f"{name} must be an array of numbers, got {unlike}") from error
    except (TypeError, RuntimeError) as error:  # such as torch's: it is on a GPU, or has a gradient
        raise DataError(f"{name} must be an array of numbers: {error}") from error
    if array.dtype.hasobject and array.ndim and all(isinstance(v, str) for v in array.flat):
        return array.astype(str)
    if array.ndim == 0 or array.dtype.kind in "OVmM":
        got = f"{array.dtype} of shape {array.shape}" if array.ndim else brief(value)
        way = ": see its astype(float)" if array.ndim and array.dtype.hasobject else ""
        raise DataError(f"{name} must be an array of numbers, got {got}{way}")
    return array


def hold(arrays: Mapping[str, npt.ArrayLike | Lazy]) -> Source:
    """Returns arrays, by the names that an npz file would have, as the setting ``dataset``.

    Its text is ``memory:`` and a digest of them, so that a run that is resumed with other data is
    refused as one with another setting is. Of rows that are read as they are drawn, their number
    and a few of them are in the digest.
    """
    kept: dict[str, Any] = {
        name: array if isinstance(array, Lazy) or is_frame(array) else np.asarray(array)
        for name, array in sorted(arrays.items())
    }
    digest = hashlib.sha256()
    for name, array in kept.items():
        if is_frame(array):
            columns = f"{name} {[*array.dtypes.astype(str).items()]} ".encode()
            digest.update(columns + frames.hashed(array))
        elif isinstance(array, Lazy):
            digest.update(f"{name} {len(array)} ".encode() + _some(array))
        else:
            digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
    return Source(f"{MEMORY}:{digest.hexdigest()[:16]}", kept)


def _some(rows: Lazy) -> bytes:
    found = []
    for number in np.linspace(0, len(rows) - 1, _LOOKED_AT).astype(np.int64):
        with contextlib.suppress(UnreadableRow):  # whoever draws it is told
            found += tree_leaves(rows.take(number[None]))
    return b"".join(np.ascontiguousarray(leaf).tobytes() for leaf in found)
