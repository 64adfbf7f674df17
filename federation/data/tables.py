"""Tables for regressions: every site's rows, from a file with a column that says whose they are."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.checks import clash, must, require
from engram.molar.simulation import sparse_parameters
from engram.molar.site import Rows
from engram.molar.tables import distinct
from federation.data.cells import check_there, matrix, numbers
from federation.data.datasets import read_given
from federation.data.frames import check_columns, is_frame, read_frame
from federation.data.lazy import Lazy
from federation.data.npz import named_labels, read_npz
from federation.data.source import SPARSE, Source
from federation.errors import UNNAMED, DataError, few_names
from federation.experiment import Experiment
from federation.machine import check_room, check_rows, rows_in_memory
from federation.names import Names, checked_names
from federation.streams import Stream, generator

__all__ = [
    "Table",
    "TableData",
    "own_table",
    "read_table",
    "table_data",
]

_Array = npt.NDArray[Any]
_SIMULATIONS: Final = "simulated: sparse-linear, sparse-logistic or sparse-poisson"
_OTHERWISE: Final = "code it by numbers, leave it out, or name it as the task"
_ROWS, _COLUMNS, _DIFFERING = 200, 20, 2  # of a simulated site, and coefficients that differ there


class Table(NamedTuple):
    """A table as it was read.

    Attributes:
        x: Features, shape (n, d), float64; they may have NaN.
        y: Target, shape (n,), float64; likewise.
        task: Whose row each is, shape (n,); None if the table does not say.
        columns: What the features are called.
    """

    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    task: _Array | None
    columns: list[str]

    @property
    def labels(self) -> _Array:
        """``task``, of a table that has it.

        Raises:
            ValueError: If it has none.
        """
        require(self.task is not None, "task", None, "known of every row")
        return np.asarray(self.task)


class TableData(NamedTuple):
    """The tables of the sites.

    Attributes:
        train: Rows to learn from, of each client; None of one that is not here.
        test: Rows to be scored on; None likewise, and where there are none.
        columns: What the features are called.
        names: What clients are called in the task column.
    """

    train: list[Rows | None]
    test: list[Rows | None]
    columns: list[str]
    names: Names = UNNAMED


def table_data(experiment: Experiment, hosted: Sequence[int] | None = None) -> TableData:
    """Loads the experiment's table, and gives each client its rows.

    Args:
        experiment: The settings.
        hosted: Clients whose rows are wanted, where clients are read one by one; None for all.

    Raises:
        DataError: If it cannot be read, or its number of tasks differs from num-clients.
    """
    if experiment.source.kind == SPARSE:
        return _simulated(experiment)
    if experiment.source.by_client:
        everyone = range(experiment.num_clients)
        return _of_clients(experiment, experiment.source, everyone if hosted is None else hosted)
    table = read_table(experiment.source, experiment.target_column, experiment.task_column)
    if table.task is None:
        wanted = f"a column of {experiment.dataset} that names each row's client, and no other"
        raise DataError(must("task-column", experiment.task_column, wanted))
    tasks, codes = distinct(table.task)
    if len(tasks) != experiment.num_clients:
        wanted = f"the number of clients in {experiment.dataset}, {len(tasks)}"
        raise DataError(must("num-clients", experiment.num_clients, wanted))
    train: list[Rows | None] = []
    test: list[Rows | None] = []
    for client in range(len(tasks)):
        own = np.flatnonzero(codes == client)
        parts = _held_out(table.x[own], table.y[own], experiment, client)
        train.append(parts[0])
        test.append(parts[1])
    names = checked_names(dict(enumerate(map(str, tasks.tolist()))), len(tasks))
    return TableData(train, test, table.columns, names)


def own_table(experiment: Experiment, source: Source, client: int) -> TableData:
    """Loads a table that is one client's, and no other's. A task column in it is not looked at.

    Raises:
        DataError: If the table cannot be read.
    """
    return _of_clients(experiment, source, [client])


def _of_clients(e: Experiment, source: Source, clients: Sequence[int]) -> TableData:
    """Loads a table of each of these clients."""
    train: list[Rows | None] = [None] * e.num_clients
    test: list[Rows | None] = [None] * e.num_clients
    columns: list[str] = []
    for client in clients or [0]:  # what columns there are, a node without clients says, too
        table = read_table(source, e.target_column, e.task_column, one_task=True, client=client)
        train[client], test[client] = _held_out(table.x, table.y, e, client)
        columns = table.columns
    return TableData(train, test, columns)


def _held_out(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], experiment: Experiment, client: int
) -> tuple[Rows, Rows | None]:
    """Holds out a share of a client's rows, but not all of them; the others keep their order."""
    if not len(y):
        raise DataError(f"client {client} has no rows to learn from")
    rng = generator(experiment.seed, Stream.DATA_SPLIT, client)
    held = np.zeros(len(y), dtype=bool)
    count = min(round(experiment.test_fraction * len(y)), len(y) - 1)
    held[rng.permutation(len(y))[:count]] = True
    return Rows(x[~held], y[~held]), Rows(x[held], y[held]) if held.any() else None


def read_table(
    source: Source,
    target: str,
    task: str,
    *,
    drop: Collection[str] = (),
    one_task: bool = False,
    client: int = 0,
) -> Table:
    """Reads a table.

    Args:
        source: ``csv:PATH``, with a header; all columns but target and task are features. Or
            ``npz:PATH`` with arrays ``x`` (n, d), ``y`` and ``task``, and, if wanted, names of
            x's columns in ``x_names``. If ``y`` has several columns, ``y_names`` must name them.
            ``task_names`` are labels of tasks that ``task`` numbers from 0.
        target: The target's column (npz: of y, if it has several).
        task: The task's column (npz: ``task``, or another array).
        drop: Columns that are no features.
        one_task: Whether all rows may be one task's, and the task's column be missing.
        client: Whose table it is, of a user's data set whose clients are read one by one.

    Raises:
        DataError: If the file is not such a table, lacks a column, or a feature is not a number.
    """
    path = source.path
    if source.kind == "csv" and source.place:
        with rows_in_memory(source.place):
            return _csv(path, target, task, drop, one_task)
    if source.is_given:
        arrays = read_given(source, [client])
    elif source.kind == "npz" and source.place:
        arrays = read_npz(path)
    else:
        raise DataError(clash("dataset", source, f"csv:PATH, npz:PATH, or {_SIMULATIONS}"))
    if isinstance(arrays.get("x"), Lazy):
        raise DataError("tables must be given as arrays (x, y), got data sets of torch")
    if is_frame(arrays.get("x")):
        return _held_frame(path, arrays, task, drop, one_task)
    return _without(drop, path, _own(path, arrays, target, task, one_task))


def _csv(path: Path, target: str, task: str, drop: Collection[str], one_task: bool) -> Table:
    frame = read_frame(path)
    check_columns(path, [target], frame.columns)
    _check_task(path, task, frame.columns, one_task)
    y = numbers(path, target, frame[target], "code it by numbers")
    return _of_frame(path, frame.drop(columns=target), y, task, drop)


def _held_frame(
    path: Path, arrays: Mapping[str, Any], task: str, drop: Collection[str], one_task: bool
) -> Table:
    frame, labels = arrays["x"], arrays.get("task")
    if labels is None:
        _check_task(path, task, frame.columns, one_task)
    y = np.asarray(arrays["y"])
    if y.ndim != 1 or y.dtype.kind not in "iuf":
        raise DataError(f"{path}: y must be one number a row, got {y.dtype} of shape {y.shape}")
    table = _of_frame(path, frame, y.astype(np.float64), task, drop)
    return (
        table if labels is None else table._replace(task=named_labels(path, arrays, "task", labels))
    )


def _of_frame(
    path: Path, frame: Any, y: npt.NDArray[np.float64], task: str, drop: Collection[str]
) -> Table:
    """Returns a frame of features, and of the task's column, if there is one, as a table."""
    features, labels = frame, None
    if task in frame.columns:
        check_there(path, {task: frame[task]})
        features, labels = frame.drop(columns=task), frame[task].to_numpy()
    _check_drop(drop, path, list(features.columns))
    features = features.drop(columns=list(drop))
    return Table(matrix(path, features, _OTHERWISE), y, labels, list(features.columns))


def _check_task(path: Path, task: str, columns: Collection[str], one_task: bool) -> None:
    if not one_task and task not in columns:
        raise DataError(
            f"{path} must have a task column, {task!r}, that says whose row each is; it has "
            f"{few_names(columns)}"
        )


def _without(drop: Collection[str], path: Path, table: Table) -> Table:
    _check_drop(drop, path, table.columns)
    kept = [k for k, name in enumerate(table.columns) if name not in drop]
    return table._replace(x=table.x[:, kept], columns=[table.columns[k] for k in kept])


def _check_drop(drop: Collection[str], path: Path, features: Collection[str]) -> None:
    for name in drop:
        if name not in features:
            raise DataError(
                f"{path} has no feature {name!r} to be left out; it has {few_names(features)}"
            )


def _own(path: Path, arrays: Mapping[str, _Array], target: str, task: str, one_task: bool) -> Table:
    missing = {"x", "y"} - arrays.keys()
    if missing:
        raise DataError(f"{path} must hold x and y (and task, if wanted); it lacks {min(missing)}")
    x, y = arrays["x"], arrays["y"]
    if x.ndim != 2 or not len(x) or x.dtype.kind not in "buif" or y.dtype.kind not in "buif":
        raise DataError(
            f"{path}: x must be numbers of shape (rows, columns), and y numbers, got {x.dtype} of "
            f"shape {x.shape} and {y.dtype}"
        )
    if y.ndim == 2:
        names = _names(path, arrays, "y_names", y.shape[1])
        if target not in names:
            raise DataError(
                f"{path}: y has the columns {few_names(names)}: choose one by "
                f"target-column, got {target!r}"
            )
        y = y[:, names.index(target)]
    elif target not in (names := ["y", *map(str, arrays.get("y_names", np.array([])).flat)]):
        raise DataError(f"{path}: y is one column, {names[-1]}: there is no {target!r}")
    _check_task(path, task, arrays, one_task)
    labels = arrays.get(task)
    for name, array in (("y", y), (task, labels)):
        if array is not None and array.shape != x.shape[:1]:
            raise DataError(f"{path}: {name} must have shape {x.shape[:1]}, got {array.shape}")
    if labels is not None:
        labels = named_labels(path, arrays, task, labels)
    columns = _names(path, arrays, "x_names", x.shape[1])
    check_rows(f"{path} in float64", 8 * x.size)
    return Table(x.astype(np.float64), y.astype(np.float64), labels, columns)


def _names(path: Path, arrays: Mapping[str, _Array], key: str, count: int) -> list[str]:
    """Returns what columns are called."""
    default = np.array([f"{key[0]}{k}" for k in range(count)])
    names = [str(name) for name in arrays.get(key, default).flat]
    if len(set(names)) < len(names):
        raise DataError(f"{path}: {key} must be different, got {few_names(names)}")
    if len(names) != count:
        raise DataError(f"{path}: {key} must name {count} columns, got {len(names)}")
    return names


def _simulated(experiment: Experiment) -> TableData:
    """Makes sites whose coefficients differ from each other in two of twenty (Section 4.1)."""
    family = experiment.source.place
    expected = getattr(experiment.own, "family", "linear")  # of models, where there are several
    if family != expected:
        wanted = f"sparse-{expected} for family = {expected}"
        raise DataError(clash("dataset", experiment.dataset, wanted, "family"))
    size = experiment.num_clients * _ROWS * _COLUMNS * 8
    check_room(experiment.dataset, size, "lower num-clients", kind=DataError)
    rng = generator(experiment.seed, Stream.PARTITION)
    truth = sparse_parameters(rng, experiment.num_clients, _COLUMNS, _DIFFERING)
    train: list[Rows | None] = []
    test: list[Rows | None] = []
    for client, beta in enumerate(truth):
        own = generator(experiment.seed, Stream.PARTITION, client)
        x = own.normal(size=(_ROWS, _COLUMNS))
        eta = x @ beta
        if family == "linear":
            y = eta + 0.5 * own.normal(size=_ROWS)
        elif family == "logistic":
            y = (own.random(_ROWS) < 1 / (1 + np.exp(-eta))).astype(np.float64)
        else:
            y = own.poisson(np.exp(eta)).astype(np.float64)
        parts = _held_out(x, y, experiment, client)
        train.append(parts[0])
        test.append(parts[1])
    return TableData(train, test, [f"x{k}" for k in range(_COLUMNS)])
