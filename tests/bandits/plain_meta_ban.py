"""Meta-Ban as the paper writes it: one user, one arm, one row at a time, in double precision."""

import numpy as np
import torch

from engram.bandits.policy import best


def network(weights, x):
    """f(x; theta) of (9)."""
    for w in weights[:-1]:
        x = torch.relu(w @ x)
    return (weights[-1] @ x)[0]


def gradient(weights, of):
    """By autograd, of a function of weights."""
    free = [w.clone().requires_grad_() for w in weights]
    return torch.autograd.grad(of(free), free)


def loss(weights, rows, penalty=0.0):
    """Half the mean square, 0 of no rows, and penalty times the L1 norm."""
    value = penalty * sum(w.abs().sum() for w in weights)
    if rows:
        x, r = (torch.stack(part, dim=-1) for part in zip(*rows, strict=True))
        value = value + ((network(weights, x) - r) ** 2).mean() / 2
    return value


def stepped(weights, slope, eta):
    return [w - eta * g for w, g in zip(weights, slope, strict=True)]


def norm(parts):
    return float(sum((part**2).sum() for part in parts)) ** 0.5


def keep(rows, seen, buffer, x, reward):
    """Appends a row, or overwrites the oldest."""
    rows[seen % buffer : seen % buffer + 1] = [
        (torch.from_numpy(x), torch.tensor(reward, dtype=torch.float64))
    ]


def drawn(rows, weights, uniforms):
    """Draws rows of users, in their order, by weights ``{user: weight of each row}``."""
    total = sum(w * len(rows[u]) for u, w in weights.items())
    return [_row(rows, weights, uniform * total) for uniform in uniforms] if total else []


def _row(rows, weights, mark):
    for u, w in weights.items():
        for row in rows[u]:
            mark -= w
            if mark < 0:
                return row
    raise AssertionError("the mark lies beyond all rows")


class PlainMetaBan:
    """Algorithm 1 in one run, for users 0, 1, ..., with the choices of ``meta_ban``."""

    def __init__(self, start, **settings):
        self.start = [w.double() for w in start]  # Theta_0
        self.meta = self.start
        self.users = []  # those who have come: each has rows, theta-hat, theta and mu
        self.rounds = 0
        for name, value in settings.items():
            setattr(self, name, value)

    def welcome(self, user):
        while len(self.users) <= user:
            self.users.append({"rows": [], "last": self.start, "theta": self.start, "mu": 0})

    def group(self, user, x):
        """Relative group (4), nearest first where there is a cap."""
        own = network(self.users[user]["theta"], x)
        gaps = [float(abs(network(u["theta"], x) - own)) for u in self.users]
        threshold = (self.nu - 1) / self.nu * self.gamma
        near = [u for u in range(len(self.users)) if gaps[u] <= threshold]
        near.sort(key=lambda u: (u != user, gaps[u]))
        return sorted(near[: self.group_cap])

    def drawn(self, weights, uniforms):
        return drawn([user["rows"] for user in self.users], weights, uniforms)

    def descended(self, theta, weights, uniforms, eta, penalty):
        for step in uniforms:
            rows = self.drawn(weights, step)
            theta = stepped(theta, gradient(theta, lambda w, s=rows: loss(w, s, penalty)), eta)
        return theta

    def algorithm_2(self, group, own, uniforms):
        """With means over rows and users, which ``meta_ban`` says it takes for sums."""
        theta = self.meta
        share = {u: own[u] / sum(own[u] for u in group) for u in group}
        for step in uniforms:
            for u in group:
                rows = self.drawn({u: 1.0}, step)
                slope = gradient(
                    self.users[u]["last"], lambda w, s=rows: loss(w, s, self.penalty())
                )
                theta = stepped(theta, slope, self.eta_meta * share[u])
        return theta

    def algorithm_4(self, group, uniform):
        thetas = [self.meta]  # Theta_(0), Theta_(1), ...
        for u in group:
            for row in self.users[u]["rows"]:
                slope = gradient(self.users[u]["last"], lambda w, s=row: loss(w, [s]))
                thetas.append(stepped(thetas[-1], slope, self.eta_meta))
        return thetas[int(uniform * (len(thetas) - 1))]

    def penalty(self):
        return self.lam / self.start[-1].shape[1] ** 0.5

    def adapted(self, group, own, uniforms):
        if self.meta_gradient == "alg4":
            return self.algorithm_4(group, uniforms)
        if self.meta_gradient == "eq6":
            return self.algorithm_2(group, own, uniforms)
        weights = {u: own[u] for u in group}
        return self.descended(self.meta, weights, uniforms, self.eta_meta, self.penalty())

    def width(self, theta, x):
        slope = gradient(theta, lambda w: network(w, x))
        if self.exploration == "gradient-norm":
            return norm(slope)
        return norm(stepped(slope, gradient(self.start, lambda w: network(w, x)), 1.0))

    def choose(self, user, arms, rng):
        """Lines 5 to 13."""
        self.welcome(user)
        if adapts := self.rounds % self.adapt_every == 0:
            alg4 = self.meta_gradient == "alg4"
            uniforms = rng.random() if alg4 else rng.random((self.meta_steps, self.batch))
        own = {u: self.own_weight if u == user else 1.0 for u in range(len(self.users))}
        metas, scores = [], []
        for x in torch.from_numpy(arms):
            theta = self.adapted(self.group(user, x), own, uniforms) if adapts else self.meta
            metas.append(theta)
            scores.append(float(network(theta, x)) + self.alpha * self.width(theta, x))
        chosen = best(np.array(scores), rng)
        self.meta = metas[chosen]
        self.rounds += 1
        return chosen

    def update(self, user, x, reward, rng):
        """Lines 14 to 18 and Algorithm 3."""
        self.welcome(user)
        served = self.users[user]
        keep(served["rows"], served["mu"], self.buffer, x, reward)
        served["mu"] += 1
        uniforms = rng.random((self.user_steps, self.batch))
        start = self.meta if self.user_start == "meta" else served["last"]
        served["last"] = self.descended(start, {user: 1.0}, uniforms, self.eta_user, 0.0)
        if self.theta == "last" or rng.random() < 1 / (served["mu"] + 1):
            served["theta"] = served["last"]
