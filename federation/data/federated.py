"""The data of a federation: every row held once, and a client a list of row numbers."""

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from engram.models import Model, build_model
from federation.data.partitions import Rows, check_size, names_of, partition
from federation.data.sources import Arrays, load
from federation.errors import UNNAMED, DataError, Refused, together
from federation.experiment import Experiment
from federation.machine import check_room
from federation.names import Names

__all__ = ["FederatedData", "Split", "federated_data", "has_device", "model_for", "own_data"]


class Split(NamedTuple):
    """Training rows or test rows.

    Attributes:
        x: Inputs of all clients, shape (n, ...), uint8 or float32, on the run's device.
        y: Classes, shape (n,), int64.
        rows: For each client, the numbers of its rows.
    """

    x: Tensor
    y: Tensor
    rows: list[Rows]

    def next_rows(self, client: int, server_round: int, size: int) -> Rows:
        """Returns the numbers of a client's rows of a round, where rows come in order.

        After the last one comes the first again.

        Args:
            client: Whose.
            server_round: The round, >= 1; in each of them as many pass.
            size: How many.
        """
        own = np.sort(self.rows[client])
        return own[((server_round - 1) * size + np.arange(size)) % len(own)]

    def take(self, rows: Tensor, out: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Returns the rows as the models see them: float32, grey levels scaled to [0, 1].

        Args:
            rows: Their numbers, on the run's device.
            out: Where to put the inputs, flattened; they are returned as they are if None.
        """
        # index_select is many times faster than indexing.
        flat = rows.reshape(-1)
        x = self.x.index_select(0, flat).view(*rows.shape, *self.x.shape[1:])
        y = self.y.index_select(0, flat).view(rows.shape)
        if out is not None:
            out.copy_(x.flatten(rows.ndim))
        else:
            out = x.float()
        return (out.mul_(1 / 255) if x.dtype == torch.uint8 else out), y


class FederatedData(NamedTuple):
    """A partitioned data set.

    Attributes:
        train: Rows to learn from.
        test: Rows to personalize on and to be scored on.
        num_classes: Number of classes.
        names: What clients are called, where each is a task of the data.
    """

    train: Split
    test: Split
    num_classes: int
    names: Names = UNNAMED

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one example."""
        return tuple(self.train.x.shape[1:])


def model_for(experiment: Experiment, input_shape: tuple[int, ...], num_classes: int) -> Model:
    """Builds the experiment's network for such data.

    Raises:
        Refused: If the network does not fit the data, or there is nothing to tell apart.
    """
    if num_classes < 2:
        raise Refused(f"number of classes must be at least 2, got {num_classes}")
    try:
        model = build_model(
            experiment.model,
            input_shape=input_shape,
            outputs=num_classes,
            hidden=experiment.hidden_widths,
        )
    except ValueError as error:
        raise Refused(str(error)) from error
    # Float32, of which there are three at least: the server's, a client's, and its gradient.
    check_room(f"a model of {model.parameters} parameters", 12 * model.parameters, "lower hidden")
    return model


def federated_data(experiment: Experiment, *, named: bool = True) -> FederatedData:
    """Loads and partitions the experiment's data, on its device.

    Args:
        experiment: The settings.
        named: Whether clients keep the names that the data give them.

    Raises:
        DataError: As ``sources.load`` and ``partitions.partition`` say; along with what the network
            lacks, if that does not fit, either.
        Refused: If the device is not there.
    """
    arrays = _load(experiment, experiment.dataset)
    if not named:
        arrays = arrays._replace(task_names=())
    try:
        train, test = partition(arrays, experiment)
    except DataError as error:
        shape = arrays.x_train.shape[1:]
        check = partial(model_for, experiment, shape, arrays.num_classes)
        raise together(error, check) from error
    return _hold(arrays, train, test, experiment)._replace(names=names_of(arrays, experiment))


def own_data(experiment: Experiment, dataset: str, client: int) -> FederatedData:
    """Loads a data set that is one client's, and no other's, on the experiment's device.

    Args:
        experiment: The settings; ``num-classes`` says how many classes the federation has.
        dataset: As the setting ``dataset``. A task column in it is not looked at.
        client: Whose it is. The others have no rows here.

    Raises:
        DataError: As ``sources.load`` says; or it has too few rows.
        Refused: If the device is not there.
    """
    arrays = _load(experiment, dataset)
    sizes = len(arrays.y_train), len(arrays.y_test)
    check_size(client, *sizes, experiment)
    train, test = (_all_to(client, size, experiment.num_clients) for size in sizes)
    return _hold(arrays, train, test, experiment)


def _all_to(client: int, num_rows: int, num_clients: int) -> list[Rows]:
    rows: list[Rows] = [np.empty(0, dtype=np.int64) for _ in range(num_clients)]
    rows[client] = np.arange(num_rows)
    return rows


def _load(experiment: Experiment, dataset: str) -> Arrays:
    if experiment.device != "cpu" and not has_device(experiment.device):
        raise Refused(f"device {experiment.device} is not there: torch finds none of that name")
    return load(
        dataset,
        data_dir=Path(experiment.data_dir),
        test_fraction=experiment.test_fraction,
        num_classes=experiment.num_classes,
        seed=experiment.seed,
    )


def _hold(
    arrays: Arrays, train: list[Rows], test: list[Rows], experiment: Experiment
) -> FederatedData:
    def hold(x: npt.NDArray[Any], y: npt.NDArray[Any], rows: list[Rows]) -> Split:
        device = experiment.device
        return Split(torch.from_numpy(x).to(device), torch.from_numpy(y).to(device), rows)

    return FederatedData(
        train=hold(arrays.x_train, arrays.y_train, train),
        test=hold(arrays.x_test, arrays.y_test, test),
        num_classes=arrays.num_classes,
    )


def has_device(device: str) -> bool:
    """Returns whether torch finds the device; ``cuda`` is the first of its kind."""
    index = torch.device(device).index or 0
    return torch.cuda.is_available() and index < torch.cuda.device_count()
