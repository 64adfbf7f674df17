"""A link of real processes: whatever is killed, stopped or cut, every reply comes once."""

import itertools
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from engram.link.questions import Content
from tests.link.wire.cuts import Proxy
from tests.link.wire.everywhere import TARGETS, Everywhere
from tests.link.wire.processes import Processes, new_federation, until
from tests.link.wire.together import LARGE, NAMES, SMALL, Lab

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """Yields a federation of two nodes."""
    folder = tmp_path_factory.mktemp("link") / "fed"
    new_federation(folder, 2)
    found = Processes(folder)
    yield found
    found.close()


@pytest.fixture
def lab(fed: Processes) -> Iterator[Lab]:
    """Yields a run of a federation whose nodes are there."""
    for name in ("server", *NAMES):
        if name not in fed.running or fed.running[name].poll() is not None:
            fed.start(name)
    found = Lab(fed.folder)
    until(found.there)
    yield found
    found.link.close(over=True)


def restart(fed: Processes, name: str, pause: float = 0.0) -> None:
    """Kills a process, and starts it again."""
    fed.end(name)
    time.sleep(pause)
    fed.start(name)


@pytest.mark.parametrize("content", [SMALL, LARGE], ids=["small", "large"])
def test_the_server_is_killed_while_nodes_work(fed: Processes, lab: Lab, content: Content) -> None:
    lab.ask(content, seconds=2, within=60)
    until(lab.at_work)
    restart(fed, "server", pause=1.0)
    lab.assert_right(content)
    assert (lab.worked("client-0"), lab.worked("client-1")) == (1, 1)  # nobody works twice


def test_a_run_gives_what_it_gives_wherever_it_is_disturbed(tmp_path: Path) -> None:
    with Everywhere(tmp_path) as everywhere:
        for number, up in itertools.product((1, 5, 14, 20), (True, False)):
            assert everywhere.disturbed("connection", number, up=up)
        for target in TARGETS[1:]:
            assert everywhere.disturbed(target, 18, up=False)


@pytest.mark.parametrize("reset", [True, False], ids=["reset", "held"])
@pytest.mark.parametrize("part", [0.8, 1.8], ids=["to the node", "from the node"])
def test_a_transfer_that_is_cut_goes_on(fed: Processes, lab: Lab, reset: bool, part: float) -> None:
    content = Content([os.urandom(2**25)])  # what the node has had is not fetched again
    proxy = Proxy(fed.port)
    fed.reached_at = proxy.port
    try:
        restart(fed, "client-0")
        until(lambda: proxy.passed > 3000 and lab.there())
        lab.ask(content, within=200)
        until(lambda: proxy.passed > part * content.size)
        proxy.cut(2.0 if reset else 8.0, reset=reset)  # the latter is longer than both ends wait
        lab.assert_right(content)
        assert proxy.passed < 2.5 * content.size  # what was in flight is lost, and no more
        assert lab.worked("client-0") == 1
    finally:
        fed.reached_at = fed.port
        fed.end("client-0")
        proxy.close()


def test_a_node_that_stands_still_is_not_there(fed: Processes, lab: Lab) -> None:
    number = fed.running["client-0"].pid
    os.kill(number, signal.SIGSTOP)
    try:
        until(lambda: not lab.there("client-0"))
        lab.ask(SMALL, within=60)
    finally:
        os.kill(number, signal.SIGCONT)
    lab.assert_right(SMALL)


def test_a_server_ends_soon_while_transfers_are_open(fed: Processes, lab: Lab) -> None:
    lab.ask(Content([os.urandom(2**28)]), within=60)
    files = fed.folder / "client-0" / "state" / "contents"
    until(lambda: [*files.glob("*/*.part")])
    begun = time.monotonic()
    fed.end("server", signal.SIGTERM)
    assert time.monotonic() - begun < 2.5
    assert "Traceback" not in (fed.folder / "server.log").read_text()
