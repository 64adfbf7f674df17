"""Programs of a link for tests: nodes that add one to each byte they receive, and a server.

``python -m tests.link.wire.answers ADDRESS FEDERATION CLIENTS`` runs the nodes of some clients,
with commas between, in this process; with ``server`` as the clients, the server.
"""

import asyncio
import logging
import sys
from collections.abc import Callable
from pathlib import Path

import grpc

from engram.link.credentials import read_node
from engram.link.key_tls import node_credentials
from engram.link.node.connection import Dial, Lost
from engram.link.node.link import Answer, Node, Task
from engram.link.server.hub import Server
from engram.link.server.live_files import Roll, announcements, server_credentials
from engram.link.server.serving import serve_until_stopped
from engram.link.transport import Patience
from engram.settings.errors import Refused

PATIENCE = Patience(ping=2.0, answer=2.0, stall=20.0, longest=1.0)
MOST_REPLY = 2**30
Answers = Callable[[Path], Callable[[Task], Answer]]
_ADDED = bytes([*range(1, 256), 0])


def plus_one(data: bytes) -> bytes:
    """Returns the answer of these nodes to some bytes."""
    return data.translate(_ADDED)


def answer_in(folder: Path) -> Callable[[Task], Answer]:
    """Returns a function that answers, and notes for which run, in a file of the folder.

    To ``wait``, it waits for a file ``go`` in the folder.
    """

    def answer(task: Task) -> Answer:
        with (folder / "answered").open("a") as file:
            file.write(f"{task.run}\n")
        if task.kind == "refuse":
            raise Refused("this site's policy allows no such thing")
        if task.kind == "fail":
            raise RuntimeError("out of luck")
        if task.kind == "await":
            return Answer({}, (), "awaited", "a person has yet to approve it")
        while task.kind == "wait" and not (folder / "go").exists():
            if task.cancelled.wait(0.02):
                break
        task.cancelled.wait(float(task.settings.get("seconds", 0)))
        data = [each if isinstance(each, bytes) else bytes(each.view()) for each in task.contents]
        return Answer({"contents": len(data)}, [*map(plus_one, data)])

    return answer


def dialing(address: str, folder: Path) -> Dial:
    """Makes the dialing of a server, as the client of a folder."""
    credentials = read_node(folder)
    return lambda: (address, node_credentials(credentials, (folder / "ca.crt").read_bytes()), [])


def lost(fault: Lost) -> None:
    """Logs why a connection is lost; raises ``Refused`` if it is for good."""
    if fault.code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.ALREADY_EXISTS):
        raise Refused(str(fault)) from fault
    logging.getLogger("flwr.engram").warning("%s; connecting again", fault)


def new_node(address: str, folder: Path, answers: Answers) -> Node:
    """Returns a node."""
    own, answer = folder / "state", answers(folder)
    return Node(dialing(address, folder), own, answer, lost, patience=PATIENCE)


def new_server(folder: Path, patience: Patience = PATIENCE) -> Server:
    """Returns a server."""
    found = Roll(folder), server_credentials(folder), announcements(folder)
    return Server(folder, *found, most_reply=MOST_REPLY, patience=patience)


def main(answers: Answers) -> None:
    """Runs nodes until the process is killed, or the server."""
    address, folder, names = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)

    async def serve() -> None:
        if names == "server":
            await serve_until_stopped(new_server(folder / "server"), address)
        else:
            nodes = (new_node(address, folder / name, answers) for name in names.split(","))
            await asyncio.gather(*(node.serve() for node in nodes))

    asyncio.run(serve())


if __name__ == "__main__":
    main(answer_in)
