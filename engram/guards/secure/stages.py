"""A site's stages of secure rounds in which nobody trains.

The state of a round is in memory alone, for that round alone: each stage takes it out, so that none
is answered twice, and what is refused ends the round for its party.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, get_args

from engram.client.requests import Request, asked_clients
from engram.core.checks import must
from engram.guards.secure.party import Party
from engram.guards.secure.registry import REGISTRY
from engram.guards.secure.secure_parties import Parties
from engram.guards.secure.session import Session
from engram.guards.secure.signatures import Identity
from engram.guards.secure.terms import session_of
from engram.guards.secure.unmasked_sums import Sums
from engram.guards.secure.wire import SECURE, STAGE, Stage, read_entries, to_entries
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.wire.messages import Content, Entries
from engram.wire.wire import config_of, read_list


class Asked(NamedTuple):
    """The same in all stages of a round: its terms, the party, and the party's own clients."""

    session: Session
    own: Identity
    clients: list[int]


class Stages:
    """Answers a secure round's stages for the parties of a host: see ``MaskingHost``."""

    def __init__(
        self, experiment: Experiment, parties: Parties, least: int, state: Path | None
    ) -> None:
        self._experiment, self._parties, self._least = experiment, parties, least
        self.sums = Sums(state)
        self._rounds: dict[int, tuple[Asked, Party]] = {}

    def answer(self, request: Request) -> Content:
        """Answers one stage; raises ``Refused``, or any error of a malformed message."""
        content, stages = request.question.content, get_args(Stage)
        if (stage := str(config_of(content)[STAGE])) not in stages:
            raise Refused(must("stage", stage, f"one of {', '.join(stages)}"))
        asked, told = self.asked(request), content.get(SECURE, {})
        if stage == "keys":
            return _record(self._begin(asked, told))
        with self.party(asked) as party:
            if stage == "shares":
                return _record(party.share(read_entries(told)))
            if stage == "survivors":
                found = party.agree(read_list(told, "parties", int))
                self.sums.check(party.number, party.session, asked.clients, party.survivors)
                return _record(found)
            found = party.reveal(read_entries(told))
            self.sums.note(party.number, party.session, asked.clients, party.survivors)
        del self._rounds[party.number]  # and its secrets
        return _record(found)

    def asked(self, request: Request) -> Asked:
        """Reads the terms of a message, and checks the site's number of clients."""
        config, clients = config_of(request.question.content), asked_clients(request)
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
            raise asked.session.out_of_turn(asked.own.party)
        yield party
        self._rounds[asked.own.party] = asked, party

    def _begin(self, asked: Asked, told: Entries) -> dict[int, bytes]:
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
        party = Party(session, own, self._parties.registry, os.urandom)
        self._rounds[own.party] = asked, party
        return {own.party: party.advert.data}


def _record(entries: Mapping[int, bytes]) -> Content:
    return {SECURE: to_entries(entries)}
