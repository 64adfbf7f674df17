"""Who holds which rows. Training and test rows are partitioned alike; none is shared."""

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from engram.core.checks import Fault, clash
from engram.core.streams import Stream, generator
from engram.data.arrays import Arrays, pieces
from engram.data.clients import checked_names, shortage
from engram.data.lazy import RowNumbers
from engram.scoring.tasks import CLASSIFICATION
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment

_DRAWS: Final = 20  # partitions drawn, at most, until every client has rows enough


def partition(arrays: Arrays, experiment: Experiment) -> tuple[list[RowNumbers], list[RowNumbers]]:
    """Assigns rows to clients 0..num_clients-1, as the setting ``partition`` says.

    Where the partition is random and leaves a client with few rows, another is drawn, from a stream
    of its own, up to 20 times.

    Returns:
        The training rows and the test rows of each client, as row numbers.

    Raises:
        DataError: There are not enough rows; the message names the class or setting, and says
            what to change.
    """
    _refuse(_foreseen(arrays, experiment))
    e, parts = experiment, (arrays.y_train, arrays.y_test)
    if e.partition == "halves":
        train = _halves(arrays.y_train, arrays.outputs, e, e.rows_per_class, 0)
        return train, _halves(arrays.y_test, arrays.outputs, e, e.test_rows_per_class, 1)
    if e.partition == "blocks":
        train, test = (np.array_split(np.arange(len(y)), e.num_clients) for y in parts)
        return train, test
    for draw in range(_DRAWS):
        seed = int(generator(e.seed, Stream.PARTITION, draw).integers(2**31))
        if arrays.task_train is not None and e.partition == "natural":
            train = _natural(arrays.task_train, seed, e.num_clients)
            return train, _natural(arrays.task_test, seed, e.num_clients)
        train, test = (_drawn(y, e, seed) for y in parts)
        if e.partition == "iid" or _plenty((train, test), e):
            break
    return train, test


def _plenty(split: tuple[list[RowNumbers], list[RowNumbers]], e: Experiment) -> bool:
    train, test = ([len(rows) for rows in part] for part in split)
    least = max(e.batch_size, *e.own.rows_needed.values(), 1)
    shots = e.adapt_shots if e.protocol == "few-shot" else 0
    least = least if sum(train) >= least * e.num_clients else 1
    shots = shots if sum(test) > shots * e.num_clients else 0
    return all(n - e.validation_rows(n) >= least for n in train) and min(test) > shots


def names_of(arrays: Arrays, experiment: Experiment) -> dict[int, str]:
    """Names of clients, where each is a task of the data."""
    named = arrays.task_names if experiment.partition == "natural" else ()
    return checked_names(dict(enumerate(named)), experiment.num_clients)


def _halves(
    y: npt.NDArray[np.int64], classes: int, e: Experiment, a: int, part: int
) -> list[RowNumbers]:
    """Section 6.3 of the LocalMOML paper, after Fallah et al. (2020).

    The first half of the clients hold ``a`` rows of each of the first half of the classes. Each
    of the others holds ``a/2`` rows of one of those and ``2a`` of one of the rest, the classes
    in turn. Where a or the number of clients is odd, a/2 is rounded down and the first half has
    one client more.
    """
    first, n_even = _half(classes, e)
    turns = np.arange(e.num_clients - n_even)
    held: list[list[RowNumbers]] = [[] for _ in range(e.num_clients)]
    for label in range(classes):
        rng = generator(e.seed, Stream.PARTITION, label, part)
        rows = rng.permutation(np.flatnonzero(y == label))
        even = np.full(n_even, a if label < first else 0, dtype=np.int64)
        odd = np.where(turns % first == label, a // 2, 0)
        odd += np.where(first + turns % (classes - first) == label, 2 * a, 0)
        ends = np.concatenate([even, odd]).cumsum()
        for client, own in enumerate(np.split(rows[: ends[-1]], ends[:-1])):
            held[client].append(own)
    return [np.concatenate(parts) for parts in held]


def _natural(task: Any, seed: int, tasks: int) -> list[RowNumbers]:
    """Each task's rows, in a shuffled order. The library's partitioner takes minutes for 10^6."""
    order = generator(seed, Stream.PARTITION).permutation(len(task))
    ends = np.bincount(task, minlength=tasks).cumsum()[:-1]
    return pieces(order[np.argsort(task[order], kind="stable")], ends)


def _drawn(y: npt.NDArray[np.int64], e: Experiment, seed: int) -> list[RowNumbers]:
    """Draws a partition as flwr-datasets does, which takes seconds to import.

    The rows are in an order shuffled by ``seed``, since iid partitions deal them out as they come.
    The same seed gives training and test rows the same proportions: each draws for the classes in
    turn.
    """
    order = generator(seed, Stream.PARTITION).permutation(len(y))
    if e.partition == "iid":
        return np.array_split(order, e.num_clients)
    given = {"dirichlet": e.dirichlet_alpha, "pathological": e.classes_per_client}[e.partition]
    labels = y[order].astype(np.int64).tobytes()
    try:
        positions = _positions(e.partition, given, e.num_clients, seed, labels)
    except ValueError as error:
        raise DataError(
            f"partition {e.partition} cannot be made of {len(y)} rows for {e.num_clients} clients: "
            f"{error}"
        ) from error
    return [order[own] for own in positions]


@lru_cache(maxsize=64)  # the methods of a comparison have the same partitions
def _positions(kind: str, given: float, clients: int, seed: int, labels: bytes) -> list[RowNumbers]:
    """Positions of each client's rows in the shuffled order of labels."""
    y, rng = np.frombuffer(labels, dtype=np.int64), np.random.default_rng(seed)
    by = _dirichlet if kind == "dirichlet" else _pathological
    found = [np.concatenate(parts) for parts in by(y, given, clients, rng)]
    for own in found:
        rng.shuffle(own)
    return found


def _dirichlet(
    y: RowNumbers, alpha: float, clients: int, rng: np.random.Generator
) -> list[list[RowNumbers]]:
    """Each class in shares of its own."""
    parts: list[list[RowNumbers]] = [[] for _ in range(clients)]
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        shares = rng.dirichlet(np.full(clients, alpha))
        ends = (np.cumsum(shares) * len(rows)).astype(np.int64)[:-1]
        for own, part in zip(parts, pieces(rows, ends), strict=True):
            own.append(part)
    return parts


def _pathological(
    y: RowNumbers, count: float, clients: int, rng: np.random.Generator
) -> list[list[RowNumbers]]:
    """Each client a class in turn and others at random; a class's rows are dealt out evenly."""
    labels = np.unique(y)
    held = [[labels[client % len(labels)]] for client in range(clients)]
    for own in held:
        while len(own) < count:
            if (label := rng.choice(labels, size=1)[0]) not in own:
                own.append(label)
    parts: list[list[RowNumbers]] = [[] for _ in range(clients)]
    for label in labels:
        rows = np.flatnonzero(y == label)
        holders = [client for client, own in enumerate(held) if label in own]
        if len(holders) > len(rows):
            raise ValueError(f"class {label} has {len(rows)} rows for {len(holders)} clients")
        for client, part in zip(holders, np.array_split(rows, len(holders) or 1), strict=False):
            parts[client].append(part)
    return parts


# --- Too few rows ----------------------------------------------------------------------------


def _refuse(faults: Iterable[Fault]) -> None:
    """Tells all faults at once: of each setting the first."""
    found: dict[str, Fault] = {}
    for fault in faults:
        found.setdefault(fault.keys[0], fault)
    if found:  # without keys: what rows there are depends on more settings
        raise DataError(*(fault.text for fault in found.values()))


def _foreseen(arrays: Arrays, e: Experiment) -> Iterator[Fault]:
    """Yields faults before rows are given out."""
    classes = e.task == CLASSIFICATION.name and arrays.y_train.ndim == 1
    if not classes and e.partition in ("halves", "dirichlet", "pathological"):
        several = arrays.y_train.ndim >= 3
        none = "with several classes a row" if several else "whose rows have no class"
        wanted = f"iid, natural or blocks for task {e.task}, {none}"
        yield clash("partition", e.partition, wanted)
        return
    if e.partition == "pathological" and e.classes_per_client > len(np.unique(arrays.y_train)):
        wanted = f"at most the number of classes, {len(np.unique(arrays.y_train))}"
        yield clash("classes-per-client", e.classes_per_client, wanted)
    rows = {"training": len(arrays.y_train), "test": len(arrays.y_test)}
    named = e.partition == "natural"  # clients with too few rows are left out by name
    too_many = [part for part, count in rows.items() if count < e.num_clients and not named]
    for part in too_many:
        wanted = f"at most the number of {part} rows, {rows[part]}"
        yield clash("num-clients", e.num_clients, wanted)
    if e.partition == "halves":
        if not too_many:
            yield from _too_few_of_a_class(arrays, e)
        yield from _unscored_halves(arrays.outputs, e)
    elif e.partition == "natural":
        yield from _other_tasks(arrays, e)
    elif too_many:
        if e.protocol == "few-shot" and rows["test"] <= e.adapt_shots:
            wanted = f"fewer than all {rows['test']} test rows"
            yield clash("adapt-shots", e.adapt_shots, wanted)
    elif classes and e.partition != "blocks":
        yield from _one_sided(arrays, e)


def _other_tasks(arrays: Arrays, e: Experiment) -> Iterator[Fault]:
    train, test = arrays.task_train, arrays.task_test
    if train is None or test is None:
        needs = "partition natural needs a task column, which names each row's client,"
        yield Fault(("partition",), f"{needs} and dataset {e.dataset} has none")
        return
    tasks = 1 + int(max(train.max(initial=-1), test.max(initial=-1)))
    if tasks != e.num_clients:
        wanted = f"the number of clients in the data, {tasks}, for partition natural"
        yield clash("num-clients", e.num_clients, wanted)


def _one_sided(arrays: Arrays, e: Experiment) -> Iterator[Fault]:
    """Yields a class without training or test rows.

    The partitioners number those that they see, and would give a client other ones to be tested
    on than to learn from.
    """
    if e.partition == "iid":
        return
    for value in np.setxor1d(arrays.y_train, arrays.y_test)[:1].tolist():
        part = "test" if value in arrays.y_train else "training"
        called = arrays.class_names[value] if arrays.class_names else f"{value} (counted from 0)"
        yield Fault(
            ("test-fraction",),
            f"class {called} has no {part} rows, which partition {e.partition} "
            "needs: add rows, leave the class out, or change test-fraction",
        )


def _too_few_of_a_class(arrays: Arrays, e: Experiment) -> Iterator[Fault]:
    first, n_even = _half(arrays.outputs, e)
    n_odd, rest = e.num_clients - n_even, arrays.outputs - first
    called = arrays.class_names or range(arrays.outputs)
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
                yield Fault(
                    (setting,),
                    f"class {called[label]} has {count} rows, but partition halves needs {needed} "
                    f"of it: lower {setting} (now {a}) or num-clients (now {e.num_clients})",
                )


def _half(classes: int, e: Experiment) -> tuple[int, int]:
    """Number of classes in their first half, and of clients that hold these."""
    return classes // 2, (e.num_clients + 1) // 2


def _unscored_halves(classes: int, e: Experiment) -> Iterator[Fault]:
    """Yields why the first client of a half cannot be scored: the others have as many rows."""
    first, n_even = _half(classes, e)
    a, b = e.rows_per_class, e.test_rows_per_class
    sizes = [(0, first * a, first * b)]
    if n_even < e.num_clients:
        sizes.append((n_even, a // 2 + 2 * a, b // 2 + 2 * b))
    parted = [(c, n - (out := e.validation_rows(n)), out, tested) for c, n, tested in sizes]
    for client, reason in shortage(parted, e).unscored.items():
        advice = "lower adapt-shots, or raise test-rows-per-class"
        yield Fault(("adapt-shots",), f"client {client}: {reason}: {advice}")
