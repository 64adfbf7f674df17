"""MetaGrad and USC against their definitions, and the bounds that their papers promise."""

from math import e, log, sqrt

import numpy as np
import pytest

from engram.online.baselines import metagrad, usc
from engram.online.descent import ogd
from engram.online.domains import ball, box, simplex
from engram.online.weights import curvatures
from tests.online.algorithm_1 import GUESSES, projected, projected_in_norm
from tests.online.support import adversaries, play
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


def comparators(domain, g):
    """Points u: corners, the middle, one drawn at random, and the best for linear losses."""
    drawn = np.random.default_rng(1).normal(size=(6, domain.dim)) * domain.diameter
    return [domain.center, *map(domain.project, [*drawn, -1e9 * g.sum(axis=0)])]


def test_metagrads_second_order_regret():
    # With R = sum <g, w - u>, V = sum <g, w - u>^2, F = sum g g': for each expert (Lemmas 3 to 5)
    #   eta R - eta^2 V <= ln(1 / prior) + |u - w_1|^2 / (2 D^2) + ln det(I + 2 eta^2 D^2 F) / 2.
    limits = np.array([-1.0, 0, -2]), np.array([0.5, 2, -1])
    for stream in adversaries(3, 2.0):
        for domain in [ball(3, 1.5), box(*limits), simplex(3)]:
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
                        grown = np.eye(3) + 2 * (eta * diameter) ** 2 * fisher
                        volume = np.linalg.slogdet(grown)[1]
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


def test_the_parts_of_proposition_1():
    # On the unit ball with G = 1, D = 2. Meta: against each base learner second-order regret, as in
    # Corollary 4. Base: regret on surrogates h_i(y) = <g, y> + lambda_i / 2 |y - x|^2
    # + alpha_i / 2 <g, y - x>^2, with gradients of length G + lambda_i D and G (1 + alpha_i G D).
    for name, stream in adversaries(3, 1.0).items():
        with entry(name):
            check_proposition_1(stream)


def check_proposition_1(given):
    rounds = 300
    learner, guesses = usc(ball(3, 1.0), gradient_bound=1.0, horizon=300), curvatures(300)
    k, n = len(guesses), 2 * len(guesses) + 1
    state, x, g, points = learner.init(None), [], [], []
    for t in range(rounds):
        x.append(learner.act(state))
        g.append(given(t, x[-1]))
        points.append(np.concatenate([state.descents.decisions, state.newtons.decisions]))
        state = learner.observe(state, g[-1])
    x, g, points = np.array(x), np.array(g), np.array(points)

    r = np.einsum("td,tnd->tn", g, x[:, None] - points) / 2
    c = 3 * log(n) + log(1 + n / (2 * e) * (1 + log(rounds + 1)))
    assert (r.sum(axis=0) <= c / sqrt(log(n)) * np.sqrt(1 + np.sum(r**2, axis=0)) + 2 * c).all()

    strong = np.concatenate([guesses, np.zeros(1 + k)])
    exp = np.concatenate([np.zeros(k + 1), guesses])
    gamma = guesses / (1 + 2 * guesses) ** 2
    bounds = [
        (1 + 2 * guesses) ** 2 / (2 * guesses) * (1 + log(rounds)),
        [1.5 * 2 * sqrt(rounds)],
        1.5 / gamma * np.log(1 + rounds * (gamma * (1 + 2 * guesses) * 2) ** 2) + 1 / (2 * gamma),
    ]

    def h(y):
        offsets = y - x[:, None]
        slopes = np.einsum("td,tnd->tn", g, offsets)
        squares = strong / 2 * np.sum(offsets**2, axis=2) + exp / 2 * slopes**2
        return np.sum(slopes + squares, axis=0)

    toward = -g.sum(axis=0) / max(1e-9, np.linalg.norm(g.sum(axis=0)))
    for u in (toward, 0.3 * toward, np.zeros(3), -toward, np.eye(3)[1], x.mean(axis=0)):
        assert (h(points) - h(np.tile(u, (rounds, n, 1))) <= np.concatenate(bounds)).all()


def test_uscs_regret_on_strongly_convex_losses_hardly_grows():
    z = 0.4 * np.random.default_rng(7).choice([-1.0, 1.0], size=(4000, 4), p=[0.3, 0.7])

    def regret(learner, rounds):
        x, _ = play(learner, lambda t, x: (x - z[t]) / 2, rounds)
        seen = z[:rounds]
        return np.sum((x - seen) ** 2) / 4 - np.sum((seen.mean(axis=0) - seen) ** 2) / 4

    # ln 4000 / ln 500 is 1.3, sqrt(4000 / 500) is 2.8.
    few, many = (regret(usc(ball(4, 1.0), gradient_bound=1.0, horizon=n), n) for n in (500, 4000))
    assert 0 < many < 2 * few
    assert many < 0.6 * regret(ogd(ball(4, 1.0), gradient_bound=1.0), 4000)
