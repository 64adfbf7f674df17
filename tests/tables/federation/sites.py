"""Sites with simulated tables on grids that may change what they send."""

from functools import partial

import numpy as np
import pytest
import torch

from engram.client.memory import RamStore
from engram.data.tables.tables import table_data
from engram.server.run import run as run_on
from engram.settings.errors import REFUSED
from engram.simulations.grid import InProcessGrid
from engram.tables.federation.host import TableSites
from engram.tables.federation.molar_messages import SITES
from engram.tables.regressor import MolarClassifier, MolarRegressor
from engram.wire.messages import TRAIN, Error, Reply
from tests.support import small

SITES_THERE = 12


def settings(**special):
    base = {"method": "molar", "dataset": "sparse-linear", "num_clients": SITES_THERE}
    return small(**base | {"timeout": 1.0} | special)


def run(folder, *, grid=None, store=None, nodes=SITES_THERE, **special):
    """Returns what was found, and the sites' memories: an array for each client."""
    experiment, store = settings(**special), store or RamStore()
    sites = TableSites(experiment, table_data(experiment), store)
    hosts = [range(node, experiment.num_clients, nodes) for node in range(nodes)]
    g = (grid or InProcessGrid)(sites, hosts)
    found = run_on(g, experiment, folder, engine="vectorized", memories=store)
    return found, memories(store, sites.names, experiment.num_clients, experiment.rounds + 1)


def memories(store, names, count, before=2):
    """Returns coef, low, high, own and shared of each client, shape (5, d), by client."""
    kept = {client: store.load(client, before=before) for client in range(count)}
    return {
        client: np.stack([memory[name].numpy() for name in names], axis=1)
        for client, memory in kept.items()
        if memory is not None
    }


def in_one_place(experiment, leave_out=()):
    """Fits all sites' training rows with the library's estimator."""
    data = table_data(experiment)
    there = [(c, rows) for c, rows in enumerate(data.train) if c not in leave_out]
    x = np.concatenate([rows.x for _, rows in there])
    y = np.concatenate([rows.y for _, rows in there])
    task = np.concatenate([np.full(len(rows.y), c) for c, rows in there])
    options = {"option": experiment.own.thresholding, "c": experiment.own.threshold_scale}
    options |= {"fit_intercept": experiment.own.intercept, "undetermined": "shared"}
    if experiment.own.family == "logistic":
        return MolarClassifier(**options).fit(x, y, task)
    return MolarRegressor(family=experiment.own.family, **options).fit(x, y, task)


def assert_as_in_one_place(found, kept, model, clients, *, intercept=True):
    shared = found["shared"]["coef"]
    np.testing.assert_allclose(shared[: len(model.shared_coef_)], model.shared_coef_, rtol=1e-10)
    if intercept:
        assert shared[-1] == pytest.approx(model.shared_intercept_, rel=1e-10)
    low, high = model.confidence_intervals()
    for i, client in enumerate(clients):
        d = len(model.shared_coef_)
        coef, own_low, own_high = kept[client][:3, :d]
        np.testing.assert_allclose(coef, model.coef_[i], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(own_low, low[i], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(own_high, high[i], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(kept[client][3, :d], model.individual_coef_[i], rtol=1e-10)
        if intercept:
            assert kept[client][0, -1] == pytest.approx(model.intercept_[i], rel=1e-10)


class Odd(InProcessGrid):
    """A grid on which what some nodes send is changed."""

    def __init__(self, host, hosts, change):
        super().__init__(host, hosts)
        self.change = change

    def ask(self, messages, *, timeout=None):
        replies = super().ask(messages, timeout=timeout)
        changed = [self.change(reply.question.node - 1, reply) for reply in replies]
        return [reply for reply in changed if reply is not None]


def odd(change, kind=TRAIN):
    """Returns a grid that changes replies of a kind; ``change`` returns None for none at all."""

    def of_kind(client, reply):
        return change(client, reply) if reply.question.kind == kind else reply

    return partial(Odd, change=of_kind)


def with_arrays(reply, **arrays):
    """Returns a reply with other numbers in it."""
    before = reply.content[SITES]
    after = {name: before[name].numpy() for name in before} | arrays
    tensors = {name: torch.from_numpy(np.array(value)) for name, value in after.items()}
    reply.content[SITES] = tensors
    return reply


def error_instead(reply, reason):
    return Reply(reply.question, error=Error(REFUSED, reason))


def nan_coefficient(reply):
    coef = reply.content[SITES]["coef"].numpy().copy()
    coef[0, 3] = np.nan
    return with_arrays(reply, coef=coef)
