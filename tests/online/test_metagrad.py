"""MetaGrad against its definition, expert by expert, and its second-order bound."""

from math import log

import numpy as np
import pytest

from engram.online.baselines import metagrad
from engram.online.domains import ball, box, simplex
from tests.online.algorithm_1 import projected_in_norm
from tests.online.support import adversaries, play
from tests.samples import entry


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


def test_it_is_its_definition():
    for horizon, count in [(1, 1), (4, 2), (16, 3), (17, 4)]:
        with entry(horizon, count):
            g = np.random.default_rng(horizon).normal(size=(30, 3)) + np.array([0.5, 0, -1])
            g /= np.linalg.norm(g, axis=1).max()
            learner = metagrad(ball(3, 1.0), gradient_bound=1.0, horizon=horizon)
            x, _ = play(learner, lambda t, x, g=g: g[t], 30)
            assert x == pytest.approx(np.array(list(literal_metagrad(g, count))), abs=1e-10)
            assert np.linalg.norm(x[-1]) > 0.3


def comparators(domain, g):
    """Points u: corners, the middle, one drawn at random, and the best for linear losses."""
    drawn = np.random.default_rng(1).normal(size=(6, domain.dim)) * domain.diameter
    return [domain.center, *map(domain.project, [*drawn, -1e9 * g.sum(axis=0)])]


def test_its_second_order_regret():
    # With R = sum <g, w - u>, V = sum <g, w - u>^2, F = sum g g': for each expert (Lemmas 3 to 5)
    #   eta R - eta^2 V <= ln(1 / prior) + |u - w_1|^2 / (2 D^2) + ln det(I + 2 eta^2 D^2 F) / 2.
    for stream in adversaries(3, 2.0):
        for domain in [
            ball(3, 1.5),
            box(np.array([-1.0, 0, -2]), np.array([0.5, 2, -1])),
            simplex(3),
        ]:
            with entry(stream, domain):
                rounds, diameter = 400, domain.diameter
                learner = metagrad(domain, gradient_bound=2.0, horizon=rounds)
                x, g = play(learner, adversaries(3, 2.0)[stream], rounds)
                etas = 2.0 ** -np.arange(6) / (5 * diameter * 2.0)  # ceil(log2(400) / 2) = 5
                prior = (1 + 1 / 6) / ((np.arange(6) + 1) * (np.arange(6) + 2))
                fisher = g.T @ g
                for u in comparators(domain, g):
                    slopes = np.sum(g * (x - u), axis=1)
                    for eta, mass in zip(etas, prior, strict=True):
                        volume = np.linalg.slogdet(np.eye(3) + 2 * (eta * diameter) ** 2 * fisher)[
                            1
                        ]
                        distance = np.sum((u - x[0]) ** 2) / (2 * diameter**2)
                        cost = -log(mass) + distance + volume / 2
                        assert eta * slopes.sum() - eta**2 * np.sum(slopes**2) <= cost + 1e-9


def test_the_experts_rates():
    learner = metagrad(ball(2, 3.0), gradient_bound=0.5, horizon=16_000)
    state = learner.init(None)
    assert state.experts.centers.shape == (8, 2)  # ceil(log2(16000) / 2) = 7
    assert np.exp(state.logs) == pytest.approx(9 / 8 / np.array([2, 6, 12, 20, 30, 42, 56, 72]))
    # After one gradient g = (0.5, 0) the first expert is at -eta g / (1 / D^2 + 2 eta^2 |g|^2).
    eta = 1 / (5 * 6 * 0.5)
    first = learner.observe(state, np.array([0.5, 0.0])).experts.centers[0]
    assert first == pytest.approx(np.array([-eta * 0.5 / (1 / 36 + 2 * (eta * 0.5) ** 2), 0]))
