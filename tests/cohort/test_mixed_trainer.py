"""Clients with networks of their own: what they compute, keep and exchange, and what is refused."""

import copy
import os
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import engram
from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.client.ray_worker import RemoteWorker, digest_of
from engram.cohort.trainer.chunks import in_order
from engram.cohort.trainer.shared_tensors import packed, unpacked
from engram.settings.errors import Refused
from engram.settings.fingerprint import fingerprint

SIZES, TESTS, CLASSES, WIDTH, ROUNDS, ETA = (9, 14, 12, 8), 3, 3, 5, 3, 0.3


class Deep(nn.Module):
    def __init__(self, width=WIDTH):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, width), nn.Tanh())
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x):
        return self.head(self.body(x))


def flat():
    return nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


torch.manual_seed(0)
STARTS = (Deep(), common := flat(), Deep(), copy.deepcopy(common))


def network(client):
    """Returns a client's module: two have the same layers, and two the same start as well."""
    return STARTS[client]


def rows():
    draw = torch.Generator().manual_seed(5)
    x = [torch.randn(size, 4, generator=draw) for size in SIZES]
    return [(each, (each[:, 0] > 0).long() + (each[:, 1] > 0).long()) for each in x]


def run_of(folder, method, model=network, **settings):
    """Trains each client on all of its rows twice a round, and tests it on the first of them."""
    data = [(x.numpy(), y.numpy(), x[:TESTS].numpy(), y[:TESTS].numpy()) for x, y in rows()]
    given = {"local_epochs": 2, "batch_size": max(SIZES), "eta": ETA, "validation_fraction": 0.0}
    given |= {"num_rounds": ROUNDS, "eval_every": ROUNDS, "progress": False, "out": folder}
    return engram.simulate(data, method=method, model=model, **given | settings)


def represented(net, x):
    z = net[:2](x) if isinstance(net, nn.Sequential) else net.body(x)
    return z, (net[2] if isinstance(net, nn.Sequential) else net.head)(z)


def looped(weight):
    """FedProto in plain torch: each step moves to the classes' means of the round before."""
    nets, means = copy.deepcopy(STARTS), None
    for _ in range(ROUNDS):
        sums, counts = torch.zeros(CLASSES, WIDTH), torch.zeros(CLASSES)
        for net, (x, y) in zip(nets, rows(), strict=True):
            steps = torch.optim.SGD(net.parameters(), lr=ETA)
            for _ in range(2):
                z, outputs = represented(net, x)
                far = z - means[y] if means is not None else torch.zeros(1)
                loss = cross_entropy(outputs, y) + weight * far.square().mean()
                sums.index_add_(0, y, z.detach())
                counts += y.bincount(minlength=CLASSES)
                steps.zero_grad()
                loss.backward()
                steps.step()
        means = sums / counts[:, None]  # every class has rows
    return nets


def assert_alike(run, nets):
    for client, net in enumerate(nets):
        found, wanted = run.personal_model(client), net.state_dict()
        assert found.keys() == wanted.keys()
        for name, leaf in wanted.items():
            torch.testing.assert_close(found[name], leaf, rtol=0, atol=1e-6)


def test_clients_train_their_own_networks_as_in_a_plain_loop(tmp_path):
    for method, weight in (("fedproto", 1.0), ("local", 0.0)):
        for engine in ("vectorized", "sequential"):
            run = run_of(tmp_path / method / engine, method, engine=engine)
            assert_alike(run, looped(weight))
    with pytest.raises(AssertionError):
        assert_alike(run, looped(1.0))


def test_networks_that_are_alike_train_as_one_network_for_all_does(tmp_path):
    for method in ("fedproto", "local"):
        own = run_of(tmp_path / method / "own", method, lambda client: Deep())
        common = run_of(tmp_path / method / "common", method, Deep)
        for client in range(len(SIZES)):
            torch.testing.assert_close(
                own.personal_model(client), common.personal_model(client), rtol=0, atol=1e-6
            )
        np.testing.assert_allclose(
            own.clients.astype(float), common.clients.astype(float), atol=1e-6
        )


def test_networks_that_are_alike_are_stacked_here_and_on_a_cluster(tmp_path):
    e = run_of(tmp_path / "run", "fedproto").experiment
    trainer = host_of(Opening(e, RamStore())).trainer
    assert [some for _, some in trainer.parted(range(len(SIZES)))] == [[0], [1, 3], [2]]
    worker, run = RemoteWorker(), pickle.dumps((e, "vectorized"))
    assert worker.begin(fingerprint(), "", os.getcwd(), digest_of(trainer.given), run) == ""

    def share(trainer, asked, chunks):
        for chunk in chunks:
            given = packed((chunk, {})), packed((asked, trainer.data.units, ""))
            yield unpacked(b"".join(worker.train(1, 1, *given)))[0]

    share.cuts = True
    groups, common = [range(len(SIZES))], trainer.method.server.start
    each = [
        trainer.train(common, groups, server_round=1, durable=0, share=s)[0]
        for s in (share, in_order)
    ]
    assert [found.clients for found in each] == [[0, 1, 3, 2]] * 2
    torch.testing.assert_close(each[0].slots, each[1].slots, rtol=0, atol=1e-6)


def test_a_clients_own_network_is_mixed_with_its_rows_votes_and_taken_home(tmp_path):
    run = run_of(tmp_path / "run", "knn-per", personal="*", k=5)
    assert_alike(run, looped(0.0))
    for client, (net, (x, y)) in enumerate(zip(looped(0.0), rows(), strict=True)):
        z, outputs = represented(net, x)
        near, which = torch.cdist(z[:TESTS], z).topk(5, largest=False)
        votes = torch.softmax(-near, -1)[..., None] * nn.functional.one_hot(y[which], CLASSES)
        wanted = (0.5 * votes.sum(1) + 0.5 * outputs[:TESTS].softmax(1)).detach()
        shown = run.predict(client)[[f"probability {c}" for c in range(CLASSES)]].to_numpy()
        np.testing.assert_allclose(shown, wanted, atol=1e-5)
        module = engram.load_model(run.export(client, out=tmp_path / str(client)))
        np.testing.assert_allclose(module(x[:TESTS]).softmax(1).detach(), wanted, atol=1e-5)


def test_what_cannot_differ_by_client_is_refused(tmp_path):
    cases = {
        "fedavg": ({}, "method must be fedproto, local, or with personal=.*got 'fedavg'"),
        "fedproto": (
            {"model": lambda client: Deep(WIDTH + (client > 1))},
            r"representations must be as wide for client 2 as for 0, to share prototypes/sums of \(3, 5\), got \(3, 6\)",
        ),
        "local": (
            {"model": lambda client: [flat()][client]},
            "returns no network for client 1: IndexError",
        ),
    }
    for method, (settings, why) in cases.items():
        with pytest.raises(Refused, match=why):
            run_of(tmp_path / "run", method, **settings)
        assert not (tmp_path / "run").exists()
    run = run_of(tmp_path / "run", "local")
    for call in (
        lambda: run.model,
        run.export,
        lambda: engram.tune(methods=["local"], model=network, trials=2),
    ):
        with pytest.raises(Refused, match="must be one network for all clients here"):
            call()
