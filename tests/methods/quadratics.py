"""A federation of quadratics, whose minima are known, for the tests of methods."""

import torch

from engram.core import derivatives as objective
from engram.core.method import Context, Network, Update
from engram.core.personal_parameters import build
from engram.core.rounds import Stepper, first_steps, merged, received_by
from engram.core.slot_optimizers import SGD
from tests.support import DIM, draw, moments, quadratic

ROWS = 12


def client(i):
    """Returns a client's rows, its batch in every step: its gradient is A w - b, by `moments`."""
    return draw(i, ROWS, DIM), draw(i + 1000, ROWS)


def minimum(clients):
    """Returns where the sum of the clients' losses is least."""
    parts = [moments(client(i)) for i in clients]
    return torch.linalg.solve(sum(a for a, _ in parts), sum(b for _, b in parts))


def built(settings, *starts, clients=4, loss=quadratic):
    """Builds a method on quadratics, or another loss; `starts` are those of several models."""
    starts = [w if isinstance(w, dict) else {"w": w} for w in starts or [draw(7, DIM)]]
    names = frozenset(starts[0])
    network = Network(
        initial=starts[0],
        represent=None,
        width=0,
        layers=(names,),
        running=frozenset(),
        personal=frozenset(),
        draws=lambda count: (starts * count)[:count],
    )
    found = objective.by_functions(loss)
    generator = torch.Generator().manual_seed(0)
    return build(settings, Context(network, found, 1, clients, lambda: generator))


def local_round(method, received, kept, batches, stepper=None):
    """Returns what a client sends and keeps; `batches` are the steps', the first also before."""
    stepper = stepper or Stepper(SGD)
    phases, states = method.client.phases, [{} for _ in method.client.phases]
    work = method.client.begin(received, kept, batches[0] if method.client.initial_rows else None)
    starts = first_steps(phases, len(batches))
    for h, batch in enumerate(batches):
        at = max(i for i, start in enumerate(starts) if start <= h)
        drawn = (batch,) * phases[at].batches
        work, states[at] = stepper.take(phases[at], work, states[at], drawn)
    return method.client.end(received, work)


def rounds(method, clients, count, *, local_steps, rows=client):
    """Runs rounds of all clients; returns the server's slots, and what clients keep."""
    server, kept = method.server.start, dict.fromkeys(clients, method.client.start)
    for _ in range(count):
        updates = []
        for c in clients:
            received = received_by(method, server, c)
            sent, kept[c] = local_round(method, received, kept[c], [rows(c)] * local_steps)
            updates.append(Update(sent, ROWS, 1, c))
        server = merged(method, server, updates)
    return server, kept


def served(method, server, kept, c):
    """Returns what serves a client that has trained."""
    return method.serve(received_by(method, server, c), kept[c], True)
