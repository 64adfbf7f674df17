"""Who holds which rows: nobody's twice, training and test alike, and the paper's scheme."""

import datasets
import numpy as np
import pytest
import torch
from flwr_datasets.partitioner import DirichletPartitioner, PathologicalPartitioner

from engram.data import partitions
from engram.data.federated import Split
from engram.data.load_federation import federated_data
from engram.data.loading import Arrays
from engram.settings.errors import DataError, Refused
from tests.samples import entry
from tests.support import small, write_npz

PARTITIONS = ["halves", "iid", "dirichlet", "pathological", "natural", "blocks"]


def few_shot(**settings):
    """Under this protocol no training row is held out."""
    return small(protocol="few-shot", **settings)


@pytest.fixture
def tasks(tmp_path):
    """40 rows for each of 5 tasks, of 4 classes."""
    rng = np.random.default_rng(0)
    y, task = rng.integers(0, 4, 200), np.repeat(np.arange(5), 40)
    return write_npz(tmp_path / "t.npz", x=rng.normal(size=(200, 3)), y=y, task=task)


def classes(split, n):
    return np.stack([np.bincount(split.y[rows], minlength=n) for rows in split.rows])


def of(partition, tasks, **settings):
    if partition == "natural":
        settings |= {"dataset": tasks, "num_clients": 5}
    e = few_shot(partition=partition, **({"dirichlet_alpha": 5.0} | settings))
    return e, federated_data(e)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_no_row_is_shared_and_the_seed_determines_the_partition(partition, tasks):
    (e, one), (_, again), (_, other) = (of(partition, tasks, seed=seed) for seed in (3, 3, 4))
    for split in (one.train, one.test):
        assert len(split.rows) == e.num_clients
        rows = np.concatenate(split.rows)
        assert len(np.unique(rows)) == len(rows)
        assert rows.min() >= 0
        assert rows.max() < len(split.y)
    assert all(map(np.array_equal, one.train.rows, again.train.rows))
    if partition != "blocks":  # which leave nothing to chance
        assert not all(map(np.array_equal, one.train.rows, other.train.rows))


def test_more_clients_than_rows_are_refused_before_room_is_made_for_them():
    for partition in set(PARTITIONS) - {"natural"}:
        with pytest.raises(DataError, match="num-clients must be at most the number of training r"):
            federated_data(few_shot(partition=partition, num_clients=10**6))
    with pytest.raises(DataError, match=r"partition halves needs .*: lower test-rows-per-class"):
        federated_data(few_shot(test_rows_per_class=10**6))


def test_halves_is_the_papers_scheme():
    # Section 6.3, a = 8 and 6, 20 clients, 10 classes.
    _, data = of("halves", None, rows_per_class=8, test_rows_per_class=6)
    for split, a in ((data.train, 8), (data.test, 6)):
        counts = classes(split, 10)
        assert (counts[:10, :5] == a).all()
        assert (counts[:10, 5:] == 0).all()
        for turn, row in enumerate(counts[10:]):
            expected = np.zeros(10, int)
            expected[[turn % 5, 5 + turn % 5]] = a // 2, 2 * a
            assert row.tolist() == expected.tolist()


@pytest.mark.parametrize("partition", ["dirichlet", "pathological"])
def test_training_and_test_rows_are_partitioned_alike(partition):
    _, data = of(partition, None, seed=2, num_clients=10, dirichlet_alpha=1.0)
    train, test = classes(data.train, 10), classes(data.test, 10)
    shares = [counts / counts.sum(axis=0) for counts in (train, test)]
    assert np.abs(shares[0] - shares[1]).max() < 0.05  # a row or two of about 70 a class
    assert shares[0].std() > 0.06  # iid: about 0.03


def test_partitions_are_those_of_flower_datasets():
    y = np.random.default_rng(0).integers(0, 7, 900)
    rows = datasets.Dataset.from_dict({"row": np.arange(900), "label": y})
    one_in_turn = (40, "label", 3, "first-deterministic")
    for kind, given, theirs in (
        ("dirichlet", 0.3, DirichletPartitioner(40, "label", 0.3, min_partition_size=0, seed=5)),
        ("pathological", 3, PathologicalPartitioner(*one_in_turn, seed=5)),
    ):
        theirs.dataset = rows
        found = partitions._positions(kind, given, 40, 5, y.tobytes())
        for client, own in enumerate(found):
            assert own.tolist() == list(theirs.load_partition(client)["row"])
            assert kind == "dirichlet" or len(np.unique(y[own])) == 3


def test_natural_clients_are_the_tasks(tmp_path):
    # The first feature says whose row it is; training and test rows of a client are one task's.
    task = np.repeat([2, 30, 7, 11, 5], 40)
    x, y = np.stack([task, task], axis=1), np.tile([0, 1], 100)
    _, data = of("natural", write_npz(tmp_path / "t.npz", x=x, y=y, task=task))
    for client, name in enumerate([2, 5, 7, 11, 30]):
        for split in (data.train, data.test):
            assert split.x[split.rows[client], 0].unique().tolist() == [name]
    assert [len(rows) for rows in data.train.rows] == pytest.approx([24] * 5, abs=2)


def test_blocks_are_one_after_the_other(tmp_path):
    # The feature is a row's number. 11 of 15 rows of either class are for training, 8 for testing.
    x, y = np.arange(38.0)[:, None], np.tile([0, 1], 19)
    name = write_npz(tmp_path / "t.npz", x=x, y=y)
    settings = {"num_clients": 4, "clients_per_round": 4, "adapt_shots": 2}
    e = few_shot(dataset=name, partition="blocks", **settings)
    data = federated_data(e)
    for split, sizes in ((data.train, [6, 6, 5, 5]), (data.test, [4, 4, 4, 4])):
        assert [len(rows) for rows in split.rows] == sizes
        inputs = torch.cat([split.x[rows, 0] for rows in split.rows])
        assert inputs.tolist() == sorted(inputs.tolist())


def test_rows_in_order_come_round_by_round_and_then_again():
    split = Split(torch.zeros(9, 1), torch.zeros(9), [np.array([8, 2, 5, 1, 4]), np.array([0, 3])])
    rounds = [split.next_rows(0, t, 2).tolist() for t in (1, 2, 3, 4)]
    assert rounds == [[1, 2], [4, 5], [8, 1], [2, 4]]
    assert split.next_rows(1, 2, 3).tolist() == [3, 0, 3]


def test_as_many_rows_as_a_batch_are_enough():
    assert federated_data(few_shot(batch_size=20, initial_batch_size=20, adapt_shots=14))


TOO_FEW = [
    (
        {"rows_per_class": 40},
        "class 0 has 107 rows, but partition halves needs 440 of it: lower rows-per-class "
        r"\(now 40\) or num-clients \(now 20\)",
    ),
    ({"test_rows_per_class": 16}, "lower test-rows-per-class"),
    ({"adapt_shots": 15}, "client 10: it has 15 test rows, not more than adapt-shots = 15"),
    ({"partition": "natural"}, "needs a task column, .* and dataset digits has none"),
    (
        {"partition": "pathological", "classes_per_client": 11},
        "classes-per-client must be at most the number of classes, 10, got 11",
    ),
    ({"partition": "iid", "num_clients": 400}, "no client .* lower num-clients"),
    ({"partition": "blocks", "num_clients": 400}, "no client .* lower num-clients"),
]


def test_refuses_too_few_rows_by_name():
    for settings, message in TOO_FEW:
        with entry(settings, message), pytest.raises(DataError, match=message):
            federated_data(few_shot(**settings))


def test_all_is_told_at_once_even_if_there_are_too_many_clients():
    many = {"num_clients": 1500, "batch_size": 2000, "adapt_shots": 900}
    for partition, second, most in (
        ("halves", "client", "client 0: it has 30"),
        ("iid", "adapt-shots", "fewer than all 719"),
    ):
        with entry(partition), pytest.raises(DataError, match=most) as caught:
            federated_data(few_shot(partition=partition, **many))
        told = [part.split(" ")[0] for part in str(caught.value).split("; ")]
        assert told == ["num-clients", second]


def test_halves_needs_as_many_rows_of_a_class_as_it_gives_out():
    for num_clients, a, count in ((20, 8, 10), (3, 5, 3), (7, 3, 5), (2, 4, 2), (1, 9, 4)):
        e = few_shot(num_clients=num_clients, clients_per_round=1, rows_per_class=a)
        plenty = np.repeat(np.arange(count), 500)

        def given_out(y, e=e, plenty=plenty, count=count):
            x = np.zeros((len(y), 1)), np.zeros((len(plenty), 1))
            rows, _ = partitions.partition(Arrays(x[0], y, x[1], plenty, None, None, count), e)
            return np.bincount(y[np.concatenate(rows)], minlength=count)

        needed = given_out(plenty)
        exact = np.repeat(np.arange(count), np.maximum(needed, 1))
        with entry(num_clients, a, count):
            assert given_out(exact).tolist() == needed.tolist()
            for label in np.flatnonzero(needed):
                words = f"class {label} has {needed[label] - 1} rows, but .* needs {needed[label]}"
                with pytest.raises(DataError, match=words):
                    given_out(np.delete(exact, np.argmax(exact == label)))


def test_faults_of_the_network_are_told_with_those_of_the_rows(tasks):
    given = {"partition": "natural", "num_clients": 5, "adapt_shots": 90, "model": "cnn"}
    with pytest.raises(DataError, match=r"be scored: .*; input of a cnn must be"):
        federated_data(few_shot(dataset=tasks, **given))


def test_clients_that_are_tasks_are_called_as_these(tmp_path):
    x, y = np.ones((120, 2)), np.tile([0, 1], 60)
    plain = {"x": x, "y": y, "task": np.repeat([2, 0, 1], 40)}
    named = plain | {"task_names": np.array(["park", "elm", "oak"])}
    settings = {"partition": "natural", "num_clients": 3, "clients_per_round": 3}
    for arrays, names in (
        (plain, {}),
        (named, {0: "park", 1: "elm", 2: "oak"}),
        (plain | {"task": np.repeat(["b", "a", "c"], 40)}, {0: "a", 1: "b", 2: "c"}),
        (plain | {"task": np.repeat([101, 7, 205], 40)}, {0: "7", 1: "101", 2: "205"}),
    ):
        dataset = write_npz(tmp_path / "a.npz", **arrays)
        e = few_shot(dataset=dataset, **settings)
        assert federated_data(e).names == names
        assert federated_data(e, named=False).names == {}
        assert federated_data(e.model_copy(update={"partition": "iid"})).names == {}
    # The name is of the rows' task: here each task has an x of its own.
    x = np.repeat([[2.0], [0.0], [1.0]], 40, axis=0)
    dataset = write_npz(tmp_path / "b.npz", **named | {"x": x})
    data = federated_data(few_shot(dataset=dataset, **settings))
    for client, rows in enumerate(data.train.rows):
        assert (data.train.x[rows] == client).all()
    dataset = write_npz(tmp_path / "c.npz", **named)
    with pytest.raises(DataError, match=r"clients \[park, elm, oak\]: it has 16 test rows"):
        federated_data(few_shot(dataset=dataset, adapt_shots=16, **settings))
    lacking = named | {"task": np.repeat([0, 1, 3], 40)}
    with pytest.raises(DataError, match="task must number the 3 task_names from 0"):
        federated_data(few_shot(dataset=write_npz(tmp_path / "d.npz", **lacking), **settings))


def test_refuses_classes_without_training_or_test_rows(tmp_path):
    x, y = np.ones((200, 2)), np.tile(["ant", "bee"], 100)
    parts = {"x_train": x, "y_train": y, "x_test": x[:9], "y_test": np.array(["bee"] * 9)}
    name = write_npz(tmp_path / "a.npz", **parts)
    for partition in ("dirichlet", "pathological"):
        with pytest.raises(DataError, match="class ant has no test rows, which partition"):
            federated_data(few_shot(dataset=name, partition=partition, num_clients=4))


def test_refuses_a_device_that_is_not_there():
    with pytest.raises(Refused, match="device cuda:99 is not there"):
        federated_data(few_shot(device="cuda:99"))
