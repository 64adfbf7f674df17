"""A stream of frames, as its server sees it: what is sent when, and who is heard how patiently."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import grpc

from engram.link.frames import BadFrame, Frame, unpack

_Code = grpc.StatusCode
_Context = Any  # grpc.aio.ServicerContext, which has no types
_STRIKES: Final = 50  # words without use after which a node is cut off


class Ended(Exception):
    """A session is to end, with a status and a reason."""


class Session:
    """One end's stream of frames; what is to be sent is made when its turn comes.

    Attributes:
        strikes: Words without use that it has heard since the last one of use.
        at: What the other end is at work on.
    """

    def __init__(self) -> None:
        self._outbox: asyncio.Queue[Callable[[], bytes]] = asyncio.Queue()
        self.strikes, self.at = 0, ""

    def send(self, make: Callable[[], bytes]) -> None:
        """Queues a frame."""
        self._outbox.put_nowait(make)

    def end(self, code: grpc.StatusCode, reason: str) -> None:
        """Ends the session, once all that was queued before has been sent."""

        def stop() -> bytes:
            raise Ended(code, reason)

        self.send(stop)

    async def pump(self, context: _Context, hear: Callable[[Frame], None], stall: float) -> None:
        """Sends and hears, until either end ends it."""
        listening = asyncio.create_task(self._listen(context, hear))
        try:
            while True:
                frame = (await self._outbox.get())()
                await asyncio.wait_for(context.write(frame), stall)
        except Ended as ended:
            if (code := ended.args[0]) is not _Code.OK:
                await context.abort(code, ended.args[1])
        except TimeoutError:
            await context.abort(_Code.DEADLINE_EXCEEDED, "it does not read what it is sent")
        finally:
            listening.cancel()

    async def _listen(self, context: _Context, hear: Callable[[Frame], None]) -> None:
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                before = self.strikes
                hear(unpack(data))
                if self.strikes > _STRIKES:
                    raise BadFrame("it goes on saying what nobody has asked")
                if self.strikes > before:  # gRPC takes no more of it meanwhile
                    await asyncio.sleep(self.strikes / 50)
            self.end(_Code.OK, "")
        except BadFrame as error:
            self.end(_Code.INVALID_ARGUMENT, str(error))
