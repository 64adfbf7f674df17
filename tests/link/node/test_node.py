"""A resident node: what it does when its server, its worker or its operator does something."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from engram.link.blobs import Blob
from engram.link.credentials import read_node
from engram.link.node import connection, errands, node
from engram.link.node.errands import greet, leave
from engram.link.node.node import only_one
from engram.link.node.refusals import Gone, KeyRefused, Unreachable
from engram.link.node.worker import Work, Worker, WorkerDied
from engram.link.records import from_contents, to_contents
from engram.link.server.live_files import Roll
from engram.link.server.registration import remove_client
from engram.settings.errors import EngramError, Refused
from engram.wire.messages import TRAIN
from engram.wire.roster import read_entry
from engram.wire.wire import CONFIG, ROSTER_QUERY
from tests.link.node.hubs import Hub, asked, question
from tests.link.wire.processes import until
from tests.support import small

STATION = {"partition-id": 0, "num-partitions": 2}
RECORDS = {CONFIG: {}}


# --- The worker ------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["alone", "forked"])
def worker(request):
    worker = Worker(STATION, forked=request.param == "forked")
    yield worker
    worker.close()


@pytest.fixture
def work(tmp_path):
    """Returns a question to a worker, which writes its reply into the test's folder."""

    def work(kind=ROSTER_QUERY, config=None):
        config = json.dumps(small().to_config()).encode() if config is None else config
        records = [b"".join(map(bytes, each.parts)) for each in to_contents(RECORDS)]
        return Work(1, 7, kind, [config, *records], tmp_path / "reply")

    return work


def answer(worker, asked):
    return worker.begin(asked).result(60)


@pytest.mark.processes
def test_a_worker_answers_as_the_client_app_does(worker, work):
    reply = answer(worker, work()).content
    found = read_entry(from_contents([reply.view()], reply.size))
    assert list(found.clients) == list(range(0, 20, 2))
    assert reply.path == work().place / reply.digest


@pytest.mark.processes
def test_what_the_client_app_refuses_or_raises_comes_back_as_an_error(worker, work):
    for kind, says in [(TRAIN, "must hold slots"), ("query.nothing", "kind must be one of")]:
        refused = answer(worker, work(kind))
        assert refused.error == "refused"
        assert says in refused.reason
    raised = answer(worker, work()._replace(contents=[]))
    assert (raised.content, raised.error) == (None, "failed")
    assert raised.reason.startswith("IndexError: ")


@pytest.mark.processes
def test_what_cannot_be_read_costs_no_worker(worker, work, tmp_path):
    for config, says in [
        (b"[" * 5000, "the run's config cannot be read: it nests too deeply"),
        (b"[1]", "the run's config must be an object of JSON, got [1]"),
        (b"1" * (2**20 + 1), "the run's config must have at most 1048576 bytes"),
    ]:
        found = answer(worker, work(config=config))
        assert (found.error, found.reason) == ("refused", says)
    found = answer(worker, work(config=Blob.write(tmp_path, [b"x" * 2**21])))
    assert found.reason == "the run's config must have at most 1048576 bytes"
    halved = work()._replace(contents=[*work().contents[:-1], work().contents[-1][:-1]])
    assert answer(worker, halved).error == "refused"
    assert worker._process.is_alive()


@pytest.mark.processes
def test_it_is_the_worker_that_ends_when_memory_does(worker, work):
    answer(worker, work())
    score = Path(f"/proc/{worker._process.pid}/oom_score_adj").read_text()
    assert int(score) > int(Path("/proc/self/oom_score_adj").read_text())


@pytest.mark.processes
def test_a_worker_that_dies_costs_one_message(worker, work):
    for number in (signal.SIGKILL, signal.SIGSEGV):
        os.kill(worker._process.pid, number)
        with pytest.raises(WorkerDied, match=f"ended with {number.name}"):
            answer(worker, work())
        assert answer(worker, work()).content


@pytest.mark.processes
def test_work_can_be_stopped_and_the_next_message_is_answered(worker, work):
    before = worker._process.pid
    os.kill(before, signal.SIGSTOP)  # as if it computed for ever
    done = worker.begin(work())
    assert not done.done()
    worker.stop_work()
    with pytest.raises(WorkerDied, match="ended with SIGKILL"):
        done.result(60)
    assert answer(worker, work()).content
    assert worker._process.pid != before


@pytest.mark.processes
def test_a_node_that_stops_does_not_wait_for_its_worker(work):
    worker = Worker(STATION)
    done = worker.begin(work())  # it is still loading
    worker.close()
    assert isinstance(done.exception(0), WorkerDied)
    assert worker._process.exitcode == -signal.SIGKILL


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
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    orphan = int(done.stdout)
    until(lambda: not Path(f"/proc/{orphan}").exists())


# --- The node --------------------------------------------------------------------------------


class FakeWorker:
    """Is never asked."""

    def __init__(self, *_, forked=False): ...

    def close(self): ...


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr(node, "Worker", FakeWorker)
    hub = Hub(tmp_path)
    hub.start()
    yield hub
    hub.stop()


def is_there(run):
    return (there := run.members().get("client-0")) is not None and there.there


@pytest.mark.processes
def test_a_node_answers_over_the_link_and_does_no_work_twice(tmp_path):
    hub = Hub(tmp_path)
    hub.start()
    try:
        with hub.node() as there, hub.run() as run:
            one = question(ROSTER_QUERY, RECORDS, request="1")
            two = question(TRAIN, RECORDS, request="2")
            entry, refused = asked(run, one, two)
            assert len(read_entry(from_contents([entry.content], 2**20)).clients) == 20
            assert (refused.error, "must hold slots" in refused.reason) == ("refused", True)
            (there.folder / "state" / "log").rename(there.folder / "state" / "before")
            (again,) = asked(run, one)
            assert bytes(again.content) == bytes(entry.content)
            assert not (there.folder / "state" / "log").exists()  # no worker had it to answer
            assert (there.folder / "state" / "alive").exists()
        assert there.error is None
    finally:
        hub.stop()


def test_a_node_waits_for_its_superlink_and_connects_anew(hub, warnings_of_engram):
    hub.stop()
    state = hub.folder / "client-0" / "state"
    (state / "log").mkdir(parents=True)
    for name in ("ledger.head", "log/log.jsonl"):
        (state / name).write_text("x\n")
    with hub.node() as there:
        until(lambda: "does not answer" in warnings_of_engram.text)
        ledger, log, *_ = warnings_of_engram.messages
        assert f"ledger.head is not what was written; engram ledger {hub.folder}/cl" in ledger
        assert log.startswith("line 1 of the log is not what was written: see")
        for times in (1, 2):
            hub.start()
            until(
                lambda times=times: (
                    warnings_of_engram.messages.count("node 1 is connected") == times
                )
            )
            hub.stop()
            until(lambda: "connecting again" in warnings_of_engram.messages[-1])
        key = there.folder / "client.key"
        away = key.rename(there.folder / "away")
        until(lambda: "cannot be called: " in warnings_of_engram.messages[-1])
        time.sleep(1.0)  # in which it tries again
        away.rename(key)
        hub.start()
        until(lambda: warnings_of_engram.messages.count("node 1 is connected") == 3)
    assert there.error is None
    trouble = [line for line in warnings_of_engram.messages if line.endswith("; trying again")]
    assert trouble[0].startswith(f"the server at {hub.address} does not answer: ")
    assert len(trouble) <= 4  # a line a time, however often it tries
    assert f"cannot be called: {key} " in trouble[-1]


def test_a_client_that_is_removed_hears_it_whether_its_node_runs_or_begins(hub):
    with hub.node() as there, hub.run() as run:
        until(lambda: is_there(run))
        remove_client(hub.server, "0")
        until(lambda: there.ended)
    with hub.node() as again:
        until(lambda: again.ended)
    for each in (there, again):
        assert isinstance(each.error, Refused)
        assert "refuses this client's key for good, as " in str(each.error)
        assert "was removed from the federation by its operator: to take part" in str(each.error)
    with pytest.raises(Gone):
        leave(read_node(there.folder))


def test_a_client_that_leaves_has_its_node_end_and_can_do_so_again(hub, warnings_of_engram):
    with hub.node() as there, hub.run() as run:
        until(lambda: is_there(run))
        credentials = read_node(there.folder)
        assert greet(credentials).connected  # which cuts nobody off
        leave(credentials)
        assert credentials.has_left
        until(lambda: there.ended)
    assert there.error is None
    assert warnings_of_engram.messages[-1] == "this client has left the federation: its node ends"
    with pytest.raises(Refused, match="has left fed: to take part again, it needs a new key"):
        leave(credentials)
    credentials.left.unlink()  # as if the answer had been lost
    leave(credentials)
    assert credentials.has_left


def test_of_two_nodes_with_a_key_the_former_ends_and_says_so(hub, tmp_path):
    with hub.node() as former, hub.run() as run:
        until(lambda: is_there(run))
        shutil.copytree(former.folder, hub.folder / "client-9", ignore=lambda *_: ["state"])
        with hub.node(9) as newer:
            until(lambda: former.ended)
            assert not newer.ended
    assert "another node has connected as client-0. If that is not its site's" in str(former.error)


def test_a_key_that_stays_unknown_is_refused_in_the_end(hub, warnings_of_engram, monkeypatch):
    monkeypatch.setattr(KeyRefused, "patience", 0.2)
    (hub.server / "clients" / "client-0.pub").unlink()
    until(lambda: not Roll(hub.server).names())
    with hub.node() as there:
        until(lambda: there.ended)
    assert str(there.error) == (
        f"the server at {hub.address} is there, and ends this node's connections. Either its "
        "key is not registered (on the server: engram register), or something on the way breaks "
        "its connections"
    )
    assert warnings_of_engram.messages[-1].endswith(
        "ends this node's connections.; trying again for 0 s"
    )


def test_a_server_of_another_version_is_told_of(hub, monkeypatch):
    for module in (connection, errands):
        monkeypatch.setattr(module, "VERSION", 2)
    with hub.node() as there:
        until(lambda: there.ended)
    says = "speaks version 1 of Engram's link, and the node version 2: install the same release"
    assert says in str(there.error)
    with pytest.raises(EngramError, match=says):
        greet(read_node(there.folder))


def test_an_impostor_is_an_end_at_the_beginning(hub, tmp_path):
    other = Hub(tmp_path / "other")
    shutil.copy(other.folder / "client-0" / "ca.crt", hub.folder / "client-0" / "ca.crt")
    with hub.node() as there:
        until(lambda: there.ended)
    assert isinstance(there.error, Refused)
    assert "is not vouched for by" in str(there.error)


def test_an_errand_to_nobody_says_so(hub):
    hub.stop()
    for errand in (greet, leave):
        with pytest.raises(Unreachable, match="does not answer"):
            errand(read_node(hub.folder / "client-0"))
    hub.start()


def test_a_node_loads_no_torch_and_its_worker_nothing_for_tables():
    for module, heavy in (("node", {"torch"}), ("client_app", {"pandas", "scipy", "sklearn"})):
        code = (
            f"import sys, engram.link.node.{module}\nsys.exit(bool({heavy} & sys.modules.keys()))"
        )
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


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
