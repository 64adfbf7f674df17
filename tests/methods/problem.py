"""A small problem for the tests of methods: a network of one hidden layer, and clients' batches."""

import functools

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map

from engram.cohort.dense import dense
from engram.cohort.draws import Draws
from engram.cohort.round import Cohort, Problem
from engram.cohort.sequential import in_turn
from engram.cohort.vmapped import at_once
from engram.core import derivatives as objective
from engram.core.method import Context, Network, Update
from engram.core.personal_parameters import build
from engram.core.rounds import Stepper, first_steps, merged
from engram.core.slot_optimizers import SGD
from engram.core.slots import pick
from engram.core.tree import stacked
from engram.networks.base import moved
from engram.networks.losses import dense_loss_of
from engram.scoring.tasks import CLASSIFICATION

CLIENTS, STEPS, ROWS, WIDTH, ETA = 6, 4, 5, 100, 0.1
COHORTS = [0, 1, 2], [5, 0, 1], [3, 0, 4, 2], [1, 5]  # first and later rounds of clients, mixed
SHAPES = {
    "dense0.weight": (8, WIDTH),
    "dense0.bias": (8,),
    "dense1.weight": (3, 8),
    "dense1.bias": (3,),
}
HEAD = frozenset({"dense1.weight", "dense1.bias"})


def draw(number):
    generator = torch.Generator().manual_seed(number)
    drawn = {n: torch.randn(shape, generator=generator) * 0.5 for n, shape in SHAPES.items()}
    return drawn | {"dense0.weight": drawn["dense0.weight"] / 5}


def represent(w, batch, shift=None):
    z = torch.relu(batch[0] @ w["dense0.weight"].T + w["dense0.bias"])
    return moved(z, shift) @ w["dense1.weight"].T + w["dense1.bias"], z


def criterion(outputs, batch):
    return nn.functional.cross_entropy(outputs, batch[1])


def row_losses(w, batch):
    return nn.functional.cross_entropy(represent(w, batch)[0], batch[1], reduction="none")


def loss(w, batch, shift=None):
    if isinstance(batch[0], tuple):  # Weighted
        return row_losses(w, batch.batch) @ batch.weights
    return criterion(represent(w, batch, shift)[0], batch)


def gradient(w, batch, names=None):
    moving = {n: x for n, x in w.items() if names is None or n in names}
    return torch.func.grad(lambda some: loss(w | some, batch))(moving)


W = draw(0)
NETWORK = Network(
    initial=draw(0),
    represent=represent,
    width=8,
    layers=(frozenset({"dense0.weight", "dense0.bias"}), HEAD),
    running=frozenset(),
    personal=frozenset(),
    draws=lambda count: [draw(0), *(draw(50 + number) for number in range(1, count))],
)
_DENSE, _INDICATORS = dense_loss_of(CLASSIFICATION, 2, 3)
in_layers = functools.partial(dense, targets=_INDICATORS)
OBJECTIVES = {
    in_turn: objective.by_autograd(loss, criterion),
    at_once: objective.by_functions(loss, criterion),
    in_layers: objective.by_hand(_DENSE, criterion),
}
"""The ways to train, each with its derivatives."""


def context_of(way=in_turn, personal=frozenset()):
    network = NETWORK._replace(personal=personal)
    generator = functools.partial(torch.Generator().manual_seed, 0)
    return Context(network, OBJECTIVES[way], 3, CLIENTS, generator)


def built(settings, way=in_turn, personal=frozenset()):
    return build(settings, context_of(way, personal))


class _Rows:
    """All batches that were asked for, as rows with numbers."""

    def __init__(self):
        self.x, self.y = torch.zeros(0, WIDTH), torch.zeros(0, dtype=torch.int64)

    def add(self, x, y):
        start = len(self.y)
        self.x, self.y = torch.cat([self.x, x]), torch.cat([self.y, y])
        return range(start, start + len(y))

    def take(self, rows, out=None):
        x = self.x[rows]
        return (x if out is None else out.copy_(x)), self.y[rows]


ALL_ROWS = _Rows()


def batch(client, server_round, step, number=0):
    """Returns a batch of a client, whose classes depend on one of its inputs and their sum."""
    at = list(_numbers(client, server_round, step, number))
    return ALL_ROWS.x[at], ALL_ROWS.y[at]


@functools.cache
def _numbers(client, server_round, step, number):
    key = (client + 2) + 100 * (server_round + 2) + 10_000 * (step + 2) + 1_000_000 * number
    inputs = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(key))
    targets = (inputs[:, client % 3] > 0).long() + (inputs[:, :3].sum(1) > 1).long()
    return ALL_ROWS.add(inputs, targets)


def draws_of(method, server_round, cohort, steps=STEPS):
    """Returns the rows of a cohort: ``batch(client, server_round, h, b)`` in step h, -1 first."""
    taken = method.client.phases[0].batches
    first = [(-1, 0)] if method.client.initial_rows else []
    all_ = first + [(h, b) for h in range(steps) for b in range(taken)]
    rows = [[row for at in all_ for row in _numbers(c, server_round, *at)] for c in cohort]
    starts = np.array([first_steps(method.client.phases, steps)] * len(cohort))
    return Draws(ALL_ROWS, torch.tensor(rows), ROWS * len(first), taken, ROWS, starts=starts)


def train(method, way, received, kept, draws, optimizer=SGD, factor=1.0):
    """Returns what clients that keep the same slots send, and what they keep, stacked."""
    common, own = received
    reported = _DENSE if way is in_layers else loss
    problem = Problem(lambda scales: method, Stepper(optimizer, factor).take, reported)
    done = way(problem, Cohort(common, own, stacked(kept), [], draws))
    assert not done.broken
    return done.sent.stack(), done.kept.stack()


def one(tree, i):
    return tree_map(lambda leaf: leaf[i], tree)


def run_round(
    method,
    way,
    server,
    memories,
    server_round,
    cohort,
    steps=STEPS,
    optimizer=SGD,
    factor=1.0,
    leaving=lambda client, received, sent: sent,
    gathered=list,
):
    """Returns the server's slots and the clients' memories after a round."""
    kept = {c: memories.get(c, method.client.start) for c in cohort}
    groups = {}
    for client in cohort:  # those that keep the same slots train together
        groups.setdefault(tuple(sorted(kept[client])), []).append(client)
    common, own = method.server.send(server, cohort)
    updates, after = {}, dict(memories)
    for some in groups.values():
        at = [cohort.index(client) for client in some]
        received = common, one(own, at)
        draws = draws_of(method, server_round, some, steps)
        keeping = [kept[c] for c in some]
        sent, keeps = train(method, way, received, keeping, draws, optimizer, factor)
        for i, client in enumerate(some):
            mine = common | one(own, cohort.index(client))
            left = leaving(client, mine, one(sent, i))
            updates[client] = Update(left, 10 + client, 1, client)
            after[client] = one(keeps, i)
    return merged(method, server, gathered(updates[c] for c in cohort)), after


def run(settings, way=in_turn, cohorts=COHORTS, personal=frozenset(), **options):
    """Returns a method, its server's slots and its clients' memories after some rounds."""
    method = settings if hasattr(settings, "serve") else built(settings, way, personal)
    server, memories = method.server.start, {}
    for server_round, cohort in enumerate(cohorts, 1):
        server, memories = run_round(method, way, server, memories, server_round, cohort, **options)
    return method, server, memories


def served(method, server, memories, client):
    """Returns what serves a client."""
    common, own = method.server.send(server, [client])
    kept = memories.get(client, method.client.start)
    return method.serve(common | one(own, 0), kept, client in memories)


def trained(w, client, server_round, names=None, steps=range(STEPS)):
    """Returns w after plain steps on a client's batches."""
    for h in steps:
        g = gradient(w, batch(client, server_round, h), names)
        w = w | {n: w[n] - ETA * leaf for n, leaf in g.items()}
    return w


def average(*models):
    return {n: sum(model[n] for model in models) / len(models) for n in models[0]}


def plus(x, scale, y):
    return {n: x[n] + scale * y[n] for n in x}


def body(w):
    return pick(w, SHAPES.keys() - HEAD)


def head(w):
    return pick(w, HEAD)
