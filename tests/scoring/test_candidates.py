"""Clients that are served by one of several models: the one with the least loss on their rows."""

import numpy as np
import pytest
import torch

from engram.api import load_run
from engram.core.rounds import received_by
from engram.networks.losses import mean_loss
from engram.runs.run import Run
from engram.scoring.tasks import CLASSIFICATION
from engram.settings.errors import Refused
from engram.simulations.engine import simulate
from tests.networks.networks import CLIENTS
from tests.networks.test_modules import experiment
from tests.support import assert_same, initial_model, scores_of, small, train_clients, trainer

IFCA = {"method": "ifca", "clusters": 3}


@pytest.fixture(autouse=True)
def _registered(plug_ins):
    pass


def models_of(t, server, client=0):
    """The models of which a client is served by one, by the server's slots."""
    received = received_by(t.method, server, client)
    return t.method.serve(received, {}, False).models


def losses(t, models, split, rows):
    """Each model's loss on each client's rows, (clients, models)."""
    loss = mean_loss(t.learner.model._replace(train=None), CLASSIFICATION)
    batches = [split.take(torch.from_numpy(some)) for some in rows]
    return np.array([[float(loss(w, batch)) for w in models] for batch in batches])


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
@pytest.mark.parametrize("protocol", ["standard", "few-shot"])
def test_it_is_the_one_with_the_least_loss_on_the_rows_that_a_client_learns_from(protocol, engine):
    # Nobody has trained yet.
    t = trainer(small(protocol=protocol, adapt_shots=4, **IFCA), engine=engine)
    clients = list(range(20))
    models = models_of(t, t.method.server.start)
    known = t.scorer.models._known(clients)
    rows = [some[own].numpy() for some, own in zip(known.rows, known.counted, strict=True)]
    if protocol == "standard":
        for client, some in enumerate(rows):
            assert sorted(some) == sorted(t.data.train.rows[client])
    best = losses(t, models, known.split, rows).argmin(1)
    assert len(set(best)) > 1
    queries = t.scorer.queries(clients)
    rows = [some[own].numpy() for some, own in zip(queries.rows, queries.counted, strict=True)]
    expected = losses(t, models, t.data.test, rows)[np.arange(20), best]
    found = scores_of(t, clients).columns["loss"]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_a_run_serves_it_and_hands_it_out(tmp_path):
    e = small(unseen_clients=2, **IFCA)
    results = simulate(e, tmp_path / "run")
    t, run = trainer(e), load_run(tmp_path / "run")
    models, clients = models_of(t, run.learned.slots), [0, 18, 19]
    best = losses(t, models, t.data.train, [t.data.train.rows[c] for c in clients]).argmin(1)
    scored = losses(t, models, t.data.test, [t.data.test.rows[c] for c in clients])
    for i, (client, chosen) in enumerate(zip(clients, best, strict=True)):
        assert_same(run.personal_model(client), models[chosen])
        told = results["clients"]["loss"][client]
        assert told == pytest.approx(scored[i, chosen], abs=1e-5)


def test_running_statistics_are_those_of_a_models_own_clients(tmp_path):
    # Of the second model's nobody is left after the first round, if all choose the first.
    e = experiment("batch norm and dropout", num_rounds=1, eval_every=1, **IFCA)
    simulate(e, tmp_path / "run", engine="sequential")
    found = models_of(trainer(e), load_run(tmp_path / "run").learned.slots)
    t = trainer(e, engine="sequential")
    start = models_of(t, t.method.server.start)
    cohort = Run.open(tmp_path / "run").rows()[1]["cohort"]
    each = train_clients(t, initial_model(t), cohort, server_round=1, durable=0)
    name = "norm.running_var"
    for number in range(3):
        chosen = each.slots["choice"].argmax(1) == number
        moved = each.slots["change"][name][chosen]
        expected = start[number][name] + (moved.mean(0) if chosen.any() else 0)
        torch.testing.assert_close(found[number][name], expected, atol=1e-6, rtol=0)
        assert chosen.any() != torch.equal(found[number][name], start[number][name])
    assert len(cohort) < CLIENTS


@pytest.mark.parametrize("engine", ["vectorized", "sequential"])
def test_a_mixture_predicts_by_the_weights_that_a_client_has_come_to(engine):
    t = trainer(small(method="fedem", components=2), engine=engine)
    train_clients(t, initial_model(t), [3, 4], server_round=1, durable=0)
    queries = t.scorer.queries([3, 4, 5])
    found = scores_of(t, [3, 4, 5], server_round=1).columns["loss"]
    weights = []
    for i, client in enumerate([3, 4, 5]):  # the last one has not trained
        pi = t._memories.recall(client, before=2).kept["weights"]
        x, y = t.data.test.take(queries.rows[i][queries.counted[i]])
        models = initial_model(t).values()
        each = torch.stack([t.learner.model.apply(w, x).softmax(-1) for w in models])
        likely = torch.einsum("m,mqc->qc", pi, each)[torch.arange(len(y)), y]
        assert float(found[i]) == pytest.approx(-float(likely.log().mean()), abs=1e-5)
        weights.append(pi.tolist())
    assert weights[2] == [0.5, 0.5]
    assert weights[0] != weights[1] != weights[2]


def test_a_mixture_is_no_single_model(tmp_path):
    simulate(small(method="fedem", components=2), tmp_path / "run")
    with pytest.raises(Refused, match="fedem serves clients by a mixture of 2 models"):
        load_run(tmp_path / "run").personal_model(3)
