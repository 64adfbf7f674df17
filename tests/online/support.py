"""Streams of gradients, and what a learner does on them."""

import numpy as np

from engram.online.steps import BALL, BOX


def play(learner, gradient, rounds, start=None):
    """Decisions (T, d) and the gradients (T, d) that ``gradient(t, x)`` gave at them."""
    state, decisions, gradients = learner.init(start), [], []
    for t in range(rounds):
        decisions.append(learner.act(state))
        gradients.append(gradient(t, decisions[-1]))
        state = learner.observe(state, gradients[-1])
    return np.array(decisions), np.array(gradients)


def least(domain, direction):
    """The least <direction, u> of points u of the domain."""
    if domain.kind == BALL:
        return direction @ domain.anchor - domain.size * np.linalg.norm(direction)
    if domain.kind == BOX:
        return np.sum(np.minimum(direction * domain.anchor, direction * domain.top))
    return np.min(direction)


def adversaries(dim, bound, seed=0):
    """Streams ``(t, x) -> g`` with |g| <= bound, some of which look at the decision."""
    rng = np.random.default_rng(seed)
    way = rng.normal(size=dim)
    way *= bound / np.linalg.norm(way)
    noise = rng.normal(size=(5000, dim))
    noise *= bound / np.linalg.norm(noise, axis=1, keepdims=True)

    def away(t, x):
        length = np.linalg.norm(x)
        return bound * x / length if length > 1e-9 else way

    def one_coordinate(t, x):
        return bound * np.eye(dim)[t % dim] * (1.0 if t % 3 else -1.0)

    return {
        "always the same": lambda t, x: way,
        "by turns": lambda t, x: way * (-1) ** t,
        "in blocks": lambda t, x: way * (1 if (t // 50) % 2 else -1),
        "noise": lambda t, x: noise[t],
        "away from the middle": away,
        "one coordinate": one_coordinate,
    }
