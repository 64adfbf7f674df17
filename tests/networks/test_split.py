"""Methods that share a part of the network: what each is FedAvg of, and what stays where."""

import pytest
import torch
from torch import nn

import engram
from engram.runs.run import Run
from engram.settings.errors import Refused
from engram.simulations.engine import simulate
from tests.networks.networks import CLIENTS
from tests.networks.test_modules import experiment, kept_by
from tests.samples import entry
from tests.support import small, trainer

CASE = "group norm"
pytestmark = pytest.mark.usefixtures("plug_ins")


def run(folder, **settings):
    """Runs one client after the other; returns the shared model, and what clients keep."""
    e = experiment(CASE, max_weight=1.0, **settings)
    scores = simulate(e, folder, engine="sequential")["clients"]["loss"]
    checkpoint = Run.open(folder).load_checkpoint()
    return checkpoint.model, [kept_by(checkpoint, c) for c in range(CLIENTS)], scores


@pytest.mark.parametrize(
    ("settings", "personal"),
    [
        ({"method": "fedper"}, "head.*"),
        ({"method": "lg-fedavg"}, "!head.*"),
        ({"method": "fedper", "personal": "first.*"}, "first.*"),  # which a user says goes first
    ],
)
def test_it_is_fedavg_of_parameters_that_are_not_personal(settings, personal, tmp_path):
    one = run(tmp_path / "one", **settings)
    other = run(tmp_path / "other", method="fedavg", personal=personal)
    torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_each_clients_steps_are_divided_between_the_parts():
    # Of 2 epochs of so many batches of 7 as a client's rows need, half train the head.
    own = {"partition": "dirichlet", "num_clients": 8, "batch_size": 7, "adapt_shots": 2}
    t = trainer(small(method="fedalt", local_epochs=2, protocol="few-shot", **own))
    clients = list(range(8))
    batches = [-(-len(t.data.train.rows[client]) // 7) for client in clients]
    assert len(set(batches)) > 2
    draws = t.sampler.draw(clients, 1)
    assert draws.starts.tolist() == [[0, count] for count in batches]
    turns = dict.fromkeys(clients, 0)
    for step in draws.each_step():
        for client in clients if isinstance(step.who, slice) else step.who.tolist():
            turns[client] += step.phase == 0
    assert turns == dict(enumerate(batches))
    assert t.sampler.draw([2], 1).starts.tolist() == [[0, batches[2]]]


def test_settings_that_cannot_be_are_refused():
    few = "local-steps must be at least 2 for {} where local-epochs is 0, got 1"
    step = "universal needs that the server takes no step of its own: that of {} does"
    for settings, words in [
        ({"method": "fedrep", "local_steps": 1}, few.format("fedrep")),
        ({"method": "fedala", "local_steps": 1}, few.format("fedala")),
        ({"method": "scaffold", "server_step": "universal"}, step.format("scaffold")),
        ({"method": "fedadam", "server_step": "universal"}, step.format("fedadam")),
    ]:
        with entry(settings), pytest.raises(Refused, match=words):
            small(**settings)


_NO_BODY = "model must be a network that has parameters below its last layer, besides running stat"


@pytest.mark.parametrize("method", ["fedrep", "fedper", "fedbabu", "fedpac"])
def test_a_body_that_has_only_running_statistics_is_none(method, tmp_path):
    def normed():
        return nn.Sequential(nn.BatchNorm1d(4, affine=False), nn.Linear(4, 2))

    rows = torch.randn(20, 4, generator=torch.Generator().manual_seed(0)).numpy()
    clients = [(rows, (rows[:, 0] > 0).astype(int))] * 4
    with pytest.raises(Refused, match=_NO_BODY):
        engram.simulate(clients, method=method, model=normed, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_a_network_that_lacks_the_parts_is_refused(tmp_path):
    for settings, words in (
        ({"method": "fedper", "model": "linear"}, _NO_BODY),
        ({"method": "fedbabu", "model": "linear"}, _NO_BODY),
        ({"method": "fedpac", "model": "linear"}, _NO_BODY),
        ({"method": "fedrep", "personal": "!*"}, "personal must be less than all for fedrep, got"),
    ):
        with pytest.raises(Refused, match=words):
            simulate(small(**settings), tmp_path / "run")
        assert not (tmp_path / "run").exists()
