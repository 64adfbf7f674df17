"""The SuperLink's time, sent to nodes so that a wrong clock is noticed."""

from collections.abc import Callable
from typing import Any

from engram.guards.clock import TIME, now
from engram.link.announcement import Metadata
from engram.link.flower import PUBLIC_KEY_HEADER


class Dated:
    """Flower's authentication of nodes, with the time in every answer.

    A node's calls are signed together with its time, and Flower refuses those whose time is not
    its own, without saying what its own is.
    """

    def __init__(
        self,
        authentication: Any,
        announced: Callable[[str, bytes], Metadata] = lambda call, key: (),
    ) -> None:
        self._authentication = authentication
        self._announced = announced

    def intercept_service(self, continuation: Any, details: Any) -> Any:
        """Returns a call's handler, as gRPC asks an interceptor for it."""
        handler = self._authentication.intercept_service(continuation, details)
        if handler is None or handler.unary_unary is None:
            return handler

        def answer(request: Any, context: Any) -> Any:
            key = dict(details.invocation_metadata or ()).get(PUBLIC_KEY_HEADER, b"")
            told = self._announced(details.method, key)
            context.set_trailing_metadata(((TIME, now().isoformat()), *told))
            return handler.unary_unary(request, context)

        return handler._replace(unary_unary=answer)
