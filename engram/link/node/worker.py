"""A node's worker: a process that loads the ClientApp once and answers one message after another.

It is a separate process so that a segmentation fault, or being killed for lack of memory, costs a
message its work so far, and not the node. Models pass between the two as files.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

from engram.core.machine import let_go
from engram.link.blobs import Blob
from engram.settings.errors import EngramError
from engram.settings.logs import begin_log
from engram.settings.process_starts import safe_path

_PATIENCE = 5.0  # seconds that a process may take to end
_SHARED = ["engram.link.node.fork_preload"]  # modules that forked processes have in common
_FIRST_TO_GO = "500"  # Linux's oom_score_adj, up to 1000


class WorkerDied(EngramError):
    """The worker's process ended while it was at work."""


class Work(NamedTuple):
    """A question, as far as the worker needs it.

    Attributes:
        run: The run's number.
        node: The node's number.
        kind: The message's type.
        contents: The run's config, and the message's records; large ones as files.
        place: The folder for the reply's content.
        key: What that is encrypted with.
    """

    run: int
    node: int
    kind: str
    contents: Sequence[bytes | Blob]
    place: Path
    key: bytes | None = None


class Outcome(NamedTuple):
    """The content of a reply, or an error of the link's, and its reason."""

    content: Blob | None
    error: str = ""
    reason: str = ""
    code: int = 0  # Flower's code of an error that the link has no word for


class Worker:
    """The process, started at once, and again whenever it has died.

    Args:
        node_config: The node's configuration, for the ClientApp.
        forked: Whether the process is forked from one that has loaded PyTorch, for all workers of
            this process that are, and shares its memory, until one of them writes to it.
    """

    def __init__(self, node_config: Mapping[str, Any], *, forked: bool = False) -> None:
        method = "forkserver" if forked else "spawn"
        self._context: Any = multiprocessing.get_context(method)
        self._context.set_forkserver_preload(_SHARED)
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

    def begin(self, work: Work) -> Future[Outcome]:
        """Queues a question to be answered.

        Returns:
            The ClientApp's reply or its error; raises ``WorkerDied`` if the process ended instead,
            in which case the next question gets a new process.
        """
        return self._thread.submit(self._answer, work)

    def _answer(self, work: Work) -> Outcome:
        if not self._process.is_alive():  # it died while idle
            self._restart()
        try:
            self._pipe.send(work)
            outcome: Outcome = self._pipe.recv()
        except (EOFError, OSError) as error:
            code = self._restart()
            how = signal.Signals(-code).name if code < 0 else f"status {code}"
            raise WorkerDied(f"the worker ended with {how} while it handled a message") from error
        return outcome

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


def _serve(pipe: Connection, node_config: dict[str, Any]) -> None:
    """Runs in the worker, until its node is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # sent to all processes, but meant for the node
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(OSError):  # out of memory, end the worker, not the node
        Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_GO)
    from engram.link.node.client_app import outcome_of  # noqa: PLC0415 - loads torch

    begin_log()  # in place of Flower's own log, which is there now
    while True:
        try:
            work: Work = pipe.recv()
        except EOFError:
            return
        outcome = outcome_of(work, node_config)
        pipe.send(outcome)
        asked = sum(len(c) if isinstance(c, bytes) else c.size for c in work.contents)
        let_go(asked + (outcome.content.size if outcome.content else 0))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
