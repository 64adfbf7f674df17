"""A federation in this process: a server and nodes in a thread, and a run's end of the link."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

from engram.link.node.link import Answer, Node, Task
from engram.link.questions import Content, Question, Reply
from engram.link.run import Link
from engram.link.server.hub import Server
from engram.link.transport import Patience
from tests.link.wire.answers import PATIENCE, answer_in, dialing, lost, new_server, plus_one
from tests.link.wire.processes import free_port, new_federation, until

NAMES = ["client-0", "client-1"]
SMALL, LARGE = Content([b"small" * 100]), Content([bytes(3 * 2**20), b"large" * 100])
_RUNS = count(1)
T = TypeVar("T")


class Together:
    """A federation in this process.

    Attributes:
        hub: The server.
        nodes: Nodes, by name.
        words: Announcements that nodes have been given.
    """

    def __init__(self, folder: Path, clients: int = 2, patience: Patience = PATIENCE) -> None:
        self.folder, self.server, self.patience = folder, folder / "server", patience
        self.port, self.words = free_port(), list[Mapping[str, Any]]()
        new_federation(folder, clients)
        self.loop = asyncio.new_event_loop()
        self.running: dict[str, asyncio.Task[None]] = {}
        self.nodes = dict[str, Node]()
        self._labs = list[Lab]()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def start(self, *names: str, answer: Callable[[Task], Answer] | None = None) -> None:
        """Starts the server, or nodes."""

        async def begin() -> None:
            for name in names:
                serving = self._serve() if name == "server" else self._serve_node(name, answer)
                self.running[name] = asyncio.create_task(serving)

        self.do(begin())

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Returns what a coroutine returns, in the thread of the federation."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(30)

    async def _serve(self) -> None:
        self.hub: Server = new_server(self.server, self.patience)
        await self.hub.serve(f"127.0.0.1:{self.port}")

    async def _serve_node(self, name: str, answer: Callable[[Task], Answer] | None) -> None:
        own = self.folder / name
        self.nodes[name] = Node(
            dialing(f"127.0.0.1:{self.port}", own), own / "state", answer or answer_in(own), lost,
            patience=self.patience, welcomed=self.words.append,
        )  # fmt: skip
        await self.nodes[name].serve()

    def end(self, *names: str) -> None:
        """Ends the server, or nodes."""

        async def stop() -> None:
            tasks = [self.running.pop(name) for name in names]
            for each in tasks:
                each.cancel()
            if tasks:
                await asyncio.wait(tasks)

        self.do(stop())

    def fault(self, name: str) -> str:
        """Waits until a node ends; returns why."""
        task = self.running.pop(name)
        until(task.done)
        return str(task.exception())

    def lab(self) -> "Lab":
        """Returns a run."""
        self._labs.append(found := Lab(self.folder))
        return found

    def close(self) -> None:
        """Ends all."""
        for each in self._labs:
            each.link.close(over=True)
        self.end(*[*self.running])
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@contextlib.contextmanager
def together(folder: Path, clients: int = 2, **patience: float) -> Iterator[Together]:
    """Yields a federation of a test's own."""
    found = Together(folder, clients, PATIENCE._replace(**patience))
    try:
        yield found
    finally:
        found.close()


class Lab:
    """A run of a federation's."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.server, self.run = folder, folder / "server", str(next(_RUNS))
        self.link = self.open()

    def open(self) -> Link:
        """Opens a link of the same run, as a process does that goes on with it."""
        return Link(self.server, self.run)

    def there(self, *names: str) -> bool:
        """Whether nodes are there."""
        members = self.link.members()
        return all(name in members and members[name].there for name in names or NAMES)

    @contextlib.contextmanager
    def waiting(self, name: str) -> Iterator[None]:
        """Has a node that is asked to wait answer afterwards."""
        go = self.folder / name / "go"
        go.unlink(missing_ok=True)
        yield
        go.touch()

    def worked(self, name: str) -> int:
        """Returns how often a node has worked for the run."""
        path = self.folder / name / "answered"
        return path.read_text().splitlines().count(self.run) if path.exists() else 0

    def at_work(self) -> bool:
        """Whether both nodes have worked, or are at work, for the run."""
        return all(self.worked(name) for name in NAMES)

    def ask(
        self, *contents: Content, request: str = "1/train", kind: str = "train",
        names: Sequence[str] = NAMES, within: float = 30, most: int = 2**27, **settings: Any,
    ) -> None:  # fmt: skip
        """Asks some nodes."""
        asked = (Question(n, request, kind, settings, contents, most) for n in names)
        self.link.ask(asked, seconds=within)

    def replies(self, seconds: float = 30) -> dict[str, Reply]:
        """Returns the replies, each of which must come once."""
        found = list(self.link.replies(seconds=seconds))
        assert len({(reply.node, reply.request) for reply in found}) == len(found)
        return {reply.node: reply for reply in found}

    def assert_right(self, *contents: Content, names: Sequence[str] = NAMES) -> None:
        """Checks that nodes answer with one more than each byte they received."""
        found = self.replies()
        assert {n: r.error + r.reason for n, r in found.items()} == dict.fromkeys(names, "")
        expected = plus_one(b"".join(bytes(part) for each in contents for part in each.parts))
        assert all(bytes(reply.content) == expected for reply in found.values())
