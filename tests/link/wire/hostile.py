"""Frames that no honest end sends: honest ones, changed at random.

``python -m tests.link.wire.hostile 100000`` has a server and a node hear so many, and prints how
much memory each took.
"""

import json
import random
import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engram.link.asks import Ask, Key
from engram.link.frames import BadFrame, Frame, pack, unpack
from engram.link.node.link import Answer, Node
from engram.link.server.session import Session
from tests.link.wire.answers import lost, new_server
from tests.link.wire.processes import new_federation

Said = list[tuple[str, dict[str, Any], bytes]]  # kinds, fields, and bodies
EVIL: list[Any] = [
    None, True, -1, 2**63, 2**200, 1e308, float("nan"), "", "x" * 70_000, "../../../etc/passwd",
    "\ud800\0", [], {}, [[]] * 100, {"a": {"b": {}}}, "a" * 64, "busy", "late", "1", 17, 1.5,
]  # fmt: skip
_DEEP = b"[" * 5000


def honest(run: str, mark: str) -> Said:
    """Returns the kinds, fields and bodies of what honest ends say."""
    name = {"run": run, "request": "1/train", "mark": mark}
    content = {"digest": "a" * 64, "size": 5, "inline": True}
    reply = {"settings": {}, "error": "", "reason": "", "digest": "a" * 64, "size": 5}
    asked = {"settings": {"n": 1}, "ask": "train", "ms": 60_000, "most": 100}
    return [
        ("hello", {"version": 1}, b""),
        ("began", name, b""),
        ("reply", {**name, **reply}, b"hello"),
        ("ask", {"run": run, "request": "1/train", **asked, "contents": [content]}, b"hello"),
        ("cancel", {"run": run, "request": "1/train"}, b""),
        ("over", {"run": run}, b""),
        ("welcome", {"version": 1, "time": 0.0, "announcements": {}}, b""),
        ("fetch", {**name, "digest": "a" * 64, "offset": 0}, b""),
    ]


def generated(seed: int, count: int, said: Said) -> Iterator[bytes]:
    """Yields frames, each an honest one with something changed."""
    rng = random.Random(seed)
    for _ in range(count):
        kind, fields, body = rng.choice(said)
        fields, how = dict(fields), rng.randrange(6)
        if fields and how in (0, 1):
            fields[rng.choice([*fields])] = rng.choice(EVIL)
        elif fields and how == 2:
            del fields[rng.choice([*fields])]
        elif how == 3:
            kind, body = rng.choice(["", "reply", "x" * 100]), body * rng.choice([0, 2, 1000])
        header = json.dumps({"kind": kind, **fields}).encode()
        if how == 4:
            header = header[: rng.randrange(len(header))] + rng.choice([b"", b"\xff", _DEEP])
        data = bytearray(len(header).to_bytes(4, "little") + header + body)
        if how == 5:
            for _ in range(rng.randint(1, 8)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        yield bytes(data)


class HostileNode:
    """A server that hears frames of a node which makes them up.

    Attributes:
        replies: What it has passed on to the run whose ask it has sent.
        refused: How many frames have ended a session.
    """

    def __init__(self, folder: Path) -> None:
        new_federation(folder, 1)
        self._server = new_server(folder / "server")
        self._run, self._node = Session(), Session()
        self._server._runs["1"], self._server._nodes["client-0"] = self._run, self._node
        self.replies, self.refused = list[Frame](), 0
        said = honest("1", "")
        _, fields, body = said[3]
        self._order = unpack(pack("ask", body, node="client-0", **{**fields, "run": ""}))
        mark = Ask.read(self._order, Key("client-0", "1", "1/train"), 0.0).mark
        self._said = honest("1", mark)

    def hear(self, count: int, seed: int = 0) -> None:
        """Has the server hear frames; the run asks again whenever it has a reply."""
        for data in generated(seed, count, self._said):
            self._server._order("1", self._run, self._order)
            try:
                self._server._hear("client-0", self._node, unpack(data))
            except (ValueError, RecursionError):  # which end a session
                self.refused += 1
            while not self._run._outbox.empty():
                self.replies.append(unpack(self._run._outbox.get_nowait()()))
                taken = pack("taken", node="client-0", request="1/train")
                self._server._order("1", self._run, unpack(taken))
            while not self._node._outbox.empty():
                self._node._outbox.get_nowait()


class HostileServer:
    """A node that hears frames of a server which makes them up.

    Attributes:
        refused: How many frames have ended a session.
    """

    def __init__(self, folder: Path) -> None:
        self._node = Node(lambda: ("", None, []), folder, lambda _: Answer({}), lost)
        self.refused = 0

    def hear(self, count: int, seed: int = 0) -> None:
        """Has the node hear frames."""
        for data in generated(seed, count, honest("1", "m" * 64)):
            try:
                self._node._hear(unpack(data))
            except BadFrame:
                self.refused += 1
                self._node._agenda.clear()  # as at the end of a session


def main(count: int) -> None:
    """Has both ends hear frames, and prints what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        node, server = HostileNode(Path(folder) / "fed"), HostileServer(Path(folder) / "node")
        ends: dict[str, HostileNode | HostileServer] = {"server": node, "node": server}
        for name, each in ends.items():
            each.hear(1000, seed=1)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            each.hear(count)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
            print(f"{name}: {each.refused} refused, peak memory {grown} KiB higher")


if __name__ == "__main__":
    main(int(sys.argv[1]))
