"""Tables for regressions: every site's rows, by a column of clients."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from engram.core.arrays import Bools, Ints
from engram.core.checks import clash, must, require
from engram.core.machine import check_room, rows_in_memory
from engram.core.streams import Stream, generator
from engram.data.arrays import settled, united
from engram.data.clients import checked_names
from engram.data.image_axes import PART
from engram.data.labels import classes_of, is_text, is_whole
from engram.data.lazy import Lazy, Place
from engram.data.loading import read_arrays
from engram.data.readers.npz import named_labels
from engram.data.row_trees import row_hashes
from engram.data.schema.columns import Column, Schema
from engram.data.schema.declared import Declared, check_client, declare
from engram.data.schema.encoding import encode, encode_learned, gaps
from engram.data.source import SPARSE, TABLES, Source
from engram.data.tables.raw_tables import of_arrays, of_file
from engram.data.tables.survival_columns import BESIDE, Survival
from engram.settings.errors import UNNAMED, DataError, Names, few, few_names
from engram.settings.experiment import Experiment
from engram.tables.families import FamilyName
from engram.tables.simulation import sparse_parameters
from engram.tables.site import Rows
from engram.tables.tables import distinct

_Array = npt.NDArray[Any]
_log = getLogger("flwr.engram")
_SIMULATIONS: Final = "simulated: sparse-linear, sparse-logistic or sparse-poisson"
_ROWS, _COLUMNS, _DIFFERING = 200, 20, 2  # of a simulated site, and coefficients that differ there


class Table(NamedTuple):
    """A table as it was read.

    Attributes:
        x: Features, shape (n, d), float64; NaN where they are missing.
        y: Target, shape (n,), float64; likewise.
        task: Whose row each is, shape (n,); None if the table does not say.
        columns: What the features are called.
        schema: The schema of its columns, if it was read from a source.
        inputs: These columns, as ``read_cells`` returns them; likewise.
        classes: What 0 and 1 of the target are called, where it is text.
        tested: As ``PART``, where there are test rows of sites' own.
        beside: Further columns of survival.
    """

    x: npt.NDArray[np.float64]
    y: npt.NDArray[np.float64]
    task: _Array | None
    columns: list[str]
    schema: Schema = Schema(())
    inputs: Any = None
    classes: tuple[str, ...] = ()
    tested: _Array | None = None
    beside: Survival | None = None

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
        schema: The schema of inputs.
        names: What clients are called in the task column.
        fills: By client, what stands for a missing value of each column in its rows, where these
            are medians.
        classes: What 0 and 1 of the target are called, where it is text.
    """

    train: list[Rows | None]
    test: list[Rows | None]
    schema: Schema
    names: Names = UNNAMED
    fills: Mapping[int, Sequence[Any]] = MappingProxyType({})
    classes: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Names of the features."""
        return list(self.schema.inputs)

    def schema_of(self, client: int | None) -> Schema:
        """The schema with fills of a client's rows.

        Of nobody's rows, it refuses missing values that medians stand for.
        """
        if self.schema.missing != "median":
            return self.schema
        if client is None or client not in self.fills:
            return replace(self.schema, missing="refuse")
        return self.schema.with_fills(self.fills[client])


def table_data(experiment: Experiment, hosted: Sequence[int] | None = None) -> TableData:
    """Loads the experiment's table, and gives each client its rows.

    ``hosted`` are clients whose rows are wanted, where clients are read one by one; None for all.

    Raises:
        DataError: If it cannot be read, or its number of tasks differs from num-clients.
    """
    if experiment.source.kind == SPARSE:
        return _simulated(experiment)
    if experiment.source.by_client:
        everyone = range(experiment.num_clients)
        return _of_clients(experiment, experiment.source, everyone if hosted is None else hosted)
    table = read_table(experiment.source, declare(experiment), family=family_of(experiment))
    tasks, codes = distinct(table.labels)
    if len(tasks) != experiment.num_clients:
        wanted = f"the number of clients in {experiment.dataset}, {len(tasks)}"
        raise DataError(must("num-clients", experiment.num_clients, wanted))
    names = checked_names(dict(enumerate(map(str, tasks.tolist()))), len(tasks))
    return _dealt(table, codes, range(len(tasks)), experiment, names)


def own_table(experiment: Experiment, source: Source, client: int) -> TableData:
    """Loads a table that is one client's, and no other's. A task column in it is not looked at.

    Raises:
        DataError: If the table cannot be read.
    """
    return _of_clients(experiment, source, [client])


def _of_clients(e: Experiment, source: Source, clients: Sequence[int]) -> TableData:
    found: TableData | None = None
    for client in clients or [0]:  # what columns there are, a node without clients says, too
        table = read_table(source, declare(e, alone=True), client=client, family=family_of(e))
        own = _dealt(table, np.zeros(len(table.y), dtype=np.intp), [client], e)
        found = own if found is None else found
        if found.columns != own.columns:
            expected = f"the columns {few_names(found.columns)}, as others have"
            raise DataError(must(f"client {client}", few_names(own.columns), expected))
        found.train[client], found.test[client] = own.train[client], own.test[client]
        found = found._replace(fills={**found.fills, **own.fills})
    assert found is not None  # for mypy: there is a client
    return found


def _dealt(
    table: Table, codes: Ints, clients: Sequence[int], e: Experiment, names: Names = UNNAMED
) -> TableData:
    """Gives clients their rows of a table, and holds some out.

    ``codes``, (n,), are positions in ``clients``. With ``missing`` as ``median``, medians of a
    client's other rows stand for missing values.
    """
    own = [np.flatnonzero(codes == k) for k in range(len(clients))]
    if e.hides_rows:
        owner = np.array(clients)[codes]
        held = row_hashes(table.x, table.y, owner, e.seed, Stream.DATA_SPLIT) < e.test_fraction
    else:
        held = np.zeros(len(table.y), dtype=bool)
        for client, rows in zip(clients, own, strict=True):
            held[rows] = _held_out(len(rows), e, client)
    held = settled(held, table.tested)
    if lost := [client for client, rows in zip(clients, own, strict=True) if held[rows].all()]:
        raise DataError(f"clients {few(lost, names)} have no training rows: lower test-fraction")
    x, fills = table.x, dict[int, Sequence[Any]]()
    if e.missing == "median":
        x, _, each = encode_learned(table.schema, e.source.path, table.inputs, codes, ~held)
        fills = {client: [values[k] for values in each] for k, client in enumerate(clients)}
    every = Rows(x, table.y, *(table.beside or ()))
    train: list[Rows | None] = [None] * e.num_clients
    test: list[Rows | None] = [None] * e.num_clients
    for client, rows in zip(clients, own, strict=True):
        learned, tested = rows[~held[rows]], rows[held[rows]]
        train[client] = every.take(learned)
        test[client] = every.take(tested) if len(tested) else None
    unscored = [client for client in clients if test[client] is None]
    if e.hides_rows and unscored:  # by chance
        _log.warning("clients %s have no test rows to be scored on", few(unscored, names))
    return TableData(train, test, table.schema, names, fills, table.classes)


def _held_out(size: int, experiment: Experiment, client: int) -> Bools:
    if not size:
        raise DataError(f"client {client} has no rows to learn from")
    rng = generator(experiment.seed, Stream.DATA_SPLIT, client)
    held = np.zeros(size, dtype=bool)
    count = min(round(experiment.test_fraction * size), size - 1)
    held[rng.permutation(size)[:count]] = True
    return held


def read_table(
    source: Source, columns: Declared, *, client: int = 0, family: FamilyName = "linear"
) -> Table:
    """Reads a table; text is encoded as networks have it, but for its first value: see ``Schema``.

    Args:
        source: ``csv:PATH`` or ``xlsx:PATH``, with a header; or ``npz:PATH`` with arrays ``x``
            (n, d), ``y`` and ``task``, and, if wanted, names of x's columns in ``x_names``. If
            ``y`` has several columns, ``y_names`` must name them. ``task_names`` are labels of
            tasks that ``task`` numbers from 0.
        columns: What its columns are; of rows that are one client's the task may be missing.
        client: Whose table it is, of a user's data set whose clients are read one by one.
        family: The family of models; for a logistic one the target may be text of two values.

    Raises:
        DataError: If the file is not such a table, lacks a column, or a feature is neither a number
            nor text.
    """
    path, arrays = source.path, dict[str, Any]()
    known = columns.schema.column(columns.target)
    refuses = columns.schema.missing == "refuse"
    # What is missing may be refused by name, client by client, or left to whoever reads it.
    columns = columns._replace(schema=replace(columns.schema, missing="median"), is_known=True)
    columns = columns if family == "logistic" else columns.with_numbers()
    if source.kind in TABLES and source.place:
        with rows_in_memory(source.place):
            table = of_file(path, columns)
    else:
        arrays = united(path, _arrays(source, client))
        table = of_arrays(path, arrays, columns)
    schema = replace(table["schema"], reference=True)
    if not schema.inputs:
        raise DataError(f"{path} must have a column of numbers, or of text with several values")
    task, cells = table.get("task"), table["x"]
    if task is None:
        check_client(path, columns, cells.columns, always=True)
    x = np.where(gaps(schema, cells), np.nan, encode(schema, path, cells))
    task = None if task is None else named_labels(path, arrays, columns.client, task)
    y, classes = target_of(path, table["y"], known, family, alone=columns.alone)
    schema = replace(schema, missing="refuse" if refuses else "median")
    tested = table.get(PART, arrays.get(PART))
    beside = tested, table.get(BESIDE)
    return Table(x, y, task, list(schema.inputs), schema, cells, classes, *beside)


def family_of(experiment: Experiment) -> FamilyName:
    """Returns the family of a method's models; that of a method that has no choice is linear."""
    family: FamilyName = getattr(experiment.own, "family", "linear")
    return family


def _arrays(source: Source, client: int) -> Mapping[str, Any]:
    if not source.is_given and not (source.kind == "npz" and source.place):
        wanted = f"csv:PATH, xlsx:PATH, npz:PATH, or {_SIMULATIONS}"
        raise DataError(clash("dataset", source, wanted))
    arrays = read_arrays(source, [client])
    if isinstance(arrays.get("x"), Lazy):
        raise DataError("tables must be given as arrays (x, y), got data sets of torch")
    return arrays


def target_of(
    path: Path, y: _Array, known: Column, family: FamilyName, *, alone: bool = False
) -> tuple[npt.NDArray[np.float64], tuple[str, ...]]:
    """Targets as numbers (n,), and names of 0 and 1.

    They are called something if they are text, or two values of text are declared for them.

    Raises:
        DataError: They are something else.
    """
    logistic = family == "logistic"
    if y.ndim == 1 and is_text(y) and logistic:
        found = classes_of(Place(path, known.name), y, column=known, alone=alone)
        if found.outputs != 2:
            got = few_names(found.names)
            raise DataError(f"{path}: {known.name} must have two values, got {got}")
        return found.numbers.astype(np.float64), found.names
    if y.ndim != 1 or y.dtype.kind not in "buif":
        raise DataError(f"{path}: y must be one number a row, got {y.dtype} of shape {y.shape}")
    called = known.values if len(known.values) == 2 and not any(map(is_whole, known.values)) else ()
    return y.astype(np.float64), called if logistic else ()


def _simulated(experiment: Experiment) -> TableData:
    """Simulates sites, of which two of twenty coefficients differ (Section 4.1)."""
    family, expected = experiment.source.place, family_of(experiment)
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
        held = _held_out(_ROWS, experiment, client)
        train.append(Rows(x[~held], y[~held]))
        test.append(Rows(x[held], y[held]) if held.any() else None)
    return TableData(train, test, Schema.of_numbers([f"x{k}" for k in range(_COLUMNS)]))
