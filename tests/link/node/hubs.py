"""A server in this process, and nodes of its federation, for tests."""

import asyncio
import json
import threading
from contextlib import contextmanager
from pathlib import Path

from engram.link.credentials import read_node
from engram.link.node.node import _loop, run_node
from engram.link.questions import Content, Question
from engram.link.records import to_contents
from engram.link.run import Link, status
from engram.link.server.hub import Server
from engram.link.server.identity import init_federation
from tests.link.wire.answers import new_server
from tests.link.wire.processes import free_port
from tests.support import small


class Hub:
    """A federation's folder, and its server while it is there."""

    def __init__(self, folder: Path, clients: int = 1) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        given = {"hosts": [], "superlink": self.address, "days": 9}
        init_federation(folder / "fed", clients=clients, **given)
        self.server, self.folder = folder / "fed" / "server", folder / "fed"
        self._serving = None

    def start(self) -> None:
        server = new_server(self.server)
        self._ended = threading.Event()
        self._serving = asyncio.run_coroutine_threadsafe(self._serve(server), _loop())
        status(self.server, patience=20)

    async def _serve(self, server: Server) -> None:
        try:
            await server.serve(self.address)
        finally:
            self._ended.set()

    def stop(self) -> None:
        serving, self._serving = self._serving, None
        if serving is not None:
            serving.cancel()
            assert self._ended.wait(20)

    @contextmanager
    def node(self, client=0, **config):
        """Runs a node of a client in a thread, as ``run_node`` does; yields it."""
        node = Running(self.folder / f"client-{client}", config)
        try:
            yield node
        finally:
            node.stop.set()
            node.thread.join(30)
            assert not node.thread.is_alive()

    @contextmanager
    def run(self, number="17"):
        """Yields a run, and ends it."""
        link = Link(self.server, number)
        try:
            yield link
        finally:
            link.close(over=True)


class Running:
    """A node in a thread of this process."""

    def __init__(self, folder: Path, config) -> None:
        self.folder, self.stop, self.error = folder, threading.Event(), None
        self._credentials = read_node(folder)
        number = self._credentials.partition_id
        among = self._credentials.num_partitions
        self._config = {"partition-id": number, "num-partitions": among, **config}
        self._config["state"] = str(folder / "state")
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            run_node(self._credentials, self.folder / "state", self._config, stop=self.stop)
        except Exception as error:  # for the test
            self.error = error

    @property
    def ended(self) -> bool:
        return not self.thread.is_alive()


def question(kind, records, *, node="client-0", request="1", config=None, **settings):
    """A question of a run with such settings, or such a config."""
    given = small(**settings).to_config() if config is None else config
    contents = [Content([json.dumps(given).encode()]), *to_contents(records)]
    return Question(node, request, kind, {}, contents, 2**26)


def asked(link, *questions, seconds=60.0):
    """Replies to questions, in the order of their names."""
    link.ask(questions, seconds=seconds)
    return sorted(link.replies(seconds=seconds), key=lambda reply: (reply.request, reply.node))
