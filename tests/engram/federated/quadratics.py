"""A federation of quadratics, whose minima are known, by a rule and an aggregate alone."""

import torch

from engram.aggregates import Update
from engram.models import begun
from tests.support import DIM, draw, moments, quadratic

ROWS = 12


def client(i):
    """A client's rows, which are its batch in every step: its gradient is A w - b."""
    return draw(i, ROWS, DIM), draw(i + 1000, ROWS)


def minimum(clients):
    """Returns where the sum of the clients' losses is least."""
    parts = [moments(client(i)) for i in clients]
    return torch.linalg.solve(sum(a for a, _ in parts), sum(b for _, b in parts))


def shared(rule, w):
    """Returns what of w clients and server exchange."""
    own = tuple(companion.mark for companion in rule.companions if companion.personal)
    return {name: leaf for name, leaf in w.items() if not name.startswith(own or ("none/",))}


def steps(rule, w, batches):
    """Takes a client's local steps of a round."""
    u = rule.init(w, batches[0] if rule.needs_initial_batch else None)
    for batch in batches:
        w, u = rule.step(w, u, (batch,))
    return w if rule.finish is None else rule.finish(w, u)


def rounds(rule, aggregate, clients, count, *, local_steps, asked=lambda t, clients: clients):
    """Runs rounds; returns the common arrays, the server's state, and each client's arrays.

    Args:
        rule: The clients' part, built on ``quadratic``.
        aggregate: The server's.
        clients: Who there is.
        count: How many rounds.
        local_steps: A client's steps in a round.
        asked: Who trains in a round.
    """
    start = begun({"w": draw(7, DIM)}, rule.companions)
    model = shared(rule, start)
    kept = dict.fromkeys(clients, start)
    state = aggregate.init(model)
    for t in range(count):
        updates = []
        for i in asked(t, clients):
            kept[i] = steps(rule, kept[i] | model, [client(i)] * local_steps)
            updates.append(Update(shared(rule, kept[i]), 1.0))
        model, state = aggregate.merge(model, state, updates)
    return model, state, kept


__all__ = ["client", "minimum", "moments", "quadratic", "rounds", "shared", "steps"]
