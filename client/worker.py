"""A node's worker: a process that loads the ClientApp once and answers one message after another.

It is a process of its own so that whatever happens in it, a segmentation fault or a process killed
for want of memory, costs one message and not the node.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from flwr.app import Error, Message

from federation.errors import EngramError
from federation.flower import ErrorCode, Parcel, node_context, pack, unpack

__all__ = ["Work", "Worker", "WorkerDied"]


_LOOK = 0.2  # seconds between looks at whether the node is to stop


class WorkerDied(EngramError):
    """The worker's process ended while it was at work."""


class Work(NamedTuple):
    """A message, and what its run and its node are.

    Attributes:
        message: The message.
        run_id: Its run's number.
        run_config: Its run's settings.
        node_id: The node's number.
    """

    message: Parcel
    run_id: int
    run_config: Mapping[str, Any]
    node_id: int


class Worker:
    """The process, started at once and again whenever it has died.

    Args:
        node_config: What the ClientApp is told of the node that it runs on.
    """

    def __init__(self, node_config: Mapping[str, Any]) -> None:
        self._node_config = dict(node_config)
        self._start()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipe, other = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(other, self._node_config), daemon=True)
        self._process.start()
        other.close()

    def answer(self, work: Work, stop: threading.Event) -> Parcel | None:
        """Returns the ClientApp's reply, or one that carries its error.

        Args:
            work: The message.
            stop: If it is set meanwhile, the answer is not waited for, and None is returned.

        Raises:
            WorkerDied: The process ended instead. The next message finds a new one.
        """
        if not self._process.is_alive():  # it died with nothing to do
            self._restart()
        try:
            self._pipe.send(work)
            while not self._pipe.poll(_LOOK):
                if stop.is_set():
                    return None
            reply: Parcel = self._pipe.recv()
        except (EOFError, OSError) as error:
            code = self._restart()
            how = signal.Signals(-code).name if code < 0 else f"status {code}"
            raise WorkerDied(f"the worker ended with {how} while it handled a message") from error
        return reply

    def _restart(self) -> int:
        """Starts another process; returns the exit status of the last one."""
        self._process.join()
        self._pipe.close()
        code = self._process.exitcode or 0
        self._start()
        return code

    def close(self) -> None:
        """Ends the process, whatever it is at."""
        self._process.kill()
        self._process.join()
        self._pipe.close()


def _serve(pipe: Connection, node_config: dict[str, Any]) -> None:
    """Runs in the worker, until its node is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # Ctrl-C, and what a supervisor sends to all,
        signal.signal(number, signal.SIG_IGN)  # are for the node
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # PLC0415: what the node itself can do without, and seconds to load.
    from client.app import app  # noqa: PLC0415

    while True:
        try:
            work: Work = pipe.recv()
        except EOFError:
            return
        message = unpack(work.message)
        context = node_context(work.run_id, work.node_id, node_config, dict(work.run_config))
        try:
            reply = app(message, context)
        except Exception as error:  # the server's to judge, as with Flower's own nodes
            reason = f"{type(error).__name__}: {error}"
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason), reply_to=message)
        pipe.send(pack(reply))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
