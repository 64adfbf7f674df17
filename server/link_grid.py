"""Nodes of a federation, asked over a link."""

import hashlib
import json
import secrets
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

from engram.link.questions import Content
from engram.link.questions import Question as Asking
from engram.link.questions import Reply as Answer
from engram.link.records import from_contents, to_contents
from engram.link.run import Link
from engram.settings.errors import AWAITED, BUSY, REFUSED, UNUSABLE, Refused
from engram.settings.experiment import Experiment
from engram.wire.messages import EVALUATE, RAISED, TRAIN, Error, Question, Reply
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
    question: Question
    until: float  # when its reply no longer counts
    most: int  # bytes that its reply may have


class LinkGrid:
    """Nodes that answer over a link, with unanswered questions sent again.

    The node of client-N has the number N+1.

    Args:
        link: The run's end of the link.
        run_id: The run's number.
        experiment: The settings that nodes are sent.
        folder: The run's folder, by whose name sites know it.
    """

    fixed = False
    lost = frozenset[str]()

    def __init__(self, link: Link, run_id: int, experiment: Experiment, folder: Path) -> None:
        self._link, self.run_id = link, run_id
        # The same for a run that is resumed, so that its questions are the same as before.
        settings = experiment.to_config() | {"resume": "", "out": str(folder)}
        self._config = Content([json.dumps({"engram": json.dumps(settings)}).encode()])
        self._token, self._named = secrets.token_hex(4), Counter[tuple[int, str]]()
        self._asked: dict[str, _Asked] = {}
        self._came: dict[Question, tuple[float, Reply]] = {}
        self._most = _SPARE

    def get_nodes(self) -> Iterable[Node]:
        """Returns the nodes that are on line, with the names of their clients."""
        there = (name for name, member in self._link.members().items() if member.there)
        return [Node(int(name.removeprefix("client-")) + 1, name) for name in there]

    def push(self, questions: Sequence[Question], *, seconds: float) -> None:
        """Sends and names questions; their replies count for so many seconds."""
        shared = dict[int, Content]()
        together: dict[float, list[Asking]] = {}
        for each in questions:
            clients = config_of(each.content).get(CLIENTS, [])
            size = _SPARE + _TIMES * max(1, len(clients)) * size_of(each.content)
            self._most = max(self._most, size)
            contents = [self._config, *to_contents(each.content, shared)]
            each.name = self._name(each, contents)
            # Who is there is asked for as long as the run lasts: nobody asks again.
            lives = _FOREVER if each.kind == ROSTER_QUERY else max(seconds, 1.0)
            self._asked[each.name] = _Asked(each, time.monotonic() + lives, self._most)
            node = f"client-{each.node - 1}"
            asking = Asking(node, each.name, each.kind, {}, contents, self._most)
            together.setdefault(lives, []).append(asking)
        for lives, asked in together.items():
            self._link.ask(asked, seconds=lives)

    def pull(self, questions: Iterable[Question]) -> list[Reply]:
        """Returns the replies to some questions that have come, each once."""
        for answer in self._link.replies(seconds=0):
            self._take(answer)
        now = time.monotonic()
        self._asked = {name: asked for name, asked in self._asked.items() if asked.until > now}
        found = [self._came.pop(each)[1] for each in questions if each in self._came]
        # Nobody asks for what a round was over before; large ones would fill the disk.
        self._came = {each: came for each, came in self._came.items() if came[0] > now}
        return found

    def await_reply(self, seconds: float) -> None:
        """Waits for the next reply, at most so many seconds."""
        end = time.monotonic() + seconds
        for answer in self._link.replies(seconds=seconds):
            self._take(answer)
            return
        time.sleep(max(0.0, end - time.monotonic()))  # nothing is outstanding

    def _take(self, answer: Answer) -> None:
        asked = self._asked.pop(answer.request, None)
        if asked is not None and (not answer.error or answer.error in _CODES):
            self._came[asked.question] = asked.until, _read(answer, asked)

    def _name(self, question: Question, contents: Iterable[Content]) -> str:
        """Names a question: a run that is resumed asks the same by the same name.

        A node then gives the reply that it has given before. Only what it is asked in a round is
        the same later; who is there, and what it has, may have changed.
        """
        kind, node = question.kind, question.node
        number = config_of(question.content).get("server-round")
        if isinstance(number, int) and kind in (TRAIN, EVALUATE):
            asked = hashlib.sha256("".join(each.digest for each in contents).encode()).hexdigest()
            name = f"{number!r}/{kind}/{node}/{asked[:16]}"
            return next(n for k in count(1) if (n := f"{name}/{k}") not in self._asked)
        self._named[node, kind] += 1
        return f"{kind}/{node}/{self._token}/{self._named[node, kind]}"


def _read(answer: Answer, asked: _Asked) -> Reply:
    """Returns a reply, or an error if it cannot be read."""
    if answer.error:
        diverged = answer.error == "failed" and answer.settings.get("code") == DIVERGED
        code = DIVERGED if diverged else _CODES[answer.error]
        return Reply(asked.question, error=Error(code, answer.reason))
    try:
        return Reply(asked.question, from_contents([answer.content], asked.most))
    except Refused as error:
        return Reply(asked.question, error=Error(UNUSABLE, str(error)))
