"""Federated online learning: a round's update is a gradient, and the server an online learner."""

import numpy as np
import pytest
import torch

from engram.core.slots import unflat
from engram.core.tree import add_scaled
from engram.data.federated import model_for
from engram.guards.noise import simulated_noise
from engram.online.domains import ball
from engram.online.server_step import in_epochs
from engram.online.universal import universal_ensemble
from engram.server.roster import query_roster
from engram.strategies.running.network_strategy import Federated
from tests.support import assert_same, cross_entropy, grid, small_of_any, trainer, write_npz

ROUNDS, RADIUS = 40, 4.0


@pytest.fixture
def stream(tmp_path):
    """Two classes of three features, drifting apart; 5 clients, the last ones of fewer rows."""
    rng = np.random.default_rng(0)
    y = np.arange(197) % 2
    x = rng.normal(size=(197, 3)) + np.outer(y * np.linspace(0, 3, 197), [1.0, -2.0, 0.5])
    return write_npz(tmp_path / "stream.npz", x=x, y=y)


def online(stream, **settings):
    fixed = {"method": "fedavg", "model": "linear", "partition": "blocks", "order": "stream"}
    fixed |= {"num_clients": 5, "clients_per_round": 5, "local_steps": 1, "batch_size": 2}
    return small_of_any(dataset=stream, test_fraction=0.2, **(fixed | settings))


def play(e, nodes):
    """Yields each round's model, and the next."""
    g = grid(trainer(e), nodes)
    strategy = Federated.build(e, query_roster(g, e.num_clients), simulated_noise(e.seed))
    arrays = strategy.init()
    for server_round in range(1, ROUNDS + 1):
        messages, before = strategy.configure_train(server_round, arrays, {}, g), arrays
        arrays, _ = strategy.aggregate_train(server_round, g.ask(messages, timeout=60))
        yield unflat(before)["model"], unflat(arrays)["model"]


def gradient(e, data, model, server_round):
    """Of the mean over clients, by their numbers of rows, of the loss of the round's rows."""
    network = model_for(e, data.kind)
    total = sum(len(rows) for rows in data.train.rows)
    found = {name: torch.zeros_like(leaf) for name, leaf in model.items()}
    for client, own in enumerate(data.train.rows):
        rows = data.train.next_rows(client, server_round, e.batch_size)
        slope = torch.func.grad(cross_entropy(network))(model, data.train.take(torch.tensor(rows)))
        found = add_scaled(found, len(own) / total, slope)
    return found


@pytest.mark.parametrize("nodes", [1, 2, 5])
def test_a_rounds_update_is_the_mean_gradient_times_the_step_size(stream, nodes):
    e = online(stream, eta=0.25)
    data = trainer(e).data
    assert len({len(rows) for rows in data.train.rows}) > 1
    for server_round, (model, merged) in enumerate(play(e, nodes), start=1):
        g = gradient(e, data, model, server_round)
        assert_same(merged, {k: leaf - 0.25 * g[k] for k, leaf in model.items()}, atol=1e-6)


@pytest.mark.parametrize("nodes", [1, 5])
def test_the_federation_plays_as_the_librarys_learner(stream, nodes):
    e = online(stream, server_step=f"universal:{RADIUS}")
    data = trainer(e).data
    course = list(play(e, nodes))
    start = course[0][0]

    def flat(model):
        return torch.cat([model[name].flatten() for name in sorted(model)]).double().numpy()

    learner = in_epochs(
        lambda horizon, bound: universal_ensemble(
            ball(8, RADIUS, flat(start)), horizon=horizon, gradient_bound=bound
        ),
        horizon=4096,
    )
    kept, at = learner.init(None), 0
    for server_round, (model, merged) in enumerate(course, start=1):
        # The learner goes its own way: gradients are those at its own decisions.
        decision, own = torch.tensor(learner.act(kept)), {}
        for name in sorted(model):
            own[name] = decision[at : at + model[name].numel()].view_as(model[name]).float()
            at += model[name].numel()
        at = 0
        np.testing.assert_allclose(flat(model), decision, rtol=0, atol=1e-4)
        g = gradient(e, data, {name: own[name] for name in model}, server_round)
        kept = learner.observe(kept, e.own.eta * flat(g))
        np.testing.assert_allclose(flat(merged), learner.act(kept), rtol=0, atol=1e-4)
    assert np.linalg.norm(flat(course[-1][1]) - flat(start)) > 1  # it went somewhere
