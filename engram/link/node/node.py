"""A resident node, which stays connected to a server and answers its questions, for months."""

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any, Final

from engram.core.machine import available, keep_freed
from engram.link.credentials import NodeCredentials
from engram.link.node.answering import COUNTED, Answering
from engram.link.node.connection import Lost
from engram.link.node.link import Node
from engram.link.node.refusals import Failure, explain
from engram.link.node.superlink_address import Way
from engram.link.node.worker import Worker
from engram.settings.errors import EngramError, Refused
from engram.settings.files import locked, sweep
from engram.sites.policy import keep_policy
from engram.sites.record_faults import open_log
from engram.wire.counters import Counters, beat, serve_counters
from engram.wire.counters import silence as silent_for

_log = getLogger("flwr.engram")

_KEPT: Final = 2**23  # bytes of freed memory that a node keeps
_SHARE: Final = 8  # a question may have 1/8 of the free memory
_ALIVE: Final = "alive"  # is touched whenever it hears of its server
_LOOK: Final = 0.2  # seconds between looks whether a node is to stop


def run_node(
    credentials: NodeCredentials,
    state: Path,
    node_config: Mapping[str, Any],
    *,
    key: bytes | None = None,
    max_message: int = 0,
    metrics_port: int = 0,
    forked: bool = False,
    stop: threading.Event,
) -> None:
    """Answers questions until it is stopped.

    Args:
        credentials: The server's address, and the node's identity.
        state: Folder of the node's persistent state: its replies, and its clients' memories.
        node_config: The node's configuration, for its ClientApp.
        key: What the contents of questions and replies are encrypted with on the disk.
        max_message: Most bytes of a question; 0 for an eighth of the free memory.
        metrics_port: Port of ``/metrics`` and ``/healthz`` on the loopback interface; 0 for none.
        forked: As for ``Worker``.
        stop: Event that ends the node.

    Raises:
        Refused: Another node uses the folder or the key, the server does not know the key, or
            refuses it for good, or at the beginning its certificate failed its verification, or it
            speaks another version of the link.
    """
    keep_freed(_KEPT, largest=_KEPT // 2)  # the parts of large contents, a MiB each, come and go
    with only_one(state):
        sweep(state)
        place = Path(node_config["policy"]) if "policy" in node_config else None
        policy = partial(keep_policy, place, state)
        policy()  # whatever becomes of its file before the first question
        counters = Counters(COUNTED)
        serve_counters(counters, metrics_port, lambda: silence(state))
        way, number = Way(credentials), credentials.partition_id + 1
        reception, alive = _Reception(way, number), partial(beat, state / _ALIVE)
        worker = Worker(node_config, forked=forked)
        try:
            audit = open_log(credentials.public_key.parent, state)
            answer = Answering(
                worker, number, policy=policy, audit=audit, counters=counters, stop=stop
            )
            node = Node(
                way.dial,
                state,
                answer,
                reception.lost,
                key=key,
                most=max_message or available("cpu") // _SHARE,
                welcomed=reception.welcomed,
                on_word=alive,
            )
            asyncio.run_coroutine_threadsafe(_serve(node, stop), _loop()).result()
        except _HasLeft:
            _log.info("this client has left the federation: its node ends")
        finally:
            worker.close()


@contextmanager
def only_one(state: Path) -> Iterator[None]:
    """Locks the folder, and so its clients' memories, against other processes."""
    with ExitStack() as stack:
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(locked(state / "lock"))
        except BlockingIOError as error:
            raise Refused(
                f"another node runs in {state}: stop it first; two nodes need a client each"
            ) from error
        except OSError as error:
            raise Refused(f"the node's folder {state} cannot be used: {error.strerror}") from error
        yield


_starting = threading.Lock()
_loops: Final[list[asyncio.AbstractEventLoop]] = []


def _loop() -> asyncio.AbstractEventLoop:
    """Event loop of all nodes of this process: gRPC works with one alone."""
    with _starting:
        if not _loops:
            _loops.append(asyncio.new_event_loop())
            threading.Thread(target=_loops[0].run_forever, daemon=True).start()
        return _loops[0]


async def _serve(node: Node, stop: threading.Event) -> None:
    serving = asyncio.create_task(node.serve())
    while not stop.is_set() and not serving.done():
        await asyncio.wait([serving], timeout=_LOOK)
    serving.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await serving


class _HasLeft(EngramError):
    """The client's site has given its key up."""


class _Reception:
    """Reactions of a node to how a server receives it.

    Args:
        way: The way to the server.
        number: The node's number.
    """

    def __init__(self, way: Way, number: int) -> None:
        self._way, self._number = way, number
        self._known = self._connected = False  # ever; now
        self._refused = math.inf  # since when
        self._told: type[EngramError] | None = None

    def welcomed(self, told: Mapping[str, Any]) -> None:
        """Notes a word of welcome; the first one of a connection is logged."""
        announced = told.get("announcements")
        self._way.hear(announced if isinstance(announced, dict) else {})
        if not self._connected:
            _log.info("node %d is connected", self._number)
        self._known = self._connected = True
        self._refused, self._told = math.inf, None

    def lost(self, how: Lost) -> None:
        """Logs why there is no connection.

        Raises:
            Refused: There is to be none any more.
            _HasLeft: The client's site has given its key up.
        """
        before, self._connected = self._connected, False
        error = explain(self._way, how.code, str(how), was_connected=before)
        self._end(error)
        if before or (error.repeated and self._known):
            _log.warning("%s; connecting again", error)
        elif self._told is not type(error):
            self._told = type(error)
            wait = f" for {error.patience:.0f} s" if 0 < error.patience < math.inf else ""
            _log.warning("%s; trying again%s", error, wait)

    def _end(self, error: Failure) -> None:
        """Raises an error that ends the node, if this one does."""
        if error.left:
            raise _HasLeft from error
        if error.final:
            raise Refused(str(error)) from error
        if self._known or error.patience == math.inf:
            return
        self._refused = min(self._refused, time.monotonic())
        if time.monotonic() - self._refused >= error.patience:
            raise Refused(f"{error}{error.causes}") from error


def silence(state: Path) -> str:
    """Line on a server's silence, if it is too long; "" if not."""
    return silent_for(state / _ALIVE, "nothing heard of the server")


def run_together(nodes: Mapping[str, Callable[[], None]]) -> None:
    """Runs nodes until all have ended; one that ends by an error leaves the others alone.

    Args:
        nodes: By name, what runs each until it is stopped.

    Raises:
        BaseException: The error of the node that was the first to end by one.
    """
    with ThreadPoolExecutor(len(nodes)) as threads:
        running = {threads.submit(run): name for name, run in nodes.items()}
        errors = []
        while running:
            # It wakes by itself: a signal that another thread gets does not wake this one, which
            # alone handles it.
            for node in wait(running, _LOOK, FIRST_COMPLETED).done:
                name = running.pop(node)
                if error := node.exception():
                    errors.append(error)
                    if len(nodes) > 1:  # else its caller says it at once
                        _log.error("%s has ended: %s", name, error)
    if errors:
        raise errors[0]
