"""Data sets of users by name: of all clients, or of one client at a time."""

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset

import engram
from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.data.load_federation import federated_data, own_data
from engram.data.loading import _TORCHVISION
from engram.data.readers.in_memory import arrays_of, hold
from engram.data.source import BUILT_IN, DATASETS, Source
from engram.data.tables.tables import table_data
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment
from tests.samples import entry

pytestmark = pytest.mark.usefixtures("plug_ins")
FOUR = {"num_clients": 4, "clients_per_round": 4, "partition": "natural"}
FOUR |= {"protocol": "few-shot", "adapt_shots": 1}


def rows(client):
    rng = np.random.default_rng(client)
    x = rng.normal(size=(20 + client, 3)).astype(np.float32)
    return x, rng.permutation(np.arange(20 + client) % 2)


def sites(seen):
    @engram.data
    def some_sites(client):
        seen.append(client)
        return rows(client)

    return Experiment(dataset="some-sites", **FOUR)


def assert_alike(split, other, client):
    one, two = (part.take(torch.from_numpy(part.rows[client])) for part in (split, other))
    torch.testing.assert_close(one, two, rtol=0, atol=0)


def test_all_clients_are_as_in_memory():
    everyone = {name: rows(client) for client, name in enumerate(["elm", "oak", "ash", "fir"])}

    @engram.data
    def trees():
        return everyone

    found = federated_data(Experiment(dataset="trees", **FOUR))
    held = federated_data(Experiment(dataset=hold(arrays_of(everyone)), **FOUR))
    assert found.names == {0: "elm", 1: "oak", 2: "ash", 3: "fir"}
    for client in range(4):
        assert_alike(found.train, held.train, client)


def test_a_node_reads_its_own_clients_and_holds_them_as_one_process_does():
    seen = []
    e = sites(seen)
    whole = federated_data(e)
    assert seen == [0, 1, 2, 3]
    for hosted in ([2], [1, 3]):
        seen.clear()
        part = federated_data(e, hosted=hosted)
        assert seen == hosted
        for split, other in ((part.train, whole.train), (part.test, whole.test)):
            for client in range(4):
                expected = len(other.rows[client]) if client in hosted else 0
                assert len(split.rows[client]) == expected
            for client in hosted:
                assert_alike(split, other, client)
    assert len(own_data(e, Source("some-sites"), 3).train.rows[3]) == len(whole.train.rows[3]) == 14
    assert federated_data(e, hosted=[]).kind == whole.kind


def test_tables_of_clients_are_read_one_by_one():
    seen = []
    sites(seen)
    e = Experiment(method="molar", dataset="some-sites", num_clients=4)
    whole = table_data(e)
    part = host_of(Opening(e, RamStore(), hosted=[2])).data
    assert seen == [0, 1, 2, 3, 2]
    np.testing.assert_array_equal(part.train[2].x, whole.train[2].x)
    assert part.train[1] is None
    assert whole.columns == part.columns == ["x0", "x1", "x2"]


UNREADABLE = [
    (lambda client: 1 / 0, {}, "dataset wrong cannot be read: ZeroDivisionError: division by"),
    (lambda: None, {}, "dataset wrong: data must be .*, got None"),
    (lambda client: None, {}, r"dataset wrong: client 0 must be \(x, y\) or .*, got None"),
    (lambda client: (np.empty((0, 3)), []), {}, "dataset wrong: client 0 has no rows"),
    (rows, {"partition": "iid"}, "partition must be natural for dataset wrong, whose clients"),
    (
        lambda client: (np.ones((1, 3)), [0]),
        {"num_clients": 2, "clients_per_round": 2, "num_classes": 2},
        r"no client has enough rows to be scored: clients \[0, 1\]: it has 0 test rows, n",
    ),
    (lambda: rows(0), {}, "natural needs a task column, .* and dataset wrong has none"),
]


def test_faults_of_functions_are_told_in_one_line():
    for function, settings, words in UNREADABLE:
        with entry(function, settings, words):
            function.__name__ = "wrong"
            engram.data(function)
            with pytest.raises(DataError, match=f"^[^\n]*{words}[^\n]*$"):
                federated_data(Experiment(dataset="wrong", **FOUR | settings))


class Endless(IterableDataset):
    def __iter__(self):
        return iter(int, 1)


def pairs(*numbers):
    x = torch.zeros(len(numbers), 3)
    return TensorDataset(x, torch.tensor(numbers)) if numbers else TensorDataset(x, x)


X, Y = rows(0)
PAIR = r"must be \(x, y\) or \(x, y, x_test, y_test\), or a torch.utils.data.Dataset"
ANY = rf"data {PAIR}, or a list of such of each client, or these by the clients' names"


NO_DATA = [
    ([], rf"{ANY}, got \[\]"),
    ({}, rf"{ANY}, got \{{\}}"),
    ("foo", rf"{ANY}, got 'foo'"),
    (5, rf"{ANY}, got 5"),
    (np.zeros((10, 60, 5)), rf"{ANY}, got ndarray of shape \(10, 60, 5\)"),
    ((X, Y, Y), rf"{ANY}, got tuple of length 3"),
    ([None] * 10, f"client 0 {PAIR}, got None"),
    ([(X, Y), {"x": X, "y": Y}], f"client 1 {PAIR}, got dict of length 2"),
    ([(X, Y), (X[:, :2], Y)], r"rows of x of client 1 must be of shape \(3,\) .* got \(2,\)"),
    ([(X, Y), (X, Y[:, None])], r"rows of y of client 1 must be of shape \(\) .* got \(1,\)"),
    ([(X, Y), (X[1:], Y)], "x of client 1 must have a row for each of the 20 .*, got 19 rows"),
    ({"elm": (X, Y), "oak": ((X, X), Y)}, "client oak must have x, y as client elm has, got x.0"),
    ({"elm": (X, Y), "oak": (X[:0], [])}, "client oak has no rows"),
    ({(2, 3): (X, Y)}, r"a client's name must be text or a number, got \(2, 3\)"),
    (([[1, 2], [3]], [0, 1]), "x of data must be .* list of length 2 whose entries differ in"),
    ((X, 5), "y of data must be an array of numbers, got 5"),
    ({"train": (X, Y), "test": (X, Y)}, r"data must .* keys, got parts of rows \(train, test\)"),
    ((X.astype("datetime64[D]"), Y), r"x of data must be .*, got datetime64\[D\] of shape"),
    ((X.astype(object), Y), r"x of data must .*, got object of .*: see its astype\(float\)"),
    ((X, torch.ones(20, requires_grad=True)), "y of data must be .*: Can't call numpy"),
    ([(X, Y), (X, [None] * 20)], r"y of client 1 must be .*, got object of shape \(20,\)"),
    ([pairs(0, 1), pairs()], "client 1 has no rows"),
    (TensorDataset(torch.zeros(4, 3)), r"data: items must be pairs .*, got tuple of length 1"),
    (Endless(), "data must be a data set whose rows have numbers, got Endless"),
]


def test_data_in_memory_that_are_none_are_told_in_one_line():
    for data, words in NO_DATA:
        with entry(data, words), pytest.raises(DataError, match=f"^{words}[^\n]*$"):
            arrays_of(data)


def test_names_and_arguments_that_cannot_be_are_refused():
    def digits():
        pass

    with pytest.raises(ValueError, match="name of a data set must be one that no built-in data"):
        engram.data(digits)
    with pytest.raises(ValueError, match="arguments of two-of must be none, or one: the number"):

        @engram.data
        def two_of(one, two):
            pass

    assert not {"digits", "two-of"} & DATASETS.keys()
    assert _TORCHVISION.keys() < BUILT_IN
