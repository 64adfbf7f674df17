"""Regret of the universal ensemble and of gradient descent.

``python -m tests.evidence.online`` prints mean regrets over draws of T rounds, each T played
separately by learners that know T, and checks of the ensemble's claims.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Final, NamedTuple

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from threadpoolctl import threadpool_limits

from engram.online import loss_streams
from engram.online.descent import ogd
from engram.online.learner import Learner
from engram.online.loss_streams import LossStream
from engram.online.play import (
    Game,
    game_regrets,
    least_totals,
    play_game,
    play_stream,
    regrets,
    saddle_game,
)
from engram.online.universal import universal_ensemble

Regrets = dict[str, dict[int, float]]  # mean regret, by learner and T

HORIZONS: Final = (1000, 4000, 16_000)


STREAMS: Final[Mapping[str, Callable[[np.random.Generator, int], LossStream]]] = {
    "strongly convex": loss_streams.strongly_convex,
    "absolute": loss_streams.absolute,
    "logistic": loss_streams.logistic,
    "logistic, |a| = 2": partial(loss_streams.logistic, length=2.0),
    "random linear": loss_streams.linear,
    "fixed": loss_streams.fixed,
}


def _pair(drawn: LossStream | Game, horizon: int) -> dict[str, Learner[Any]]:
    """Returns the ensemble, and gradient descent with steps D / (G sqrt t)."""
    bound = drawn.gradient_bound
    return {
        "ensemble": universal_ensemble(
            drawn.domain, gradient_bound=bound, horizon=horizon, smoothness=drawn.smoothness
        ),
        "OGD": ogd(drawn.domain, gradient_bound=bound),
    }


def compare(
    draw: Callable[[np.random.Generator, int], LossStream], horizons: Sequence[int], seeds: int
) -> Regrets:
    """Plays the first T rounds of streams, for each T."""
    found: dict[str, dict[int, list[float]]] = {}
    for seed in range(seeds):
        stream = draw(np.random.default_rng(seed), max(horizons))
        for horizon in horizons:
            drawn, last = stream.first(horizon), np.array([horizon])
            least = least_totals(drawn, last)
            for name, learner in _pair(drawn, horizon).items():
                regret = regrets(drawn, play_stream(learner, drawn).points[:, 0], last, least)
                found.setdefault(name, {}).setdefault(horizon, []).append(float(regret[0]))
    return _means(found)


def compare_game(
    draw: Callable[[np.random.Generator], Game], horizons: Sequence[int], seeds: int
) -> Regrets:
    """Plays games of T rounds in which both players run the same learner; sums both regrets."""
    found: dict[str, dict[int, list[float]]] = {}
    for seed in range(seeds):
        game = draw(np.random.default_rng(seed))
        transposed = game.transposed()
        for horizon in horizons:
            last, others = np.array([horizon]), _pair(transposed, horizon)
            for name, learner in _pair(game, horizon).items():
                played = play_game(game, learner, others[name], horizon)
                xs, ys = (points[:, 0] for points in played)
                both = game_regrets(game, xs, ys, last) + game_regrets(transposed, ys, xs, last)
                found.setdefault(name, {}).setdefault(horizon, []).append(float(both[0]))
    return _means(found)


def _means(found: Mapping[str, Mapping[int, Sequence[float]]]) -> Regrets:
    return {name: {t: float(np.mean(r)) for t, r in of.items()} for name, of in found.items()}


class Claim(NamedTuple):
    """A bound that the ensemble should meet."""

    setting: str  # a name of ``STREAMS``, or ``bilinear game``
    what: str  # the bounded quantity, in words
    value: Callable[[Regrets], float]  # computes it from the results
    limit: float  # the largest value allowed


def _growth(late: int, early: int) -> Callable[[Regrets], float]:
    return lambda found: found["ensemble"][late] / found["ensemble"][early]


def _of_ogd(horizon: int) -> Callable[[Regrets], float]:
    return lambda found: found["ensemble"][horizon] / found["OGD"][horizon]


CLAIMS: Final = (
    Claim("strongly convex", "R(16000) / R(4000)", _growth(16_000, 4000), 1.25),
    Claim("strongly convex", "of OGD's", _of_ogd(16_000), 0.25),
    Claim("absolute", "of OGD's", _of_ogd(16_000), 0.12),
    Claim("logistic", "of OGD's", _of_ogd(16_000), 0.9),
    Claim("logistic, |a| = 2", "of OGD's", _of_ogd(16_000), 0.9),
    Claim("random linear", "of OGD's", _of_ogd(16_000), 1.4),
    Claim("random linear", "R(16000) / R(4000)", _growth(16_000, 4000), 2.3),
    Claim(
        "fixed",
        "R(16000) - R(1000)",
        lambda found: found["ensemble"][16_000] - found["ensemble"][1000],
        0.05,
    ),
    Claim("bilinear game", "R(4000) / R(1000)", _growth(4000, 1000), 1.2),
    Claim("bilinear game", "of OGD's at 4000", _of_ogd(4000), 0.15),
)


def main(draws: Annotated[int, typer.Option(min=1, help="Draws of each setting.")] = 3) -> None:
    """Prints tables."""
    title = f"regret, d = 10, mean of {draws} draws"
    table = Table("setting", "learner", *(f"T = {t}" for t in HORIZONS), title=title)
    with threadpool_limits(1):
        found = {name: compare(draw, HORIZONS, draws) for name, draw in STREAMS.items()}
        found["bilinear game"] = compare_game(saddle_game, HORIZONS[:2], draws)
    for name, learners in found.items():
        for learner, of in learners.items():
            table.add_row(name, learner, *(f"{of[t]:.3f}" for t in HORIZONS if t in of))
    claims = Table("setting", "the ensemble's regret", "measured", "at most")
    for claim in CLAIMS:
        value = claim.value(found[claim.setting])
        claims.add_row(claim.setting, claim.what, f"{value:.3f}", f"{claim.limit:g}")
    Console().print(table, claims, sep="\n")


if __name__ == "__main__":
    typer.run(main)
