"""The server step that the setting ``server-step`` names, as a guard."""

from collections.abc import Set
from typing import Any

from engram.core.checks import must
from engram.core.method import FromMean, Method
from engram.guards.guard import Guard
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment


def universal(e: Experiment, running: Set[str]) -> Guard:
    """Builds the guard of the universal ensemble's step; it keeps out of running statistics.

    Its ``method`` raises ``Refused`` for a server with a step of its own.
    """

    def method(plain: Method) -> Method:
        merge = plain.server.merge
        if isinstance(merge, FromMean) and merge.steps:
            expected = f"replace for {e.method}, whose server has a step of its own"
            raise Refused(must("server-step", e.server_step, expected))
        from engram.online.server_step import universal_step  # noqa: PLC0415 - loads numba

        return universal_step(plain, radius=e.server_radius, running=frozenset(running))

    return Guard("universal", method=method)


def server_step_notes(e: Experiment, parameters: int) -> dict[str, Any]:
    """Returns entries of a run's results about its server step, for so many ``parameters``.

    Empty where the merged model replaces the last one. Otherwise ``server-step``,
    ``server-radius``, and whether there are base learners for ``exp-concave`` losses.
    """
    if e.server_step == "replace":
        return {}
    from engram.online.server_step import has_exp_concave  # noqa: PLC0415 - loads numba

    return {
        "server-step": e.server_step.partition(":")[0],
        "server-radius": e.server_radius,
        "exp-concave": has_exp_concave(parameters),
    }
