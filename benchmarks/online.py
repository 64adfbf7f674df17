"""Times rounds of online learners: ``python -m benchmarks.online`` prints microseconds of a core.

``python -m tests.evidence.online`` compares regrets.
"""

import time
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.console import Console
from threadpoolctl import threadpool_limits

from benchmarks.harness import in_turns, numbers_table
from engram.arrays import Array
from engram.online.descent import ogd
from engram.online.domains import ball
from engram.online.learner import Learner
from engram.online.loss_streams import directions
from engram.online.metagrad import metagrad
from engram.online.newton import online_newton_step
from engram.online.universal import universal_ensemble
from engram.online.usc import usc

_HORIZON: Final = 16_000


def learners(dim: int, horizon: int) -> dict[str, Learner[Any]]:
    """Returns learners by name, for gradients of length 1."""
    domain = ball(dim, 1.0)
    if dim > 10:
        return {
            "ensemble without exp-concave learners": universal_ensemble(
                domain, gradient_bound=1.0, horizon=horizon, exp_concave=False
            )
        }
    return {
        "ensemble": universal_ensemble(domain, gradient_bound=1.0, horizon=horizon),
        "OGD": ogd(domain, gradient_bound=1.0),
        "ONS": online_newton_step(domain, gradient_bound=1.0, exp_concavity=1.0),
        "USC": usc(domain, gradient_bound=1.0, horizon=horizon),
        "MetaGrad": metagrad(domain, gradient_bound=1.0, horizon=horizon),
    }


def play(learner: Learner[Any], gradients: Array) -> None:
    """Acts, and observes, for each of the gradients (T, d)."""
    state = learner.init(None)
    for gradient in gradients:
        learner.act(state)
        state = learner.observe(state, gradient)


def time_rounds(dim: int, gradients: Array, *, turns: int) -> dict[str, float]:
    """Returns each learner's microseconds of a core a round: the median of turns of T rounds."""
    contenders = {
        name: lambda _, learner=learner: play(learner, gradients)
        for name, learner in learners(dim, len(gradients)).items()
    }
    ms = in_turns(contenders, turns, clock=time.thread_time)
    return {name: 1000 * each / len(gradients) for name, each in ms.items()}


def main(turns: Annotated[int, typer.Option(min=1, help="Turns of each.")] = 3) -> None:
    """Prints a table."""
    title = f"T = {_HORIZON}, random linear losses"
    table = numbers_table("learner", "d", "us of a core a round", title=title)
    with threadpool_limits(1):
        for dim in (10, 100):
            gradients = directions(np.random.default_rng(0), _HORIZON, dim)
            for name, micros in time_rounds(dim, gradients, turns=turns).items():
                table.add_row(name, str(dim), f"{micros:.0f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
