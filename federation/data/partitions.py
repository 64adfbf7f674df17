"""Who holds which rows. Training and test rows are partitioned alike; none is shared."""

import contextlib
import io
import warnings
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from engram.checks import must
from engram.tasks import CLASSIFICATION
from federation.data.arrays import Arrays
from federation.errors import UNNAMED, DataError
from federation.experiment import Experiment
from federation.names import Names, checked_names
from federation.streams import Stream, generator

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

__all__ = ["RowNumbers", "check_size", "names_of", "partition"]

RowNumbers = npt.NDArray[np.int64]  # row numbers of a data set
_DRAWS: Final = 20  # partitions drawn, at most, until every client has rows enough


def partition(arrays: Arrays, experiment: Experiment) -> tuple[list[RowNumbers], list[RowNumbers]]:
    """Assigns rows to clients 0..num_clients-1, as the setting ``partition`` says.

    Where the partition is random and leaves a client with fewer rows than it needs, another is
    drawn, from a stream of its own, up to 20 times.

    Returns:
        The training rows and the test rows of each client, as row numbers.

    Raises:
        DataError: There are not enough rows; the message names the class or client, and says
            what to change.
    """
    _refuse(_foreseen(arrays, experiment))
    if experiment.partition == "halves":
        return (
            _halves(arrays.y_train, arrays.outputs, experiment, "rows-per-class"),
            _halves(arrays.y_test, arrays.outputs, experiment, "test-rows-per-class"),
        )
    if experiment.partition == "blocks":
        split = (
            np.array_split(np.arange(len(arrays.y_train)), experiment.num_clients),
            np.array_split(np.arange(len(arrays.y_test)), experiment.num_clients),
        )
        _refuse(_too_small(_sizes(split), experiment))
        return split
    for draw in range(_DRAWS):
        seed = int(generator(experiment.seed, Stream.PARTITION, draw).integers(2**31))
        if arrays.task_train is not None and experiment.partition == "natural":
            split = _natural(arrays.task_train, seed), _natural(arrays.task_test, seed)
        else:
            parts = arrays.y_train, arrays.y_test
            split = _flower(parts[0], experiment, seed), _flower(parts[1], experiment, seed)
        try:
            _refuse(_too_small(_sizes(split), experiment))
        except DataError:
            if draw == _DRAWS - 1 or experiment.partition in ("iid", "natural"):
                raise
        else:
            break
    return split


def names_of(arrays: Arrays, experiment: Experiment) -> dict[int, str]:
    """Returns what clients are called, where each is a task of the data."""
    named = arrays.task_names if experiment.partition == "natural" else ()
    return checked_names(dict(enumerate(named)), experiment.num_clients)


def _halves(
    y: npt.NDArray[np.int64], classes: int, e: Experiment, setting: str
) -> list[RowNumbers]:
    """Section 6.3 of the LocalMOML paper, after Fallah et al. (2020).

    The first half of the clients hold ``a`` rows of each of the first half of the classes. Each
    of the others holds ``a/2`` rows of one of those and ``2a`` of one of the rest, the classes
    in turn. Where a or the number of clients is odd, a/2 is rounded down and the first half has
    one client more.
    """
    a = e.rows_per_class if setting == "rows-per-class" else e.test_rows_per_class
    first, n_even = _half(classes, e)
    turns = np.arange(e.num_clients - n_even)
    held: list[list[RowNumbers]] = [[] for _ in range(e.num_clients)]
    for label in range(classes):
        rng = generator(e.seed, Stream.PARTITION, label, 0 if setting == "rows-per-class" else 1)
        rows = rng.permutation(np.flatnonzero(y == label))
        even = np.full(n_even, a if label < first else 0, dtype=np.int64)
        odd = np.where(turns % first == label, a // 2, 0)
        odd += np.where(first + turns % (classes - first) == label, 2 * a, 0)
        ends = np.concatenate([even, odd]).cumsum()
        for client, part in enumerate(np.split(rows[: ends[-1]], ends[:-1])):
            held[client].append(part)
    return [np.concatenate(parts) for parts in held]


def _natural(task: Any, seed: int) -> list[RowNumbers]:
    """Each task's rows, in a shuffled order. The library's partitioner takes minutes for 10^6."""
    order = generator(seed, Stream.PARTITION).permutation(len(task))
    ends = np.bincount(task).cumsum()[:-1]
    return np.split(order[np.argsort(task[order], kind="stable")], ends)


def _flower(y: npt.NDArray[np.int64], e: Experiment, seed: int) -> list[RowNumbers]:
    """The partitioners of flwr-datasets.

    They see the rows in an order shuffled by ``seed``, since its iid partitioner deals them out
    as they come. The same seed gives training and test rows the same proportions: each draws
    for the classes in turn, and a drawing is never repeated inside (``min_partition_size=0``).
    """
    order = generator(seed, Stream.PARTITION).permutation(len(y))
    labels = (
        y[order].astype(np.int64).tobytes() if e.partition in ("dirichlet", "pathological") else b""
    )
    given = {"dirichlet": e.dirichlet_alpha, "pathological": e.classes_per_client}
    try:
        found = _positions(
            e.partition, given.get(e.partition, 0), e.num_clients, seed, len(y), labels
        )
    except (ValueError, KeyError, IndexError) as error:
        raise DataError(
            f"partition {e.partition} cannot be made of {len(y)} rows for {e.num_clients} clients: "
            f"{error}"
        ) from error
    return [order[positions] for positions in found]


@lru_cache(maxsize=8)  # the methods of a comparison have the same partitions, and this is slow
def _positions(
    kind: str, given: float, clients: int, seed: int, rows: int, labels: bytes
) -> list[RowNumbers]:
    """Returns each client's positions in the shuffled order, of whose rows these are the labels."""
    import datasets  # noqa: PLC0415 - slow to import, not always needed
    from flwr_datasets import partitioner as library  # noqa: PLC0415 - slow to import, not always needed

    by: Partitioner
    columns: dict[str, Any] = {"row": np.arange(rows)}
    if kind == "iid":
        by = library.IidPartitioner(clients)
    elif kind == "dirichlet":
        by = library.DirichletPartitioner(
            clients, "label", alpha=given, min_partition_size=0, seed=seed
        )
    else:
        by = library.PathologicalPartitioner(
            clients, "label", int(given), "first-deterministic", seed=seed
        )
    if kind != "iid":
        columns["label"] = np.frombuffer(labels, dtype=np.int64)
    by.dataset = datasets.Dataset.from_dict(columns)
    # Silent: its progress bar, and its warning of classes that nobody holds.
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        return [
            by.load_partition(client).with_format("numpy")["row"][:].astype(np.int64)
            for client in range(clients)
        ]


# --- Too few rows ----------------------------------------------------------------------------

Fault = tuple[str, str]  # a setting, and what is wrong with it
Size = tuple[int, int, int]  # a client, and its numbers of training and of test rows


def check_size(client: int, n_train: int, n_test: int, e: Experiment) -> None:
    """Refuses a client with too few rows for what is to be done with them.

    Raises:
        DataError: If it has fewer training rows than a batch, or no test row left to be scored on.
    """
    _refuse(_too_small([(client, n_train, n_test)], e))


def _refuse(faults: Iterable[Fault]) -> None:
    """Tells all faults at once: of each setting the first."""
    found: dict[str, str] = {}
    for setting, fault in faults:
        found.setdefault(setting, fault)
    if found:
        raise DataError("; ".join(found.values()))


def _foreseen(arrays: Arrays, e: Experiment) -> Iterator[Fault]:
    """Yields what is wrong before rows are given out, and before room is made for them."""
    classes = e.task == CLASSIFICATION.name
    if not classes and e.partition in ("halves", "dirichlet", "pathological"):
        wanted = f"iid, natural or blocks for task {e.task}, whose rows have no class"
        yield "partition", must("partition", e.partition, wanted)
        return
    if e.partition == "pathological" and e.classes_per_client > len(np.unique(arrays.y_train)):
        wanted = f"at most the number of classes, {len(np.unique(arrays.y_train))}"
        yield "classes-per-client", must("classes-per-client", e.classes_per_client, wanted)
    rows = {"training": len(arrays.y_train), "test": len(arrays.y_test)}
    too_many = [part for part, count in rows.items() if count < e.num_clients]
    for part in too_many:
        wanted = f"at most the number of {part} rows, {rows[part]}"
        yield "num-clients", must("num-clients", e.num_clients, wanted)
    if e.partition == "halves":
        if not too_many:
            yield from _too_few_of_a_class(arrays, e)
        yield from _too_small(_half_sizes(arrays.outputs, e), e)
    elif e.partition == "natural":
        yield from _other_tasks(arrays, e)
    elif too_many:
        for setting, size in _rows_needed(e).items():
            if rows["training"] < size:
                yield setting, must(setting, size, f"at most all {rows['training']} training rows")
        if e.protocol == "few-shot" and rows["test"] <= e.adapt_shots:
            wanted = f"fewer than all {rows['test']} test rows"
            yield "adapt-shots", must("adapt-shots", e.adapt_shots, wanted)
    elif classes and e.partition != "blocks":
        yield from _one_sided("class", arrays.y_train, arrays.y_test, e)


def _other_tasks(arrays: Arrays, e: Experiment) -> Iterator[Fault]:
    """Yields what is wrong with clients that the data name."""
    train, test = arrays.task_train, arrays.task_test
    if train is None or test is None:
        needs = "partition natural needs a task column, which names each row's client,"
        yield "partition", f"{needs} and dataset {e.dataset} has none"
        return
    tasks = 1 + int(max(train.max(initial=-1), test.max(initial=-1)))
    if tasks != e.num_clients:
        wanted = f"the number of clients in the data, {tasks}, for partition natural"
        yield "num-clients", must("num-clients", e.num_clients, wanted)
    names = names_of(arrays, e)
    yield from _one_sided("client", train, test, e, names)
    counts = (np.bincount(part, minlength=tasks).tolist() for part in (train, test))
    sizes = zip(range(tasks), *counts, strict=True)
    yield from _too_small(sizes, e, names)


def _one_sided(
    kind: str, train: RowNumbers, test: RowNumbers, e: Experiment, names: Names = UNNAMED
) -> Iterator[Fault]:
    """Yields a class, or a client, without training or test rows.

    The partitioners number those that they see, and would give a client other ones to be tested
    on than to learn from.
    """
    if e.partition == "iid":
        return
    for value in np.setxor1d(train, test)[:1].tolist():
        part = "test" if value in train else "training"
        called = names.get(value, f"{value} (counted from 0)")
        yield (
            "test-fraction",
            f"{kind} {called} has no {part} rows, which partition {e.partition} needs: add rows, "
            f"leave the {kind} out, or change test-fraction",
        )


def _too_few_of_a_class(arrays: Arrays, e: Experiment) -> Iterator[Fault]:
    """Yields the classes of which ``_halves`` would need more rows than there are."""
    first, n_even = _half(arrays.outputs, e)
    n_odd, rest = e.num_clients - n_even, arrays.outputs - first
    for setting, a, y in (
        ("rows-per-class", e.rows_per_class, arrays.y_train),
        ("test-rows-per-class", e.test_rows_per_class, arrays.y_test),
    ):
        for label, count in enumerate(np.bincount(y, minlength=arrays.outputs).tolist()):
            if label < first:
                needed = a * n_even + a // 2 * len(range(label, n_odd, first))
            else:
                needed = 2 * a * len(range(label - first, n_odd, rest))
            if count < needed:
                yield (
                    setting,
                    f"class {label} has {count} rows, but partition halves needs {needed} of it: "
                    f"lower {setting} (now {a}) or num-clients (now {e.num_clients})",
                )


def _half(classes: int, e: Experiment) -> tuple[int, int]:
    """Returns how many classes are in the first half of them, and how many clients hold these."""
    return classes // 2, (e.num_clients + 1) // 2


def _half_sizes(classes: int, e: Experiment) -> Iterator[Size]:
    """Yields the rows of the first client of each half: the others have as many."""
    first, n_even = _half(classes, e)
    a, b = e.rows_per_class, e.test_rows_per_class
    yield 0, first * a, first * b
    if n_even < e.num_clients:
        yield n_even, a // 2 + 2 * a, b // 2 + 2 * b


def _sizes(split: tuple[list[RowNumbers], list[RowNumbers]]) -> Iterator[Size]:
    train, test = (map(len, part) for part in split)
    return zip(range(len(split[0])), train, test, strict=True)


def _rows_needed(e: Experiment) -> dict[str, int]:
    """Returns how many training rows a client needs, by the setting that says so."""
    return {"batch-size": e.batch_size, **e.own.rows_needed}


def _too_small(sizes: Iterable[Size], e: Experiment, names: Names = UNNAMED) -> Iterator[Fault]:
    """Yields the settings that clients have too few rows for, and what to do about each."""
    advice = {
        "halves": "raise rows-per-class and test-rows-per-class",
        "dirichlet": "lower num-clients or raise dirichlet-alpha",
        "natural": "leave that client out",
    }.get(e.partition, "lower num-clients")
    needed = _rows_needed(e)
    for client, n_train, n_test in sizes:
        called = f"client {names.get(client, client)}"
        held_out = e.validation_rows(n_train)
        beside = f" beside {held_out} held out for validation" if held_out else ""
        for setting, size in needed.items():
            if n_train - held_out < size:
                yield (
                    setting,
                    f"{called} has {n_train - held_out} training rows{beside}, fewer than "
                    f"{setting} = {size}: lower {setting}, or {advice}",
                )
        if e.protocol == "standard":
            if not n_test:
                yield "test-fraction", f"{called} has no test rows to be scored on: {advice}"
        elif n_test <= e.adapt_shots:
            yield (
                "adapt-shots",
                f"{called} has {n_test} test rows, not more than adapt-shots = {e.adapt_shots}, "
                f"so none is left to score: lower adapt-shots, or {advice}",
            )
