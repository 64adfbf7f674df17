"""The standard protocol: which rows make a personal model, and which ones it is scored on."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from engram.client.memory import RamStore
from engram.core.method import Served
from engram.core.streams import Stream, generator
from engram.data.load_federation import federated_data
from engram.scoring.query_rows import padded
from engram.scoring.score_columns import TUNED
from tests.support import (
    assert_same,
    cross_entropy,
    initial_model,
    scores_of,
    small_of_any,
    train_clients,
    trainer,
)


def rows_of(split, client):
    return split.take(torch.from_numpy(split.rows[client]))


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_models_are_tuned_on_training_rows_and_scored_on_others(engine, model):
    e = small_of_any(model=model, adapt_steps=3, adapt_lr=0.1, seed=3, method="fedavg")
    t = trainer(e, engine=engine)
    common = initial_model(t)["model"]
    scores = scores_of(t, [12, 0])
    loss = cross_entropy(t.learner.model)
    for i, client in enumerate([12, 0]):
        own = t.data.train.rows[client]
        drawn = own[generator(3, Stream.FINE_TUNING, client).integers(len(own), size=12)]
        tuned = common
        for step in np.split(drawn, 3):  # of batch-size = 4 rows each
            gradient = torch.func.grad(loss)(tuned, t.data.train.take(torch.from_numpy(step)))
            tuned = {name: leaf - 0.1 * gradient[name] for name, leaf in tuned.items()}
        for prefix, split in (("", t.data.test), ("validation-", t.data.validation)):
            x, y = rows_of(split, client)
            for params, suffix in ((common, ""), (tuned, TUNED)):
                found = scores.columns[f"{prefix}loss{suffix}"][i]
                assert float(found) == pytest.approx(float(loss(params, (x, y))), abs=1e-5)
                hits = (t.learner.model.apply(params, x).argmax(dim=1) == y).double().mean()
                found = scores.columns[f"{prefix}accuracy{suffix}"][i]
                assert float(found) == pytest.approx(float(hits), abs=1e-6)
        assert int(scores.queries[i]) == len(t.data.test.rows[client])


@pytest.mark.parametrize("method", ["fedavg", "local-moml", "pfedme"])
def test_no_model_depends_on_rows_that_it_is_scored_on(method):
    """Other targets of test and validation rows change scores, and no model that is scored."""
    given = {"method": method, "memory": "carry"}
    found = []
    for shift in (0, 1):
        store, t = RamStore(), trainer(small_of_any(**given))
        t.lend(store)
        held_out = torch.from_numpy(np.concatenate(t.data.validation.rows))
        t.data.train.y[held_out] = (t.data.train.y[held_out] + shift) % 10
        t.data.test.y[:] = (t.data.test.y + shift) % 10
        model = initial_model(t)
        made = train_clients(t, model, [3, 4], server_round=1, durable=0)
        tuned = trainer(small_of_any(**given), engine="sequential")
        tuned.data.test.y[:] = (tuned.data.test.y + shift) % 10
        (served,) = tuned.scorer.models.settled(Served((model["model"],), tuned=True), 3).models
        found.append((made.slots, store.dump(), served))
    assert_same(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert_same(found[0][2], found[1][2])


def test_a_fifth_of_the_training_rows_is_held_out():
    for partition in ("halves", "iid", "dirichlet", "blocks"):
        own = {"dirichlet_alpha": 5.0} if partition == "dirichlet" else {}
        whole = federated_data(small_of_any(partition=partition, validation_fraction=0, **own))
        data = federated_data(small_of_any(partition=partition, **own))
        assert whole.validation is None
        for client, rows in enumerate(whole.train.rows):
            kept, out = data.train.rows[client], data.validation.rows[client]
            assert sorted([*kept, *out]) == sorted(rows)
            assert len(out) == max(1, round(0.2 * len(rows)))
            np.testing.assert_array_equal(data.test.rows[client], whole.test.rows[client])


def test_what_is_held_out_is_the_clients_and_the_seeds_alone():
    one, other = (federated_data(small_of_any(seed=s)) for s in (0, 0))
    for mine, theirs in zip(one.validation.rows, other.validation.rows, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    part = federated_data(small_of_any(), hosted=[3])
    np.testing.assert_array_equal(part.validation.rows[3], one.validation.rows[3])


def test_rows_are_padded_by_each_clients_last_and_the_padding_is_not_counted():
    rng = np.random.default_rng(0)
    rows = {client: rng.integers(0, 1000, 1 + client % 7) for client in range(40)}
    asked = [3, 39, 0, 20, 21]
    found = padded(SimpleNamespace(y=torch.zeros(1)), rows, asked)
    for client, mine, counted in zip(asked, found.rows, found.counted, strict=True):
        held = rows[client]
        expected = np.pad(held, (0, len(mine) - len(held)), mode="edge")
        np.testing.assert_array_equal(mine, expected)
        assert counted.tolist() == [True] * len(held) + [False] * (len(mine) - len(held))


def test_even_a_small_share_is_at_least_one_row():
    own = {"batch_size": 1, "initial_batch_size": 1, "validation_fraction": 0.01}
    e = small_of_any(rows_per_class=2, num_clients=2, clients_per_round=2, **own)
    data = federated_data(e)
    assert {len(rows) for rows in data.validation.rows} == {1}
