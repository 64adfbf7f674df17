"""Plays learners against streams of losses and against each other, and computes regret."""

from typing import Any, NamedTuple

import numpy as np

from engram.core.arrays import Array, Ints
from engram.core.checks import require
from engram.online.games import Game
from engram.online.learner import Learner
from engram.online.loss_streams import LossStream


class PlayedStream(NamedTuple):
    """A learner's T rounds.

    Attributes:
        points: Points at which it queried gradients, shape (T, n, d); ``points[:, 0]`` are its
            decisions.
        queries: Total number of gradients.
    """

    points: Array
    queries: int


def play_stream(learner: Learner[Any], stream: LossStream) -> PlayedStream:
    """Plays all rounds."""
    state = learner.init(None)
    points = np.empty((stream.horizon, *learner.points(state).shape))
    for t in range(stream.horizon):
        points[t] = learner.points(state)
        state = _told(learner, state, stream.gradient(t + 1, points[t]))
    return PlayedStream(points, points.shape[0] * points.shape[1])


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


def log_spaced(horizon: int, per_decade: int = 10) -> Ints:
    """Returns rounds from 1 to T, both included, evenly spaced in the logarithm up to rounding."""
    require(horizon >= 1, "horizon", horizon, "at least 1")
    count = 1 + int(np.ceil(per_decade * np.log10(horizon)))
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
