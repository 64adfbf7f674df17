"""Algorithm 1 as the paper writes it, learner by learner, on the unit ball with G = 1, L = 1."""

import numpy as np
from scipy.optimize import brentq

GUESSES = {8: [1 / 8, 1 / 4, 1 / 2, 1], 20: [1 / 20, 1 / 10, 1 / 5, 2 / 5, 4 / 5, 1]}  # (2.1), by T
C_0, LAMBDA_1, LAMBDA_2, BIAS, GAMMA = 1.0, 1.0, 2.0, 0.5, 5.0
D = 2.0


def projected(y):
    return y / max(1.0, np.linalg.norm(y))


def projected_in_norm(y, u):
    """By bisection on the multiplier, in the basis of U's eigenvectors."""
    if np.linalg.norm(y) <= 1:
        return y
    values, vectors = np.linalg.eigh(u)
    z = vectors.T @ y

    def point(nu):
        return values * z / (values + nu)

    high = 1.0
    while np.linalg.norm(point(high)) > 1:
        high *= 2
    nu = brentq(lambda nu: np.linalg.norm(point(nu)) - 1, 0, high, xtol=1e-15, rtol=1e-15)
    return vectors @ point(nu)


class Gradient:
    """Optimistic OGD (E.4), with the step sizes of Lemma 12, or 10 where ``guess`` is None."""

    def __init__(self, guess, start):
        self.guess, self.t, self.center, self.x = guess, 1, start, start
        self.last, self.variation = None, 0.0

    def step(self):
        if self.guess is None:
            return min(D / np.sqrt(1 + self.variation), 1 / GAMMA)
        return 2 / (GAMMA + self.guess * self.t)

    def update(self, h):
        self.center = projected(self.center - self.step() * h)
        if self.last is not None:
            self.variation += np.sum((h - self.last) ** 2)
        self.last, self.t = h, self.t + 1
        self.x = projected(self.center - self.step() * h)

    def surrogate(self, g, x):
        return g + (self.guess or 0) * (self.x - x)


class Metric:
    """Optimistic OMD in a growing matrix norm (Lemma 11)."""

    def __init__(self, guess, start):
        self.guess, self.center, self.x = guess, start, start
        self.u = (GAMMA + guess / 2) * np.eye(len(start))

    def update(self, h):
        self.center = projected_in_norm(self.center - np.linalg.solve(self.u, h), self.u)
        self.u = self.u + self.guess / 2 * np.outer(h, h)
        self.x = projected_in_norm(self.center - np.linalg.solve(self.u, h), self.u)

    def surrogate(self, g, x):
        return g * (1 + self.guess * (g @ (self.x - x)))


class MsMwC:
    """(3.2), for losses divided by G D."""

    def __init__(self, steps, prior):
        self.steps, self.q = np.array(steps), np.array(prior)

    def solve(self, losses):
        def weights(nu):
            return self.q * np.exp(-self.steps * (losses / D + nu))

        limit = np.max(np.abs(losses)) + 1
        nu = brentq(lambda nu: weights(nu).sum() - 1, -limit, limit, xtol=1e-15, rtol=1e-15)
        return weights(nu)

    def update(self, losses, optimism):
        bias = BIAS * self.steps * ((losses - optimism) / D) ** 2
        self.q = self.solve(losses + D * bias)


def algorithm_1(gradient, dim, horizon, *, multi, exp_concave=True, rounds=None):
    """Yields each round's decision; K N base learners, and <g, x> in all losses and optimism."""
    guesses, start = GUESSES[horizon], np.zeros(dim)
    count = len(guesses)
    steps = [1 / (C_0 * 2**k) for k in range(1, count + 1)]

    def pool():
        exp = [Metric(a, start) for a in guesses] if exp_concave else []
        return [*(Gradient(a, start) for a in guesses), Gradient(None, start), *exp]

    base = [pool() for _ in steps]
    n = len(base[0])
    top = MsMwC(steps, np.square(steps) / np.sum(np.square(steps)))
    middle = [MsMwC(np.full(n, 2 * eta), np.full(n, 1 / n)) for eta in steps]
    p, q = np.full((count, n), 1 / n), top.q
    x_i = np.zeros((count, n, dim))
    old_x_i, old_x_k = x_i, np.zeros((count, dim))
    old_regret = np.zeros((count, n))  # <g, x - x_i>, of the round before
    for t in range(rounds or horizon):
        x_k = np.einsum("kn,knd->kd", p, x_i)
        x = q @ x_k
        yield x
        g = gradient(t, x)
        m_hat = g @ x - old_regret
        correction = LAMBDA_2 * np.sum((x_i - old_x_i) ** 2, axis=2)
        top_correction = LAMBDA_1 * np.sum((x_k - old_x_k) ** 2, axis=1)
        top.update(x_k @ g + top_correction, np.sum(m_hat * p, axis=1) + top_correction)
        for k, learner in enumerate(middle):
            learner.update(x_i[k] @ g + correction[k], m_hat[k] + correction[k])
        old_regret = (x - x_i) @ g
        for row in base:
            for learner in row:
                learner.update(gradient(t, learner.x) if multi else learner.surrogate(g, x))
        old_x_i, old_x_k = x_i, x_k
        x_i = np.array([[learner.x for learner in row] for row in base])
        optimism = -old_regret + LAMBDA_2 * np.sum((x_i - old_x_i) ** 2, axis=2)
        p = np.array([learner.solve(optimism[k]) for k, learner in enumerate(middle)])
        moved = np.sum((np.einsum("kn,knd->kd", p, x_i) - old_x_k) ** 2, axis=1)
        q = top.solve(-np.sum(old_regret * p, axis=1) + LAMBDA_1 * moved)
