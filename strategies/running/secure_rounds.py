"""A secure round: the server asks for its stages in turn, and learns from the unmasked sum.

Nothing of a single site is in what it receives: see ``engram.guards.secure``.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial, reduce
from logging import getLogger
from typing import Any, Protocol, TypeVar

import numpy as np

from engram.core.types import Params
from engram.guards.secure.quantize import Words, add
from engram.guards.secure.registry import REGISTRY
from engram.guards.secure.secure_sum import MASKED
from engram.guards.secure.server import unmask
from engram.guards.secure.signatures import Advert
from engram.guards.secure.terms import digests, session_of, terms
from engram.guards.secure.wire import SECURE, STAGE, Stage, read_entries, to_entries
from engram.settings.errors import Refused, RunStopped, few
from engram.settings.experiment import Experiment
from engram.strategies.running.base import Nodes, Round, Row
from engram.strategies.running.reply_border import Rejected, read_reply
from engram.strategies.running.screening import Accepted, TrainReplies
from engram.wire.messages import Content, Question
from engram.wire.roster import Roster
from engram.wire.wire import CLIENTS, CONFIG, SECURE_QUERY, config_of, read_list

_log = getLogger("flwr.engram")

_T = TypeVar("_T")


class Exchange:
    """Asks the sites of a round, which are parties by the number of their first client.

    Attributes:
        session: The terms of the round.
        questions: The questions to train, by party.
        clients: The clients that are asked, by party.
        lost: Parties without a usable answer to their last question; None: without any.

    Raises:
        RunStopped: The terms are impossible, as with fewer than two sites.
    """

    def __init__(
        self,
        grid: Nodes,
        e: Experiment,
        roster: Roster,
        questions: Sequence[Question],
        timeout: float,
    ) -> None:
        self._grid, self._names, self._timeout = grid, roster.names, timeout
        first = {node: client for client, node in reversed([*enumerate(roster.nodes)])}
        self.questions = {first[each.node]: each for each in questions}
        configs = {party: config_of(each.content) for party, each in self.questions.items()}
        self.clients = {party: read_list(c, CLIENTS, int) for party, c in configs.items()}
        asked = {party: len(clients) for party, clients in sorted(self.clients.items())}
        told = terms(asked, *digests(questions[0].content, e))
        for config in configs.values():
            config.update(told)
        self._configs = {party: dict(config) for party, config in configs.items()}
        self.session = session_of(configs[min(configs)], e)
        self.lost: dict[int, Rejected | None] = {}
        try:
            self.session.check()
        except ValueError as error:
            raise RunStopped(f"round {self.session.number}: {error}") from error

    def query(
        self,
        stage: Stage,
        parties: Iterable[int],
        entries: Mapping[str, Any],
        about: Collection[int] | None = None,
        check: Callable[[int, bytes], object] = lambda party, data: None,
    ) -> dict[int, dict[int, bytes]]:
        """Asks parties for a stage; each answers bytes for each of ``about``, or for itself.

        ``check`` raises an error for bytes that are none of a party.

        Raises:
            RunStopped: As ``ask``.
        """

        def read(party: int, content: Content) -> dict[int, bytes]:
            data = read_entries(content[SECURE])
            named = {party} if about is None else {*about}
            lacks, others = sorted(named - data.keys()), sorted(data.keys() - named)
            if lacks or others:
                whom = f"client-{party}" if about is None else f"all {len(named)} parties"
                raise ValueError(
                    f"the answer to stage {stage} must be of {whom}, got none of {few(lacks)}, and "
                    f"others of {few(others)}"
                )
            for each in data.items():
                check(*each)
            return data

        asked = {}
        for party in parties:
            config = {**self._configs[party], STAGE: stage}
            content = {CONFIG: config, SECURE: {**entries}}
            asked[party] = Question(self.questions[party].node, SECURE_QUERY, content)
        return self.ask(stage, asked, read)

    def ask(
        self,
        what: str,
        questions: Mapping[int, Question],
        read: Callable[[int, Content], _T | Rejected],
    ) -> dict[int, _T]:
        """Asks, and reads the answers, by party.

        Raises:
            RunStopped: There are fewer than the threshold.
        """
        replies = self._grid.ask(questions.values(), timeout=self._timeout)
        came = {reply.question: reply for reply in replies}
        found: dict[int, _T] = {}
        for party, question in sorted(questions.items()):
            reply = came.get(question)
            verdict = None if reply is None else read_reply(reply, partial(read, party))
            if verdict is None or isinstance(verdict, Rejected):
                self.lost[party] = verdict
            else:
                found[party] = verdict
        least, session = self.session.threshold, self.session
        if len(found) < least:
            raise RunStopped(
                f"round {session.number} has {what} of {len(found)} of {session.parties} sites, "
                f"but secure aggregation needs {least}; {self.without(()).in_words(self._names)}"
            )
        return found

    def without(self, survivors: Collection[int]) -> TrainReplies:
        """Collects the clients of lost parties, but for survivors: they have sent their updates."""
        lost = {p: why for p, why in self.lost.items() if p not in survivors}
        replies = ((self.clients[party], why) for party, why in lost.items())
        return TrainReplies.of(replies)


class SummedStrategy(Protocol):
    """A strategy that learns from the sum of what sites send, and sees no single part of it."""

    roster: Roster

    def configure_train(
        self, server_round: int, arrays: Params, config: Mapping[str, Any], grid: Nodes
    ) -> Iterable[Question]:
        """Returns the questions of a round."""

    def read_part(self, sites: Exchange, party: int, content: Content) -> Accepted | Rejected:
        """Reads a party's masked part, the slot ``MASKED`` of one update; may raise any error."""

    def learn_sum(
        self, sites: Exchange, trained: Mapping[int, Accepted], total: Words
    ) -> tuple[Params, Row]:
        """Returns the next arrays and metrics, by all replies and the sum of their parts.

        Raises:
            RunStopped: Too few are usable.
        """


def own(told: Mapping[int, Mapping[int, bytes]]) -> dict[int, bytes]:
    """Returns each party's bytes of its own."""
    return {party: mine[party] for party, mine in told.items()}


def train_securely(
    grid: Nodes,
    e: Experiment,
    strategy: SummedStrategy,
    server_round: int,
    model: Params,
    config: Mapping[str, Any],
    before: Callable[[], None] | None = None,
    *,
    timeout: float,
) -> Round:
    """Trains a round, as ``Engine.train``, and learns the sum of sites' parts alone.

    Training losses are not asked for.

    Raises:
        RunStopped: Fewer sites than the threshold are left, or shares are false.
    """
    settings = {**config, "losses": False}
    questions = [*strategy.configure_train(server_round, model, settings, grid)]
    if before is not None:
        before()
    sites = Exchange(grid, e, strategy.roster, questions, timeout)
    trained, total = _summed(sites, strategy, _registry(grid))
    for party in sorted(sites.lost.keys() & trained.keys()):
        if why := sites.lost[party]:
            who = few(sites.clients[party], strategy.roster.names)
            _log.warning(
                "round %d: the update of clients %s is in the sum, and their answer after it "
                "is left out (%s): %s",
                *(server_round, who, why.kind, why.reason),
            )
    return Round(*strategy.learn_sum(sites, trained, total))


def _summed(
    sites: Exchange, strategy: SummedStrategy, registry: Mapping[str, bytes]
) -> tuple[dict[int, Accepted], Words]:
    keys = own(sites.query("keys", [*sites.questions], registry, check=Advert.read))
    shares = sites.query("shares", keys, to_entries(keys), keys)
    asked = {party: sites.questions[party] for party in shares}
    for party, question in asked.items():
        sealed = {other: mine[party] for other, mine in shares.items() if other != party}
        question.content[SECURE] = to_entries(sealed)
    trained = sites.ask("masked updates", asked, partial(strategy.read_part, sites))
    signatures = own(sites.query("survivors", trained, {"parties": sorted(trained)}))
    revealed = sites.query("unmask", signatures, to_entries(signatures), shares)
    parts = [each.updates[0].slots[MASKED].numpy() for each in trained.values()]
    try:
        total = unmask(
            sites.session,
            reduce(add, (part.view(np.uint32) for part in parts)),
            adverts={party: Advert.read(party, data) for party, data in keys.items()},
            commitments=own(shares),
            survivors=trained.keys(),
            revealed=revealed,
        )
    except Refused as error:
        raise RunStopped(f"round {sites.session.number}: {error}") from error
    return trained, total


def _registry(grid: Nodes) -> dict[str, bytes]:
    folder = getattr(getattr(grid, "membership", None), "folder", None)  # of a federation
    path = None if folder is None else folder / REGISTRY
    return {} if path is None or not path.is_file() else {REGISTRY: path.read_bytes()}
