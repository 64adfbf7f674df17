"""MetaGrad and USC against their definitions."""

from math import sqrt

import numpy as np
import pytest

from engram.online.baselines import metagrad, usc
from engram.online.domains import ball
from tests.online.algorithm_1 import GUESSES, projected, projected_in_norm
from tests.online.support import play
from tests.online.test_experts import literal_adapt_ml_prod
from tests.samples import entry

# --- MetaGrad ---------------------------------------------------------------------------------


def literal_metagrad(gradients, count):
    """Van Erven and Koolen, Algorithms 1 and 2 (full), on the unit ball with G = 1, D = 2."""
    etas = [2.0**-i / (5 * 2 * 1) for i in range(count)]
    prior = [(1 + 1 / count) / ((i + 1) * (i + 2)) for i in range(count)]
    assert sum(prior) == pytest.approx(1)  # C = 1 + 1 / (1 + ceil(log2(T) / 2))
    dim = gradients.shape[1]
    total = np.zeros((dim, dim))
    points, losses = [np.zeros(dim)] * count, np.zeros(count)
    for g in gradients:
        shares = np.array(prior) * np.exp(-losses) * etas
        w = shares @ np.array(points) / shares.sum()
        yield w
        total = total + np.outer(g, g)
        for i, eta in enumerate(etas):
            offset = points[i] - w
            losses[i] += -eta * (-offset @ g) + eta**2 * (offset @ g) ** 2
            precision = np.eye(dim) / 2**2 + 2 * eta**2 * total
            slope = g + 2 * eta * g * (g @ offset)
            free = points[i] - eta * np.linalg.inv(precision) @ slope
            points[i] = projected_in_norm(free, precision)


def test_metagrad_is_its_definition():
    for horizon, count in [(1, 1), (4, 2), (16, 3), (17, 4)]:
        with entry(horizon, count):
            g = np.random.default_rng(horizon).normal(size=(30, 3)) + np.array([0.5, 0, -1])
            g /= np.linalg.norm(g, axis=1).max()
            learner = metagrad(ball(3, 1.0), gradient_bound=1.0, horizon=horizon)
            x, _ = play(learner, lambda t, x, g=g: g[t], 30)
            assert x == pytest.approx(np.array(list(literal_metagrad(g, count))), abs=1e-10)
            assert np.linalg.norm(x[-1]) > 0.3


def test_the_experts_rates():
    learner = metagrad(ball(2, 3.0), gradient_bound=0.5, horizon=16_000)
    state = learner.init(None)
    assert state.experts.centers.shape == (8, 2)  # ceil(log2(16000) / 2) = 7
    assert np.exp(state.logs) == pytest.approx(9 / 8 / np.array([2, 6, 12, 20, 30, 42, 56, 72]))
    # After one gradient g = (0.5, 0) the first expert is at -eta g / (1 / D^2 + 2 eta^2 |g|^2).
    eta = 1 / (5 * 6 * 0.5)
    first = learner.observe(state, np.array([0.5, 0.0])).experts.centers[0]
    assert first == pytest.approx(np.array([-eta * 0.5 / (1 / 36 + 2 * (eta * 0.5) ** 2), 0]))


# --- USC ---------------------------------------------------------------------------------------


def literal_usc(gradients, horizon):
    """On the unit ball with G = 1, D = 2: base learners one by one, then their weights."""
    dim, guesses = gradients.shape[1], GUESSES[horizon]
    bases = [*(("strong", g) for g in guesses), ("convex", 0), *(("exp", g) for g in guesses)]
    points = [np.zeros(dim) for _ in bases]
    gammas = [guess / (1 + 2 * guess) ** 2 for guess in guesses]
    metrics = {g: np.eye(dim) / (4 * gamma) for g, gamma in zip(guesses, gammas, strict=True)}
    losses = []
    for t, g in enumerate(gradients, start=1):
        # The weights of this round depend on losses before it alone.
        p = list(literal_adapt_ml_prod(np.array([*losses, np.zeros(len(bases))])))[-1]
        x = sum(weight * point for weight, point in zip(p, points, strict=True))
        yield x
        losses.append(np.array([point @ g for point in points]) / 2)
        for i, (kind, guess) in enumerate(bases):
            if kind == "strong":
                h = g + guess * (points[i] - x)
                points[i] = projected(points[i] - h / (guess * t))
            elif kind == "convex":
                points[i] = projected(points[i] - 2 / sqrt(t) * g)
            else:
                h = g * (1 + guess * g @ (points[i] - x))
                metrics[guess] = metrics[guess] + guess / (1 + 2 * guess) ** 2 * np.outer(h, h)
                free = points[i] - np.linalg.solve(metrics[guess], h)
                points[i] = projected_in_norm(free, metrics[guess])


def test_usc_is_its_definition():
    for horizon in [8, 20]:
        with entry(horizon):
            g = np.random.default_rng(horizon).normal(size=(horizon, 3))
            g /= 1.2 * np.linalg.norm(g, axis=1).max()
            learner = usc(ball(3, 1.0), gradient_bound=1.0, horizon=horizon)
            x, _ = play(learner, lambda t, x, g=g: g[t], horizon)
            assert x == pytest.approx(np.array(list(literal_usc(g, horizon))), abs=1e-10)
            assert np.linalg.norm(np.diff(x, axis=0), axis=1).max() > 0.1
