"""Loading of a federation's data, and dealing of the rows to its clients."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.utils._pytree import tree_map

from engram.core.checks import must
from engram.core.machine import rows_in_memory
from engram.core.streams import Stream, generator
from engram.data.arrays import Arrays, pieces
from engram.data.clients import check_shortage, shortage
from engram.data.federated import FederatedData, Split, model_for
from engram.data.image_axes import Shaping
from engram.data.lazy import Lazy, RowNumbers
from engram.data.loading import load
from engram.data.partitions import names_of, partition
from engram.data.readers.parquet_cache import unless_refused
from engram.data.row_trees import row_hashes
from engram.data.schema.declared import declare
from engram.data.source import Source
from engram.data.standardize import standardizing
from engram.data.time_cells import TimeCells
from engram.settings.errors import UNNAMED, DataError, Names, Refused, one_line, together
from engram.settings.experiment import Experiment
from engram.settings.method_for_data import check_fit


def federated_data(
    experiment: Experiment, *, named: bool = True, hosted: Sequence[int] | None = None
) -> FederatedData:
    """Loads and partitions the experiment's data, on its device.

    Args:
        experiment: The settings.
        named: Whether clients keep the names that the data give them.
        hosted: Clients whose rows are wanted; all of them if None. Where clients are read one by
            one, the others have no rows here.

    Raises:
        DataError: As ``loading.load`` and ``partitions.partition`` say; along with what the network
            lacks, if that does not fit, either.
        Refused: If the device is not there.
    """
    with unless_refused(experiment.source, Path(experiment.data_dir)):
        return _federated(experiment, named, hosted)


def _federated(experiment: Experiment, named: bool, hosted: Sequence[int] | None) -> FederatedData:
    if experiment.source.by_client:
        one_by_one = f"natural for dataset {experiment.dataset}, whose clients are read one by one"
        if experiment.partition != "natural":
            raise DataError(must("partition", experiment.partition, one_by_one))
        everyone = range(experiment.num_clients)
        return _of_clients(experiment, experiment.source, everyone if hosted is None else hosted)
    arrays = _load(experiment, experiment.source)
    if not named:
        arrays = arrays._replace(task_names=())
    try:
        train, test = partition(arrays, experiment)
    except DataError as error:
        nobody = _hold(arrays, [], [], experiment)
        raise together(error, partial(check_fit, experiment, nobody.kind)) from error
    found = _hold(arrays, train, test, experiment, names_of(arrays, experiment))
    return _of_able(found, range(experiment.num_clients), experiment)


def own_data(experiment: Experiment, source: Source, client: int) -> FederatedData:
    """Loads a data set that is one client's, and no other's, on the experiment's device.

    A task column in it is not looked at. The other clients have no rows here. The setting
    ``num-classes`` says how many classes the federation has.

    Raises:
        DataError: As ``loading.load`` says; or it has too few rows.
        Refused: If the device is not there.
    """
    with unless_refused(source, Path(experiment.data_dir)):
        return _of_clients(experiment, source, [client])


def _of_clients(experiment: Experiment, source: Source, clients: Sequence[int]) -> FederatedData:
    clients = clients or [0]  # what rows are like, a node without clients says, too
    arrays = _load(experiment, source, alone=True, clients=clients)
    train, test = (
        _to_clients(task if source.by_client else None, len(y), clients, experiment.num_clients)
        for y, task in ((arrays.y_train, arrays.task_train), (arrays.y_test, arrays.task_test))
    )
    return _of_able(_hold(arrays, train, test, experiment), clients, experiment)


def _of_able(data: FederatedData, clients: Sequence[int], e: Experiment) -> FederatedData:
    """Leaves out clients with too few rows, and refuses data if too few clients remain."""
    out = data.validation or data.train._replace(rows=[own[:0] for own in data.train.rows])
    parts = data.train, out, data.test
    sizes = [(client, *(len(part.rows[client]) for part in parts)) for client in clients]
    lone = [c for c in clients if len(data.train.rows[c]) == 1]
    each = {own.model: own for own in (e.for_client(c, data.names) for c in lone)}.values()
    least = max((model_for(own, data.kind).least_rows for own in each), default=1)
    found = shortage(sizes, e, least=least)
    try:
        check_shortage(found, len(clients), e, data.names)
    except DataError as error:
        own = e.for_client(clients[0], data.names)
        raise together(error, partial(check_fit, own, data.kind)) from error

    def without(split: Split) -> Split:
        rows = [own[:0] if c in found.left_out else own for c, own in enumerate(split.rows)]
        return split._replace(rows=rows)

    train, test = (without(split) for split in data[:2])
    held_out = data.validation and without(data.validation)
    data = data._replace(train=train, test=test, validation=held_out)
    return data._replace(left_out=found.left_out, unscored=found.unscored)


def _to_clients(
    task: RowNumbers | None, num_rows: int, clients: Sequence[int], num_clients: int
) -> list[RowNumbers]:
    """Gives each client the rows of its task: 0, 1, ...; or all to the first, without tasks."""
    task = np.zeros(num_rows, dtype=np.int64) if task is None else task
    ends = np.bincount(task, minlength=len(clients)).cumsum()[:-1]
    rows: list[RowNumbers] = [np.empty(0, dtype=np.int64) for _ in range(num_clients)]
    for client, own in zip(clients, pieces(np.argsort(task, kind="stable"), ends), strict=True):
        rows[client] = own
    return rows


def _load(
    experiment: Experiment, source: Source, *, alone: bool = False, clients: Sequence[int] = ()
) -> Arrays:
    if experiment.device != "cpu" and not has_device(experiment.device):
        raise Refused(f"device {experiment.device} is not there: torch finds none of that name")
    with rows_in_memory(one_line(source)):
        return load(
            source,
            data_dir=Path(experiment.data_dir),
            test_fraction=experiment.test_fraction,
            task=experiment.task,
            num_classes=experiment.num_classes,
            cells=TimeCells.of(experiment),
            shaping=Shaping.of(experiment.model, experiment.images)._replace(
                exact=standardizing(experiment, table=False) != "none",
                exact_tables=standardizing(experiment, table=True) != "none",
            ),
            seed=experiment.seed,
            columns=declare(experiment, alone=alone),
            clients=clients,
            by_hash=experiment.hides_rows and (alone or experiment.partition == "natural"),
        )


def _hold(
    arrays: Arrays,
    train: list[RowNumbers],
    test: list[RowNumbers],
    experiment: Experiment,
    names: Names = UNNAMED,
) -> FederatedData:
    def hold(x: Any, y: npt.NDArray[Any], rows: list[RowNumbers], part: int) -> Split:
        def there(leaf: Any) -> Any:
            return leaf if isinstance(leaf, Lazy) else torch.from_numpy(leaf).to(experiment.device)

        return Split(tree_map(there, x), there(y), rows, names, given=arrays.numbers[part])

    learned = hold(arrays.x_train, arrays.y_train, train, 0)
    if experiment.hides_rows:
        learned = learned._replace(hashes=_hashed(arrays, train, experiment))
    if (named := arrays.validated) is None:
        drawn = partial(_held_out, experiment=experiment, hashes=learned.hashes)
        parts = [drawn(client, own) for client, own in enumerate(train)]
    else:
        parts = [(own[~named[own]], own[named[own]]) for own in train]
    held_out = learned._replace(rows=[out for _, out in parts])
    return FederatedData(
        train=learned._replace(rows=[kept for kept, _ in parts]),
        test=hold(arrays.x_test, arrays.y_test, test, 1),
        outputs=arrays.outputs,
        names=names,
        validation=held_out if experiment.validates else None,
        classes=arrays.class_names,
        schema=arrays.schema,
        fills=arrays.fills,
    )


def _hashed(arrays: Arrays, train: list[RowNumbers], e: Experiment) -> npt.NDArray[np.float64]:
    """Returns hashes of the training rows; those that nobody holds are one more client's."""
    owner = np.full(len(arrays.y_train), len(train))
    for client, own in enumerate(train):
        owner[own] = client
    x, y = arrays.x_train, arrays.y_train
    return row_hashes(x, y, owner, e.seed, Stream.VALIDATION, arrays.class_names)


def _held_out(
    client: int, own: RowNumbers, experiment: Experiment, hashes: npt.NDArray[np.float64] | None
) -> tuple[RowNumbers, RowNumbers]:
    if hashes is not None:
        out = hashes[own] < experiment.validation_fraction * experiment.validates
        return own[~out], own[out]
    count = experiment.validation_rows(len(own))
    if not count:
        return own, own[:0]
    order = generator(experiment.seed, Stream.VALIDATION, client).permutation(len(own))
    return own[np.sort(order[count:])], own[np.sort(order[:count])]


def has_device(device: str) -> bool:
    """Returns whether torch finds the device; ``cuda`` is the first of its kind."""
    index = torch.device(device).index or 0
    return torch.cuda.is_available() and index < torch.cuda.device_count()
