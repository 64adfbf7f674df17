"""Where privacy is example, a row that is taken away changes no other row's part in a training."""

from collections import Counter
from hashlib import blake2b

import numpy as np
import pytest
import torch

from engram.cohort.trainer.sampler import Sampler
from engram.core.streams import Stream
from engram.data.federated import model_for
from engram.data.lazy import Lazy
from engram.data.load_federation import federated_data, own_data
from engram.data.readers.in_memory import hold
from engram.data.tables.tables import table_data
from engram.guards.noise import simulated_noise
from engram.settings.errors import DataError
from tests.support import small, trainer

CLIENTS, EACH = 3, 16
N = CLIENTS * EACH
RNG = np.random.default_rng(0)
TASK = np.repeat(np.arange(CLIENTS), EACH)
X = RNG.normal(size=(N, 4)).astype(np.float32)
GREY = RNG.integers(0, 256, (N, 3, 3), dtype=np.uint8)
TWINS = (RNG.integers(0, 2, (N, 2))).astype(np.float32)  # four different rows
RARE = np.array(["often", "seldom"])[np.r_[np.zeros(N - 4, int), 1, 0, 1, 0]].astype("<U9")
RARE[5] = "but once"  # whose absence gives the other classes other numbers
LABELS = np.arange(N) % 2

DATA = {
    "numbers": {"x": X, "y": LABELS},
    "a rare class": {"x": X, "y": RARE},
    "grey levels": {"x": GREY, "y": LABELS},
    "many alike": {"x": TWINS, "y": LABELS},
    "values": {"x": X, "y": X[:, 0] + 1, "task=": "regression"},
}


def read(data, keep=slice(None), **settings):
    arrays = {name: values[keep] for name, values in ({"task": TASK} | data).items()}
    given = {"privacy": "example", "clip": 1.0, "partition": "natural", "num_clients": CLIENTS}
    return small(method="fedavg", dataset=hold(arrays), clients_per_round=2, **given | settings)


def sides(data, keep=slice(None), **settings):
    """Counts of each row: a client's, for training, validation or testing."""
    data, settings = dict(data), dict(settings)
    if "task=" in data:
        settings["task"] = data.pop("task=")
    found = federated_data(read(data, keep, **settings))
    parts = {"train": found.train, "validation": found.validation, "test": found.test}
    where = Counter()
    for side, split in parts.items():
        for client, rows in enumerate(split.rows):
            x, y = split.take(torch.from_numpy(rows))
            for row, target in zip(x.numpy(), y.tolist(), strict=True):
                named = found.classes[target] if found.classes else target
                where[client, side, row.tobytes(), named] += 1
    return where


@pytest.mark.parametrize("kind", DATA)
def test_a_row_less_moves_no_other(kind):
    whole = sides(DATA[kind])
    assert {side for _, side, *_ in whole} == {"train", "validation", "test"}
    assert whole.total() == N
    for row in range(N):
        without = sides(DATA[kind], np.delete(np.arange(N), row))
        assert (whole - without).total() == 1
        assert not without - whole


def test_stratified_sides_depend_on_other_rows():
    """What hashes are for: without privacy one row more deals others anew, as it always has."""
    plain = {"privacy": "none", "clip": 0.0}
    whole = sides(DATA["numbers"], **plain)
    less = (sides(DATA["numbers"], np.arange(N) != row, **plain) for row in range(N))
    assert max((whole - each).total() for each in less) > 4
    tested = Counter((client, target) for client, side, _, target in whole if side == "test")
    assert [*tested.values()] == [round(0.4 * EACH / 2)] * (2 * CLIENTS)


def test_sides_are_keyed_hashes_and_have_their_shares():
    """Beside blake2b itself: of the client, the row and its target; then of how often it came."""
    many = np.random.default_rng(1).normal(size=(3000, 2)).astype(np.float32)
    arrays = {"x": many, "y": many.sum(1), "task": np.arange(3000) % CLIENTS}
    found = federated_data(read(arrays, task="regression", seed=7))

    def share(stream, row):
        def digest(content):
            return blake2b(content, key=f"7 {int(stream)}".encode(), digest_size=8).digest()

        content = np.int64(row % CLIENTS).tobytes() + many[row].tobytes()
        content += arrays["y"][row].tobytes()
        return int.from_bytes(digest(b"1" + digest(content)), "big") / 2**64

    tested = np.array([share(Stream.DATA_SPLIT, row) < 0.4 for row in range(3000)])
    np.testing.assert_array_equal(found.test.x.numpy(), many[tested])
    rest = np.flatnonzero(~tested)
    out = [row for row in rest if share(Stream.VALIDATION, row) < 0.2]
    held = np.sort(np.concatenate(found.validation.rows))
    np.testing.assert_array_equal(rest[held], out)
    assert len(found.test.y) == pytest.approx(0.4 * 3000, abs=4 * 27)  # four binomial deviations
    assert len(out) == pytest.approx(0.2 * len(rest), abs=4 * 17)


def test_rows_that_are_read_as_they_are_drawn_have_the_same_sides():
    lazy = Lazy(lambda rows: X[rows], X[:1], np.arange(N))
    one, other = (federated_data(read({"x": x, "y": LABELS})) for x in (X, lazy))
    for split in ("train", "validation", "test"):
        rows = (getattr(data, split).rows for data in (one, other))
        assert all(map(np.array_equal, *rows))


def test_a_client_of_a_node_has_the_sides_it_has_in_a_simulation():
    """Whatever the setting partition says of data that are a node's own."""
    whole = federated_data(read({"x": X, "y": LABELS}))
    for client in range(CLIENTS):
        rows = {"x": X, "y": LABELS, "task": TASK}
        own = hold({name: values[client == TASK] for name, values in rows.items()})
        e = read({"x": X, "y": LABELS}, partition="halves")
        alone = own_data(e.model_copy(update={"num_classes": 2}), own, client)
        for side in ("train", "validation", "test"):
            one, other = (getattr(data, side) for data in (whole, alone))
            found = [
                split.take(torch.from_numpy(np.sort(split.rows[client])))[0]
                for split in (one, other)
            ]
            torch.testing.assert_close(*found)


def test_clients_without_training_or_test_rows_are_named():
    names = ["ash", "elm", "fir", "oak", "yew"]
    task = np.repeat(names, [2, 2, 3, 4, 40])
    x = np.random.default_rng(6).normal(size=(len(task), 2)).astype(np.float32)
    arrays = {"x": x, "y": x[:, 0], "task": task}
    found = federated_data(read(arrays, task="regression", num_clients=len(names)))
    told = [found.left_out.get(c) or found.unscored.get(c) for c in range(len(names))]
    assert told == [
        "it has no training rows",
        "it has no training rows beside 1 held out for validation",
        "it has no test rows to be scored on",
        "it has no test rows to be scored on",
        None,
    ]
    sizes = [[len(part.rows[c]) for part in (found.train, found.test)] for c in range(len(names))]
    assert sizes[:4] == [[0, 0], [0, 0], [1, 0], [4, 0]]


@pytest.mark.parametrize("kind", ["numbers", "many alike"])
def test_tables(kind):
    x, names = DATA[kind]["x"].astype(float), np.array(["a", "b", "c"])[TASK]

    def parts(keep, **settings):
        arrays = {"x": x[keep], "y": x[keep].sum(1), "task": names[keep]}
        private = {"privacy": "example", "clip": 1.0, "num_clients": CLIENTS}
        e = small(method="molar", dataset=hold(arrays), **private | settings)
        where = Counter()
        found = table_data(e)
        for side in ("train", "test"):
            for client, rows in enumerate(getattr(found, side)):
                where.update((client, side, row.tobytes()) for row in rows.x if rows is not None)
        return where

    whole = parts(np.arange(N))
    for row in range(0, N, 7):
        without = parts(np.delete(np.arange(N), row))
        assert (whole - without).total() == 1
        assert not without - whole
    with pytest.raises(DataError, match=r"^clients \[a, b, c\] have no training rows: lower test"):
        parts(np.arange(N), test_fraction=1 - 1e-9)


def test_a_row_draws_its_changes_and_dropout_by_itself():
    """All rows are in each sample; a row less, and the others have the seeds and keys they had."""
    t = trainer(read({"x": X, "y": LABELS}, batch_size=EACH, local_steps=3))
    noisy = model_for(t.experiment, t.data.kind)._replace(noisy=True)

    def drawn(rows, server_round=1):
        train = t.data.train._replace(rows=[rows] * CLIENTS)
        how = (lambda row: row), simulated_noise(0), 1
        sampler = Sampler(t.experiment, train, t.method.client, noisy, *how, by_chance=True)
        draws = sampler.draw([1], server_round)
        each = draws.rows, draws.seeds, draws.keys[:, 1:]
        numbers, seeds, keys = (values.view(3, -1).tolist() for values in each)
        steps = enumerate(zip(numbers, seeds, keys, strict=True))
        return {(h, row): pair for h, some in steps for row, *pair in zip(*some, strict=True)}

    own = t.data.train.rows[1]
    whole, later = drawn(own), drawn(own, server_round=2)
    seeds = [value for pairs in (whole, later) for pair in pairs.values() for value in pair]
    assert len({*seeds}) == len(seeds) == 2 * 2 * 3 * len(own)
    for at, row in enumerate(own):
        without = drawn(np.delete(own, at))
        assert without == {key: pair for key, pair in whole.items() if key[1] != row}
