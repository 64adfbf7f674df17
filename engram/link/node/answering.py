"""Answers of a node's worker, within the time limits of the site's policy and the asker."""

import contextlib
import shutil
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from logging import getLogger
from threading import Event
from typing import Final

from engram.link.node.link import Answer, Task
from engram.link.node.worker import Outcome, Work, Worker, WorkerDied
from engram.settings.errors import Refused
from engram.sites.audit import ENDED, Audit
from engram.sites.policy import USUAL, Policy
from engram.wire.counters import Counters
from engram.wire.messages import TRAIN

_log = getLogger("flwr.engram")

COUNTED: Final = {
    "messages": "Messages that the node has worked on: rounds, scores, questions who is there",
    "received_bytes": "Bytes of these messages",
    "sent_bytes": "Bytes of its replies",
    "work_seconds": "Seconds of its work, from the message to the reply",
    "failures": "Messages that it has refused, or that its worker did not survive",
}

_LOOK = 0.2  # seconds between looks whether work is to end


class Answering:
    """Answers one task after another.

    Args:
        worker: Does the work.
        node: The node's number.
        policy: Reads the site's policy.
        audit: Where work that did not come to its end is noted.
        counters: Where messages are counted.
        stop: Event that ends the node.
    """

    def __init__(
        self,
        worker: Worker,
        node: int,
        *,
        policy: Callable[[], Policy],
        audit: Audit,
        counters: Counters,
        stop: Event,
    ) -> None:
        self._worker, self._node = worker, node
        self._policy, self._audit = policy, audit
        self._counters, self._stop = counters, stop

    def __call__(self, task: Task) -> Answer:
        """Returns the answer to a task; one that is cancelled has none that counts."""
        if not task.run.isdecimal():
            return Answer({}, (), "failed", f"a run must be called by a number, got {task.run!r}")
        begun = time.monotonic()
        work = Work(int(task.run), self._node, task.kind, task.contents, task.place, task.key)
        for _ in range(2):  # a worker may be killed by chance
            try:
                answer = self._awaited(self._worker.begin(work), task, begun)
                break
            except WorkerDied as died:
                _log.warning("%s", died)
                answer = Answer({}, (), "failed", str(died))
        else:
            self._note(task, answer.reason)
        self._count(task, answer, time.monotonic() - begun)
        return answer

    def _seconds(self) -> float:
        try:
            return self._policy().seconds
        except Refused:  # by which the worker refuses the message
            return USUAL.seconds

    def _awaited(self, outcome: Future[Outcome], task: Task, since: float) -> Answer:
        """Waits for an outcome, or ends the work; raises ``WorkerDied`` without one."""
        seconds = self._seconds()
        while not wait([outcome], _LOOK).done:
            now = time.monotonic()
            if self._stop.is_set():
                task.cancelled.set()
                return Answer({}, (), "failed", "the node stops")
            if now > since + seconds:
                why = f"this site's policy allows {seconds:g} s of work for a round"
                self._end(task, since, why)
                return Answer({}, (), "refused", f"{why}, which it has taken")
            if (late := now > task.until) or task.cancelled.is_set():
                why = "its round is over" if late else "nobody waits for it any more"
                self._end(task, since, why)
                task.cancelled.set()
                return Answer({}, (), "failed", "it came too late")
        content, error, reason, code = outcome.result()
        settings = {"code": code} if code else {}
        return Answer(settings, () if content is None else content, error, reason)

    def _end(self, task: Task, since: float, why: str) -> None:
        """Ends work, so that it delays nothing else."""
        seconds = time.monotonic() - since
        _log.warning("work for run %s ended after %.0f s: %s", task.run, seconds, why)
        self._worker.stop_work()
        shutil.rmtree(task.place, ignore_errors=True)  # what it has written of its reply
        self._note(task, f"after {seconds:.0f} s: {why}")

    def _note(self, task: Task, why: str) -> None:
        """Adds a line to the audit; it counts as a round if it was to train."""
        line = {"kind": ENDED, "run": int(task.run), "why": why}
        with contextlib.suppress(OSError):  # the worker says so, with the next message
            self._audit.append(line, trained=task.kind == TRAIN)

    def _count(self, task: Task, answer: Answer, seconds: float) -> None:
        received = sum(len(c) if isinstance(c, bytes) else c.size for c in task.contents)
        sent = getattr(answer.content, "size", 0)
        counts = {"messages": 1, "received_bytes": received, "sent_bytes": sent}
        counts |= {"work_seconds": seconds, "failures": float(bool(answer.error))}
        for name, count in counts.items():
            self._counters.add(name, count)
