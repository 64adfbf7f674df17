"""Losses of unknown curvature (Yan, Zhao, Zhou 2023): a universal learner against special ones.

The paper has no experiments. These are streams of each kind of losses in its theorems, the
stochastically extended adversarial model (Appendix A.1), and zero-sum games (Appendix A.2).
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import numpy as np

from engram.core.arrays import Array, Ints
from engram.online import loss_streams
from engram.online.baselines import metagrad, usc
from engram.online.descent import newton_steps
from engram.online.domains import Domain
from engram.online.learner import Learner, descent_pool, vectorized
from engram.online.loss_streams import LossStream
from engram.online.play import (
    Game,
    game_regrets,
    least_totals,
    log_spaced,
    matrix_game,
    play_game,
    play_stream,
    regrets,
    saddle_game,
)
from engram.online.universal import universal_ensemble
from engram.simulations.job_pool import Progress, Row

_DRAWS: Final = 301  # key of the random stream of settings

# Factors of steps, to tune them in hindsight; 1 is the theory's.
_DESCENT: Final = tuple(2.0**k for k in range(-7, 5))
_NEWTON: Final = tuple(2.0**k for k in range(-10, 7))


class Bounds(NamedTuple):
    """A learner's knowledge in advance."""

    domain: Domain  # the set of decisions
    gradient: float  # bound of gradients, G
    smoothness: float | None  # bound of the gradients' change, L; None if there is none
    horizon: int  # T


class LearnerGrid(NamedTuple):
    """A learner, or several that differ in the scale of their steps."""

    title: str  # its name in tables
    make: Callable[[Bounds], Learner[Any]]  # builds it, with a point for each scale
    scales: tuple[float, ...] = (1.0,)  # factors of its steps


def _universal(constants: Literal["practical", "theory"], bounds: Bounds) -> Learner[Any]:
    return universal_ensemble(
        bounds.domain,
        gradient_bound=bounds.gradient,
        horizon=bounds.horizon,
        smoothness=bounds.smoothness,
        constants=constants,
    )


def _descent(bounds: Bounds) -> Learner[Any]:
    steps = np.array(_DESCENT) * bounds.domain.diameter / bounds.gradient
    size = len(_DESCENT)
    pool = descent_pool(bounds.domain, size, lambda t, v: steps / np.sqrt(t), optimistic=False)
    return vectorized(pool, bounds.domain)


def _newton(bounds: Bounds) -> Learner[Any]:
    # Steps are proportional to 1 / gamma; 1 / (8 G D) is the theory's largest gamma for any alpha.
    gammas = 1 / (8 * bounds.gradient * bounds.domain.diameter * np.array(_NEWTON))
    return vectorized(newton_steps(bounds.domain, gammas), bounds.domain)


METHODS: Final = {
    "universal": LearnerGrid("Alg.1", partial(_universal, "practical")),
    "theory": LearnerGrid("as proved", partial(_universal, "theory")),
    "ogd": LearnerGrid("OGD", _descent, _DESCENT),
    "ons": LearnerGrid("ONS", _newton, _NEWTON),
    "usc": LearnerGrid(
        "USC", lambda p: usc(p.domain, gradient_bound=p.gradient, horizon=p.horizon)
    ),
    "metagrad": LearnerGrid(
        "MetaGrad", lambda p: metagrad(p.domain, gradient_bound=p.gradient, horizon=p.horizon)
    ),
}


Curves = Callable[[LearnerGrid], list[Array]]  # regrets of a method's learners, at some rounds


class OnlineSetting(NamedTuple):
    """A stream of losses, or a game."""

    title: str  # its name in tables
    game: bool  # whether it is a game
    # Draws it for T rounds; the curves have points at the given rounds.
    begin: Callable[[np.random.Generator, int, Ints], Curves]


def _stream(title: str, draw: Callable[[np.random.Generator, int], LossStream]) -> OnlineSetting:
    def begin(rng: np.random.Generator, horizon: int, rounds: Ints) -> Curves:
        drawn = draw(rng, horizon)
        least = least_totals(drawn, rounds)
        bounds = Bounds(drawn.domain, drawn.gradient_bound, drawn.smoothness, horizon)

        def curves(method: LearnerGrid) -> list[Array]:
            points = play_stream(method.make(bounds), drawn).points
            each = range(len(method.scales))
            return [regrets(drawn, points[:, i], rounds, least) for i in each]

        return curves

    return OnlineSetting(title, False, begin)


def _game(title: str, draw: Callable[[np.random.Generator], Game], honest: bool) -> OnlineSetting:
    """Returns a game; its regret is both honest players' sum, else the first's."""

    def begin(rng: np.random.Generator, horizon: int, rounds: Ints) -> Curves:
        drawn = draw(rng)
        transposed = drawn.transposed()
        one, two = (
            Bounds(game.domain, game.gradient_bound, game.smoothness, horizon)
            for game in (drawn, transposed)
        )

        def curves(method: LearnerGrid) -> list[Array]:
            other = method.make(two) if honest else None
            xs, ys = play_game(drawn, method.make(one), other, horizon)
            found = []
            for i in range(len(method.scales)):
                regret = game_regrets(drawn, xs[:, i], ys[:, i], rounds)
                if honest:
                    regret += game_regrets(transposed, ys[:, i], xs[:, i], rounds)
                found.append(regret)
            return found

        return curves

    return OnlineSetting(title, True, begin)


def _games(name: str, draw: Callable[[np.random.Generator], Game]) -> dict[str, OnlineSetting]:
    return {
        f"{name}-honest": _game(f"{name}, honest", draw, True),
        f"{name}-dishonest": _game(f"{name}, dishonest", draw, False),
    }


NOISES: Final = (0.05, 0.1, 0.2, 0.5, 1.0)  # of the stochastically extended adversarial model

SETTINGS: Final = {
    "strongly-convex": _stream("strongly convex", loss_streams.strongly_convex),
    "logistic": _stream("logistic", loss_streams.logistic),
    "squared": _stream("squared", loss_streams.squared),
    "absolute": _stream("absolute", loss_streams.absolute),
    "linear": _stream("random linear", loss_streams.linear),
    "fixed": _stream("fixed", loss_streams.fixed),
    "drifting": _stream("drifting", loss_streams.drifting),
    **{
        f"sea-{sd:g}": _stream(f"SEA, noise {sd:g}", partial(loss_streams.drifting, noise=sd))
        for sd in NOISES
    },
    **_games("bilinear", saddle_game),
    **_games("curved", partial(saddle_game, curvature=1.0)),
    **_games("matrix", matrix_game),
}


def run_match(name: str, horizon: int, seed: int, report: Progress) -> list[Row]:
    """Draws a setting, and plays all methods in it.

    All randomness depends on the seed and the setting.

    Returns:
        A row for each method and scale: ``setting``, ``seed``, ``method``, ``scale``, ``rounds``,
        and ``errors``, the regret after each of these.
    """
    rounds = log_spaced(horizon)
    rng = np.random.default_rng([_DRAWS, seed])
    curves = SETTINGS[name].begin(rng, horizon, rounds)
    rows = []
    for done, (key, method) in enumerate(METHODS.items()):
        report(done, len(METHODS))
        for scale, curve in zip(method.scales, curves(method), strict=True):
            row = {"setting": name, "seed": seed, "method": key}
            row |= {"scale": scale, "rounds": rounds.tolist(), "errors": curve.tolist()}
            rows.append(row)
    report(len(METHODS), len(METHODS))
    return rows
