"""A link of real processes on this machine: whatever is killed or cut, every reply comes once."""

import os
import signal
import socket
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from engram.link.frames import CHUNK, pack
from engram.link.questions import Question, Reply, Tensors
from engram.link.run import Link
from engram.link.transport import CONNECT, DELIVER, RUN
from tests.link.wire.cuts import Proxy
from tests.link.wire.identity import (
    Authority,
    Members,
    add_client,
    new_federation,
    node_credentials,
    request,
    write_file,
)
from tests.link.wire.processes import Federation, federation, until

SMALL = {"w": np.arange(1000, dtype=np.float32)}
LARGE = {"w": np.zeros(8 * 2**20, dtype=np.float32)}  # 32 MiB
NAMES = ["client-0", "client-1"]
_RUNS = count()


class Lab:
    """A federation of processes, which all tests use, and the link of a run of each test's own."""

    def __init__(self, fed: Federation, run: str) -> None:
        self.fed, self.run, self.server = fed, run, fed.folder / "server"
        self.link = self.open()

    def open(self) -> Link:
        """Opens a link of the same run, as a process does that goes on with it."""
        return Link(self.server, self.run)

    def there(self, name: str) -> bool:
        """Whether a node is there."""
        return name in (found := self.link.members()) and found[name].there

    def at_work(self) -> bool:
        """Whether both nodes are at work for the run."""
        return all(self.worked(name) for name in NAMES)

    def worked(self, name: str) -> int:
        """Returns how often a node has worked for the run."""
        path = self.fed.folder / name / "answered"
        return path.read_text().splitlines().count(self.run) if path.exists() else 0

    def restart(self, name: str, pause: float = 0.0) -> None:
        """Kills a process, and starts it again."""
        self.fed.kill(name)
        time.sleep(pause)
        self.fed.start(name)


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Yields a federation of two nodes."""
    folder = tmp_path_factory.mktemp("link") / "fed"
    new_federation(folder, ["127.0.0.1"], 2)
    with federation(folder, NAMES) as found:
        yield found


@pytest.fixture
def lab(fed: Federation) -> Iterator[Lab]:
    """Yields a federation whose nodes are there."""
    for name in ("server", *NAMES):
        if name not in fed.running or fed.running[name].poll() is not None:
            fed.start(name)
    found = Lab(fed, f"run-{next(_RUNS)}")
    until(lambda: all(found.there(name) for name in NAMES), 90)
    yield found
    found.link.close(over=True)


def questions(
    tensors: Tensors = SMALL,
    request: str = "1/train",
    kind: str = "train",
    names: Sequence[str] = NAMES,
    **settings: Any,
) -> list[Question]:
    """Returns a question to each of some nodes."""
    return [Question(name, request, kind, settings, tensors, most=2**27) for name in names]


def answers(link: Link, seconds: float = 90) -> dict[str, Reply]:
    """Returns the replies, each of which must come once."""
    found = list(link.replies(seconds=seconds))
    assert len({(reply.node, reply.request) for reply in found}) == len(found)
    return {reply.node: reply for reply in found}


def assert_right(found: Mapping[str, Reply], tensors: Tensors = SMALL) -> None:
    """Checks that both nodes have answered, by what they received and one."""
    assert {n: r.error + r.reason for n, r in found.items()} == dict.fromkeys(NAMES, "")
    for reply in found.values():
        assert np.array_equal(reply.tensors["w"], tensors["w"] + 1)


# --- Asks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensors", [SMALL, LARGE], ids=["small", "large"])
def test_rounds(lab: Lab, tensors: Tensors) -> None:
    for number in range(3):
        lab.link.ask(questions(tensors, f"{number}/train"), seconds=90)
        assert_right(answers(lab.link), tensors)
    assert lab.worked("client-0") == 3
    until(lambda: not [*(lab.server / "runs" / lab.run).glob("spool/*")])


def test_what_goes_wrong_at_a_node_is_told(lab: Lab) -> None:
    lab.link.ask(questions(kind="refuse", names=NAMES[:1]), seconds=60)
    lab.link.ask(questions(kind="fail", names=NAMES[1:]), seconds=60)
    found = answers(lab.link)
    assert found["client-0"][4:] == ("refused", "this site's policy allows no such thing")
    assert found["client-1"][4:] == ("failed", "RuntimeError: out of luck")


def test_a_reply_that_is_too_large_is_refused(lab: Lab) -> None:
    one, other = (question._replace(most=2**20) for question in questions(LARGE))
    lab.link.ask([one, other._replace(tensors=SMALL, most=100)], seconds=90)
    assert {reply.error for reply in answers(lab.link).values()} == {"unusable"}
    lab.link.ask(questions(request="2/train"), seconds=60)  # and the nodes go on
    assert_right(answers(lab.link))


def test_a_round_ends_at_its_deadline(lab: Lab) -> None:
    lab.link.ask(questions(names=NAMES[:1]), seconds=60)
    lab.link.ask(questions(names=NAMES[1:], seconds=600), seconds=4)
    found = answers(lab.link)
    assert [found[name].error for name in NAMES] == ["", "late"]
    lab.link.ask(questions(request="2/train"), seconds=60)  # the node has stopped its work
    assert_right(answers(lab.link))


def test_late_replies_come_in_later_rounds(lab: Lab) -> None:
    lab.link.ask(questions(names=NAMES[:1]), seconds=90)
    lab.link.ask(questions(names=NAMES[1:], seconds=8), seconds=90)
    assert answers(lab.link, seconds=4).keys() == {"client-0"}
    lab.link.ask(questions(names=NAMES[:1], request="2/train"), seconds=90)
    found = [(reply.node, reply.request) for reply in lab.link.replies(seconds=90)]
    assert sorted(found) == [("client-0", "2/train"), ("client-1", "1/train")]


def test_what_is_dropped_is_not_worked_on(lab: Lab) -> None:
    lab.link.ask(questions(seconds=600), seconds=900)
    until(lab.at_work)
    lab.link.drop(NAMES)
    assert answers(lab.link) == {}
    lab.link.ask(questions(request="2/train"), seconds=60)
    assert_right(answers(lab.link))


def test_runs_take_turns(lab: Lab) -> None:
    other = Link(lab.server, f"{lab.run}-b")
    for each in (lab.link, other):
        each.ask(questions(seconds=0.5), seconds=60)
    for each in (lab.link, other):
        assert_right(answers(each))
    other.close(over=True)


# --- Kills ---------------------------------------------------------------------------------------


def test_a_node_is_killed_at_work(lab: Lab) -> None:
    lab.link.ask(questions(seconds=3), seconds=90)
    until(lab.at_work)
    lab.restart("client-0")
    assert_right(answers(lab.link))
    assert (lab.worked("client-0"), lab.worked("client-1")) == (2, 1)


@pytest.mark.parametrize("tensors", [SMALL, LARGE], ids=["small", "large"])
def test_the_server_is_killed_while_nodes_work(lab: Lab, tensors: Tensors) -> None:
    lab.link.ask(questions(tensors, seconds=3), seconds=90)
    until(lab.at_work)
    lab.restart("server", pause=1.0)
    assert_right(answers(lab.link), tensors)
    assert (lab.worked("client-0"), lab.worked("client-1")) == (1, 1)  # nobody works twice


def test_the_server_is_killed_when_replies_have_come(lab: Lab) -> None:
    lab.link.ask(questions(), seconds=60)
    until(lambda: lab.link._inbox.qsize() == 2)  # they are here, but the server has not heard of it
    lab.restart("server")
    assert_right(answers(lab.link))
    lab.link.ask(questions(request="2/train"), seconds=60)
    assert_right(answers(lab.link))
    assert lab.worked("client-0") == 2


@pytest.mark.parametrize("tensors", [SMALL, LARGE], ids=["small", "large"])
def test_a_run_is_killed_and_goes_on(lab: Lab, tensors: Tensors) -> None:
    """A process of a run that ends without a word is one whose link is closed, to all others."""
    lab.link.ask(questions(tensors, seconds=2), seconds=90)
    until(lab.at_work)
    lab.link.close(over=False)
    lab.link = lab.open()  # while nodes are at work
    lab.link.ask(questions(tensors, seconds=2), seconds=90)
    assert_right(answers(lab.link), tensors)
    lab.link.close(over=False)
    lab.link = lab.open()  # when it had all replies, and no checkpoint yet
    lab.link.ask(questions(tensors, seconds=2), seconds=90)
    assert_right(answers(lab.link), tensors)
    assert (lab.worked("client-0"), lab.worked("client-1")) == (1, 1)
    other = {"w": tensors["w"] + 5}
    lab.link.ask(questions(other), seconds=90)  # the same round, of another model
    assert_right(answers(lab.link), other)
    assert lab.worked("client-0") == 2


def test_a_process_that_goes_on_with_a_run_replaces_the_former(lab: Lab) -> None:
    former, lab.link = lab.link, lab.open()
    lab.link.ask(questions(), seconds=60)
    assert_right(answers(lab.link))
    former.ask(questions(request="2/train"), seconds=60)
    with pytest.raises(ConnectionError, match="another process goes on with run"):
        list(former.replies(seconds=60))


def test_random_kills(lab: Lab) -> None:
    """In each of twelve rounds, the server or a node is killed at some moment."""
    rng, tensors = np.random.default_rng(0), {"w": np.zeros(2**19, np.float32)}
    for number in range(12):
        lab.link.ask(questions(tensors, f"{number}/train", seconds=0.2), seconds=200)
        time.sleep(rng.uniform(0, 0.6))
        lab.restart(str(rng.choice(["server", *NAMES])), rng.uniform(0, 0.5))
        assert_right(found := answers(lab.link, 200), tensors)
        tensors = {"w": np.array(found["client-0"].tensors["w"])}
    assert float(tensors["w"][0]) == 12.0


# --- Cuts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "held"])
@pytest.mark.parametrize("part", [0.5, 1.5], ids=["to the node", "from the node"])
def test_a_transfer_that_is_cut_goes_on(lab: Lab, reset: bool, part: float) -> None:
    tensors = {"w": LARGE["w"] + next(_RUNS)}  # what the node has had is not fetched again
    proxy, size = Proxy(lab.fed.port), 4 * len(LARGE["w"])
    lab.fed.reached_at = proxy.port
    try:
        lab.restart("client-0")
        until(lambda: proxy.passed > 3000 and lab.there("client-0"), 60)
        lab.link.ask(questions(tensors), seconds=200)
        until(lambda: proxy.passed > part * size, 90)
        proxy.cut(2.0 if reset else 8.0, reset=reset)  # the latter is longer than both ends wait
        assert_right(answers(lab.link, 200), tensors)
        assert proxy.passed < 2.2 * size  # what was in flight is lost, and no more
        assert lab.worked("client-0") == 1
    finally:
        lab.fed.reached_at = lab.fed.port
        lab.fed.kill("client-0")
        proxy.close()


def test_a_node_that_stands_still_is_not_there(lab: Lab) -> None:
    number = lab.fed.running["client-0"].pid
    os.kill(number, signal.SIGSTOP)
    try:
        until(lambda: not lab.there("client-0"), 60)
        lab.link.ask(questions(), seconds=90)
    finally:
        os.kill(number, signal.SIGCONT)
    assert_right(answers(lab.link))


# --- Members -------------------------------------------------------------------------------------


def test_members_come_and_go_while_a_run_goes_on(lab: Lab) -> None:
    add_client(lab.fed.folder, "client-2")
    lab.fed.start("client-2")
    until(lambda: lab.there("client-2"), 60)
    lab.link.ask(questions(names=["client-0", "client-2"], seconds=3), seconds=60)
    until(lambda: lab.worked("client-2"))
    Members(lab.server).remove("client-2")
    found = answers(lab.link)
    assert (found["client-0"].error, found["client-2"].error) == ("", "gone")
    log = lab.fed.folder / "client-2.log"
    until(lambda: "client-2 was removed" in log.read_text())
    until(lambda: lab.fed.running["client-2"].poll() is not None)
    lab.fed.start("client-2")
    until(lambda: "no member's" in log.read_text())
    assert "client-2" not in lab.link.members()
    lab.link.ask(questions(names=["client-2"], request="2/train"), seconds=60)
    assert answers(lab.link)["client-2"].error == "gone"


def test_a_second_node_with_a_key_replaces_the_first(lab: Lab) -> None:
    first = lab.fed.running.pop("client-0")
    lab.fed.start("client-0")
    until(lambda: first.poll() is not None, 60)
    assert "another node has connected as client-0" in (lab.fed.folder / "client-0.log").read_text()
    lab.link.ask(questions(), seconds=60)
    assert_right(answers(lab.link))


# --- Strangers and hostile nodes -----------------------------------------------------------------


HELLO = pack("hello", version=1)
JUNK = pack("reply", run="x", request="y", mark="z", settings={}, error="", reason="")


def call(fed: Federation, folder: Path, frames: Sequence[bytes], method: str = CONNECT) -> str:
    """Makes a call as a node would; returns how it ends."""
    options = [("grpc.max_send_message_length", -1)]
    with grpc.secure_channel(f"127.0.0.1:{fed.port}", node_credentials(folder), options) as channel:
        try:
            list(channel.stream_stream(method)(iter(frames), timeout=30))
        except grpc.RpcError as error:
            return str(error.code().name)
        return "OK"


@pytest.mark.parametrize(
    ("frames", "method", "code"),
    [
        ([b"junk"], CONNECT, "INVALID_ARGUMENT"),
        ([pack("hello", version=99)], CONNECT, "FAILED_PRECONDITION"),
        ([HELLO, b"junk"], CONNECT, "INVALID_ARGUMENT"),
        ([HELLO, pack("reply", run=1, request="y", mark="z")], CONNECT, "INVALID_ARGUMENT"),
        ([HELLO, *[JUNK] * 60], CONNECT, "INVALID_ARGUMENT"),
        ([HELLO, bytes(3 * CHUNK)], CONNECT, "RESOURCE_EXHAUSTED"),
        ([JUNK], DELIVER, "NOT_FOUND"),
        ([b"junk"], DELIVER, "INVALID_ARGUMENT"),
        ([HELLO], RUN, "UNIMPLEMENTED"),
    ],
)
def test_hostile_calls_end(lab: Lab, frames: list[bytes], method: str, code: str) -> None:
    hostile = lab.fed.folder / "hostile"
    if not hostile.exists():
        add_client(lab.fed.folder, "hostile")
        until(lambda: "hostile" in lab.link.members())
    assert call(lab.fed, hostile, frames, method) == code
    lab.link.ask(questions(), seconds=60)
    assert_right(answers(lab.link))


def test_strangers_get_no_further_than_tls(lab: Lab, tmp_path: Path) -> None:
    fed, other, new = lab.fed, tmp_path / "other", tmp_path / "new"
    new_federation(other, ["127.0.0.1"], 1)
    assert call(fed, other / "client-0", [HELLO]) == "UNAVAILABLE"  # it trusts another authority
    root = (fed.folder / "ca.crt").read_bytes()
    write_file(other / "client-0" / "ca.crt", root)
    assert (
        call(fed, other / "client-0", [HELLO]) == "UNAVAILABLE"
    )  # another authority vouches for it
    signed = Authority.read(fed.folder).sign_node(request(new, "client-9"), "client-9")
    write_file(new / "node.crt", signed)
    write_file(new / "ca.crt", root)
    assert call(fed, new, [HELLO]) == "PERMISSION_DENIED"  # nobody has made it a member
    for name in ("crt", "key"):
        write_file(new / f"node.{name}", (lab.server / f"server.{name}").read_bytes())
    assert call(fed, new, [HELLO]) == "UNAVAILABLE"  # a server's certificate is none of a node


def test_a_renewed_certificate_is_shown_without_a_restart(lab: Lab) -> None:
    before, key = (
        shown(lab.fed),
        load_pem_private_key((lab.server / "server.key").read_bytes(), None),
    )
    assert isinstance(key, EllipticCurvePrivateKey)
    renewed = Authority.read(lab.fed.folder).sign_server(key, ["127.0.0.1"], 10)
    write_file(lab.server / "server.crt", renewed)
    assert (before != renewed.decode(), shown(lab.fed)) == (True, renewed.decode())
    lab.link.ask(questions(), seconds=60)  # those that are connected stay
    assert_right(answers(lab.link))


def shown(fed: Federation) -> str:
    """Returns the certificate that a server shows."""
    context = ssl.create_default_context(cafile=fed.folder / "ca.crt")
    context.load_cert_chain(
        fed.folder / "client-1" / "node.crt", fed.folder / "client-1" / "node.key"
    )
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection(("127.0.0.1", fed.port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as wrapped,
    ):
        return ssl.DER_cert_to_PEM_cert(wrapped.getpeercert(binary_form=True) or b"")
