"""Running statistics are no parameters: bounds, noise and steps of servers pass them by."""

import copy
from functools import partial

import numpy as np
import pytest
import scipy.stats
import torch
from torch import nn

import engram
from engram.core.method import Update
from engram.core.slots import unflat
from engram.guards.merge import Merge
from engram.guards.noise import simulated_noise
from engram.settings.errors import Refused
from engram.strategies.running.screening import Accepted
from tests.networks.plain import CLIENTS, ROWS, arrays, gap, looped, simulated
from tests.strategies.running.test_screening import reply, verdict
from tests.support import assert_same, initial_model, small_of_any, train_clients, trainer

ENGINES = ("sequential", "vectorized")
MEAN, VARIANCE = "1.running_mean", "1.running_var"


def normed():
    return nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


@pytest.fixture
def start():
    torch.manual_seed(0)
    return normed()


@pytest.fixture
def rows():
    draw = torch.Generator().manual_seed(1)
    x = 5 * torch.randn(CLIENTS, ROWS, 4, generator=draw) + torch.randn(4, generator=draw)
    return x, (x[..., 0] > 0).long() + (x[..., 1] > 2).long()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({"clip": 0.05}, {"clip": 0.05}),
        ({"gradient_clip": 0.1}, {"max_norm": 0.1}),
        (
            {"optimizer": "momentum", "weight_decay": 0.1},
            {"optimizer": partial(torch.optim.SGD, momentum=0.9, weight_decay=0.1)},
        ),
    ],
)
def test_bounds_and_optimizers_are_those_of_a_plain_loop(
    engine, settings, options, start, rows, tmp_path
):
    run = simulated(copy.deepcopy(start), *rows, tmp_path / "run", engine=engine, **settings)
    assert gap(run, looped(start, *rows, nn.functional.cross_entropy, **options)) < 1e-5


def test_a_penalty_on_statistics_has_no_part_in_a_clipped_gradient(start, rows, tmp_path):
    # At the second step the statistics are far from where they began, and mu is large.
    mu, eta = 1e3, 1e-4
    how = {"method": "fedprox", "mu": mu, "eta": eta, "gradient_clip": 1.0, "num_rounds": 1}
    run = simulated(copy.deepcopy(start), *rows, tmp_path / "run", **how)
    expected = {name: torch.zeros_like(p) for name, p in start.named_parameters()}
    for x, y in zip(*rows, strict=True):
        net = copy.deepcopy(start)
        for _ in range(2):
            net.zero_grad()
            nn.functional.cross_entropy(net(x), y).backward()
            with torch.no_grad():
                for p, old in zip(net.parameters(), start.parameters(), strict=True):
                    p.grad += mu * (p - old)
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                for p in net.parameters():
                    p.sub_(eta * p.grad)
        for name, p in net.named_parameters():
            expected[name] += p.detach() / CLIENTS
    for name, leaf in expected.items():
        # A step moves some parameter by more than 1e-5.
        torch.testing.assert_close(run.model[name], leaf, rtol=0, atol=1e-6)


STATISTICS = (MEAN, VARIANCE)
SETTINGS = {
    "clip": {"clip": 1e-3},
    "median": {"merge": "median"},
    "trimmed mean": {"merge": "trimmed-mean", "num_malicious": 1},
    "krum": {"merge": "krum", "num_malicious": 0, "clip": 1e-3},
    "universal": {"server_step": "universal:1e3"},
    "fedadam": {"method": "fedadam", "server_eta": 10.0},
    "feddyn": {"method": "feddyn"},
    "pfedme": {"method": "pfedme", "server_mix": 4.0},
}


@pytest.fixture
def experiment(rows, start, plug_ins):
    engram.model(copy.deepcopy(start), "normed")

    def make(**settings):
        given = {"dataset": arrays(*rows), "partition": "natural", "model": "normed"}
        given |= {"num_clients": CLIENTS, "clients_per_round": CLIENTS, "num_rounds": 2}
        return small_of_any(**(given | settings))

    return make


@pytest.mark.parametrize("case", SETTINGS)
def test_no_server_step_moves_statistics_and_they_move_no_parameter(case, experiment, rows):
    e = experiment(**({"method": "fedavg", "max_norm": 1e9} | SETTINGS[case]))
    draw = torch.Generator().manual_seed(2)
    t = trainer(e)
    ours = Merge(e, t.method, t.learner.network.running)
    server = ours.method.server.start
    models = [
        {n: torch.rand(p.shape, generator=draw) * 10.0**i for n, p in server["model"].items()}
        for i in range(CLIENTS)
    ]

    def learned(slot):
        return {name: leaf for name, leaf in slot.items() if name not in STATISTICS}

    def merged(changed):
        """The server's slots, where clients send these statistics."""
        sent = [learned(m) | {n: changed(m[n]) for n in STATISTICS} for m in models]
        updates = [Update({"model": m}, 2.0, 1, i) for i, m in enumerate(sent)]
        return ours(server, updates, 1)["model"]

    found = merged(lambda leaf: leaf)
    assert_same(learned(found), learned(merged(lambda leaf: 1 + 7 * leaf)))
    center = {"median": np.median, "krum": np.median, "trimmed mean": scipy.stats.trim_mean}
    for name in STATISTICS:
        more = {"proportiontocut": 0.34} if case == "trimmed mean" else {}
        stack = np.stack([m[name].numpy() for m in models])
        expected = center.get(case, np.mean)(stack, axis=0, **more)
        np.testing.assert_allclose(found[name], expected, rtol=1e-5)
    # Where they are a mean, one client's may be of any size: the screening must look at distances.
    assert ("distance" in ours.guard.name) == (case not in center)


def test_noise_of_clients_is_not_on_what_stays_with_them(experiment):
    e = experiment(statistics="local", privacy="local", clip=0.1, noise_multiplier=50.0)
    t = trainer(e, noise=simulated_noise(0))
    everyone = list(range(CLIENTS))
    for number in (1, 2, 3):
        sent = train_clients(t, initial_model(t), everyone, server_round=number, durable=0)
        assert not sent.slots["model"].keys() & set(STATISTICS)
    for client in everyone:
        kept = unflat(t.store.load(client, before=9))["kept"]["personal model"]
        assert float(kept[VARIANCE].min()) >= 0


@pytest.mark.parametrize("privacy", ["local", "central"])
def test_averaged_statistics_are_refused_where_there_is_privacy(privacy, experiment, tmp_path):
    given = {"method": "fedavg", "privacy": privacy, "clip": 1.0}
    words = "statistics must be local or fixed .or norm group. where there is privacy.*'average'"
    with pytest.raises(Refused, match=words):
        trainer(experiment(**given))
    for fine in ({"statistics": "local"}, {"statistics": "fixed"}, {"norm": "group"}):
        trainer(experiment(**given, **fine))
    trainer(experiment(**{**given, "method": "fedbn"}))  # whose layers stay with the clients


def test_a_variance_below_zero_is_no_reply():
    told = {VARIANCE: torch.tensor([1.0, -1e-3]), "own.running_var": -torch.ones(2)}

    def answer(params):
        return verdict(reply(params), running={VARIANCE}, model=params)

    assert answer(told).reason == "a running variance is below zero"
    assert isinstance(answer(told | {VARIANCE: torch.zeros(2)}), Accepted)
