"""What the setting server-step makes of a round's merged model, and what is said of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from engram.aggregates import Aggregate
from engram.checks import require

if TYPE_CHECKING:
    from federation.experiment import Experiment

__all__ = ["check_server_step", "server_step", "server_step_notes"]


def check_server_step(e: Experiment) -> None:
    """Refuses a mix of pFedMe's that would change nothing.

    The ensemble makes the same of gradients and of their multiples.

    Raises:
        ValueError: ``server-step`` is universal, and ``server-mix`` not 1 though it is looked at.
    """
    if e.server_step == "universal" and e.algorithm == "pfedme":
        expected = "1 where server-step is universal, which no factor of updates bears on"
        require(e.server_mix == 1, "server-mix", e.server_mix, expected)


def server_step(aggregate: Aggregate, e: Experiment) -> Aggregate:
    """Returns the aggregate with the experiment's step towards what it merges."""
    if e.server_step == "replace":
        return aggregate
    from engram.online.server_step import universal_step  # noqa: PLC0415 - numba is slow to import

    return universal_step(aggregate, e.server_radius)


def server_step_notes(e: Experiment, parameters: int) -> dict[str, Any]:
    """Returns what a run's results say of its step, for a model of so many parameters.

    Empty where the merged model replaces the last one. Otherwise ``server-step``,
    ``server-radius``, and whether there are base learners for ``exp-concave`` losses.
    """
    if e.server_step == "replace":
        return {}
    from engram.online.server_step import has_exp_concave  # noqa: PLC0415 - as above

    return {
        "server-step": e.server_step,
        "server-radius": e.server_radius,
        "exp-concave": has_exp_concave(parameters),
    }
