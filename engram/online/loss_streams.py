"""Streams of losses on the unit ball, with known bounds and the best fixed decision in hindsight.

Streams are drawn beforehand, so that learners can be compared on the same one. The best decision,
the reference for regret, minimizes the total loss F on a ball by Newton's method: each step goes
towards the minimum of F's quadratic model on the ball. Since F lies above its tangent at any point,
and the tangent's minimum on the ball is known, this bounds how much better another decision can be.
"""

from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple, Self

import numpy as np
from scipy.optimize import brentq

from engram.core.arrays import Array
from engram.core.checks import require
from engram.online.domains import Domain, ball
from engram.online.losses import ABSOLUTE, LOGISTIC, NONE, SQUARED, Loss

_STEPS: Final = 100  # of Newton's method, which takes some ten
_ROUNDING: Final = 1e-13  # of a total, relative


class Total(NamedTuple):
    """A convex function F at a point x."""

    value: float  # F(x)
    gradient: Array  # the gradient at x, shape (d,)
    curvature: Array  # the Hessian at x, shape (d, d)


class Best(NamedTuple):
    """A minimizer on a ball."""

    decision: Array  # x, shape (d,)
    total: float  # F(x)
    gap: float  # the least value on the ball is at least ``total - gap``


def least_quadratic(form: Array, linear: Array, radius: float) -> Array:
    """Returns the x with |x| <= r that minimizes x'Hx / 2 - <h, x>, shape (d,).

    It is (H + nu I)^-1 h with the least nu >= 0 for which it lies in the ball, found as the root of
    a function decreasing in nu.

    Args:
        form: H, symmetric and positive semidefinite, shape (d, d).
        linear: h, shape (d,).
        radius: r > 0.
    """
    values, axes = np.linalg.eigh(form)
    values, h = np.maximum(values, 0.0), axes.T @ linear
    if not h.any():
        return np.zeros_like(linear)
    # With this nu, |x| <= |h| / nu < r, by more than rounding.
    high = (1 + 1e-12) * float(np.linalg.norm(h)) / radius

    def excess(nu: float) -> float:
        return float(np.linalg.norm(h / (values + nu))) - radius

    low = 1e-16 * high  # as good as 0, and safe where H is singular
    nu = low if excess(low) <= 0 else brentq(excess, low, high, xtol=1e-300, rtol=1e-15)
    return np.asarray(axes @ (h / (values + nu)))


def least_on_ball(total: Callable[[Array], Total], start: Array, radius: float) -> Best:
    """Minimizes a smooth convex function F where |x| <= r.

    ``start`` is in the ball, and has shape (d,).
    """
    x, here = start, total(start)
    gap = _gap(here, x, radius)
    for _ in range(_STEPS):
        slack = _ROUNDING * (1 + abs(here.value))
        if gap <= slack:
            break
        aim = here.curvature @ x - here.gradient
        towards = least_quadratic(here.curvature, aim, radius) - x
        share, falls = 1.0, float(here.gradient @ towards)
        there = total(x + towards)
        while there.value > here.value + 0.1 * share * falls + slack and share > 1e-9:
            share /= 2
            there = total(x + share * towards)
        before, gap = gap, _gap(there, x + share * towards, radius)
        if here.value - there.value <= slack and gap >= before:  # it is rounding that moves it
            gap = before
            break
        x, here = x + share * towards, there
    return Best(x, here.value, gap)


def _gap(here: Total, x: Array, radius: float) -> float:
    """Returns the depth of the tangent at x below F(x) in the ball."""
    return float(here.gradient @ x + radius * np.linalg.norm(here.gradient))


# --- Streams -------------------------------------------------------------------------------


def _rounded(width: float) -> Loss:
    """Returns sqrt((u - b)^2 + width^2), an absolute loss without its corner."""
    return Loss(
        lambda u, b: np.hypot(u - b, width),
        lambda u, b: (u - b) / np.hypot(u - b, width),
        lambda u, b: width**2 / np.hypot(u - b, width) ** 3,
        1.0,
    )


class LossStream(NamedTuple):
    """Losses f_t(x) = phi(<a_t, x>, b_t) + <c_t, x> + x'Qx / 2 of rounds t = 1, ..., T.

    Terms that do not depend on x are left out, since they do not affect regret.

    Attributes:
        domain: A ball around the origin.
        link: phi.
        rows: a, shape (T, d).
        targets: b, shape (T,).
        tilts: c, shape (T, d).
        form: Q, symmetric and positive semidefinite, shape (d, d).
        gradient_bound: Upper bound G on the norm of gradients in the domain.
        smoothness: L, the Lipschitz constant of a loss's gradient; None if there is none.
    """

    domain: Domain
    link: Loss
    rows: Array
    targets: Array
    tilts: Array
    form: Array
    gradient_bound: float
    smoothness: float | None

    @property
    def horizon(self) -> int:
        """Number of rounds T."""
        return len(self.targets)

    def first(self, rounds: int) -> Self:
        """Returns the stream of the first ``rounds`` rounds."""
        cut = slice(rounds)
        return self._replace(rows=self.rows[cut], targets=self.targets[cut], tilts=self.tilts[cut])

    def losses(self, decisions: Array) -> Array:
        """Returns f_t(x_t) for t = 1, ..., T, shape (T,).

        ``decisions`` have shape (T, d), or (d,) for the same one in all rounds.
        """
        x = np.broadcast_to(decisions, self.rows.shape)
        predictions = np.einsum("td,td->t", self.rows, x)
        others = np.einsum("td,td->t", self.tilts + x @ self.form / 2, x)
        return np.asarray(self.link.value(predictions, self.targets) + others)

    def gradient(self, t: int, points: Array) -> Array:
        """Returns the gradients of f_t, t >= 1, at points (n, d), in the same shape."""
        a = self.rows[t - 1]
        derivatives = self.link.derivative(points @ a, self.targets[t - 1])
        return np.asarray(derivatives[:, None] * a + self.tilts[t - 1] + points @ self.form)

    def best(self) -> Best:
        """Returns the fixed decision with the least total loss, with a bound on its error."""
        start, radius = np.zeros(self.domain.dim), self.domain.size
        if self.link is not ABSOLUTE:
            return least_on_ball(partial(self._total, self.link), start, radius)
        # Corners are rounded off, less and less; each solution begins where the last one is.
        now = start
        for width in 10.0 ** -np.arange(1, 8):
            rounded = least_on_ball(partial(self._total, _rounded(width)), now, radius)
            now = rounded.decision
        # The derivatives in [-1, 1] at which the rounded total was minimized are, at b, the slopes
        # of lines below |u - b|; ``lost`` is how far below they are here.
        off = np.abs(self.rows @ now - self.targets)
        lost = off - off**2 / np.hypot(off, width)
        return Best(now, float(self.losses(now).sum()), rounded.gap + float(lost.sum()))

    def _total(self, link: Loss, x: Array) -> Total:
        predictions, form = self.rows @ x, self.horizon * self.form
        straight = self.tilts.sum(axis=0)
        values = link.value(predictions, self.targets)
        second_derivatives = link.second_derivative(predictions, self.targets)
        return Total(
            float(values.sum() + straight @ x + x @ form @ x / 2),
            link.derivative(predictions, self.targets) @ self.rows + straight + form @ x,
            (self.rows.T * second_derivatives) @ self.rows + form,
        )


def directions(rng: np.random.Generator, count: int, dim: int) -> Array:
    """Draws vectors of length 1, uniformly, shape (count, d)."""
    drawn = rng.standard_normal((count, dim))
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    return drawn


def _zero(horizon: int, dim: int, bound: float, smoothness: float | None) -> LossStream:
    require(horizon >= 1, "horizon", horizon, "at least 1")
    rows, none = np.zeros((horizon, dim)), np.zeros(horizon)
    unit, form = ball(dim, 1.0), np.zeros((dim, dim))
    return LossStream(unit, NONE, rows, none, rows, form, bound, smoothness)


def strongly_convex(rng: np.random.Generator, horizon: int, dim: int = 10) -> LossStream:
    """Draws |x - z_t|^2 / 2, with z_t around a point u, |u| = 1/4.

    z_t - u has length 0.1 sqrt(d), so 0.1 per coordinate, and uniform direction. For d = 10,
    G = 1 + 1/4 + 0.316.
    """
    spread = 0.1 * np.sqrt(dim)
    z = directions(rng, 1, dim) / 4 + spread * directions(rng, horizon, dim)
    return _zero(horizon, dim, 1.25 + spread, 1.0)._replace(tilts=-z, form=np.eye(dim))


def absolute(rng: np.random.Generator, horizon: int, dim: int = 10) -> LossStream:
    """Draws |<a_t, x> - b_t|, |a_t| = 1, b_t = <a_t, u> + noise from N(0, 0.1^2), |u| = 1/2."""
    u = directions(rng, 1, dim)[0] / 2
    a = directions(rng, horizon, dim)
    b = a @ u + 0.1 * rng.standard_normal(horizon)
    return _zero(horizon, dim, 1.0, None)._replace(link=ABSOLUTE, rows=a, targets=b)


def logistic(
    rng: np.random.Generator, horizon: int, dim: int = 10, length: float | None = None
) -> LossStream:
    """Draws log(1 + exp(-b_t <a_t, x>)), b_t = 1 with probability 1 / (1 + exp(-<a_t, u>)).

    |u| = 1/2, and b_t is -1 otherwise.

    Args:
        rng: Source of randomness.
        horizon: T >= 1.
        dim: d.
        length: |a_t|; sqrt(d), as for standardized rows, if None.
    """
    length = float(np.sqrt(dim)) if length is None else length
    u = directions(rng, 1, dim)[0] / 2
    a = length * directions(rng, horizon, dim)
    b = np.where(rng.random(horizon) < 1 / (1 + np.exp(-a @ u)), 1.0, -1.0)
    return _zero(horizon, dim, length, length**2 / 4)._replace(link=LOGISTIC, rows=a, targets=b)


def squared(rng: np.random.Generator, horizon: int, dim: int = 10) -> LossStream:
    """Draws (<a_t, x> - b_t)^2 / 2, |a_t| = 1, b_t = <a_t, u> + noise in [-0.3, 0.3], |u| = 1/2."""
    u = directions(rng, 1, dim)[0] / 2
    a = directions(rng, horizon, dim)
    b = a @ u + rng.uniform(-0.3, 0.3, horizon)
    return _zero(horizon, dim, 1.8, 1.0)._replace(link=SQUARED, rows=a, targets=b)


def linear(rng: np.random.Generator, horizon: int, dim: int = 10) -> LossStream:
    """Draws <c_t, x>, |c_t| = 1, of uniform direction: any learner's regret is of order sqrt(T)."""
    return _zero(horizon, dim, 1.0, None)._replace(tilts=directions(rng, horizon, dim))


def fixed(rng: np.random.Generator, horizon: int, dim: int = 10) -> LossStream:
    """Draws one loss (x - u)'Q(x - u) / 2 for all rounds, so that V_T = 0.

    |u| = 1/2, and Q has eigenvalues from 0.01 to 1.
    """
    u = directions(rng, 1, dim)[0] / 2
    axes = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    form = (axes * np.geomspace(0.01, 1, dim)) @ axes.T
    form = (form + form.T) / 2
    return _zero(horizon, dim, 1.5, 1.0)._replace(tilts=np.tile(-form @ u, (horizon, 1)), form=form)


def drifting(
    rng: np.random.Generator, horizon: int, dim: int = 10, noise: float = 0.0
) -> LossStream:
    """Draws <a_t, x - u>^2 / 2 + <c_t, x>, where a_t turns slowly, |a_t| = 1, |u| = 1/2.

    Pairs of a's coordinates move in circles, with periods of 200 to 2000 rounds. So V_T is small,
    and u is the best decision in all rounds. With noise it is the stochastically extended
    adversarial model (Appendix A.1): the expected loss drifts, sigma^2_1:T = T noise^2.

    Args:
        rng: Source of randomness.
        horizon: T >= 1.
        dim: d, even.
        noise: |c_t|, >= 0; the directions of c_t are uniform.
    """
    require(dim % 2 == 0, "dim", dim, "even")
    require(noise >= 0, "noise", noise, "at least 0")
    u = directions(rng, 1, dim)[0] / 2
    turns = np.arange(horizon)[:, None] / np.geomspace(200, 2000, dim // 2)
    angles = 2 * np.pi * (turns + rng.random(dim // 2))
    a = np.hstack([np.cos(angles), np.sin(angles)]) / np.sqrt(dim // 2)
    c = noise * directions(rng, horizon, dim)
    empty = _zero(horizon, dim, 1.5 + noise, 1.0)
    return empty._replace(link=SQUARED, rows=a, targets=a @ u, tilts=c)
