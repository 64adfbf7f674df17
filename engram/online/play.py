"""Plays learners against streams of losses and in zero-sum games, and computes regret.

Games are bilinear or strongly convex-concave (Appendix A.2). The payoff is
f(x, y) = m |x|^2 / 2 + <b, x> + x'Ay - <c, y> - m |y|^2 / 2; the player of x minimizes it, the
player of y maximizes it. For the player of y it is a game of the same form with payoff -f, so
everything is written for x.
"""

from typing import Any, NamedTuple, Self

import numpy as np

from engram.core.arrays import Array, Ints
from engram.core.checks import require
from engram.online.domains import Domain, ball, simplex
from engram.online.learner import Learner
from engram.online.loss_streams import LossStream, directions
from engram.online.steps import BALL


class Game(NamedTuple):
    """A game, seen by the player of x.

    Attributes:
        domain: Domain of x, of dimension d: a ball or a simplex.
        other: Domain of y, of dimension e.
        matrix: A, shape (d, e).
        linear: b, shape (d,).
        other_linear: c, shape (e,).
        curvature: m >= 0; 0 for a bilinear game.
        gradient_bound: Upper bound G on the norm of gradients of f, in x or in y.
    """

    domain: Domain
    other: Domain
    matrix: Array
    linear: Array
    other_linear: Array
    curvature: float
    gradient_bound: float

    @property
    def smoothness(self) -> float:
        """L, the Lipschitz constant of the gradient in (x, y)."""
        return float(np.hypot(self.curvature, np.linalg.norm(self.matrix, 2)))

    def transposed(self) -> Self:
        """Returns the game seen by the player of y."""
        return self._replace(
            domain=self.other,
            other=self.domain,
            matrix=-self.matrix.T,
            linear=self.other_linear,
            other_linear=self.linear,
        )

    def gradient(self, x: Array, y: Array) -> Array:
        """Returns the gradients of f in x for n pairs (x, y), shape (n, d)."""
        return self.curvature * x + self.linear + y @ self.matrix.T

    def losses(self, x: Array, y: Array) -> Array:
        """Returns f without the terms in y alone for n pairs (x, y), shape (n,)."""
        linear = self.linear + y @ self.matrix.T
        return np.asarray(np.einsum("nd,nd->n", linear + self.curvature / 2 * x, x))

    def best_response(self, y: Array) -> Array:
        """Returns the x that minimizes f(x, y) for each of n y, shape (n, d).

        For the mean of many y it is the best fixed x against all of them.
        """
        linear = self.linear + y @ self.matrix.T
        if self.curvature > 0:
            return np.stack([self.domain.project(-each / self.curvature) for each in linear])
        if self.domain.kind == BALL:
            lengths = np.linalg.norm(linear, axis=1, keepdims=True)
            uphill = linear / np.where(lengths > 0, lengths, 1.0)
            return self.domain.anchor - self.domain.size * uphill
        return np.asarray(self.domain.size * np.eye(self.domain.dim)[np.argmin(linear, axis=1)])


def saddle_game(rng: np.random.Generator, dim: int = 10, curvature: float = 0.0) -> Game:
    """Draws (x - u)'A(y - v) + m |x - u|^2 / 2 - m |y - v|^2 / 2, x and y in the unit ball.

    A's largest singular value is 1, and |u| = |v| = 1/2; (u, v) is the equilibrium. G is
    3/2 (1 + m).

    Args:
        rng: Source of randomness.
        dim: d = e.
        curvature: m >= 0.
    """
    require(curvature >= 0, "curvature", curvature, "at least 0")
    matrix = rng.standard_normal((dim, dim))
    matrix /= np.linalg.norm(matrix, 2)
    u, v = directions(rng, 2, dim) / 2
    return Game(
        ball(dim, 1.0),
        ball(dim, 1.0),
        matrix,
        linear=-matrix @ v - curvature * u,
        other_linear=matrix.T @ u - curvature * v,
        curvature=curvature,
        gradient_bound=1.5 * (1 + curvature),
    )


def matrix_game(rng: np.random.Generator, dim: int = 10) -> Game:
    """Draws x'Ay on simplices, for A with entries uniform in [-1, 1]."""
    matrix = rng.uniform(-1, 1, (dim, dim))
    zeros = np.zeros(dim)
    longest = max(np.linalg.norm(matrix, axis=axis).max() for axis in (0, 1))
    return Game(simplex(dim), simplex(dim), matrix, zeros, zeros, 0.0, float(longest))


# --- Rounds --------------------------------------------------------------------------------


class PlayedStream(NamedTuple):
    """A learner's T rounds."""

    # Points at which it queried gradients, shape (T, n, d); ``points[:, 0]`` are its decisions.
    points: Array


def play_stream(learner: Learner[Any], stream: LossStream) -> PlayedStream:
    """Plays all rounds."""
    state = learner.init(None)
    points = np.empty((stream.horizon, *learner.points(state).shape))
    for t in range(stream.horizon):
        points[t] = learner.points(state)
        state = _told(learner, state, stream.gradient(t + 1, points[t]))
    return PlayedStream(points)


def play_game(
    game: Game, learner: Learner[Any], other: Learner[Any] | None, rounds: int
) -> tuple[Array, Array]:
    """Plays a game; returns all x and y, shapes (T, n, d) and (T, n, e).

    Args:
        game: The game seen by ``learner``.
        learner: The player of x. With n points it is n players, each in a game of its own.
        other: The player of y, with n points; None: y is the best response to x.
        rounds: T >= 1.
    """
    require(rounds >= 1, "rounds", rounds, "at least 1")
    transposed = game.transposed()
    state, theirs = learner.init(None), None if other is None else other.init(None)
    count = len(learner.points(state))
    xs, ys = (np.empty((rounds, count, each.dim)) for each in (game.domain, game.other))
    for t in range(rounds):
        x = xs[t] = learner.points(state)
        y = ys[t] = transposed.best_response(x) if other is None else other.points(theirs)
        state = _told(learner, state, game.gradient(x, y))
        if other is not None:
            theirs = _told(other, theirs, transposed.gradient(y, x))
    return xs, ys


def _told(learner: Learner[Any], state: Any, gradients: Array) -> Any:
    return learner.observe(state, gradients[0] if len(gradients) == 1 else gradients)


# --- Regret --------------------------------------------------------------------------------


def log_spaced(horizon: int) -> Ints:
    """Returns rounds from 1 to T, both included, evenly spaced in the logarithm up to rounding."""
    require(horizon >= 1, "horizon", horizon, "at least 1")
    count = 1 + int(np.ceil(10 * np.log10(horizon)))
    return np.unique(np.geomspace(1, horizon, count).round().astype(np.intp))


def least_totals(stream: LossStream, rounds: Ints) -> Array:
    """Returns min_x sum_s<=t f_s(x) for each of some rounds t, shape (r,)."""
    return np.array([stream.first(int(t)).best().total for t in rounds])


def regrets(stream: LossStream, decisions: Array, rounds: Ints, least: Array) -> Array:
    """Returns sum_s<=t f_s(x_s) - min_x sum_s<=t f_s(x) for each of some rounds t, shape (r,).

    Args:
        stream: The stream that was played.
        decisions: Shape (T, d).
        rounds: t, in 1, ..., T.
        least: ``least_totals`` of them.
    """
    totals: Array = np.cumsum(stream.losses(decisions))
    return totals[rounds - 1] - least


def game_regrets(game: Game, xs: Array, ys: Array, rounds: Ints) -> Array:
    """Returns sum_s<=t f(x_s, y_s) - min_x sum_s<=t f(x, y_s) for some rounds t, shape (r,).

    Args:
        game: The game seen by the player of x; for the other's regret use ``transposed``.
        xs: Shape (T, d).
        ys: Shape (T, e).
        rounds: t, in 1, ..., T.
    """
    totals: Array = np.cumsum(game.losses(xs, ys))
    means = np.cumsum(ys, axis=0)[rounds - 1] / rounds[:, None]
    return totals[rounds - 1] - rounds * game.losses(game.best_response(means), means)
