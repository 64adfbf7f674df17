"""A host of masked updates: the server learns their sum over sites alone.

It stands before the host that trains. The state of a round is in this object alone, for that round
alone: each stage takes it out, so that none is answered twice, and what is refused ends the round
for its party.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from engram.client.hosts.local import LocalHost
from engram.client.requests import Request, asked_clients
from engram.core.checks import must
from engram.core.slots import unflat
from engram.guards.secure.client import (
    Advertised,
    Agreed,
    Masked,
    Opened,
    Shared,
    add_masks,
    advertise,
    agree,
    open_shares,
    reveal,
    share,
)
from engram.guards.secure.noise import share_of_noise
from engram.guards.secure.quantize import quantize, to_vector
from engram.guards.secure.registry import REGISTRY
from engram.guards.secure.secure_parties import Identity, Parties
from engram.guards.secure.secure_sums import Summed, Sums
from engram.guards.secure.session import Session
from engram.guards.secure.shamir import Entropy
from engram.guards.secure.wire import (
    MASKED,
    SECURE,
    STAGE,
    advert_from_bytes,
    advert_to_bytes,
    digests,
    read_entries,
    session_of,
    to_entries,
)
from engram.settings.errors import REFUSED, EngramError, Refused, few, one_line
from engram.wire.wire import ARRAYS, CLIENTS, METRICS, config_of, read_list, to_params, to_record

S = TypeVar("S")


class _Asked(NamedTuple):
    """The same in all stages of a round: its terms, the party, and the party's own clients."""

    session: Session
    own: Identity
    clients: list[int]


class MaskingHost:
    """Answers a secure round's stages for the clients of a host.

    Sums of fewer than ``least`` parties do not leave. The node's ``state`` remembers sums;
    without it they are kept in memory. ``noise`` is the source of a party's noise in a round.
    """

    def __init__(
        self,
        host: LocalHost,
        parties: Parties,
        *,
        least: int = 0,
        state: Path | None = None,
        noise: Callable[[int, int], Entropy] = lambda server_round, party: os.urandom,
    ) -> None:
        self._host, self._parties = host, parties
        self._identity, self._registry = parties.identity, parties.registry
        self._least, self._sums, self._noise = least, Sums(state), noise
        self._states: dict[int, tuple[_Asked, Any]] = {}

    def describe(self, hosted: Sequence[int]) -> RecordDict:
        """As ``Host.describe``."""
        return self._host.describe(hosted)

    def evaluate(self, requests: Sequence[Request]) -> list[Message]:
        """As ``Host.evaluate``: models are scored as without secure aggregation."""
        return self._host.evaluate(requests)

    def exchange(self, requests: Sequence[Request]) -> list[Message]:
        """Answers stages of a secure round in which nobody trains."""
        return [_reply(request, partial(self._answer, request)) for request in requests]

    def train(self, requests: Sequence[Request]) -> list[Message]:
        """Trains the clients of all requests, and masks the mean of each request's clients.

        A reply has one array, and who has trained; no losses, which would be of single clients.
        """
        ready, replies = dict[int, tuple[_Asked, Opened]](), dict[int, Message]()
        for i, request in enumerate(requests):
            try:
                ready[i] = self._ready(request)
            except (KeyError, TypeError, ValueError, EngramError) as error:
                replies[i] = _refusal(request, error)
        trained = self._host.train([requests[i] for i in ready]) if ready else []
        for (i, opened), reply in zip(ready.items(), trained, strict=True):
            masked = partial(self._masked, requests[i], *opened, reply)
            replies[i] = reply if reply.has_error() else _reply(requests[i], masked)
        return [replies[i] for i in range(len(requests))]

    def _answer(self, request: Request) -> RecordDict:
        config = config_of(request.message.content)
        stages = {
            "keys": self._keys,
            "shares": self._shares,
            "survivors": self._survivors,
            "unmask": self._unmask,
        }
        stage = str(config[STAGE])
        if stage not in stages:
            raise Refused(must("stage", stage, f"one of {', '.join(stages)}"))
        found = stages[stage](self._asked(request), request)
        return RecordDict({SECURE: ConfigRecord(found)})

    def _asked(self, request: Request) -> _Asked:
        config, clients = config_of(request.message.content), asked_clients(request)
        session = session_of(config, self._host.trainer.experiment)
        own, count = self._identity(request), len(clients)
        if (told := dict(session.asked).get(own.party, 0)) != count:
            raise Refused(must(f"clients-asked of client-{own.party}", told, f"{count}, as asked"))
        return _Asked(session, own, clients)

    def _keys(self, asked: _Asked, request: Request) -> dict[str, Any]:
        session, own, _ = asked
        records = request.message.content.config_records
        told = records[SECURE].get(REGISTRY) if SECURE in records else None
        self._parties.learn(told if isinstance(told, bytes) else b"")
        self._parties.check(session)
        self._sums.check(own.party, session)
        if session.threshold < self._least:
            raise Refused(
                f"this site's policy is against it: sums must be of {self._least} sites or more, "
                f"and {session.threshold} of {session.parties} may do"
            )
        state = advertise(session, *own, os.urandom)
        self._states[own.party] = asked, state
        return to_entries({own.party: advert_to_bytes(state.advert)})

    def _shares(self, asked: _Asked, request: Request) -> dict[str, Any]:
        state, party = self._take(asked, Advertised), asked.own.party
        read = _entries(request).items()
        adverts = {sender: advert_from_bytes(sender, data) for sender, data in read}
        shared, sealed, commitment = share(state, adverts, self._registry, os.urandom)
        self._states[party] = asked, shared
        return to_entries(sealed | {party: commitment})

    def _ready(self, request: Request) -> tuple[_Asked, Opened]:
        asked = self._asked(request)
        state, session = self._take(asked, Shared), asked.session
        if not config_of(request.message.content).get("combine", True):
            raise Refused("combine must be true where aggregation is secure: only sums leave")
        found = digests(request.message.content, self._host.trainer.experiment)
        if found != (session.work, session.model):
            raise Refused(
                f"settings and model must be those of which all sites of round {session.number} "
                "were told the digest, got others: a site that trains otherwise can be told apart"
            )
        return asked, open_shares(state, _entries(request))

    def _masked(
        self, request: Request, asked: _Asked, opened: Opened, reply: Message
    ) -> RecordDict:
        content, e = reply.content, self._host.trainer.experiment
        session, party = asked.session, asked.own.party
        details = content.config_records[CLIENTS]
        rows = read_list(details, "examples", int)
        received = to_params(request.message.content.array_records[ARRAYS])
        sent = to_params(content.array_records[ARRAYS])
        update = quantize(
            to_vector(self._host.trainer.method, unflat(received), unflat(sent)),
            bound=e.clip,
            weight=sum(min(count, session.most) for count in rows) / session.most,
            room=session.room,
        )
        if session.multiplier:
            update += share_of_noise(session, update.size, self._noise(session.number, party))
        state, masked = add_masks(opened, update)
        self._states[party] = asked, state
        names = ("server-round", "ids", "failed", "reasons", "way")
        words = torch.from_numpy(masked.view("int32"))
        return RecordDict(
            {
                ARRAYS: to_record({MASKED: words}),
                METRICS: MetricRecord({"num-examples": sum(rows)}),
                CLIENTS: ConfigRecord({name: details[name] for name in names} | {"losses": []}),
            }
        )

    def _survivors(self, asked: _Asked, request: Request) -> dict[str, Any]:
        state, own = self._take(asked, Masked), asked.own
        named = read_list(request.message.content.config_records[SECURE], "parties", int)
        if len({*named}) < len(named):
            twice = few([party for party, times in Counter(named).items() if times > 1])
            raise Refused(f"survivors must be named once each, got parties {twice} more often")
        summed = Summed(asked.clients, frozenset(named))
        self._sums.check(own.party, asked.session, summed)
        agreed, signature = agree(state, summed.survivors, own.key)
        self._states[own.party] = asked, agreed
        return to_entries({own.party: signature})

    def _unmask(self, asked: _Asked, request: Request) -> dict[str, Any]:
        state = self._take(asked, Agreed)
        shares = reveal(state, _entries(request), self._registry)
        summed = Summed(asked.clients, state.survivors)
        self._sums.note(asked.own.party, asked.session, summed)
        return to_entries(shares)

    def _take(self, asked: _Asked, kind: type[S]) -> S:
        known, state = self._states.pop(asked.own.party, (None, None))
        if known != asked or not isinstance(state, kind):
            raise Refused(
                f"client-{asked.own.party} is not at this stage of round {asked.session.number}: "
                "each stage is answered once, in turn, by a process that has answered those before"
            )
        return state


def _entries(request: Request) -> Mapping[int, bytes]:
    return read_entries(request.message.content.config_records[SECURE])


def _reply(request: Request, answer: Callable[[], RecordDict]) -> Message:
    try:
        return Message(answer(), reply_to=request.message)
    except (KeyError, TypeError, ValueError, EngramError) as error:
        return _refusal(request, error)


def _refusal(request: Request, error: Exception) -> Message:
    text = f"a message lacks {error}" if isinstance(error, KeyError) else str(error)
    return Message(Error(REFUSED, one_line(text)), reply_to=request.message)
