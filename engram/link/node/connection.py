"""A node's connection to a server, with its calls; each that ends says with which status."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

import grpc

from engram.link.blobs import Blob
from engram.link.frames import CHUNK, Frame, pack, unpack
from engram.link.transport import CONNECT, DELIVER, FETCH, VERSION, Options, Patience, node_options

_Code = grpc.StatusCode
_T = TypeVar("_T")
_STATUS: Final = 10.0  # seconds until the status of a call that has ended is here
Dial = Callable[[], tuple[str, grpc.ChannelCredentials, Options]]
"""Returns where and as whom to connect, and gRPC's further options; called for each connection."""


class Lost(Exception):
    """End of a call, with its status and details."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


class Connection:
    """Connection to a server; every call that ends raises ``Lost``."""

    def __init__(self, channel: grpc.aio.Channel, stall: float) -> None:
        self._channel, self._stall = channel, stall
        self._call, self._writing = channel.stream_stream(CONNECT)(), asyncio.Lock()

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, dial: Dial, patience: Patience) -> Any:
        """Yields a connection that has said hello."""
        address, credentials, options = dial()
        options = [*node_options(patience), *options]
        async with grpc.aio.secure_channel(address, credentials, options) as channel:
            connection = cls(channel, patience.stall)
            await connection.write(pack("hello", version=VERSION))
            yield connection

    async def read(self) -> Frame | None:
        """Returns the server's next word; None if it has ended the connection."""
        data = await self._ending(self._call, self._call.read(), None)
        return None if data is grpc.aio.EOF else unpack(data)

    async def write(self, frame: bytes) -> None:
        """Sends a word to the server."""
        async with self._writing:
            await self._ending(self._call, self._call.write(frame), self._stall)

    async def fetch(self, request: bytes) -> Any:
        """Yields the chunks of a content."""
        call = self._channel.unary_stream(FETCH)(request)
        try:
            while (chunk := await self._ending(call, call.read(), self._stall)) is not grpc.aio.EOF:
                yield chunk
        finally:
            call.cancel()

    async def deliver(self, first: bytes, blob: Blob) -> None:
        """Sends the content of a reply."""
        call = self._channel.stream_stream(DELIVER)()
        try:
            await self._ending(call, call.write(first), self._stall)
            start = await self._ending(call, call.read(), self._stall)
            for chunk in blob.chunks(unpack(start).number("offset", blob.size), CHUNK):
                await self._ending(call, call.write(chunk), self._stall)
            await self._ending(call, call.done_writing(), self._stall)
            await self._ending(call, call.read(), self._stall)
        finally:
            call.cancel()

    async def _ending(self, call: Any, awaited: Any, seconds: float | None) -> Any:
        """Waits for a step of a call.

        Raises:
            Lost: The call has ended otherwise than well, or stands still.
        """
        try:
            async with asyncio.timeout(seconds):
                return await awaited
        except grpc.aio.AioRpcError as error:
            raise Lost(error.code(), str(error.details())) from error
        except (asyncio.InvalidStateError, grpc.aio.BaseError) as error:
            code = await asyncio.wait_for(call.code(), _STATUS)
            raise Lost(code, str(await call.details())) from error
        except TimeoutError as error:
            raise Lost(_Code.DEADLINE_EXCEEDED, "the connection stands still") from error
        except asyncio.CancelledError as error:  # by a channel that is closed, or for good
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise Lost(_Code.CANCELLED, "the connection was closed") from error
