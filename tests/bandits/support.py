"""Users in groups with linear rewards, and how a policy plays them."""

import numpy as np


class Groups:
    """Users i of groups i % q, with linear expected rewards in [0, 1]; the last feature is 1."""

    def __init__(self, groups, users, dim, arms=6, noise=0.1, seed=0):
        self.users, self.arms, self.noise, self.seed = users, arms, noise, seed
        rng = np.random.default_rng((seed, 99))
        thetas, _ = np.linalg.qr(rng.normal(size=(dim - 1, dim - 1)))
        self.group = np.arange(users) % groups  # of parameters at right angles
        self.thetas = np.column_stack([thetas[self.group] / 2, np.full(users, 0.5)])

    def round(self, t):
        """A user, arms (K, d), expected rewards (K,) and rewards (K,): a function of t."""
        rng = np.random.default_rng((self.seed, t))
        user = int(rng.integers(self.users))
        z = rng.normal(size=(self.arms, self.thetas.shape[1] - 1))
        x = np.column_stack([z / np.linalg.norm(z, axis=1, keepdims=True), np.ones(self.arms)])
        means = x @ self.thetas[user]
        rewards = np.clip(means + self.noise * rng.normal(size=self.arms), 0, 1)
        return user, x, means, rewards

    def true_groups(self, among):
        """The groups of some users, as a set of frozen sets."""
        return {
            frozenset(user for user in among if self.group[user] == g) for g in set(self.group)
        } - {frozenset()}


def play(policy, environment, rounds, state=None, start=0):
    """The choices of ``rounds`` rounds, their regret, and the state after them."""
    state = policy.init(np.random.default_rng(0)) if state is None else state
    chosen, regret = [], 0.0
    for t in range(start, start + rounds):
        user, x, means, rewards = environment.round(t)
        rng = np.random.default_rng((environment.seed, t, 1))
        arm, state = policy.choose(state, user, x, rng)
        state = policy.update(state, user, x[arm], float(rewards[arm]), rng)
        chosen.append(arm)
        regret += means.max() - means[arm]
    return chosen, regret, state


def bounds(rows, lam, alpha, x):
    """Upper confidence bounds of arms, from rows (x, r), by inverting a matrix."""
    a = lam * np.eye(x.shape[1]) + sum((np.outer(z, z) for z, _ in rows), np.zeros(()))
    theta = np.linalg.solve(a, sum((r * z for z, r in rows), np.zeros(x.shape[1])))
    return x @ theta + alpha * np.sqrt(np.einsum("kd,de,ke->k", x, np.linalg.inv(a), x))


def theta(rows, lam, dim):
    """The ridge estimate."""
    a = lam * np.eye(dim) + sum((np.outer(z, z) for z, _ in rows), np.zeros(()))
    return np.linalg.solve(a, sum((r * z for z, r in rows), np.zeros(dim)))


def width(rows, lam, x):
    """sqrt(x' A^-1 x)."""
    a = lam * np.eye(len(x)) + sum((np.outer(z, z) for z, _ in rows), np.zeros(()))
    return np.sqrt(x @ np.linalg.solve(a, x))


def spread(rows):
    return np.sqrt((1 + np.log(1 + rows)) / (1 + rows))


def components(nodes, edges):
    """Connected components of a set of pairs, as frozen sets, the slow way."""
    parts = [{node} for node in nodes]
    for i, j in edges:
        one, other = (next(p for p in parts if k in p) for k in (i, j))
        if one is not other:
            one |= other
            parts.remove(other)
    return {frozenset(part) for part in parts}
