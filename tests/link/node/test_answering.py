"""Ends of a node's work: it is done, its time is over, nobody waits for it, its worker has died."""

import math
import re
import threading
import time
from concurrent.futures import Future

import pytest

from engram.link.blobs import Blob
from engram.link.node.answering import COUNTED, Answering
from engram.link.node.link import Answer, Task
from engram.link.node.worker import Outcome, WorkerDied
from engram.settings.errors import Refused
from engram.sites.audit import Audit
from engram.sites.policy import USUAL
from engram.wire.counters import Counters


class Worker:
    """A worker that is done at once with outcomes or errors, or else works for ever."""

    def __init__(self, *results):
        self.results, self.work, self.stopped = [*results], None, 0

    def begin(self, work):
        self.work, self._done = work, Future()
        if self.results:
            result = self.results.pop(0)
            died = isinstance(result, Exception)
            (self._done.set_exception if died else self._done.set_result)(result)
        return self._done

    def stop_work(self):
        self.stopped += 1
        self._done.set_exception(WorkerDied("killed"))


@pytest.fixture
def node(tmp_path):
    """Makes an Answering of a worker, with its audit, counters and stop event."""

    def node(worker, seconds=1e9):
        def policy():
            if seconds is None:
                raise Refused("the policy cannot be read")
            return USUAL.model_copy(update={"seconds": seconds})

        audit, counters, stop = Audit(tmp_path / "log"), Counters(COUNTED), threading.Event()
        made = Answering(worker, 3, policy=policy, audit=audit, counters=counters, stop=stop)
        return made, audit, counters, stop

    return node


def task(tmp_path, **change):
    place = tmp_path / "place"
    place.mkdir(exist_ok=True)
    usual = Task(
        "17", "3/train", "train", {}, [b"{}", b"abc"], math.inf, 99, place, threading.Event()
    )
    return usual._replace(**change)


def lines(audit):
    """Returns the lines of an audit, without the seconds of work."""
    found = audit.read().lines
    return [(x["run"], re.sub(r"\d+ s:", "N s:", x["why"]), x["today"]) for x in found]


def test_a_worker_s_outcome_is_the_answer_and_is_counted(tmp_path, node):
    blob = Blob("d" * 64, 7, tmp_path / "place" / "x")
    answer, audit, counters, _ = node(worker := Worker(Outcome(blob)))
    assert answer(asked := task(tmp_path)) == Answer({}, blob)
    assert (worker.work.run, worker.work.node, worker.work.kind) == (17, 3, "train")
    refused = Outcome(None, "awaited", "waits for its site's approval")
    other, _, counted, _ = node(Worker(refused))
    assert other(asked) == Answer({}, (), "awaited", "waits for its site's approval")
    counts = counters.counts()
    assert counts.pop("work_seconds") >= 0
    assert counts == {"messages": 1, "received_bytes": 5, "sent_bytes": 7, "failures": 0}
    assert counted.counts()["failures"] == 1
    assert lines(audit) == []


def test_work_is_ended_by_the_site_s_policy_which_the_asker_is_told(tmp_path, node):
    answer, audit, _, _ = node(worker := Worker(), seconds=0.25)
    asked = task(tmp_path)
    why = "this site's policy allows 0.25 s of work for a round"
    assert answer(asked) == Answer({}, (), "refused", f"{why}, which it has taken")
    assert worker.stopped == 1
    assert not asked.cancelled.is_set()
    assert lines(audit) == [(17, f"after N s: {why}", 1)]


@pytest.mark.parametrize("late", [True, False])
def test_work_that_nobody_waits_for_is_ended_at_once(tmp_path, node, late):
    answer, audit, _, _ = node(worker := Worker())
    asked = task(tmp_path, kind="evaluate", until=time.monotonic() if late else math.inf)
    if not late:
        asked.cancelled.set()
    (asked.place / ".part").write_bytes(b"what has been written")
    answer(asked)
    assert (worker.stopped, asked.cancelled.is_set(), asked.place.exists()) == (1, True, False)
    why = "its round is over" if late else "nobody waits for it any more"
    assert lines(audit) == [(17, f"after N s: {why}", 0)]


def test_a_worker_that_dies_twice_is_told_of_and_noted(tmp_path, node):
    died = "the worker ended with SIGKILL while it handled a message"
    blob = Blob("d" * 64, 7, tmp_path / "place" / "x")
    answer, audit, counters, _ = node(Worker(WorkerDied(died), Outcome(blob)), seconds=None)
    assert answer(task(tmp_path)) == Answer({}, blob)
    assert (lines(audit), counters.counts()["failures"]) == ([], 0)
    answer, audit, _, _ = node(Worker(*[WorkerDied(died)] * 2), seconds=None)
    assert answer(task(tmp_path)) == Answer({}, (), "failed", died)
    assert lines(audit) == [(17, died, 1)]


def test_a_node_that_stops_leaves_its_work_to_its_next_start(tmp_path, node):
    answer, audit, _, stop = node(worker := Worker())
    stop.set()
    answer(asked := task(tmp_path))
    assert asked.cancelled.is_set()  # so that no reply is kept
    assert (worker.stopped, lines(audit)) == (0, [])


def test_a_run_without_a_number_is_an_error(tmp_path, node):
    answer, *_ = node(Worker())
    assert answer(task(tmp_path, run="../x")).error == "failed"
