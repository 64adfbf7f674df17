"""Clients with networks of their own: what they compute, keep and exchange, and what is refused."""

import copy
import os
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, one_hot

import engram
from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.client.ray_worker import RemoteWorker, digest_of
from engram.cohort.trainer.chunks import in_order
from engram.cohort.trainer.shared_tensors import packed, unpacked
from engram.server.run import run as serve
from engram.settings.errors import Refused
from engram.settings.fingerprint import fingerprint
from engram.simulations.grid import InProcessGrid

SIZES, TESTS, CLASSES, WIDTH, ROUNDS, ETA = (9, 14, 12, 8), 3, 3, 5, 3, 0.3


def deep(width=WIDTH):
    body = nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, width), nn.Tanh()
    return nn.Sequential(*body, nn.Linear(width, CLASSES))


torch.manual_seed(0)
FLAT = nn.Sequential(nn.Linear(4, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))
STARTS = (deep(), FLAT, deep(), copy.deepcopy(FLAT))


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
    return (z := net[:-1](x)), net[-1](z)


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


def assert_alike(run, states):
    found = [run.personal_model(client) for client in range(len(SIZES))]
    torch.testing.assert_close(found, [dict(each) for each in states], rtol=0, atol=1e-6)


def test_clients_train_their_own_networks_as_in_a_plain_loop(tmp_path):
    protos, alone = ([net.state_dict() for net in looped(weight)] for weight in (1.0, 0.0))
    assert_alike(run_of(tmp_path / "fedproto", "fedproto"), protos)
    assert_alike(run_of(tmp_path / "in turn", "fedproto", engine="sequential"), protos)
    assert_alike(run := run_of(tmp_path / "local", "local"), alone)
    with pytest.raises(AssertionError):
        assert_alike(run, protos)


@pytest.mark.full
def test_networks_that_are_alike_train_as_one_network_for_all_does(tmp_path):
    own = run_of(tmp_path / "own", "fedproto", lambda client: deep())
    common = run_of(tmp_path / "common", "fedproto", deep)
    assert_alike(own, [common.personal_model(client) for client in range(len(SIZES))])
    np.testing.assert_allclose(own.clients["loss"], common.clients["loss"], atol=1e-6)


@pytest.mark.full
def test_networks_that_are_alike_are_stacked_here_and_on_a_cluster(tmp_path):
    e = run_of(tmp_path / "run", "fedproto").experiment
    host = host_of(Opening(e, RamStore()))
    trainer, worker, run = host.trainer, RemoteWorker(), pickle.dumps((e, "vectorized"))
    assert [some for _, some in trainer.parted(range(len(SIZES)))] == [[0], [1, 3], [2]]
    assert worker.begin(fingerprint(), "", os.getcwd(), digest_of(trainer.given), run) == ""

    def share(trainer, asked, chunks):
        for chunk in chunks:
            given = packed((chunk, {})), packed((asked, trainer.data.units, ""))
            yield unpacked(b"".join(worker.train(1, 1, *given)))[0]

    share.cuts = True
    train = partial(trainer.train, trainer.method.server.start, [range(len(SIZES))])
    each = [train(server_round=1, durable=0, share=by)[0] for by in (share, in_order)]
    assert [found.clients for found in each] == [[0, 1, 3, 2]] * 2
    torch.testing.assert_close(each[0].slots, each[1].slots, rtol=0, atol=1e-6)
    with pytest.raises(Refused, match="model must be the same for all clients on nodes"):
        serve(InProcessGrid(host, [[0]]), e, tmp_path / "nodes", engine="flower")


@pytest.mark.full
def test_a_clients_own_network_is_mixed_with_its_rows_votes_and_taken_home(tmp_path):
    run = run_of(tmp_path / "run", "knn-per", personal="*", k=5)
    assert_alike(run, [net.state_dict() for net in looped(0.0)])
    for client, (net, (x, y)) in enumerate(zip(looped(0.0), rows(), strict=True)):
        z, outputs = represented(net, x)
        near, which = torch.cdist(z[:TESTS], z).topk(5, largest=False)
        votes = (torch.softmax(-near, -1)[..., None] * one_hot(y[which], CLASSES)).sum(1)
        wanted = ((votes + outputs[:TESTS].softmax(1)) / 2).detach()
        shown = run.predict(client)[[f"probability {c}" for c in range(CLASSES)]].to_numpy()
        np.testing.assert_allclose(shown, wanted, atol=1e-5)
        module = engram.load_model(run.export(client, out=tmp_path / str(client)))
        np.testing.assert_allclose(module(x[:TESTS]).softmax(1).detach(), wanted, atol=1e-5)


def test_what_cannot_differ_by_client_is_refused(tmp_path):
    for method, model, why in (
        ("fedavg", network, "method must be local, fedproto, or any with personal=.*got 'fedavg'"),
        ("fedproto", lambda client: deep(5 + client // 2), r"wide for client 2 as for 0, .*6\)"),
        ("local", lambda client: [FLAT][client], "no network for client 1: IndexError"),
    ):
        with pytest.raises(Refused, match=why):
            run_of(tmp_path / "run", method, model)
        assert not (tmp_path / "run").exists()
    run = run_of(tmp_path / "run", "local")
    tune = partial(engram.tune, methods="local", model=network)
    for call in (lambda: run.model, run.export, tune):
        with pytest.raises(Refused, match="must be one network for all clients here"):
            call()
