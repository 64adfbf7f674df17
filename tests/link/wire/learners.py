"""Programs of a link for tests, as ``answers``, of nodes that learn."""

import threading
from collections.abc import Callable
from pathlib import Path

from engram.link.credentials import read_node
from engram.link.node.answering import COUNTED, Answering
from engram.link.node.link import Answer, Task
from engram.link.node.worker import Worker
from engram.sites.audit import AUDIT, Audit
from engram.sites.policy import USUAL
from engram.wire.counters import Counters
from tests.link.wire.answers import main

CLIENTS = 3


def learning_in(folder: Path) -> Callable[[Task], Answer]:
    """Returns a function that answers as the node of a client's folder."""
    client, state = read_node(folder).partition_id, folder / "state"
    worker = Worker({"partition-id": client, "num-partitions": CLIENTS, "state": str(state)})
    return Answering(
        worker, client + 1, policy=lambda: USUAL, audit=Audit(state / AUDIT),
        counters=Counters(COUNTED), stop=threading.Event(),
    )  # fmt: skip


if __name__ == "__main__":
    main(learning_in)
