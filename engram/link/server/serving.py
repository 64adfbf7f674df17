"""The process of a federation's server."""

import asyncio
import contextlib
import signal
from pathlib import Path
from typing import Any

from engram.link.addresses import Address
from engram.link.run import status
from engram.link.server.exchange import COUNTED
from engram.link.server.hub import Server
from engram.link.server.live_files import Roll, announcements, server_credentials
from engram.settings.errors import Refused
from engram.wire.counters import Counters, serve_counters


def serve(folder: Path, at: Address, *, most_reply: int, metrics_port: int) -> None:
    """Serves a federation in this process, until it is stopped.

    Args:
        folder: The server's folder.
        at: Where it listens for nodes.
        most_reply: Most bytes of a client's reply.
        metrics_port: Port of ``/metrics`` and ``/healthz`` on the loopback interface; 0 for none.
    """
    counters = Counters(COUNTED)
    serve_counters(counters, metrics_port, lambda: _silence(folder))
    what = folder, Roll(folder), server_credentials(folder), announcements(folder)
    server = Server(*what, most_reply=most_reply, counters=counters)
    asyncio.run(serve_until_stopped(server, str(at)))


async def serve_until_stopped(server: Server, address: str) -> None:
    """Serves until the process gets SIGTERM or SIGINT."""
    serving: asyncio.Task[Any] = asyncio.create_task(server.serve(address))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await serving


def _silence(folder: Path) -> str:
    try:
        status(folder)
    except Refused as error:
        return str(error)
    return ""
