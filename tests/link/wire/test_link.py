"""The link within this process: whatever ends or begins anew, every reply comes once."""

import hashlib
import shutil
import threading
from pathlib import Path

import pytest
import torch

from engram.client.disk_memory import DiskStore
from engram.link.asks import Ask, Key
from engram.link.credentials import read_node
from engram.link.frames import pack, unpack
from engram.link.node.errands import leave
from engram.link.node.link import Answer, Task
from engram.link.questions import Content
from engram.link.run import Link, status
from engram.link.server.exchange import COUNTED, Exchange
from engram.link.server.registration import remove_client
from engram.link.server.session import Session
from engram.settings.errors import Refused, RunStopped
from engram.settings.settings_files import read_settings, to_toml
from engram.wire.counters import Counters
from tests.link.wire.processes import free_port, until
from tests.link.wire.together import LARGE, NAMES, SMALL, Lab, Together, together

BOTH = pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])


# --- Asks ----------------------------------------------------------------------------------------


@BOTH
def test_rounds(lab: Lab, content: Content) -> None:
    for number in range(3):
        lab.ask(content, request=f"{number}/train")
        lab.assert_right(content)
    assert lab.worked("client-0") == 3
    until(lambda: not [*(lab.server / "runs" / lab.run).glob("replies/*")])


def test_a_question_has_several_contents(lab: Lab) -> None:
    other = Content([b"other" * 100_000])
    lab.ask(SMALL, LARGE, other, LARGE, SMALL)
    lab.assert_right(SMALL, LARGE, other, LARGE, SMALL)
    blobs = lab.server / "runs" / lab.run / "blobs"
    assert {path.name for path in blobs.iterdir()} == {LARGE.digest, other.digest}
    lab.ask(Content([b"own" * 10]), other, request="2/train")  # the other one is here already
    lab.assert_right(Content([b"own" * 10]), other)
    assert [path.name for path in blobs.iterdir()] == [other.digest]


def test_nodes_say_what_goes_wrong(
    fed: Together, lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    lab.ask(kind="refuse", names=NAMES[:1])
    lab.ask(kind="fail", names=NAMES[1:])
    lab.ask(kind="await", names=NAMES[1:], request="2/train")
    found = {(r.node, r.request): r[4:] for r in lab.link.replies(seconds=30)}
    assert found == {
        ("client-0", "1/train"): ("refused", "this site's policy allows no such thing"),
        ("client-1", "1/train"): ("failed", "RuntimeError: out of luck"),
        ("client-1", "2/train"): ("awaited", "a person has yet to approve it"),
    }
    contents = fed.folder / "client-0" / "state" / "contents"
    away = contents.rename(contents.with_name("away"))
    contents.touch()  # so that nothing can be written there, as on a full disk
    lab.ask(LARGE, names=NAMES[:1], request="3/train")
    assert lab.replies()["client-0"][4:] == ("failed", "this site's disk: Not a directory")
    assert caplog.text.count("Not a directory") == 1
    contents.unlink()
    away.rename(contents)
    lab.ask(LARGE, names=NAMES[:1], request="4/train")
    lab.assert_right(LARGE, names=NAMES[:1])


def test_a_reply_that_is_too_large_is_refused(lab: Lab) -> None:
    before = status(lab.server).counters
    lab.ask(LARGE, names=NAMES[:1], most=2**20)
    lab.ask(SMALL, names=NAMES[1:], most=100)
    found = lab.replies()
    assert {reply.error for reply in found.values()} == {"unusable"}
    assert "must have at most 1048576 bytes, got 3146228" in found["client-0"].reason
    after = status(lab.server).counters
    assert after["refused_replies"] - before["refused_replies"] == 2
    lab.ask(SMALL, request="2/train")  # and the nodes go on
    lab.assert_right(SMALL)


def test_a_round_ends_at_its_deadline(lab: Lab) -> None:
    lab.ask(SMALL, names=NAMES[:1])
    lab.ask(SMALL, names=NAMES[1:], seconds=600, within=0.5)
    found = lab.replies()
    assert [found[name].error for name in NAMES] == ["", "late"]
    lab.ask(SMALL, request="2/train")  # the node has stopped its work
    lab.assert_right(SMALL)


def test_late_replies_come_in_later_rounds(lab: Lab) -> None:
    with lab.waiting("client-1"):
        lab.ask(SMALL, names=NAMES[:1])
        lab.ask(SMALL, names=NAMES[1:], kind="wait")
        assert next(iter(lab.link.replies(seconds=30))).node == "client-0"
        assert not [*lab.link.replies(seconds=0)]
    lab.ask(SMALL, names=NAMES[:1], request="2/train")
    found = [(reply.node, reply.request) for reply in lab.link.replies(seconds=30)]
    assert sorted(found) == [("client-0", "2/train"), ("client-1", "1/train")]


def test_what_is_dropped_is_not_worked_on(lab: Lab) -> None:
    lab.ask(SMALL, seconds=600)
    until(lab.at_work)
    lab.link.drop(NAMES)
    assert lab.replies() == {}
    lab.ask(SMALL, request="2/train")
    lab.assert_right(SMALL)


def test_runs_take_turns(fed: Together, lab: Lab) -> None:
    other = fed.lab()
    with lab.waiting("client-0"):
        for number in range(3):
            lab.ask(SMALL, request=f"{number}/train", kind="wait", names=NAMES[:1])
        until(lambda: lab.worked("client-0"))
        other.ask(SMALL, names=NAMES[:1])
        until(lambda: len(fed.nodes["client-0"]._agenda._due) == 3)
    other.assert_right(SMALL, names=NAMES[:1])
    assert len([*lab.link.replies(seconds=30)]) == 3
    order = (fed.folder / "client-0" / "answered").read_text().split()[-4:]
    assert order == [lab.run, other.run, lab.run, lab.run]


def test_a_node_at_work_for_long_is_busy_for_other_runs(tmp_path: Path) -> None:
    with together(tmp_path / "fed", 1, turn=0.2) as fed:
        fed.start("server", "client-0")
        lab, other = fed.lab(), fed.lab()
        until(lambda: lab.there("client-0"))
        with lab.waiting("client-0"):
            lab.ask(SMALL, names=["client-0"], kind="wait")
            until(lambda: lab.worked("client-0"))
            other.ask(SMALL, names=["client-0"])
            found = other.replies()["client-0"]
            assert found[4:] == ("busy", f"it is at work on wait of run {lab.run}")
            assert status(lab.server).members["client-0"].at == f"wait of run {lab.run}"
        lab.assert_right(SMALL, names=["client-0"])
        other.ask(SMALL, names=["client-0"])  # to ask again is a new question
        other.assert_right(SMALL, names=["client-0"])


# --- Ends and beginnings -------------------------------------------------------------------------


def test_a_node_begins_anew_at_work(fed: Together, lab: Lab) -> None:
    lab.ask(SMALL, seconds=0.5)
    until(lab.at_work)
    fed.end("client-0")
    fed.start("client-0")
    lab.assert_right(SMALL)
    assert (lab.worked("client-0"), lab.worked("client-1")) == (2, 1)


@BOTH
def test_the_server_begins_anew_while_nodes_work(fed: Together, lab: Lab, content: Content) -> None:
    lab.ask(content, seconds=1)
    until(lab.at_work)
    fed.end("server")
    fed.start("server")
    lab.assert_right(content)
    assert (lab.worked("client-0"), lab.worked("client-1")) == (1, 1)  # nobody works twice


def test_the_server_begins_anew_when_replies_have_come(fed: Together, lab: Lab) -> None:
    lab.ask(LARGE)
    until(lambda: lab.link._inbox.qsize() == 2)  # they are here, but the server has not heard of it
    fed.end("server")
    lab.assert_right(LARGE)
    fed.start("server")
    until(lambda: not [*lab.server.glob(f"runs/{lab.run}/replies/*")])  # it hears of it now
    lab.ask(SMALL, request="2/train")
    lab.assert_right(SMALL)
    assert lab.worked("client-0") == 2


def test_a_run_that_ends_while_a_node_is_away_leaves_nothing_with_it(tmp_path: Path) -> None:
    with together(tmp_path / "fed", 1, grace=0.1) as fed:
        fed.start("server", "client-0")
        runs = [fed.lab(), fed.lab()]
        for each in runs:
            until(lambda each=each: each.there("client-0"))
            each.ask(LARGE, names=["client-0"])
            each.assert_right(LARGE, names=["client-0"])
        names = [hashlib.sha256(each.run.encode()).hexdigest()[:32] for each in runs]
        files = {name: [*fed.folder.glob(f"client-0/state/*/{name}")] for name in names}
        assert [len(each) for each in files.values()] == [2, 2]  # contents, and replies
        fed.end("client-0")
        runs[0].link.close(over=True)
        until(lambda: fed.hub._known_runs() == [runs[1].run])
        fed.start("client-0")
        until(lambda: not any(path.exists() for path in files[names[0]]))
        assert all(path.exists() for path in files[names[1]])


@BOTH
def test_a_run_begins_anew(lab: Lab, content: Content) -> None:
    """A process of a run that ends without a word is one whose link is closed, to all others."""
    lab.ask(content, seconds=0.5)
    until(lab.at_work)
    lab.link.close(over=False)
    lab.link = lab.open()  # while nodes are at work
    lab.ask(content, seconds=0.5)
    lab.assert_right(content)
    lab.link.close(over=False)
    lab.link = lab.open()  # when it had all replies, and no checkpoint yet
    lab.ask(content, seconds=0.5)
    lab.assert_right(content)
    assert (lab.worked("client-0"), lab.worked("client-1")) == (1, 1)
    other = Content([*content.parts, b"5"])
    lab.ask(other)  # the same round, of another model
    lab.assert_right(other)
    assert lab.worked("client-0") == 2


def test_a_reply_counts_with_the_memory_that_it_left(
    fed: Together, lab: Lab, tmp_path: Path
) -> None:
    """A memory is the sum of the rounds so far; one that is saved removes those of later rounds."""
    store = DiskStore(tmp_path)

    def answer(task: Task) -> Answer:
        number = int(task.request.partition("/")[0])
        before = store.load(0, before=number) or {"sum": torch.tensor(0)}
        total = before["sum"] + number
        store.save(0, {"sum": total}, server_round=number, durable=0)
        return Answer({"sum": int(total)})

    fed.end("client-0")
    fed.start("client-0", answer=answer)
    until(lab.there)
    for number in (1, 2, 3, 4):
        lab.ask(request=f"{number}/train", names=NAMES[:1], changed=False)
        until(lambda: lab.link._inbox.qsize() == 1)
        if number < 4:  # the process ends before it takes the last reply
            lab.replies()
    lab.link.close(over=False)
    lab.link = lab.open()
    for number in (3, 4, 5):  # the next one goes on from a checkpoint of round 2
        lab.ask(request=f"{number}/train", names=NAMES[:1], changed=number == 3)
        assert lab.replies()["client-0"].settings == {"sum": number * (number + 1) // 2}
    fed.end("client-0")


def test_a_process_that_goes_on_with_a_run_replaces_the_former(lab: Lab) -> None:
    former, lab.link = lab.link, lab.open()
    lab.ask(SMALL)
    lab.assert_right(SMALL)
    with pytest.raises(RunStopped, match="another process goes on with run"):
        until(lambda: former.ask([], seconds=1))


def test_a_reply_whose_run_was_dropped_comes_anew(lab: Lab) -> None:
    lab.ask(LARGE)
    until(lambda: lab.link._inbox.qsize() == 2)
    for path in (lab.server / "runs" / lab.run / "replies").glob("*/*"):
        path.unlink()  # as the server does with a run that was away for too long
    lab.assert_right(LARGE)


def test_a_damaged_reply_is_worked_on_again(fed: Together, lab: Lab) -> None:
    lab.ask(LARGE, names=NAMES[:1])
    lab.assert_right(LARGE, names=NAMES[:1])
    fed.end("client-0")
    for kept in (fed.folder / "client-0").glob(f"state/replies/*/*/*/{'?' * 64}"):
        kept.write_bytes(bytes(kept.stat().st_size))  # as a power cut does
    fed.start("client-0")
    lab.ask(LARGE, names=NAMES[:1])
    lab.assert_right(LARGE, names=NAMES[:1])
    assert lab.worked("client-0") == 2


# --- Members -------------------------------------------------------------------------------------


def test_welcome_says_what_nodes_must_know(fed: Together, lab: Lab) -> None:
    assert fed.words[-1]["version"] == 1
    path = lab.server / "federation.toml"
    settings = read_settings(path) | {"superlink": "127.0.0.1:1", "former": "127.0.0.1:2"}
    path.write_bytes(to_toml(settings))
    until(lambda: sum("127.0.0.1:1" in str(said) for said in fed.words) == 2)  # each node is told


def test_who_is_removed_or_leaves_hears_it(tmp_path: Path) -> None:
    with together(tmp_path / "fed", 3) as fed:
        fed.start("server", *NAMES, "client-2")
        lab = fed.lab()
        until(lambda: lab.there(*NAMES, "client-2"))
        lab.ask(SMALL, names=["client-2"], kind="wait")
        until(lambda: lab.worked("client-2"))
        remove_client(lab.server, "client-2")
        assert lab.replies()["client-2"].error == "gone"
        assert fed.fault("client-2") == "client-2 was removed from the federation by its operator"
        leave(read_node(lab.folder / "client-1")._replace(superlink=f"127.0.0.1:{fed.port}"))
        assert fed.fault("client-1") == "client-1 has left the federation"
        for name, why in {"client-1": "has left the federation", "client-2": "was removed"}.items():
            fed.start(name)  # once more
            assert why in fed.fault(name)
        until(lambda: [*lab.link.members()] == ["client-0"])
        lab.ask(SMALL, names=["client-2"], request="2/train")
        assert lab.replies()["client-2"].error == "gone"


def test_a_second_node_with_a_key_replaces_the_first(fed: Together, lab: Lab) -> None:
    first = fed.running.pop("client-0")
    fed.start("client-0")
    until(first.done)
    assert str(first.exception()) == "another node has connected as client-0"
    lab.ask(SMALL)
    lab.assert_right(SMALL)


# --- The server ----------------------------------------------------------------------------------


def test_a_full_disk_is_waited_for(
    lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    usage = shutil.disk_usage(lab.server)
    full = {"engram.link.server.transfers.shutil.disk_usage": lambda _: usage._replace(free=0)}
    with monkeypatch.context() as patch:
        patch.setattr(*full.popitem())
        lab.ask(LARGE, names=NAMES[:1])
        until(lambda: "disk cannot take it: 3 MiB are on their way, and 0 MiB free" in caplog.text)
    lab.assert_right(LARGE, names=NAMES[:1])
    assert lab.worked("client-0") == 1


def test_a_reply_that_waited_in_vain_says_why(tmp_path: Path) -> None:
    exchange = Exchange(tmp_path, 1000, Counters(COUNTED))
    exchange.runs["1"] = run = Session()
    contents = {"settings": {}, "ask": "train", "ms": 0, "most": 100, "contents": []}
    asked = unpack(pack("ask", node="client-0", request="1/train", **contents))
    exchange.order("1", asked, {"client-0"})
    exchange.delay(Ask.read(asked, Key("client-0", "1", "1/train"), 0.0), "the disk is full")
    exchange.end_overdue()
    reply = unpack(run._outbox.get_nowait()())
    assert (reply.text("error"), reply.text("reason")) == ("late", "the disk is full")


def test_a_folder_has_one_server_and_must_be_usable(
    fed: Together, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Together.__new__(Together)
    other.__dict__ |= fed.__dict__ | {"running": {}, "port": fed.port + 1}
    other.start("server")
    assert "another server runs in" in other.fault("server")
    with together(tmp_path / "other", 0) as other:
        (other.server / "runs").touch()
        other.start("server")
        assert f"a server cannot use {other.server}: File exists" in other.fault("server")
        (other.server / "runs").unlink()
        other.port = free_port()
        monkeypatch.setattr("engram.link.transport.SOCKET", "missing/link.sock")
        other.start("server")
        assert f"no socket can be made in {other.server}" in other.fault("server")
    lab.ask(SMALL)
    lab.assert_right(SMALL)


def test_a_port_has_one_server(fed: Together, lab: Lab, tmp_path: Path) -> None:
    assert lab.there()
    with together(tmp_path / "other", 0) as other:
        other.port = fed.port
        other.start("server")
        assert f"127.0.0.1:{fed.port} cannot be listened at" in other.fault("server")


def test_a_socket_has_a_long_path(tmp_path: Path) -> None:
    with together(tmp_path / ("a" * 120) / "fed", 1) as fed:
        fed.start("server", "client-0")
        lab = fed.lab()
        until(lambda: lab.there("client-0"))
        lab.ask(LARGE, names=["client-0"])
        lab.assert_right(LARGE, names=["client-0"])
        assert status(lab.server).runs == [lab.run]


def test_no_server_answers(tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"no server answers for .*: start it with `engram superlink"):
        status(tmp_path)


def test_a_query_waits_for_a_server_that_starts(tmp_path: Path) -> None:
    with together(tmp_path / "fed", 1) as fed:
        threading.Timer(0.3, fed.start, ["server"]).start()
        found = status(fed.server, patience=10)
        assert {name: each.there for name, each in found.members.items()} == {"client-0": False}


def test_a_run_of_another_version_is_told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engram.link.run.VERSION", 2)
    link = Link(lab.server, "999")
    with pytest.raises(RunStopped, match=r"speaks version 1 .* and this run version 2: install"):
        link.members()


def test_a_node_of_another_version_is_told(
    fed: Together, lab: Lab, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fed.end("client-0")
    monkeypatch.setattr("engram.link.node.connection.VERSION", 2)
    fed.start("client-0")
    until(lambda: "and the node version 2: install the same release" in caplog.text)
    monkeypatch.undo()
    until(lab.there)  # it tries again, until one of both is of the other's release


@pytest.mark.parametrize("grace", [0.1, 60.0])
def test_work_is_ended_that_was_given_up_while_its_node_was_away(
    tmp_path: Path, grace: float
) -> None:
    """Unless a server that has just begun cannot know yet whether its run is to come back."""
    ended, begun = threading.Event(), threading.Event()

    def answer(task: Task) -> Answer:
        begun.set()
        while not task.cancelled.wait(0.05):
            if task.kind == "wait":
                continue
            return Answer({}, [b"done"])
        ended.set()
        return Answer({})

    with together(tmp_path / "fed", 1, grace=grace) as fed:
        fed.start("server", "client-0", answer=answer)
        lab = fed.lab()
        until(lambda: lab.there("client-0"))
        lab.ask(SMALL, names=["client-0"], kind="wait")
        until(begun.is_set)
        fed.end("server")
        lab.link.close(over=False)
        fed.start("server")
        if grace < 1:
            assert ended.wait(20)
        else:
            until(lambda: status(lab.server).members["client-0"].there)
            assert not ended.wait(1)


def test_a_node_ends_its_work_with_itself(fed: Together, lab: Lab) -> None:
    ended = threading.Event()

    def answer(task: Task) -> Answer:
        if task.cancelled.wait(30):
            ended.set()
        return Answer({})

    fed.end("client-0")
    fed.start("client-0", answer=answer)
    until(lab.there)
    lab.ask(SMALL)
    until(lambda: status(lab.server).members["client-0"].at)
    fed.end("client-0")
    assert ended.wait(5)
