"""A user's arrays as a data set: inputs, targets of each task, test rows."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from torch.utils._pytree import tree_leaves, tree_map

from engram.core.machine import check_rows
from engram.core.streams import Stream, generator
from engram.data.image_axes import CLASSES, CUT, PART, TESTS, Shaping, lost_columns, say_once
from engram.data.labels import classes_of, is_text
from engram.data.lazy import Lazy, Place, Texts, is_frame, like_of
from engram.data.readers.npz import named, named_labels
from engram.data.row_trees import Joined, has_lazy, row_hashes
from engram.data.schema.columns import Column, Schema
from engram.data.time_cells import TimeCells
from engram.scoring.metrics import Targets
from engram.settings.errors import DataError, few_names

_Array = npt.NDArray[Any]
HeldOut = Callable[..., _Array]
"""``(kind of each row (n,), whose it is (n,) if known) -> whether it is for testing (n,)``; with
``tested``, as ``PART``, where that is not drawn."""


class Arrays(NamedTuple):
    """A data set in memory, once.

    Attributes:
        x_train: Inputs, shape (n, ...), of images (n, channels, height, width): uint8 for 256 grey
            levels, which are scaled to [0, 1] when used, or float32 or int64, used as is; or a
            tuple or dictionary of several inputs. Those that are ``Lazy`` are read as they are
            drawn.
        y_train: Targets, shape (n,) or (n, ...), as ``engram.scoring.tasks.Task.targets`` says:
            classes 0..outputs-1 or tokens, int64; values, labels or times, float32.
        x_test, y_test: The same for the test rows.
        task_train, task_test: Whose row each is, 0..num_tasks-1; None if the data do not say.
        outputs: Number of classes, or of values, labels or cells of time.
        task_names: What each task is called.
        class_names: What each class is called; empty where their numbers are their names.
        schema: The schema of inputs, where these are columns with names.
        fills: By column of the schema, the value that stands for a missing one in each task, or in
            all rows where these have no task; empty if none does.
        numbers: Of training rows and of test rows, which they are of the rows that were parted, or
            of training and test rows as they came.
        validated: The training rows that are for validation, (n,); None where these are drawn.
    """

    x_train: Any
    y_train: _Array
    x_test: Any
    y_test: _Array
    task_train: _Array | None
    task_test: _Array | None
    outputs: int
    task_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    schema: Schema | None = None
    fills: Sequence[_Array] = ()
    numbers: tuple[Any, Any] = (None, None)
    validated: _Array | None = None


def settled(drawn: _Array, tested: _Array | None) -> _Array:
    """Test rows, (n,): those that are drawn, but where ``tested``, as ``PART``, says it."""
    return drawn if tested is None else np.where(tested < 0, drawn, tested == 1)


def train_and_test(x: Any, y: _Array, task: _Array | None, classes: int, test: _Array) -> Arrays:
    """Parts rows into those for training and those for testing.

    ``task`` says whose row each is; ``classes`` is 0 if rows have none.
    """
    parts = ~test, test
    x_train, x_test = (tree_map(partial(_taken, which=part), x) for part in parts)
    y_train, y_test = (y[part] for part in parts)
    task_train, task_test = (None if task is None else task[part] for part in parts)
    found = Arrays(x_train, y_train, x_test, y_test, task_train, task_test, classes)
    return found._replace(numbers=(np.flatnonzero(~test), np.flatnonzero(test)))


def held_out(
    kind: _Array,
    task: _Array | None,
    fraction: float,
    seed: int,
    clients: Sequence[int] | None = None,
    tested: _Array | None = None,
) -> _Array:
    """Draws test rows, (n,): a share of those of each kind of each task.

    Args:
        kind: What kind each row is of, such as its class.
        task: Whose row each is.
        fraction: The share.
        seed: Draws which rows those are.
        clients: The client that each task is, where rows are drawn for each by itself, so that
            it does not matter whose rows are there besides.
        tested: As ``PART``: which rows are for testing, where that is not drawn.
    """
    kinds, stratum = np.unique(kind, return_inverse=True)
    if task is not None:
        tasks, own = np.unique(task, return_inverse=True)
        stratum += len(kinds) * own
    rng = generator(seed, Stream.DATA_SPLIT)
    held = np.zeros(len(kind), dtype=bool)
    order = np.argsort(stratum, kind="stable")
    ends = np.flatnonzero(np.diff(stratum[order], append=-1)) + 1  # there may be a million strata
    for some in pieces(order, ends[:-1]):
        if clients is not None:
            at, label = divmod(int(stratum[some[0]]), len(kinds))
            rng = generator(seed, Stream.DATA_SPLIT, clients[tasks[at]], int(kinds[label]))
        rows = rng.permutation(some)
        held[rows[: round(fraction * len(rows))]] = True
    return settled(held, tested)


def held_by_hash(
    x: Any,
    y: _Array,
    task: _Array | None,
    names: Sequence[str],
    fraction: float,
    seed: int,
    clients: Sequence[int] = (),
    tested: _Array | None = None,
) -> _Array:
    """Draws test rows by their hashes, (n,), independent of other rows.

    For arguments see ``held_out`` and ``row_hashes``; ``clients`` are the client that each task is,
    or whose all rows are, or () for the tasks themselves.
    """
    if tested is not None and (tested >= 0).all():
        return np.asarray(tested == 1)
    owner = np.zeros(len(y), dtype=np.int64) if task is None else task
    owner = np.take(clients, owner, mode="clip") if clients else owner
    return settled(row_hashes(x, y, owner, seed, Stream.DATA_SPLIT, names) < fraction, tested)


def _say_copies(path: Path, found: Arrays) -> None:
    train, test = _digests(found.x_train, found.y_train), _digests(found.x_test, found.y_test)
    if copies := sum(map(set(train).__contains__, test)):
        which = f"{copies} of {len(test)} test rows are exact copies of training rows"
        say_once(f"{path}: {which}, on which scores are too good")


def _digests(x: Any, y: _Array) -> list[int]:
    if has_lazy(x):
        return []
    leaves = [y, *tree_leaves(x)]
    return [hash(b"".join([part.tobytes() for part in row])) for row in zip(*leaves, strict=True)]


def pieces(rows: _Array, ends: _Array) -> list[_Array]:
    """Returns ``np.split(rows, ends)``, which takes several times as long for a million pieces."""
    edges = [0, *ends.tolist(), len(rows)]
    return [rows[start:end] for start, end in pairwise(edges)]


def _taken(leaf: Any, which: _Array) -> Any:
    if isinstance(leaf, np.ndarray):
        check_rows("a copy of the rows", int(which.sum()) * (leaf.nbytes // max(1, len(leaf))))
    return leaf[which]


class Own(NamedTuple):
    """Settings by which a user's arrays are read.

    Attributes:
        path: Where they are, for messages.
        targets: What targets are: see ``engram.scoring.tasks.Task``.
        num_classes: Classes, or tokens, that there are; 0 for those that the arrays hold.
        shaping: How rows of a single input are shaped.
        target: The column of targets, with the classes that are declared.
        alone: Whether rows are one client's, and others may hold other classes.
        cells: Cells of time, of targets that are times.
    """

    path: Path
    targets: Targets
    num_classes: int = 0
    shaping: Shaping = Shaping()
    target: Column = Column("y")
    alone: bool = False
    cells: TimeCells = TimeCells()

    def arrays(
        self, arrays: Mapping[str, Any], split: HeldOut, by_hash: Callable[..., _Array] | None
    ) -> Arrays:
        """Returns a data set: parted already, or to be parted, by hashes or by strata."""
        arrays = united(self.path, arrays)
        x = _inputs_of(arrays, "x")
        apart = any(
            name.startswith(("x_train", *(f"x_{part}" for part in TESTS))) for name in arrays
        )
        if x is None or "y" not in arrays or apart:
            raise DataError(
                f"{self.path} must hold either x and y (and task, if wanted), or x_train, y_train, "
                f"x_test and y_test; it holds {', '.join(sorted(arrays)) or 'nothing'}"
            )
        tested, cut = arrays.get(PART), arrays.get(CUT, 0)
        task, names = self._task(arrays, arrays["y"])
        place = Place(self.path, "y", task, names, cut)
        y, outputs, called = self.labels(arrays["y"], place, arrays.get(CLASSES))
        classes = outputs if self.targets == "classes" and y.ndim == 1 else 0
        test = split(y if classes else np.zeros(len(y)), task, tested=tested)
        if is_frame(x):  # of a table
            from engram.data.schema.encoding import encode_learned  # noqa: PLC0415 - loads pandas

            learned = ~test & (np.asarray(arrays.get(PART, 0)) != 2)
            x, *known = encode_learned(arrays["schema"], self.path, x, task, learned)
            arrays = {**arrays, **dict(zip(("schema", "fills"), known, strict=True))}
        x = self._inputs(place._replace(name="x"), x, y)
        test = by_hash(x, y, task, called, tested=tested) if by_hash else test
        found = train_and_test(x, y, task, classes, test)
        if tested is not None:
            _say_copies(self.path, found)
        first, rest = found.numbers
        validated = np.zeros(0) if tested is None else tested[~test] == 2
        return found._replace(
            outputs=outputs,
            task_names=names,
            class_names=called,
            schema=_schema(self.path, arrays, x),
            fills=arrays.get("fills", ()),
            numbers=(first, rest - cut),
            validated=validated if validated.any() else None,
        )

    def inputs(self, arrays: Mapping[str, Any]) -> Any:
        """Returns the inputs alone, as ``arrays`` has them.

        Raises:
            DataError: If there are none, or they are not what inputs may be.
        """
        x = _inputs_of(arrays, "x")
        leaves = tree_leaves(x)
        if not any(isinstance(leaf, Lazy) or np.ndim(leaf) for leaf in leaves):
            held = ", ".join(sorted(arrays)) or "nothing"
            raise DataError(f"{self.path} must hold x; it holds {held}")
        return self._inputs(Place(self.path, "x"), x, np.zeros(len(leaves[0])))

    def _task(
        self, arrays: Mapping[str, _Array], y: _Array
    ) -> tuple[_Array | None, tuple[str, ...]]:
        task = arrays.get("task")
        if task is None:
            return None, ()
        _same_length(self.path, "task", task, y)
        if task.ndim != 1:
            raise DataError(f"{self.path}: task must be one column, got shape {task.shape}")
        tasks, numbers = np.unique(task, return_inverse=True)
        return numbers, tuple(map(str, named_labels(self.path, arrays, "task", tasks).tolist()))

    def labels(
        self, y: _Array, place: Place, names: _Array | None = None
    ) -> tuple[_Array, int, tuple[str, ...]]:
        """Targets as tasks want them, the number of outputs, and names of classes.

        Raises:
            DataError: If they are not what the task's targets may be.
        """
        if self.targets == "classes":
            column, alone, most = self.target, self.alone, self.num_classes
            return classes_of(place, y, column=column, alone=alone, num_classes=most, names=names)
        if self.targets == "tokens":
            return *_tokens(self.path, y, self.num_classes), ()
        if self.targets == "times":
            return self.cells.targets(place, y), self.cells.size, self.cells.names
        wanted, axes = "numbers, one or more", 1
        if self.targets == "labels":
            wanted, axes = "zeros and ones, several", 2
        if y.ndim < axes or y.dtype.kind not in "buif" or 0 in y.shape:
            raise place.fault(f"{wanted} a row", f"{y.dtype} of shape {y.shape}")
        flat = y.reshape(len(y), -1)
        for k in lost_columns(flat)[:1]:
            raise place.fault(
                "numbers whose differences float32 keeps",
                f"{flat[:, k].min()} to {flat[:, k].max()}: take off a constant",
            )
        values = y.astype(np.float32)
        if not (finite := np.isfinite(values)).all():
            raise place.fault("finite", place.first(values, ~finite))
        if self.targets == "labels" and not (known := np.isin(values, (0, 1))).all():
            raise place.fault(f"{wanted} a row", place.first(values, ~known))
        return values, math.prod(y.shape[1:]), ()

    def _inputs(self, place: Place, x: Any, y: _Array, *, several: bool = False) -> Any:
        """Returns inputs as networks take them; of several, none is an image."""
        if isinstance(x, Texts):
            return x
        if isinstance(x, dict | tuple):
            leaves = x if isinstance(x, dict) else dict(enumerate(x))
            each = {
                k: self._inputs(place._replace(name=f"{place.name}.{k}"), leaf, y, several=True)
                for k, leaf in leaves.items()
            }
            return each if isinstance(x, dict) else tuple(each.values())
        _same_length(self.path, place.name, x, y)
        if not isinstance(x, Lazy):
            return self.shaping.rows(place, x, several=several)
        some = place._replace(task=None, drawn=True)
        own = self._replace(shaping=self.shaping._replace(all_images=True)) if x.images else self
        found = x.then(lambda rows: own._inputs(some, rows, tree_leaves(rows)[0], several=several))
        self._check_alike(place, found)
        return found

    def _check_alike(self, place: Place, x: Lazy) -> None:
        kinds = [_kind(part.like).replace("uint8", "float32") for part in x.parts]
        for number, kind in enumerate(kinds):
            if kind != kinds[0]:
                raise DataError(
                    f"{self.path}: rows of {place.name} of client {place.called(number)} must be "
                    f"{kinds[0]} as those of client {place.called(0)}, got {kind}: give all in "
                    "one type, or say by images what they are"
                )


def _schema(path: Path, arrays: Mapping[str, Any], x: Any) -> Schema | None:
    if "x_names" not in arrays:
        return arrays.get("schema")
    row = like_of(x)
    count = row.shape[1] if isinstance(row, np.ndarray) and row.ndim == 2 else 0
    return Schema.of_numbers(named(path, arrays, "x_names", count), of_arrays=True)


def united(path: Path, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Returns rows of parts, in arrays such as ``x_train`` and ``x_test``, as ``x`` and ``PART``.

    As of folders of images, ``val`` is for validation beside ``test``, and else for testing.

    Raises:
        DataError: Parts differ in shape or type, or in the arrays that they have.
    """
    found = dict(arrays)
    tests = [part for part in TESTS if f"y_{part}" in arrays]
    stems = [k.replace("_train", "", 1) for k in arrays if k.partition(".")[0].endswith("_train")]
    if "x" in arrays or not tests or "y" not in stems:
        return found
    parts = ["train", *tests[1:], tests[0]]  # test rows are the last
    for name in sorted(stems, key=lambda each: each != "y"):  # with which others are compared
        stem, dot, leaf = name.partition(".")
        called = [f"{stem}_{part}{dot}{leaf}" for part in parts]
        if lacking := [each for each in called if each not in found]:
            raise DataError(f"{path} must hold {few_names(lacking)} beside {called[0]}")
        each = [found.pop(key) for key in called]
        for part, key, rows in zip(parts, called, each, strict=True):
            if not _alike(each[0], rows, grey=stem == "x"):
                got = f"got {_kind(each[0])} and {_kind(rows)}"
                raise DataError(f"{path}: {called[0]} and {key} must hold rows alike, {got}")
            _same_length(path, key, rows, arrays[f"y_{part}"])
        found[name] = Joined(each) if isinstance(each[0], Lazy) else np.concatenate(each)
    sizes = [len(arrays[f"y_{part}"]) for part in parts]
    marks = [0, *[2] * (len(parts) - 2), 1]
    return found | {PART: np.repeat(marks, sizes), CUT: sum(sizes[:-1])}


def _alike(one: Any, other: Any, *, grey: bool) -> bool:
    """Whether rows can stand one below the other; with ``grey``, grey levels not beside others."""
    if has_lazy((one, other)):
        return type(one) is type(other) and _kind(one) == _kind(other)
    kinds = {one.dtype.kind, other.dtype.kind}
    of_a_kind = one.dtype == other.dtype or (is_text(one) and is_text(other))
    mixed = grey and len({one.dtype == np.uint8, other.dtype == np.uint8}) > 1
    of_a_kind |= kinds <= set("biuf") and not mixed
    return bool(of_a_kind) and one.ndim == other.ndim > 0 and one.shape[1:] == other.shape[1:]


def _inputs_of(arrays: Mapping[str, Any], name: str) -> Any:
    """Returns inputs ``x``; or several, ``x.0``, ``x.1`` as a tuple, or ``x.NAME`` by name."""
    if name in arrays:
        return arrays[name]
    prefix = f"{name}."
    several = {k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)}
    if set(several) == set(map(str, range(len(several)))):
        return tuple(several[str(i)] for i in range(len(several))) or None
    return several


def _kind(x: Any) -> str:
    x = tree_map(like_of, x)
    named = x if isinstance(x, dict) else enumerate(x) if isinstance(x, tuple) else {"": x}
    kinds = {name: f"{leaf.dtype} of shape {leaf.shape[1:]}" for name, leaf in dict(named).items()}
    text = ", ".join(f"{name} {kind}".strip() for name, kind in kinds.items())
    return text.replace("float64", "float32")


def _tokens(path: Path, y: _Array, num_tokens: int) -> tuple[_Array, int]:
    if y.ndim != 2 or y.dtype.kind not in "iu" or y.size == 0 or y.min() < -1 or y.max() < 0:
        raise DataError(
            f"{path}: y must be tokens 0, 1, ... or -1 for none, a row of them for each row of x, "
            f"got {y.dtype} of shape {y.shape}"
        )
    most = int(y.max()) + 1
    if num_tokens and most > num_tokens:
        raise DataError(
            f"{path}: y must hold tokens 0 to {num_tokens - 1} (num-classes is {num_tokens}), got "
            f"{most - 1}"
        )
    return y.astype(np.int64), num_tokens or most


def _same_length(path: Path, name: str, array: _Array | Lazy, y: _Array) -> None:
    if y.ndim == 0:
        raise DataError(f"{path}: y must have an entry for each row, got one number")
    shape = (len(array),) if isinstance(array, Lazy) else array.shape
    if shape[:1] != y.shape[:1]:
        raise DataError(
            f"{path}: {name} must have one row for each of the {len(y)} entries of y, "
            f"got shape {shape}"
        )
