"""Nodes for tests: they add one to what they receive, after as many seconds as they are told.

``python -m tests.link.wire.answers HOST:PORT FEDERATION CLIENTS`` runs the nodes of some clients, with
commas between, in this process.
"""

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from pathlib import Path

from engram.link import content
from engram.link.node.link import Answer, Node, Refused, Task
from engram.link.transport import Patience

PATIENCE = Patience(ping=2.0, answer=2.0, stall=20.0, longest=2.0)


def answer_in(folder: Path) -> Callable[[Task], Answer]:
    """Returns a function that answers, and notes for which run, in a file of the folder."""

    def answer(task: Task) -> Answer:
        with (folder / "answered").open("a") as file:
            file.write(f"{task.run}\n")
        if task.kind == "refuse":
            raise Refused("this site's policy allows no such thing")
        if task.kind == "fail":
            raise RuntimeError("out of luck")
        end = time.monotonic() + float(task.settings.get("seconds", 0))
        while time.monotonic() < end and not task.cancelled.wait(0.05):
            pass
        tensors = content.read(task.content)
        return Answer({"rows": 7}, content.parts({name: x + 1 for name, x in tensors.items()}))

    return answer


async def main(address: str, folder: Path, names: list[str]) -> None:
    """Runs nodes until the process is killed."""
    nodes = [Node(address, folder / n, answer_in(folder / n), patience=PATIENCE) for n in names]
    await asyncio.gather(*(node.serve() for node in nodes))


if __name__ == "__main__":
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    asyncio.run(main(sys.argv[1], Path(sys.argv[2]), sys.argv[3].split(",")))
