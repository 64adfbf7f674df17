"""Votes of rows nearby by hand, the mixture's two ends, and clients that are served by them."""

import math

import numpy as np
import pytest
import torch

from engram.api import load_run
from engram.core.method import Neighbors
from engram.runs.run import Run
from engram.scoring.mixtures import check_votes, nearest, with_votes
from engram.settings.errors import Refused
from engram.simulations.engine import simulate
from tests.support import draw, initial_model, scores_of, small, trainer

CLASSES, K, SCALE = 4, 3, 0.7
COUNTED = torch.tensor([[True] * 6, [True] * 2 + [False] * 4])
Y = torch.tensor([[0, 1, 1, 3, 3, 0], [2, 1, 0, 0, 0, 0]])
Z, MEMORY = draw(1, 2, 5, 3), draw(2, 2, 6, 3)


def by_hand(z, memory, targets, k):
    far = sorted((math.dist(z, row), y) for row, y in zip(memory, targets, strict=True))
    votes = np.zeros(CLASSES)
    for distance, y in far[:k]:
        votes[y] += math.exp(-distance / SCALE)
    return votes / votes.sum()


def test_votes_are_those_of_the_nearest_rows():
    for k in (1, K, 50):
        found = nearest(Z, MEMORY, Y, COUNTED, classes=CLASSES, k=k, scale=SCALE)
        for c in range(2):
            rows = int(COUNTED[c].sum())
            own, classes = MEMORY[c, :rows].tolist(), Y[c, :rows].tolist()
            expected = [by_hand(z, own, classes, min(k, rows)) for z in Z[c].tolist()]
            np.testing.assert_allclose(found[c].numpy(), np.stack(expected), atol=1e-12)


def test_rows_far_away_still_vote():
    found = nearest(1e6 + Z, MEMORY, Y, COUNTED, classes=CLASSES, k=K, scale=SCALE)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 5).double())


def test_the_mixture_lies_between_the_common_model_and_the_vote():
    outputs = draw(3, 2, 5, CLASSES)
    rows = (outputs, Z, MEMORY, Y, COUNTED)

    def mixed(weight):
        return with_votes(Neighbors(weight, K, SCALE), *rows)

    torch.testing.assert_close(mixed(0.0), outputs.log_softmax(-1))
    vote = nearest(*rows[1:], classes=CLASSES, k=K, scale=SCALE)
    torch.testing.assert_close(mixed(1.0).exp(), vote)
    assert mixed(1.0).isfinite().all()
    torch.testing.assert_close(mixed(0.3).exp(), 0.3 * vote + 0.7 * outputs.softmax(-1))


def scores(engine="vectorized", **own):
    settings = {f"knn-per.{key}": value for key, value in own.items()}
    t = trainer(small(method="knn-per", **settings), engine=engine)
    return scores_of(t, range(20), server_round=1).columns, t


def test_with_lambda_zero_clients_are_served_by_the_common_model():
    found, _ = scores(**{"lambda": 0.0})
    for metric in ("accuracy", "loss"):
        torch.testing.assert_close(found[metric], found[metric + "-common"])


def test_engines_agree_and_every_client_is_served_whether_or_not_it_has_trained(monkeypatch):
    found, _ = scores()
    monkeypatch.setattr("engram.scoring.served.BLOCK", 999)  # rows in several parts
    for engine in ("vectorized", "sequential"):
        torch.testing.assert_close(scores(engine)[0], found, atol=1e-5, rtol=0)
    assert found["accuracy"].isfinite().all()


def test_a_client_is_served_by_its_own_training_rows():
    found, t = scores(**{"lambda": 1.0, "k": 3})
    model, test, train = initial_model(t)["model"], t.data.test, t.data.train

    def of(split, client):
        x, y = split.take(torch.from_numpy(split.rows[client]))
        return t.learner.model.represent(model, x, None, None, False)[1], y

    for client in (0, 7):
        (z, y), (memory, classes) = of(test, client), of(train, client)
        far = torch.cdist(z, memory)
        right = 0
        for i, row in enumerate(far):
            votes = torch.zeros(10)
            for j in row.argsort()[:3].tolist():
                votes[classes[j]] += math.exp(-float(row[j]))
            right += int(votes.argmax() == y[i])
        assert float(found["accuracy"][client]) == pytest.approx(right / len(y))


def test_unseen_clients_are_served_by_it_too_and_training_is_fedavgs(tmp_path):
    shared = {"unseen_clients": 3, "num_rounds": 2}
    found = simulate(small(method="knn-per", **shared), tmp_path / "knn")
    simulate(small(method="fedavg", **shared), tmp_path / "fedavg")
    one, other = (Run.open(tmp_path / n).load_checkpoint().model for n in ("knn", "fedavg"))
    assert all(torch.equal(one[name], other[name]) for name in other)
    assert found["unseen-accuracy"] != found["unseen-accuracy-common"]
    personal = load_run(tmp_path / "knn").personal_model(0)
    assert all(torch.equal(leaf, one[f"model/{name}"]) for name, leaf in personal.items())


def test_impossible_values_are_refused():
    with pytest.raises(Refused, match="task must be classification for knn-per, got"):
        small(method="knn-per", task="multi-label")
    for votes, words in [
        ((2.0, 1, 1.0), r"lambda must be in \[0, 1\], got 2"),
        ((1.0, 0, 1.0), "k must be at least 1"),
        ((1.0, 1, 0.0), "scale must be positive"),
    ]:
        with pytest.raises(ValueError, match=words):
            check_votes(Neighbors(*votes))
