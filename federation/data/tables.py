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
from federation.data.cells import known, matrix, numbers
from federation.data.datasets import read_given
from federation.data.lazy import Lazy
from federation.data.npz import named_labels, read_npz
from federation.data.raw_tables import of_arrays, of_csv
from federation.data.source import SPARSE, Source
from federation.data.values import Columns, Values
from federation.errors import UNNAMED, DataError, Names, few_names
from federation.experiment import Experiment
from federation.machine import check_room, rows_in_memory
from federation.names import checked_names
from federation.streams import Stream, generator

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
    table = read_table(experiment.source, Columns.of(experiment))
    if experiment.task_column == experiment.target_column:
        wanted = f"a column of {experiment.dataset} that names each row's client, and no other"
        raise DataError(must("task-column", experiment.task_column, wanted))
    tasks, codes = distinct(table.labels)
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
        table = read_table(source, Columns.of(e, alone=True), one_task=True, client=client)
        columns = columns or table.columns
        if sorted(columns) != sorted(table.columns):
            expected = f"the columns {few_names(columns)}, as others have"
            raise DataError(must(f"client {client}", few_names(table.columns), expected))
        x = table.x[:, [table.columns.index(name) for name in columns]]
        train[client], test[client] = _held_out(x, table.y, e, client)
    return TableData(train, test, columns)


def _held_out(
    x: npt.NDArray[np.float64], y: npt.NDArray[np.float64], experiment: Experiment, client: int
) -> tuple[Rows, Rows | None]:
    """Holds out a share of a client's rows, but not all of them; the others keep their order.

    With ``missing`` as ``median``, medians of the other rows stand for missing values.
    """
    if not len(y):
        raise DataError(f"client {client} has no rows to learn from")
    rng = generator(experiment.seed, Stream.DATA_SPLIT, client)
    held = np.zeros(len(y), dtype=bool)
    count = min(round(experiment.test_fraction * len(y)), len(y) - 1)
    held[rng.permutation(len(y))[:count]] = True
    if experiment.missing == "median":
        learned = x[~held]
        there = np.where(np.isnan(learned).all(axis=0), 0, learned)
        x = np.where(np.isnan(x), np.nanmedian(there, axis=0), x)
    return Rows(x[~held], y[~held]), Rows(x[held], y[held]) if held.any() else None


def read_table(
    source: Source,
    columns: Columns,
    *,
    drop: Collection[str] = (),
    one_task: bool = False,
    client: int = 0,
) -> Table:
    """Reads a table.

    Args:
        source: ``csv:PATH``, with a header; or ``npz:PATH`` with arrays ``x`` (n, d), ``y`` and
            ``task``, and, if wanted, names of x's columns in ``x_names``. If ``y`` has several
            columns, ``y_names`` must name them. ``task_names`` are labels of tasks that ``task``
            numbers from 0.
        columns: What its columns are; all but target and task are features, unless it names these.
        drop: Columns that are no features.
        one_task: Whether all rows may be one task's, and the task's column be missing.
        client: Whose table it is, of a user's data set whose clients are read one by one.

    Raises:
        DataError: If the file is not such a table, lacks a column, or a feature is not a number.
    """
    path, arrays = source.path, dict[str, Any]()
    columns = columns._replace(values=Values(needed=True))  # text is refused below, by name
    if source.kind == "csv" and source.place:
        with rows_in_memory(source.place):
            raw = of_csv(path, columns)
    else:
        arrays = dict(_arrays(source, client))
        raw = of_arrays(path, arrays, columns)
    if raw.task is None and not one_task:
        raise DataError(
            f"{path} must have a task column, {columns.task!r}, that says whose row each is; it "
            f"has {few_names(raw.inputs.columns)}"
        )
    for name in drop:
        if name not in raw.inputs:
            has = few_names(raw.inputs.columns)
            raise DataError(f"{path} has no feature {name!r} to be left out; it has {has}")
    x = raw.inputs.drop(columns=list(drop))
    x = x.apply(known, missing_values=columns.missing_values) if columns.missing_values else x
    task = None if raw.task is None else named_labels(path, arrays, columns.task, raw.task)
    y = target_of(path, raw.y, columns.target)
    return Table(matrix(path, x, _OTHERWISE), y, task, list(x.columns))


def _arrays(source: Source, client: int) -> Mapping[str, Any]:
    if source.is_given:
        arrays = read_given(source, [client])
    elif source.kind == "npz" and source.place:
        return read_npz(source.path)
    else:
        raise DataError(clash("dataset", source, f"csv:PATH, npz:PATH, or {_SIMULATIONS}"))
    if isinstance(arrays.get("x"), Lazy):
        raise DataError("tables must be given as arrays (x, y), got data sets of torch")
    return arrays


def target_of(path: Path, y: Any, name: str) -> npt.NDArray[np.float64]:
    """Returns targets, a column of a data frame or an array, as numbers (n,).

    Raises:
        DataError: They are something else.
    """
    if not isinstance(y, np.ndarray):
        return numbers(path, name, y, "code it by numbers")
    if y.ndim != 1 or y.dtype.kind not in "buif":
        raise DataError(f"{path}: y must be one number a row, got {y.dtype} of shape {y.shape}")
    return y.astype(np.float64)


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
