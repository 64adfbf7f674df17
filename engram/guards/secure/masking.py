"""A host of masked updates: the server learns their sum over sites alone.

It stands before the host that trains.
"""

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from engram.client.hosts.base import Summed
from engram.client.requests import Request
from engram.guards.secure.secure_parties import Parties
from engram.guards.secure.shares import Entropy
from engram.guards.secure.stages import Asked, Stages
from engram.guards.secure.terms import check_work
from engram.guards.secure.wire import SECURE, read_entries
from engram.settings.errors import REFUSED, EngramError, Refused, one_line
from engram.wire.messages import Content, Error, Reply
from engram.wire.wire import config_of


class MaskingHost:
    """Answers a secure round's stages for the clients of a host.

    Sums of fewer than ``least`` parties do not leave. The node's ``state`` remembers sums;
    without it they are kept in memory. ``noise`` is the source of a party's noise in a round.
    """

    def __init__(
        self,
        host: Summed,
        parties: Parties,
        *,
        least: int = 0,
        state: Path | None = None,
        noise: Callable[[int, int], Entropy] = lambda server_round, party: os.urandom,
    ) -> None:
        self._host, self._noise = host, noise
        self.describe, self.evaluate = host.describe, host.evaluate
        self._stages = Stages(host.experiment, parties, least, state)

    def exchange(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers stages of a secure round in which nobody trains."""
        return [_reply(request, partial(self._stages.answer, request)) for request in requests]

    def train(self, requests: Sequence[Request]) -> list[Reply]:
        """Trains the clients of all requests, and masks what the host says of each."""
        ready, replies = dict[int, Asked](), dict[int, Reply]()
        for i, request in enumerate(requests):
            try:
                ready[i] = self._ready(request)
            except (KeyError, TypeError, ValueError, EngramError) as error:
                replies[i] = _refusal(request, error)
        trained = self._host.train([requests[i] for i in ready]) if ready else []
        for (i, asked), reply in zip(ready.items(), trained, strict=True):
            masked = partial(self._masked, requests[i], asked, reply)
            replies[i] = reply if reply.error else _reply(requests[i], masked)
        return [replies[i] for i in range(len(requests))]

    def _ready(self, request: Request) -> Asked:
        content, asked = request.question.content, self._stages.asked(request)
        with self._stages.party(asked) as party:
            if not config_of(content).get("combine", True):
                raise Refused("combine must be true where aggregation is secure: only sums leave")
            check_work(content, self._host.experiment, asked.session)
            party.open(read_entries(content[SECURE]))
        return asked

    def _masked(self, request: Request, asked: Asked, reply: Reply) -> Content:
        session = asked.session
        with self._stages.party(asked) as party:
            entropy = self._noise(session.number, party.number)
            total = session.sum._replace(mask=party.mask, entropy=entropy)
            return self._host.masked(request, reply, total)


def _reply(request: Request, answer: Callable[[], Content]) -> Reply:
    try:
        return Reply(request.question, answer())
    except (KeyError, TypeError, ValueError, EngramError) as error:
        return _refusal(request, error)


def _refusal(request: Request, error: Exception) -> Reply:
    text = f"a message lacks {error}" if isinstance(error, KeyError) else str(error)
    return Reply(request.question, {}, Error(REFUSED, one_line(text)))
