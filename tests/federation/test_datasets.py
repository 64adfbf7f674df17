"""Data sets of users by name: of all clients, or of one client at a time."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import engram
from client.hosts import Opening, host_of
from client.memory import RamStore
from federation.data.datasets import BUILT_IN, DATASETS, arrays_of
from federation.data.federated import federated_data, own_data
from federation.data.in_memory import hold
from federation.data.sources import _TORCHVISION
from federation.data.tables import table_data
from federation.errors import DataError
from federation.experiment import Experiment

pytestmark = pytest.mark.usefixtures("plug_ins")
FOUR = {
    "num_clients": 4,
    "clients_per_round": 4,
    "partition": "natural",
    "protocol": "few-shot",
    "adapt_shots": 1,
}


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


def everything(split, client):
    return split.take(torch.from_numpy(split.rows[client]))


def test_all_clients_are_as_in_memory():
    everyone = {name: rows(client) for client, name in enumerate(["elm", "oak", "ash", "fir"])}

    @engram.data
    def trees():
        return everyone

    found = federated_data(Experiment(dataset="trees", **FOUR))
    held = federated_data(Experiment(dataset=hold(arrays_of(everyone)), **FOUR))
    assert found.names == {0: "elm", 1: "oak", 2: "ash", 3: "fir"}
    for client in range(4):
        torch.testing.assert_close(
            everything(found.train, client), everything(held.train, client), rtol=0, atol=0
        )


def test_a_node_reads_its_own_clients_and_holds_what_one_process_has_of_them():
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
                assert len(split.rows[client]) == (
                    len(other.rows[client]) if client in hosted else 0
                )
            for client in hosted:
                torch.testing.assert_close(
                    everything(split, client), everything(other, client), rtol=0, atol=0
                )
    assert len(own_data(e, "some-sites", 3).train.rows[3]) == len(whole.train.rows[3]) == 14
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


def test_rows_of_torchs_data_sets_are_read_as_they_are_drawn():
    @engram.data
    def lazy(client):
        return TensorDataset(*map(torch.from_numpy, rows(client)))

    def arrays(client):
        return rows(client)

    engram.data(arrays)
    found, held = (federated_data(Experiment(dataset=name, **FOUR)) for name in ("lazy", "arrays"))
    for client in range(4):
        torch.testing.assert_close(
            everything(found.test, client), everything(held.test, client), rtol=0, atol=0
        )


@pytest.mark.parametrize(
    ("function", "settings", "words"),
    [
        (lambda client: 1 / 0, {}, "dataset wrong cannot be read: ZeroDivisionError: division by"),
        (lambda: None, {}, "dataset wrong cannot be read: TypeError: "),
        (lambda client: None, {}, "dataset wrong cannot be read: TypeError: "),
        (lambda client: (np.empty((0, 3)), []), {}, "dataset wrong: client 0 has no rows"),
        (rows, {"partition": "iid"}, "partition must be natural for dataset wrong, whose clients"),
        (rows, {"batch_size": 13}, "client 0 has 12 training rows"),
        (
            lambda: rows(0),
            {},
            "natural needs a task column, .* and dataset wrong has none",
        ),
    ],
)
def test_what_cannot_be_read_is_told_in_one_line(function, settings, words):
    function.__name__ = "wrong"
    engram.data(function)
    with pytest.raises(DataError, match=f"^[^\n]*{words}[^\n]*$"):
        federated_data(Experiment(dataset="wrong", **FOUR | settings))


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
