"""Limits of nodes' calls over HTTP, before their bodies are read.

Flower from 1.40 on serves nodes at the port of its Control API. It reads a call's body whole, of
any size, before it looks who sent it.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from engram.settings.errors import REFUSED

FLEET: Final = "/v1/fleet/"
"""The beginning of the paths that nodes call; all others are the server's own user's."""


class HttpFleet:
    """A SuperLink's app with calls of bounded size, from known nodes.

    Args:
        app: The app, by ASGI.
        sender_fault: Returns, of a call's headers, why no node can have sent it; "" if one can.
        most: Most bytes of a body.
    """

    def __init__(
        self, app: Any, sender_fault: Callable[[Mapping[str, str]], str], most: int
    ) -> None:
        self._app = app
        self._sender_fault = sender_fault
        self._most = most

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Passes a call on, or answers it by itself."""
        if scope["type"] != "http" or not scope["path"].startswith(FLEET):
            await self._app(scope, receive, send)
            return
        headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        if fault := await asyncio.to_thread(self._sender_fault, headers):
            reason = f"only a node of this SuperLink may call it: {fault}"
            await refuse(send, 401, code=REFUSED, detail=reason)
            return
        body = None if _length(headers) > self._most else await _read(receive, self._most)
        if body is None:
            reason = f"a call must have at most {self._most} bytes, and has more"
            await refuse(send, 413, code=REFUSED, detail=reason)
            return
        await self._app(scope, _replayed(body, receive), send)


async def refuse(send: Any, status: int, **answer: int | str) -> None:
    """Answers a call in the form from which Flower's programs show the ``detail``."""
    headers = [(b"content-type", b"application/json"), (b"connection", b"close")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(answer).encode()})


def _length(headers: Mapping[str, str]) -> int:
    """Declared bytes of a call's body; 0 if none are declared."""
    said = headers.get("content-length", "")
    return int(said) if said.isdecimal() else 0


async def _read(receive: Any, most: int) -> bytes | None:
    """Reads a body; returns None once it has more than ``most`` bytes, or its sender has gone."""
    body, more = bytearray(), True
    while more:
        event = await receive()
        body += event.get("body", b"")
        more = event.get("more_body", False)
        if event["type"] == "http.disconnect" or len(body) > most:
            return None
    return bytes(body)


def _replayed(body: bytes, receive: Any) -> Callable[[], Awaitable[Any]]:
    """Gives an app a body that was read before, and then the rest of the connection."""
    left = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Any:
        return left.pop() if left else await receive()

    return again
