"""A stream of frames at the server, sent in turn, and heard patiently."""

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

import grpc

from engram.link.asks import Key
from engram.link.frames import BadFrame, Frame, unpack
from engram.link.keys import fingerprint

Hear = Callable[[Frame], None]
Ending = tuple[grpc.StatusCode, str]
Context = Any  # grpc.aio.ServicerContext, which has no types
_Code = grpc.StatusCode
_STRIKES: Final = 50  # words without use after which a node is cut off


def proven_key(context: Context) -> str:
    """Returns the fingerprint of the key that TLS has proven."""
    return fingerprint(context.auth_context()["x509_pem_cert"][0])


class Ended(Exception):
    """End of a session, with a status and a reason."""


class Session:
    """One end's stream of frames, each packed when its turn comes.

    Attributes:
        strikes: Words without use that it has heard since the last one of use.
        since: Unix time of its beginning.
        work: Name of the ask that its node is at work on.
        at: The same in words.
    """

    def __init__(self) -> None:
        self._outbox: asyncio.Queue[Callable[[], bytes]] = asyncio.Queue()
        self._queued: set[Callable[[], bytes]] = set()
        self.strikes, self.since = 0, time.time()
        self.begin(None, "")

    def begin(self, work: Key | None, at: str) -> None:
        """Notes the work of its node."""
        self.work, self.at = work, at

    def send(self, pack: Callable[[], bytes]) -> None:
        """Queues a frame."""
        self._outbox.put_nowait(pack)

    def send_once(self, pack: Callable[[], bytes]) -> None:
        """Queues a frame unless one of the same function waits."""
        if pack not in self._queued:
            self._queued.add(pack)
            self.send(pack)

    def end(self, code: grpc.StatusCode, reason: str) -> None:
        """Ends the session, once all that was queued before has been sent."""

        def stop() -> bytes:
            raise Ended(code, reason)

        self.send(stop)

    async def run(
        self, context: Context, hear: Hear, stall: float, over: Callable[[], None]
    ) -> None:
        """Sends and hears, until either end ends it; calls ``over`` before it says why."""
        try:
            code, reason = await self._pump(context, hear, stall)
        finally:
            over()
        if code is not _Code.OK:  # which one that does not read may let wait for long
            await context.abort(code, reason)

    async def _pump(self, context: Context, hear: Hear, stall: float) -> Ending:
        listening = asyncio.create_task(self._listen(context, hear))
        try:
            while True:
                pack = await self._outbox.get()
                self._queued.discard(pack)
                async with asyncio.timeout(stall):
                    await context.write(pack())
        except Ended as ended:
            code, reason = ended.args
            return code, reason
        except TimeoutError:
            return _Code.DEADLINE_EXCEEDED, "it does not read what it is sent"
        except (asyncio.InvalidStateError, grpc.aio.InternalError):
            return _Code.OK, ""  # the other end has ended the call
        finally:
            listening.cancel()

    async def _listen(self, context: Context, hear: Hear) -> None:
        try:
            while (data := await context.read()) is not grpc.aio.EOF:
                before = self.strikes
                hear(unpack(data))
                if self.strikes > _STRIKES:
                    raise BadFrame("it goes on saying what nobody has asked")
                if self.strikes > before:  # gRPC takes no more of it meanwhile
                    await asyncio.sleep(self.strikes / 50)
            self.end(_Code.OK, "")
        except (ValueError, RecursionError) as error:  # BadFrame, or what cannot be packed again
            self.end(_Code.INVALID_ARGUMENT, str(error))
        except (asyncio.InvalidStateError, grpc.aio.BaseError):
            self.end(_Code.OK, "")  # the other end has ended the call
        except Exception as error:  # a fault of ours, of which the other end must not wait
            self.end(_Code.INTERNAL, f"{type(error).__name__}: {error}")
            raise
