"""The universal ensemble's step of the server, as a guard."""

from collections.abc import Set

from engram.core.method import Method
from engram.guards.guard import Guard


def universal(radius: float, running: Set[str]) -> Guard:
    """Builds the step, in a ball of this radius; it keeps out of running statistics."""

    def method(plain: Method) -> Method:
        from engram.online.server_step import universal_step  # noqa: PLC0415 - loads numba

        return universal_step(plain, radius=radius, running=frozenset(running))

    return Guard("universal", method=method)
