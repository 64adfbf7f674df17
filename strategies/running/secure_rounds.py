"""A secure round: the server asks for its stages in turn, and merges the sum that is unmasked.

Nothing of a single client's update is in what it receives: see ``engram.guards.secure``.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from logging import getLogger
from typing import Any, TypeVar

import numpy as np
import torch

from engram.core.method import Update
from engram.core.slots import flat
from engram.core.types import Params
from engram.guards.chain import parted
from engram.guards.changes import size_of
from engram.guards.secure.quantize import Words
from engram.guards.secure.registry import REGISTRY
from engram.guards.secure.secure_sum import MASKED
from engram.guards.secure.server import unmask
from engram.guards.secure.signatures import Advert
from engram.guards.secure.terms import digests, session_of, terms
from engram.guards.secure.wire import SECURE, STAGE, Stage, read_entries, to_entries
from engram.settings.errors import Refused, RunStopped, few
from engram.strategies.running.base import Nodes, Round
from engram.strategies.running.network_strategy import Federated
from engram.strategies.running.reply_border import Rejected, read_reply
from engram.strategies.running.screening import Accepted, TrainReplies
from engram.strategies.running.train_replies import screen
from engram.wire.messages import Content, Question
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
        self, grid: Nodes, strategy: Federated, questions: Sequence[Question], timeout: float
    ) -> None:
        e, roster = strategy.rounds.settings, strategy.roster
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


def own(told: Mapping[int, Mapping[int, bytes]]) -> dict[int, bytes]:
    """Returns each party's bytes of its own."""
    return {party: mine[party] for party, mine in told.items()}


def train_securely(
    grid: Nodes,
    strategy: Federated,
    server_round: int,
    model: Params,
    config: Mapping[str, Any],
    before: Callable[[], None] | None = None,
    *,
    timeout: float,
) -> Round:
    """Trains a round, as ``Engine.train``, and learns its updates' sum alone.

    Training losses are not asked for.

    Raises:
        RunStopped: Fewer sites than the threshold are left, or shares are false.
    """
    settings = {**config, "losses": False}
    questions = [*strategy.configure_train(server_round, model, settings, grid)]
    if before is not None:
        before()
    sites = Exchange(grid, strategy, questions, timeout)
    trained, total = _summed(sites, strategy, _registry(grid))
    return Round(*strategy.learn(server_round, _replies(sites, strategy, trained, total)))


def _summed(
    sites: Exchange, strategy: Federated, registry: Mapping[str, bytes]
) -> tuple[dict[int, Accepted], Words]:
    keys = own(sites.query("keys", [*sites.questions], registry, check=Advert.read))
    shares = sites.query("shares", keys, to_entries(keys), keys)
    asked = {party: sites.questions[party] for party in shares}
    for party, question in asked.items():
        sealed = {other: mine[party] for other, mine in shares.items() if other != party}
        question.content[SECURE] = to_entries(sealed)
    trained = sites.ask("masked updates", asked, partial(_read, sites, strategy))
    signatures = own(sites.query("survivors", trained, {"parties": sorted(trained)}))
    revealed = sites.query("unmask", signatures, to_entries(signatures), shares)
    parts = [each.updates[0].slots[MASKED].numpy() for each in trained.values()]
    try:
        total = unmask(
            sites.session,
            np.add.reduce([part.view(np.uint32) for part in parts], dtype=np.uint32),
            adverts={party: Advert.read(party, data) for party, data in keys.items()},
            commitments=own(shares),
            survivors=trained.keys(),
            revealed=revealed,
        )
    except Refused as error:
        raise RunStopped(f"round {sites.session.number}: {error}") from error
    return trained, total


def _read(
    sites: Exchange, strategy: Federated, party: int, content: Content
) -> Accepted | Rejected:
    rounds, clients, session = strategy.rounds, sites.clients[party], sites.session
    size = size_of(flat(rounds.shapes.sent))
    masked = rounds.shapes._replace(sent={MASKED: torch.empty(size, dtype=torch.int32)})
    return screen(
        content,
        server_round=session.number,
        rounds=rounds._replace(shapes=masked),
        asked=clients,
        examples={client: strategy.roster.examples[client] for client in clients},
        most=session.most,
        loss=None,
        server=strategy.slots,
    )


def _replies(
    sites: Exchange, strategy: Federated, trained: Mapping[int, Accepted], total: Words
) -> TrainReplies:
    rounds, session, replies = strategy.rounds, sites.session, trained.values()
    for party in sorted(sites.lost.keys() & trained.keys()):
        if why := sites.lost[party]:
            who = few(sites.clients[party], strategy.roster.names)
            _log.warning(
                "round %d: the update of clients %s is in the sum, and their answer after it "
                "is left out (%s): %s",
                *(session.number, who, why.kind, why.reason),
            )
    ids = sorted(client for reply in replies for client in reply.clients)
    rows = sum(reply.updates[0].rows for reply in replies)
    at = rounds.merge.at(strategy.slots, session.number)
    at = at._replace(sum=session.sum, like=rounds.shapes.sent)
    masked = Update({MASKED: torch.from_numpy(total.view(np.int32))}, rows, len(ids))
    updates, _ = parted([rounds.merge.guard.arrive(at, masked)])
    failed = {client: why for reply in replies for client, why in reply.failed.items()}
    ways = {reply.way for reply in replies}
    accepted = Accepted(ids, updates, [], failed, ways.pop() if len(ways) == 1 else "")
    return sites.without(trained)._replace(accepted=[accepted])


def _registry(grid: Nodes) -> dict[str, bytes]:
    folder = getattr(getattr(grid, "membership", None), "folder", None)  # of a federation
    path = None if folder is None else folder / REGISTRY
    return {} if path is None or not path.is_file() else {REGISTRY: path.read_bytes()}
