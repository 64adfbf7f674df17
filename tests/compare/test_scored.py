"""Evaluations of some of the clients, where all of them would take longer than the rounds."""

import numpy as np
import pytest

from engram.compare.references import CONSTANT, references
from engram.runs.run import Run
from engram.simulations.engine import simulate
from tests.support import small

COUNT, SOME = 20, 6


def run(folder, **special):
    e = small(**{"method": "fedavg", "num_clients": COUNT, "eval_every": 2} | special)
    return simulate(e, folder), Run.open(folder)


@pytest.fixture(scope="module")
def everyone(tmp_path_factory):
    return run(tmp_path_factory.mktemp("all") / "run")[0]


def test_the_same_clients_are_scored_in_each_evaluation_as_where_all_are(tmp_path, everyone):
    found, record = run(tmp_path / "run", scored_clients=SOME)
    ids = found["clients"]["ids"]
    assert len(set(ids)) == SOME
    assert ids == sorted(ids)
    assert set(ids) <= set(range(COUNT))
    scores = record.scores()
    assert len(scores) > 2
    assert all(row["ids"] == ids for row in scores)
    for column in ("accuracy", "loss", "validation-loss"):
        all_of_them = np.array(everyone["clients"][column])
        np.testing.assert_array_equal(found["clients"][column], all_of_them[ids])
    assert found["accuracy"] == pytest.approx(np.mean(found["clients"]["accuracy"]))
    assert found["selected"]["clients"]["ids"] == ids


def test_who_is_scored_follows_from_the_seed_and_not_from_the_method(tmp_path):
    ids = [
        run(tmp_path / str(i), scored_clients=SOME, **special)[0]["clients"]["ids"]
        for i, special in enumerate(({}, {"method": "local"}, {"seed": 1}))
    ]
    assert ids[0] == ids[1] != ids[2]


def test_all_are_scored_where_more_are_asked_for_than_there_are(tmp_path, everyone):
    found, _ = run(tmp_path / "run", scored_clients=COUNT)
    assert found["clients"] == everyone["clients"]


def test_those_that_never_train_are_all_scored_besides(tmp_path):
    found, _ = run(tmp_path / "run", scored_clients=SOME, unseen_clients=3, clients_per_round=4)
    ids, unseen = found["clients"]["ids"], found["unseen"]
    assert len(ids) == SOME + 3
    assert set(unseen) <= set(ids)


def test_references_are_scored_on_the_same_clients(tmp_path):
    found, _ = run(tmp_path / "run", scored_clients=SOME)
    e = small(method="fedavg", num_clients=COUNT, scored_clients=SOME)
    losses = references(e).scores[CONSTANT]["loss"]
    there = [client for client, loss in enumerate(losses) if loss is not None]
    assert there == found["clients"]["ids"]
