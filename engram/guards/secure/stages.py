"""A site's stages of secure rounds in which nobody trains.

The state of a round is in memory alone, for that round alone: each stage takes it out, so that none
is answered twice, and what is refused ends the round for its party.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from flwr.app import ConfigRecord, RecordDict

from engram.client.requests import Request, asked_clients
from engram.core.checks import must
from engram.guards.secure.party import Party, out_of_turn
from engram.guards.secure.registry import REGISTRY
from engram.guards.secure.secure_parties import Identity, Parties
from engram.guards.secure.session import Session
from engram.guards.secure.signatures import Advert
from engram.guards.secure.unmasked_sums import Summed, Sums
from engram.guards.secure.wire import SECURE, STAGE, read_entries, session_of, to_entries
from engram.settings.errors import Refused, few
from engram.settings.experiment import Experiment
from engram.wire.wire import config_of, read_list


class Asked(NamedTuple):
    """The same in all stages of a round: its terms, the party, and the party's own clients."""

    session: Session
    own: Identity
    clients: list[int]


class Stages:
    """Answers a secure round's stages for the parties of a host.

    Sums of fewer than ``least`` parties do not leave. The node's ``state`` remembers sums;
    without it they are kept in memory.
    """

    def __init__(
        self, experiment: Experiment, parties: Parties, least: int, state: Path | None
    ) -> None:
        self._experiment, self._parties, self._least = experiment, parties, least
        self.sums = Sums(state)
        self._rounds: dict[int, tuple[Asked, Party]] = {}

    def answer(self, request: Request) -> RecordDict:
        """Answers one stage; raises ``Refused``, or any error of a malformed message."""
        content = request.message.content
        stages: dict[str, Callable[[Asked, ConfigRecord], Mapping[int, bytes]]] = {
            "keys": self._keys,
            "shares": self._shares,
            "survivors": self._survivors,
            "unmask": self._unmask,
        }
        stage = str(config_of(content)[STAGE])
        if stage not in stages:
            raise Refused(must("stage", stage, f"one of {', '.join(stages)}"))
        told = content.config_records.get(SECURE, ConfigRecord())
        found = stages[stage](self.asked(request), told)
        return RecordDict({SECURE: ConfigRecord(to_entries(found))})

    def asked(self, request: Request) -> Asked:
        """Reads the terms of a message, and checks the site's number of clients."""
        config, clients = config_of(request.message.content), asked_clients(request)
        session = session_of(config, self._experiment)
        own, count = self._parties.identity(request), len(clients)
        if (told := dict(session.asked).get(own.party, 0)) != count:
            raise Refused(must(f"clients-asked of client-{own.party}", told, f"{count}, as asked"))
        return Asked(session, own, clients)

    @contextmanager
    def party(self, asked: Asked) -> Iterator[Party]:
        """Takes out the party of a round, and puts it back unless it refuses."""
        known, party = self._rounds.pop(asked.own.party, (None, None))
        if party is None or known != asked:
            raise out_of_turn(asked.session, asked.own.party)
        yield party
        self._rounds[asked.own.party] = asked, party

    def _keys(self, asked: Asked, told: ConfigRecord) -> dict[int, bytes]:
        session, own, _ = asked
        registry = told.get(REGISTRY)
        self._parties.learn(registry if isinstance(registry, bytes) else b"")
        self._parties.check(session)
        self.sums.check(own.party, session)
        if session.threshold < self._least:
            raise Refused(
                f"this site's policy is against it: sums must be of {self._least} sites or more, "
                f"and {session.threshold} of {session.parties} may do"
            )
        party = Party(session, *own, self._parties.registry, os.urandom)
        self._rounds[own.party] = asked, party
        return {own.party: party.advert.data}

    def _shares(self, asked: Asked, told: ConfigRecord) -> dict[int, bytes]:
        with self.party(asked) as party:
            adverts = {p: Advert.read(p, data) for p, data in read_entries(told).items()}
            sealed, commitment = party.share(adverts)
        return sealed | {asked.own.party: commitment}

    def _survivors(self, asked: Asked, told: ConfigRecord) -> dict[int, bytes]:
        named = read_list(told, "parties", int)
        with self.party(asked) as party:
            if len({*named}) < len(named):
                twice = few([p for p, times in Counter(named).items() if times > 1])
                raise Refused(f"survivors must be named once each, got parties {twice} more often")
            summed = Summed(asked.clients, frozenset(named))
            self.sums.check(party.number, asked.session, summed)
            return {party.number: party.agree(summed.survivors)}

    def _unmask(self, asked: Asked, told: ConfigRecord) -> dict[int, bytes]:
        with self.party(asked) as party:
            shares = party.reveal(read_entries(told))
            summed = Summed(asked.clients, party.survivors)
            self.sums.note(party.number, asked.session, summed)
        del self._rounds[party.number]  # and its secrets
        return shares
