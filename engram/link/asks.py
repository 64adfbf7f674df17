"""Asks of runs to nodes, each of which comes to exactly one reply. No files, no sockets.

The ends keep what matters, and the server in between may forget everything: a run asks again what
has no reply, as soon as it or the server has been away; a node keeps its last replies, and gives
the same one to the same question. So nothing here is stored, and each crash is a case of asking
again. A run that goes on from a checkpoint asks former rounds again: once a node works on one of
them, its replies to later rounds do not count any more, since its memory is not as they left it.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from itertools import takewhile
from typing import Any, Final, NamedTuple, Self

from engram.link.frames import LARGEST, BadFrame, Frame, pack

_CONTENTS: Final = 64  # most of an ask


class Key(NamedTuple):
    """The name of an ask: a run calls each of its asks differently."""

    node: str
    run: str
    request: str


def round_number(name: str) -> int:
    """Returns the leading number of a request's name, of 18 digits at most; else 0."""
    return int("0" + "".join(takewhile(str.isdecimal, name[:18])))


class Listed(NamedTuple):
    """Content of an ask: its hash and size, and whether its bytes are in the ask's frame."""

    digest: str
    size: int
    inline: bool


class Ask(NamedTuple):
    """A question to a node.

    Attributes:
        key: Its name.
        mark: The hash of all that is asked, by which a changed question has another answer.
        contents: Its contents, in order.
        body: The bytes of those that are inline, one after the other.
        until: When its reply is no longer awaited, by the clock of whoever holds this.
        most: Most bytes of content that a reply may have.
    """

    key: Key
    mark: str
    kind: str
    settings: Mapping[str, Any]
    contents: tuple[Listed, ...]
    body: bytes
    until: float
    most: int

    @classmethod
    def read(cls, frame: Frame, key: Key, now: float) -> Self:
        """Reads an ask.

        Raises:
            BadFrame: It is something else.
        """
        kind, settings, body = frame.text("ask", 64), frame.table("settings"), bytes(frame.body)
        contents = tuple(_listed(entry) for entry in frame.entries("contents", _CONTENTS))
        if len(body) != sum(each.size for each in contents if each.inline):
            raise BadFrame("an ask must have the bytes of its inline contents in its frame")
        said = json.dumps([kind, settings, [each.digest for each in contents]], sort_keys=True)
        mark = hashlib.sha256(said.encode()).hexdigest()
        until, most = now + frame.number("ms", 2**40) / 1000, frame.number("most", LARGEST)
        return cls(key, mark, kind, settings, contents, body, until, most)

    def pack(self, now: float) -> bytes:
        """Returns its frame."""
        left = max(0, int(1000 * (self.until - now)))
        return pack_ask(
            self.contents, self.body, run=self.key.run, request=self.key.request, ask=self.kind,
            ms=left, settings=self.settings, most=self.most,
        )  # fmt: skip

    @property
    def name(self) -> dict[str, str]:
        """Fields of a node's word about it."""
        return {"run": self.key.run, "request": self.key.request, "mark": self.mark}

    @property
    def inline(self) -> dict[str, bytes]:
        """Contents in the frame, by hash."""
        found, at = dict[str, bytes](), 0
        for each in self.contents:
            if each.inline:
                found[each.digest] = self.body[at : (at := at + each.size)]
        return found


def pack_ask(contents: Iterable[Listed], body: bytes, **fields: Any) -> bytes:
    """Returns the frame of an ask."""
    return pack("ask", body, contents=[each._asdict() for each in contents], **fields)


def _listed(entry: Frame) -> Listed:
    return Listed(entry.digest(), entry.number("size", LARGEST), entry.flag("inline"))


class Desk:
    """The asks of all runs that a server knows, and the replies that their runs have not taken."""

    def __init__(self) -> None:
        self._asked: dict[Key, Ask] = {}
        self._replies: dict[Key, bytes] = {}

    def ask(self, ask: Ask) -> bytes | None:
        """Takes a question; the same one again is the one that is there.

        Returns:
            The reply, if it has come already.
        """
        before = self._asked.get(ask.key)
        if before is not None and before.mark != ask.mark:
            self._replies.pop(ask.key, None)
        self._asked[ask.key] = ask
        return self._replies.get(ask.key)

    def awaited(self, key: Key, mark: str) -> Ask | None:
        """Returns the question that a reply belongs to; None if it is not awaited (any more)."""
        ask = self._asked.get(key)
        return ask if ask and ask.mark == mark and key not in self._replies else None

    def reply(self, key: Key, reply: bytes) -> None:
        """Notes the reply to a question that is awaited."""
        self._replies[key] = reply

    def later(self, ask: Ask) -> list[Key]:
        """Returns a node's answered questions of later rounds that are like this one."""
        like = [key for key in self._replies if key[:2] == ask.key[:2]]
        later = (key for key in like if round_number(key[2]) > round_number(ask.key.request))
        return [key for key in later if self._asked[key].kind == ask.kind]

    def open(self, node: str) -> list[Ask]:
        """Returns the asks that a node has to answer."""
        asked = self._asked.items()
        return [ask for key, ask in asked if key.node == node and key not in self._replies]

    def forget(self, keys: Iterable[Key]) -> list[Key]:
        """Forgets questions and their replies; returns those that nodes may be at work on."""
        found = [key for key in keys if self._asked.pop(key, None)]
        return [key for key in found if self._replies.pop(key, None) is None]

    def of_run(self, run: str) -> list[Key]:
        """Returns the names of a run's questions."""
        return [key for key in self._asked if key.run == run]

    def overdue(self, now: float) -> list[Ask]:
        """Returns the questions that are overdue."""
        asked = self._asked.items()
        return [ask for key, ask in asked if ask.until <= now and key not in self._replies]
