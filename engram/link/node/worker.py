"""A node's worker: a process that loads the ClientApp once and answers one message after another.

It is a separate process so that a segmentation fault, or being killed for lack of memory, costs one
message and not the node.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

from flwr.app import Error, Message

from engram.link.flower import ErrorCode, Parcel, error_instead, is_error, pack, unpack
from engram.link.node.fab import read_run_config
from engram.link.node.fleet import RunInfo
from engram.settings.errors import REFUSED, EngramError
from engram.settings.logs import begin_log
from engram.settings.process_starts import safe_path
from engram.wire.counters import Counters
from engram.wire.mapped_arrays import let_go
from engram.wire.messages import node_context

COUNTED: Final = {
    "messages": "Messages that the node has worked on: rounds, scores, questions who is there",
    "received_bytes": "Bytes of these messages",
    "sent_bytes": "Bytes of its replies",
    "work_seconds": "Seconds of its work, from the message to the reply",
    "failures": "Messages that it has refused, or that its worker did not survive",
}

_PATIENCE = 5.0  # seconds that a process may take to end
_SHARED = ["engram.link.node.fork_preload"]  # modules that forked processes have in common
_FIRST_TO_GO = "500"  # Linux's oom_score_adj, up to 1000


class WorkerDied(EngramError):
    """The worker's process ended while it was at work."""


class Work(NamedTuple):
    """A message, its run and its node's id."""

    message: Parcel
    run: RunInfo
    node_id: int


class Worker:
    """The process, started at once, and again whenever it has died.

    Args:
        node_config: The node's configuration, for the ClientApp.
        counters: Where messages are counted, if anywhere.
        forked: Whether the process is forked from one that has loaded PyTorch, for all workers of
            this process that are, and shares its memory, until one of them writes to it.
    """

    def __init__(
        self,
        node_config: Mapping[str, Any],
        counters: Counters | None = None,
        *,
        forked: bool = False,
    ) -> None:
        method = "forkserver" if forked else "spawn"
        self._context: Any = multiprocessing.get_context(method)
        self._context.set_forkserver_preload(_SHARED)
        self._counters = counters
        self._node_config = dict(node_config)
        self._thread = ThreadPoolExecutor(max_workers=1)
        self._changing = threading.Lock()  # held while the process is replaced or ended
        self._closed = False
        self._start()

    def _start(self) -> None:
        self._pipe, other = self._context.Pipe()
        args = other, self._node_config
        self._process = self._context.Process(target=_serve, args=args, daemon=True)
        with safe_path():
            self._process.start()
        other.close()

    def begin(self, work: Work) -> Future[Parcel]:
        """Queues a message to be answered.

        Returns:
            The ClientApp's reply or its error; raises ``WorkerDied`` if the process ended instead,
            in which case the next message gets a new process.
        """
        start, size = time.monotonic(), work.message.size
        done = self._thread.submit(self._answer, [work])
        if (counters := self._counters) is not None:
            done.add_done_callback(lambda reply: _count(counters, size, reply, start))
        return done

    def _answer(self, given: list[Work]) -> Parcel:
        """Answers the one message of a list, which is taken out: it may be large."""
        if not self._process.is_alive():  # it died while idle
            self._restart()
        try:
            message, *others = given.pop()
            _send(self._pipe, message, *others)
            del message
            reply: Parcel = _receive(self._pipe)[0]
        except (EOFError, OSError) as error:
            code = self._restart()
            how = signal.Signals(-code).name if code < 0 else f"status {code}"
            raise WorkerDied(f"the worker ended with {how} while it handled a message") from error
        return reply

    def _restart(self) -> int:
        """Starts another process; returns the exit status of the last one."""
        with self._changing:
            self._process.join(_PATIENCE)  # for its own exit code, if it is ending by itself
            self._kill()
            code = self._process.exitcode or 0
            if not self._closed:
                self._pipe.close()
                self._start()
        return code

    def stop_work(self) -> None:
        """Kills the process, even at work; another one takes the next message."""
        with self._changing:
            self._kill()

    def _kill(self) -> None:
        self._process.kill()
        self._process.join(_PATIENCE)

    def close(self) -> None:
        """Ends the process for good."""
        with self._changing:
            self._closed = True
            self._kill()
        self._thread.shutdown()
        self._pipe.close()


def _count(counters: Counters, size: int, reply: Future[Parcel], start: float) -> None:
    counters.add("messages")
    counters.add("received_bytes", size)
    counters.add("work_seconds", time.monotonic() - start)
    if reply.exception() is None:
        counters.add("sent_bytes", reply.result().size)
    if reply.exception() is not None or is_error(reply.result()):
        counters.add("failures")


def _serve(pipe: Connection, node_config: dict[str, Any]) -> None:
    """Runs in the worker, until its node is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes, but meant for the node
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(OSError):  # out of memory, end the worker, not the node
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
    begin_log()
    from engram.client.app import app  # noqa: PLC0415 - loads torch

    while True:
        try:
            given = [Work(*_receive(pipe))]
        except EOFError:
            return
        size = given[0].message.size
        reply = _parcel(app, given, node_config)
        size += reply.size
        _send(pipe, reply)
        del reply
        let_go(size)


def _parcel(app: Any, given: list[Work], node_config: dict[str, Any]) -> Parcel:
    """Reply to the one message of a list; it is taken out, since it may be large."""
    (parcel, run, node_id), message = given.pop(), None
    asked = error_instead(parcel, ErrorCode.UNKNOWN, "")
    try:
        run_config = read_run_config(run.project, run.overrides)
        context = node_context(run.run_id, node_id, node_config, run_config)
        message = unpack(parcel)
        del parcel
        reply = app(message, context)
    except EngramError as error:
        reply = Message(Error(REFUSED, str(error)), reply_to=message or asked)
    except Exception as error:  # reported to the server, as by Flower's own nodes
        reason = f"{type(error).__name__}: {error}"
        failed = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, reason)
        reply = Message(failed, reply_to=message or asked)
    del message
    return pack(reply)


def _send(pipe: Connection, parcel: Parcel, *others: Any) -> None:
    """Sends a parcel with others; its parts as they are, of which a pickle would be a copy."""
    pipe.send((parcel._replace(objects={}), list(parcel.objects), *others))
    for part in parcel.objects.values():
        pipe.send_bytes(part)


def _receive(pipe: Connection) -> tuple[Any, ...]:
    parcel, names, *others = pipe.recv()
    return parcel._replace(objects={name: pipe.recv_bytes() for name in names}), *others


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
