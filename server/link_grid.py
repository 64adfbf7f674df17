"""Flower's Grid over a link: strategies and the loop of rounds ask the nodes of a federation."""

import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple

from flwr.app import Error, Message, MessageType, RecordDict

from engram.link.questions import Content, Question, Reply
from engram.link.records import from_contents, to_contents
from engram.link.run import Link
from engram.settings.errors import AWAITED, BUSY, REFUSED, UNUSABLE, Refused
from engram.settings.experiment import Experiment
from engram.wire.messages import RAISED, LocalRun, local_run, name_message
from engram.wire.wire import CLIENTS, DIVERGED, ROSTER_QUERY, config_of, size_of

_SPARE, _TIMES = 2**22, 4  # bytes that a reply may have: _SPARE, and _TIMES what was asked
_FOREVER: Final = 1e9  # seconds
_CODES: Final = {
    "refused": REFUSED,
    "failed": RAISED,
    "busy": BUSY,
    "awaited": AWAITED,
    "unusable": UNUSABLE,
}
"""Codes of errors; a question that is late, or whose node is no member any more, has no reply."""


class Node(NamedTuple):
    """A node that is on line, as Flower describes one."""

    node_id: int
    name: str
    # When it was activated: the link sends questions again by itself, so nobody needs to know.
    last_activated_at: str = ""


class _Asked(NamedTuple):
    node_id: int
    kind: str
    until: float  # when its reply no longer counts
    most: int  # bytes that its reply may have


class LinkGrid:
    """A grid whose nodes answer over a link, which sends again what a node has not answered.

    The node of client-N has the number N+1.

    Args:
        link: The run's end of the link.
        number: The run's number.
        experiment: The settings that nodes are sent.
        folder: The run's folder, by whose name sites know it.
    """

    def __init__(self, link: Link, number: int, experiment: Experiment, folder: Path) -> None:
        self._link, self.run = link, LocalRun(number)
        local_run(number)
        # The same for a run that is resumed, so that its questions are the same as before.
        settings = experiment.to_config() | {"resume": "", "out": str(folder)}
        self._config = Content([json.dumps({"engram": json.dumps(settings)}).encode()])
        self._token, self._named = secrets.token_hex(4), Counter[tuple[int, str]]()
        self._asked: dict[str, _Asked] = {}
        self._came: dict[str, tuple[float, Message]] = {}
        self._most = _SPARE

    def get_nodes(self) -> Iterable[Any]:
        """Returns the nodes that are on line, with the names of their clients."""
        there = (name for name, member in self._link.members().items() if member.there)
        return [Node(int(name.removeprefix("client-")) + 1, name) for name in there]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Sends messages, and names them; returns their names."""
        shared = dict[int, Content]()
        together: dict[float, list[Question]] = {}
        names = list[str]()
        for message in messages:
            to, content = message.metadata, message.content
            clients = config_of(content).get(CLIENTS)
            times = max(1, len(clients)) if isinstance(clients, list) else 1
            self._most = max(self._most, _SPARE + _TIMES * times * size_of(content))
            contents = [self._config, *to_contents(content, shared)]
            names.append(self._name(message, contents))
            # Who is there is asked for as long as the run lasts: nobody asks again.
            lives = _FOREVER if to.message_type == ROSTER_QUERY else to.ttl
            until = time.monotonic() + lives
            self._asked[names[-1]] = _Asked(to.dst_node_id, to.message_type, until, self._most)
            node = f"client-{to.dst_node_id - 1}"
            asked = Question(node, names[-1], to.message_type, {}, contents, self._most)
            together.setdefault(lives, []).append(asked)
        for seconds, questions in together.items():
            self._link.ask(questions, seconds=seconds)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Returns the replies to some messages that have come, each once."""
        for reply in self._link.replies(seconds=0):
            self._take(reply)
        now = time.monotonic()
        self._asked = {name: asked for name, asked in self._asked.items() if asked.until > now}
        found = [self._came.pop(name)[1] for name in message_ids if name in self._came]
        # Nobody asks for what a round was over before; large ones would fill the disk.
        self._came = {name: each for name, each in self._came.items() if each[0] > now}
        return found

    def await_reply(self, seconds: float) -> None:
        """Waits for the next reply, at most so many seconds."""
        end = time.monotonic() + seconds
        for reply in self._link.replies(seconds=seconds):
            self._take(reply)
            return
        time.sleep(max(0.0, end - time.monotonic()))  # nothing is outstanding

    def _take(self, reply: Reply) -> None:
        asked = self._asked.pop(reply.request, None)
        if asked is not None and (not reply.error or reply.error in _CODES):
            self._came[reply.request] = asked.until, _message(reply, asked)

    def _name(self, message: Message, contents: Iterable[Content]) -> str:
        """Names a message: a run that is resumed asks the same by the same name.

        A node then gives the reply that it has given before. Only what it is asked in a round is
        the same later; who is there, and what it has, may have changed.
        """
        kind, node = message.metadata.message_type, message.metadata.dst_node_id
        number = config_of(message.content).get("server-round")
        in_round = isinstance(number, int) and kind in (MessageType.TRAIN, MessageType.EVALUATE)
        if in_round:
            asked = hashlib.sha256("".join(each.digest for each in contents).encode()).hexdigest()
            name = f"{number!r}/{kind}/{node}/{asked[:16]}"
            name = next(n for k in count(1) if (n := f"{name}/{k}") not in self._asked)
        else:
            self._named[node, kind] += 1
            name = f"{kind}/{node}/{self._token}/{self._named[node, kind]}"
        name_message(message, name)
        return name


def _message(reply: Reply, asked: _Asked) -> Message:
    """Returns a reply as Flower's, or as an error if it cannot be read."""
    question = Message(RecordDict(), asked.node_id, asked.kind)
    name_message(question, reply.request)
    if reply.error:
        code = _CODES[reply.error]
        if reply.error == "failed" and reply.settings.get("code") == DIVERGED:
            code = DIVERGED
        return Message(Error(code, reply.reason), reply_to=question)
    try:
        return Message(from_contents([reply.content], asked.most), reply_to=question)
    except Refused as error:
        return Message(Error(UNUSABLE, str(error)), reply_to=question)
