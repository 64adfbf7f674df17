"""A resident node: what it does when its SuperLink, its worker or its operator does something."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import ConfigRecord, Message, MessageType, RecordDict

from engram.link.flower import ErrorCode, pack, unpack
from engram.link.node import node
from engram.link.node.fleet import KeyRefused, RunInfo, RunOver, Unreachable, Untrusted, Unusable
from engram.link.node.node import only_one, run_node
from engram.link.node.worker import COUNTED, Work, Worker, WorkerDied
from engram.settings.errors import REFUSED, Refused
from engram.wire.counters import Counters
from engram.wire.roster import read_entry
from engram.wire.wire import CONFIG, ROSTER_QUERY
from tests.link import messages
from tests.support import small

STATION = {"partition-id": 0, "num-partitions": 2}


def question(kind=ROSTER_QUERY):
    return messages.question(RecordDict({CONFIG: ConfigRecord({})}), kind=kind)


# --- The worker ------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["alone", "forked"])
def worker(request):
    worker = Worker(STATION, forked=request.param == "forked")
    yield worker
    worker.close()


def work(message, project=None, **settings):
    table = "".join(f"{k} = {json.dumps(v)}\n" for k, v in small(**settings).to_config().items())
    project = project or f"[tool.flwr.app.config]\n{table}"
    return Work(pack(message), RunInfo(1, project.encode(), {}), 7)


def answer(worker, asked):
    return unpack(worker.begin(asked).result(60))


@pytest.mark.processes
def test_a_worker_answers_as_the_client_app_does(worker):
    reply = answer(worker, work(question()))
    assert list(read_entry(reply.content).clients) == list(range(0, 20, 2))


@pytest.mark.processes
def test_messages_are_counted():
    counters = Counters(COUNTED)
    counted = Worker(STATION, counters)
    try:
        asked = work(question())
        replies = [counted.begin(each).result(60) for each in (asked, work(question("train")))]
    finally:
        counted.close()
    found = {family.name: family.samples[0].value for family in counters.collect()}
    assert found.pop("engram_work_seconds") > 0
    assert found == {
        "engram_messages": 2,
        "engram_received_bytes": pytest.approx(2 * asked.message.size, rel=0.1),
        "engram_sent_bytes": sum(reply.size for reply in replies),
        "engram_failures": 1,
    }


@pytest.mark.processes
def test_what_the_client_app_refuses_or_raises_comes_back_as_an_error(worker):
    refused = answer(worker, work(question(MessageType.TRAIN)))
    assert refused.error.code == REFUSED
    assert "must hold slots" in refused.error.reason
    raised = answer(worker, work(question("query.nothing")))
    assert raised.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION


@pytest.mark.processes
def test_what_cannot_be_read_costs_no_worker(worker):
    deep = answer(worker, work(question(), project="x = " + "[" * 5000))
    assert deep.error.code == REFUSED
    assert (
        "the run's pyproject.toml cannot be read: ValueError('it nests too deeply')"
        in deep.error.reason
    )
    asked = work(question())
    halved = asked.message._replace(objects=dict(list(asked.message.objects.items())[:1]))
    raised = answer(worker, asked._replace(message=halved))
    assert raised.error.code == ErrorCode.CLIENT_APP_RAISED_EXCEPTION
    assert worker._process.is_alive()


@pytest.mark.processes
def test_it_is_the_worker_that_ends_when_memory_does(worker):
    answer(worker, work(question()))
    score = Path(f"/proc/{worker._process.pid}/oom_score_adj").read_text()
    assert int(score) > int(Path("/proc/self/oom_score_adj").read_text())


@pytest.mark.processes
def test_a_worker_that_dies_costs_one_message(worker):
    for number in (signal.SIGKILL, signal.SIGSEGV):
        os.kill(worker._process.pid, number)
        with pytest.raises(WorkerDied, match=f"ended with {number.name}"):
            answer(worker, work(question()))
        assert answer(worker, work(question())).has_content()


@pytest.mark.processes
def test_work_can_be_stopped_and_the_next_message_is_answered(worker):
    before = worker._process.pid
    os.kill(before, signal.SIGSTOP)  # as if it computed for ever
    done = worker.begin(work(question()))
    assert not done.done()
    worker.stop_work()
    with pytest.raises(WorkerDied, match="ended with SIGKILL"):
        done.result(60)
    assert answer(worker, work(question())).has_content()
    assert worker._process.pid != before


@pytest.mark.processes
def test_a_node_that_stops_does_not_wait_for_its_worker():
    worker = Worker(STATION)
    start = time.monotonic()
    done = worker.begin(work(question()))  # it is still loading
    worker.close()
    assert isinstance(done.exception(0), WorkerDied)
    assert time.monotonic() - start < 2


@pytest.mark.processes
@pytest.mark.parametrize("forked", [False, True])
def test_a_worker_ends_with_its_node(tmp_path, forked):
    script = (
        "import os\n"
        "from engram.link.node.worker import Worker\n"
        "if __name__ == '__main__':\n"
        f"    worker = Worker({{}}, forked={forked})\n"
        "    print(worker._process.pid, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    path = tmp_path / "dies.py"
    path.write_text(script)
    done = subprocess.run(
        [sys.executable, path], capture_output=True, text=True, timeout=60, check=False
    )
    orphan = int(done.stdout)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{orphan}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# --- The node --------------------------------------------------------------------------------


class FakeWorker:
    def __init__(self, *_, forked=False):
        self.dies = False

    def begin(self, work):
        done = Future()
        if self.dies:
            self.dies = False
            done.set_exception(WorkerDied("the worker ended with SIGKILL while it was at work"))
        else:
            done.set_result(pack(Message(RecordDict(), reply_to=unpack(work.message))))
        return done

    def close(self): ...


class FakeFleet:
    """Does what its script says, one entry a call of ``open`` or ``pull``; then stops the node."""

    def __init__(self, script, stop):
        self.script = script
        self.stop = stop
        self.credentials = SimpleNamespace(has_left=False, former="")
        self.opened_with = []
        self.pushed = []

    def _next(self, default):
        if not self.script:
            self.stop.set()
            return default
        entry = self.script.pop(0)
        if isinstance(entry, Exception):
            raise entry
        return entry

    def open(self, last):
        self.opened_with.append(last)
        return self._next(7)

    def pull(self):
        message = self._next(None)
        return message and (1, pack(message))

    def fetch(self, run_id, message, *, until):
        return message

    def run_info(self, run_id):
        return RunInfo(run_id, b"", {})

    def push(self, _, reply):
        self.pushed.append(unpack(reply))

    def close(self): ...


@pytest.fixture
def start(monkeypatch, tmp_path):
    """Runs a node against a script; returns the fleet that played it."""

    def start(*script, waits=None):
        stop = threading.Event()
        fleet = FakeFleet(list(script), stop)
        if waits is not None:
            monkeypatch.setattr(stop, "wait", lambda seconds: waits.append(seconds) or False)
            monkeypatch.setattr(node.time, "monotonic", lambda: sum(waits))
        monkeypatch.setattr(node, "Fleet", lambda credentials, **options: fleet)
        monkeypatch.setattr(node, "Worker", FakeWorker)
        run_node(None, tmp_path / "state", {}, stop=stop)
        return fleet

    return start


def test_answers_and_remembers_its_number(start, tmp_path):
    fleet = start(41, None, question())
    assert len(fleet.pushed) == 1
    assert fleet.opened_with == [None]
    assert start(41).opened_with == [41]
    assert (tmp_path / "state" / "alive").exists()


def test_a_damaged_number_is_no_number(start, tmp_path):
    (tmp_path / "state").mkdir()
    for text in ("{", "[]", '{"node-id": "x"}'):
        (tmp_path / "state" / "node.json").write_text(text)
        assert start(5).opened_with == [None]


def test_opens_another_session_when_one_breaks(start):
    lost, unknown = Unreachable("gone"), KeyRefused("who are you?")
    fleet = start(41, lost, 41, unknown, 42, question(), waits=[])
    assert fleet.opened_with == [None, 41, 41]
    assert len(fleet.pushed) == 1


def test_waits_grow_and_go_on_for_as_long_as_it_takes_but_for_a_key_that_stays_refused(start):
    waits = []
    start(*[Unreachable("gone")] * 14, 41, waits=waits)
    assert waits[0] < 0.4
    assert 20 < max(waits[:14]) < 40
    assert sum(waits[:14]) > 120
    waits = []
    with pytest.raises(Refused, match=r"no\. Either its key is not registered .*engram register"):
        start(*[KeyRefused("no.")] * 99, waits=waits)
    assert 25 < sum(waits) < 60


@pytest.mark.parametrize("before", [[], [41, Unreachable("gone")]])
def test_a_key_that_is_refused_for_good_is_an_end_at_once(start, before):
    gone, waits = KeyRefused("it refuses the key for good."), []
    gone.for_good = True
    with pytest.raises(Refused, match=r"it refuses the key for good\.$"):
        start(*before, gone, 41, waits=waits)
    assert sum(waits) < 2


def test_a_key_that_was_taken_for_alive_is_told_of_at_once_and_accepted_in_the_end(
    start, warnings_of_engram
):
    fleet = start(KeyRefused("no."), KeyRefused("no."), 41, question(), waits=[])
    assert len(fleet.pushed) == 1
    told = [line for line in warnings_of_engram.messages if "no." in line]
    assert told == ["no.; trying again for 25 s"]


def test_a_stranger_is_an_end_at_once_unless_it_was_a_friend_before(start):
    with pytest.raises(Refused, match="not vouched for"):
        start(Untrusted("not vouched for"), waits=[])
    fleet = start(41, Unreachable("gone"), Untrusted("who is that?"), 41, question(), waits=[])
    assert len(fleet.pushed) == 1


def test_an_odd_answer_at_the_beginning_is_no_end(start):
    fleet = start(RunOver("a proxy forbids it"), Unusable("too large"), 41, question(), waits=[])
    assert len(fleet.pushed) == 1


def test_stale_messages_and_those_of_ended_runs_are_dropped(start):
    stale = question()
    stale.metadata.created_at = time.time() - 100
    stale.metadata.ttl = 99.0
    fleet = start(41, RunOver("ended"), stale, question(), waits=[])
    assert len(fleet.pushed) == 1


def test_a_crash_of_the_worker_is_told_to_the_server(start, monkeypatch):
    monkeypatch.setattr(FakeWorker, "__init__", lambda self, *_, **__: setattr(self, "dies", True))
    fleet = start(41, question(), question())
    assert fleet.pushed[0].error.code == ErrorCode.CLIENT_APP_CRASHED
    assert "SIGKILL" in fleet.pushed[0].error.reason
    assert fleet.pushed[1].has_content()


def test_a_node_itself_does_without_torch():
    code = "import sys, engram.link.node.node; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_a_folder_is_one_nodes(tmp_path):
    with only_one(tmp_path / "state"):
        assert (tmp_path / "state").stat().st_mode & 0o077 == 0
        with pytest.raises(Refused, match="another node runs in"), only_one(tmp_path / "state"):
            pass
    with only_one(tmp_path / "state"):
        pass
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match="cannot be used"), only_one(tmp_path / "file" / "state"):
        pass
