"""Who holds which rows. Training and test rows are partitioned alike; none is shared."""

import contextlib
import io
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from engram.tasks import CLASSIFICATION
from federation.data.arrays import Arrays
from federation.errors import DataError
from federation.experiment import Experiment
from federation.streams import Stream, generator

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

__all__ = ["Rows", "check_size", "partition"]

Rows = npt.NDArray[np.int64]  # row numbers of a data set
_DRAWS: Final = 20  # partitions drawn, at most, until every client has rows enough


def partition(arrays: Arrays, experiment: Experiment) -> tuple[list[Rows], list[Rows]]:
    """Assigns rows to clients 0..num_clients-1, as the setting ``partition`` says.

    Where the partition is random and leaves a client with fewer rows than it needs, another is
    drawn, from a stream of its own, up to 20 times.

    Returns:
        The training rows and the test rows of each client, as row numbers.

    Raises:
        DataError: There are not enough rows; the message names the class or client, and says
            what to change.
    """
    for part, labels in (("training", arrays.y_train), ("test", arrays.y_test)):
        if experiment.num_clients > len(labels):
            raise DataError(
                f"num-clients must be at most the number of {part} rows, {len(labels)}, got "
                f"{experiment.num_clients}"
            )
    by_class = experiment.partition in ("halves", "dirichlet", "pathological")
    if by_class and experiment.task != CLASSIFICATION.name:
        raise DataError(
            f"partition must be iid, natural or blocks for task {experiment.task}, whose rows have "
            f"no class, got {experiment.partition}"
        )
    if experiment.partition == "halves":
        split = (
            _halves(arrays.y_train, arrays.outputs, experiment, "rows-per-class"),
            _halves(arrays.y_test, arrays.outputs, experiment, "test-rows-per-class"),
        )
        _check_sizes(split, experiment)
        return split
    if experiment.partition == "blocks":
        split = (
            np.array_split(np.arange(len(arrays.y_train)), experiment.num_clients),
            np.array_split(np.arange(len(arrays.y_test)), experiment.num_clients),
        )
        _check_sizes(split, experiment)
        return split
    _check_alike(arrays, experiment)
    for draw in range(_DRAWS):
        seed = int(generator(experiment.seed, Stream.PARTITION, draw).integers(2**31))
        split = (
            _flower(arrays.y_train, arrays.task_train, experiment, seed),
            _flower(arrays.y_test, arrays.task_test, experiment, seed),
        )
        try:
            _check_sizes(split, experiment)
        except DataError:
            if draw == _DRAWS - 1 or experiment.partition in ("iid", "natural"):
                raise
        else:
            break
    return split


def _halves(y: npt.NDArray[np.int64], classes: int, e: Experiment, setting: str) -> list[Rows]:
    """Section 6.3 of the LocalMOML paper, after Fallah et al. (2020).

    The first half of the clients hold ``a`` rows of each of the first half of the classes. Each
    of the others holds ``a/2`` rows of one of those and ``2a`` of one of the rest, the classes
    in turn. Where a or the number of clients is odd, a/2 is rounded down and the first half has
    one client more.
    """
    a = e.rows_per_class if setting == "rows-per-class" else e.test_rows_per_class
    first, n_even = classes // 2, (e.num_clients + 1) // 2
    turns = np.arange(e.num_clients - n_even)
    held: list[list[Rows]] = [[] for _ in range(e.num_clients)]
    for label in range(classes):
        rng = generator(e.seed, Stream.PARTITION, label, 0 if setting == "rows-per-class" else 1)
        rows = rng.permutation(np.flatnonzero(y == label))
        even = np.full(n_even, a if label < first else 0, dtype=np.int64)
        odd = np.where(turns % first == label, a // 2, 0)
        odd += np.where(first + turns % (classes - first) == label, 2 * a, 0)
        ends = np.concatenate([even, odd]).cumsum()
        if ends[-1] > len(rows):
            raise DataError(
                f"class {label} has {len(rows)} rows, but partition halves needs {ends[-1]} of it: "
                f"lower {setting} (now {a}) or num-clients (now {e.num_clients})"
            )
        for client, part in enumerate(np.split(rows[: ends[-1]], ends[:-1])):
            held[client].append(part)
    return [np.concatenate(parts) for parts in held]


def _flower(
    y: npt.NDArray[np.int64], task: npt.NDArray[Any] | None, e: Experiment, seed: int
) -> list[Rows]:
    """The partitioners of flwr-datasets.

    They see the rows in an order shuffled by ``seed``, since its iid partitioner deals them out
    as they come. The same seed gives training and test rows the same proportions: each draws
    for the classes in turn, and a drawing is never repeated inside (``min_partition_size=0``).
    """
    import datasets  # noqa: PLC0415 - slow to import, not always needed
    from flwr_datasets import partitioner as library  # noqa: PLC0415 - slow to import, not always needed

    by: Partitioner
    if e.partition == "iid":
        by = library.IidPartitioner(e.num_clients)
    elif e.partition == "dirichlet":
        by = library.DirichletPartitioner(
            e.num_clients, "label", alpha=e.dirichlet_alpha, min_partition_size=0, seed=seed
        )
    elif e.partition == "pathological":
        by = library.PathologicalPartitioner(
            e.num_clients, "label", e.classes_per_client, "first-deterministic", seed=seed
        )
    else:
        if task is None:
            raise DataError(
                f"partition natural needs a task column, and dataset {e.dataset} has none"
            )
        tasks = int(task.max()) + 1
        if tasks != e.num_clients:
            raise DataError(
                f"num-clients must be the number of tasks, {tasks}, for partition natural, "
                f"got {e.num_clients}"
            )
        by = library.NaturalIdPartitioner("task")
    order = generator(seed, Stream.PARTITION).permutation(len(y))
    columns: dict[str, Any] = {"row": order}
    if e.partition in ("dirichlet", "pathological"):
        columns["label"] = y[order]
    if task is not None:
        columns["task"] = task[order]
    by.dataset = datasets.Dataset.from_dict(columns)
    try:
        # Silent: its progress bar, and its warning of classes that nobody holds.
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            return [
                np.asarray(by.load_partition(client)["row"], dtype=np.int64)
                for client in range(e.num_clients)
            ]
    except (ValueError, KeyError, IndexError) as error:
        raise DataError(
            f"partition {e.partition} cannot be made of {len(y)} rows for {e.num_clients} clients: "
            f"{error}"
        ) from error


def _check_alike(arrays: Arrays, e: Experiment) -> None:
    """Refuses classes or tasks without training or test rows.

    The partitioners number those that they see, and would give a client other ones to be tested
    on than to learn from.
    """
    kind, train, test = "class", arrays.y_train, arrays.y_test
    if e.partition == "iid":
        return
    if e.partition == "natural" and arrays.task_train is not None and arrays.task_test is not None:
        kind, train, test = "task", arrays.task_train, arrays.task_test
    one_sided = np.setxor1d(train, test)
    if one_sided.size:
        value = one_sided[0]
        part = "test" if value in train else "training"
        raise DataError(
            f"{kind} {value} (counted from 0) has no {part} rows, which partition {e.partition} "
            f"needs: add rows, leave the {kind} out, or change test-fraction"
        )


def _check_sizes(split: tuple[list[Rows], list[Rows]], e: Experiment) -> None:
    """Refuses a partition that leaves clients with too few rows: of each fault the first client."""
    found: dict[str, str] = {}
    for client, (train, test) in enumerate(zip(*split, strict=True)):
        for setting, fault in _faults(client, len(train), len(test), e):
            found.setdefault(setting, fault)
    if found:
        raise DataError("; ".join(found.values()))


def check_size(client: int, n_train: int, n_test: int, e: Experiment) -> None:
    """Refuses a client with too few rows for what is to be done with them.

    Raises:
        DataError: If it has fewer training rows than a batch, or no test row left to be scored on.
    """
    faults = [fault for _, fault in _faults(client, n_train, n_test, e)]
    if faults:
        raise DataError("; ".join(faults))


def _faults(client: int, n_train: int, n_test: int, e: Experiment) -> Iterator[tuple[str, str]]:
    """Yields the settings that a client has too few rows for, and what to do about each."""
    advice = {
        "halves": "raise rows-per-class and test-rows-per-class",
        "dirichlet": "lower num-clients or raise dirichlet-alpha",
        "natural": "leave that task out",
    }.get(e.partition, "lower num-clients")
    for setting, size in {"batch-size": e.batch_size, **e.own.rows_needed}.items():
        if n_train < size:
            yield (
                setting,
                f"client {client} has {n_train} training rows, fewer than {setting} = {size}: "
                f"lower {setting}, or {advice}",
            )
    if n_test <= e.adapt_shots:
        yield (
            "adapt-shots",
            f"client {client} has {n_test} test rows, not more than adapt-shots = "
            f"{e.adapt_shots}, so none is left to score: lower adapt-shots, or {advice}",
        )
