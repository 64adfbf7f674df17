"""A secure round: the server asks for its stages in turn, and merges the sum that is unmasked.

Nothing of a single client's update is in what it receives: see ``engram.guards.secure``.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from functools import partial
from logging import getLogger
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from engram.core.method import Update
from engram.core.types import Params
from engram.guards.secure.quantize import Words, from_vector, numbers, restore
from engram.guards.secure.server import unmask
from engram.guards.secure.session import Advert
from engram.guards.secure.wire import (
    MASKED,
    SECURE,
    STAGE,
    Stage,
    advert_from_bytes,
    advert_to_bytes,
    digests,
    read_entries,
    session_of,
    terms,
    to_entries,
)
from engram.link.server.membership import membership_of
from engram.settings.errors import Refused, RunStopped, few
from engram.settings.registry import REGISTRY
from engram.strategies.base import Round
from engram.strategies.network_strategy import Federated
from engram.strategies.reply_border import Kind, Rejected, first_answers, read_reply
from engram.strategies.screening import Accepted, TrainReplies
from engram.strategies.train_replies import Details, read_clients
from engram.wire.wire import (
    ARRAYS,
    CLIENTS,
    CONFIG,
    SECURE_QUERY,
    WAYS,
    config_of,
    read_array,
    read_list,
    to_record,
)

_log = getLogger("flwr.engram")

T = TypeVar("T")


def train_securely(
    grid: Grid,
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
    settings = ConfigRecord({**config, "losses": False})
    messages = [*strategy.configure_train(server_round, to_record(model), settings, grid)]
    if before is not None:
        before()
    exchange = _Exchange(grid, strategy, messages, timeout)
    replies = exchange.replies()
    return Round(*strategy.learn(server_round, replies))


class _Trained(NamedTuple):
    details: Details  # who has trained
    way: str
    masked: Words  # the sum of their updates


class _Exchange:
    """The stages of a round, and the sites that are still there.

    Raises:
        RunStopped: There are fewer than two sites.
    """

    def __init__(
        self, grid: Grid, strategy: Federated, messages: Sequence[Message], timeout: float
    ) -> None:
        self._grid, self._strategy, self._timeout = grid, strategy, timeout
        self._messages = {message.metadata.dst_node_id: message for message in messages}
        configs = {node: config_of(m.content) for node, m in self._messages.items()}
        self._clients = {node: read_list(c, CLIENTS, int) for node, c in configs.items()}
        e, hosts = strategy.rounds.merge.settings, [*enumerate(strategy.roster.nodes)]
        first = {node: client for client, node in reversed(hosts)}  # by which a party is numbered
        asked = {first[node]: len(clients) for node, clients in self._clients.items()}
        told = terms(asked, *digests(messages[0].content, e))
        for config in configs.values():
            config.update(told)
        self._configs = {node: dict(config) for node, config in configs.items()}
        self._nodes: dict[int, int] = {}  # by party
        self._lost: dict[int, Rejected | None] = {}  # by node; None: no reply
        self._others: Counter[Kind] = Counter()
        self._session = session_of(configs[min(configs)], e)
        try:
            self._session.check()
        except ValueError as error:
            raise RunStopped(f"round {self._session.number}: {error}") from error

    def replies(self) -> TrainReplies:
        """Returns the mean of the survivors' updates, as the one reply of all their clients."""
        adverts = self._keys()
        told = to_entries({party: advert_to_bytes(each) for party, each in adverts.items()})
        shares = self._query("shares", dict.fromkeys(adverts, told), adverts)
        trained = self._masked(shares)
        named = {"parties": sorted(trained)}
        signed = self._query("survivors", dict.fromkeys(trained, named))
        signatures = {party: mine[party] for party, mine in signed.items()}
        told = to_entries(signatures)
        revealed = self._query("unmask", dict.fromkeys(signatures, told), shares)
        try:
            total = unmask(
                self._session,
                np.add.reduce([each.masked for each in trained.values()], dtype=np.uint32),
                adverts=adverts,
                commitments={party: mine[party] for party, mine in shares.items()},
                survivors=trained.keys(),
                revealed=revealed,
            )
        except Refused as error:
            raise RunStopped(f"round {self._session.number}: {error}") from error
        return self._summed(trained, total)

    def _keys(self) -> dict[int, Advert]:
        """Asks all sites for their keys; from here on they are parties by number."""
        told = _registry(self._grid)
        asked = {node: self._message("keys", node, told) for node in self._messages}
        found: dict[int, Advert] = {}

        def read(node: int, content: RecordDict) -> int:
            entries = read_entries(content.config_records[SECURE])
            hosted = {c for c, host in enumerate(self._strategy.roster.nodes) if host == node}
            if len(entries) != 1 or not entries.keys() <= hosted:
                got = few(sorted(entries))
                raise ValueError(f"keys must be of one client that the site hosts, got of {got}")
            ((party, data),) = entries.items()
            found[party] = advert_from_bytes(party, data)
            self._nodes[party] = node
            return party

        self._ask("keys", asked, read)
        return found

    def _masked(self, shares: Mapping[int, Mapping[int, bytes]]) -> dict[int, _Trained]:
        """Relays the shares to each party, and collects its masked update."""
        messages = {party: self._messages[self._nodes[party]] for party in shares}
        for party, message in messages.items():
            sealed = {other: mine[party] for other, mine in shares.items() if other != party}
            message.content[SECURE] = ConfigRecord(to_entries(sealed))
        return self._ask("masked updates", messages, self._read_trained)

    def _query(
        self,
        stage: Stage,
        entries: Mapping[int, Mapping[str, Any]],
        about: Collection[int] | None = None,
    ) -> dict[int, dict[int, bytes]]:
        """Asks parties for a stage; each answers bytes for each of ``about``, or for itself."""

        def read(party: int, content: RecordDict) -> dict[int, bytes]:
            data = read_entries(content.config_records[SECURE])
            named = {party} if about is None else {*about}
            lacks, others = sorted(named - data.keys()), sorted(data.keys() - named)
            if lacks or others:
                whom = f"client-{party}" if about is None else f"all {len(named)} parties"
                raise ValueError(
                    f"the answer to stage {stage} must be of {whom}, got none of {few(lacks)}, and "
                    f"others of {few(others)}"
                )
            return data

        asked = {p: self._message(stage, self._nodes[p], mine) for p, mine in entries.items()}
        return self._ask(stage, asked, read)

    def _message(self, stage: Stage, node: int, entries: Mapping[str, Any]) -> Message:
        config = ConfigRecord({**self._configs[node], STAGE: stage})
        content = RecordDict({CONFIG: config, SECURE: ConfigRecord({**entries})})
        return Message(content, dst_node_id=node, message_type=SECURE_QUERY)

    def _ask(
        self,
        what: str,
        messages: Mapping[int, Message],
        read: Callable[[int, RecordDict], T | Rejected],
    ) -> dict[int, T]:
        """Sends messages, and reads their answers, by the messages' keys.

        Raises:
            RunStopped: There are fewer than the threshold.
        """
        replies = self._grid.send_and_receive(messages.values(), timeout=self._timeout)
        answers, others = first_answers(replies, messages.values())
        self._others += others
        found: dict[int, T] = {}
        for key, message in sorted(messages.items()):
            reply = answers.get(message.metadata.message_id)
            verdict = None if reply is None else read_reply(reply, partial(read, key))
            if verdict is None or isinstance(verdict, Rejected):
                self._lost[message.metadata.dst_node_id] = verdict
            else:
                found[key] = verdict
        least, session = self._session.threshold, self._session
        if len(found) < least:
            why = self._left_out(self._lost).in_words(self._strategy.roster.names)
            raise RunStopped(
                f"round {session.number} has {what} of {len(found)} of {session.parties} sites, "
                f"but secure aggregation needs {least}; {why}"
            )
        return found

    def _read_trained(self, party: int, content: RecordDict) -> _Trained | Rejected:
        roster, clients = self._strategy.roster, self._clients[self._nodes[party]]
        details = read_clients(
            content,
            server_round=self._session.number,
            asked=clients,
            examples={client: roster.examples[client] for client in clients},
            losses=False,
        )
        if isinstance(details, Rejected):
            return details
        size = numbers(self._strategy.rounds.shapes.sent)
        words = read_array(content.array_records[ARRAYS][MASKED], (size,), torch.int32)
        way = str(content.config_records[CLIENTS].get("way"))
        return _Trained(details, way if way in WAYS else "", words.numpy().view(np.uint32))

    def _summed(self, trained: Mapping[int, _Trained], total: Words) -> TrainReplies:
        """Returns the mean of updates from their sum, and the sites left out."""
        strategy, session = self._strategy, self._session
        ids = sorted(client for each in trained.values() for client in each.details.ids)
        weight = sum(min(strategy.roster.examples[client], session.most) for client in ids)
        if session.multiplier:  # a missing client counts as one that changed nothing
            weight = strategy.rounds.settings.clients_per_round
        sums = restore(total, bound=session.bound, room=session.room)
        method = strategy.rounds.merge.method
        received, _ = method.server.send(strategy.slots, [])
        slots = from_vector(
            method, received, strategy.rounds.shapes.sent, sums * (session.most / weight)
        )
        ways = {each.way for each in trained.values()}
        failed = {c: why for each in trained.values() for c, why in each.details.why.items()}
        update = Update(slots, weight, weight if session.multiplier else len(ids))
        accepted = Accepted(ids, [update], [], failed, ways.pop() if len(ways) == 1 else "")
        nodes = {self._nodes[party] for party in trained}
        everyone = sorted(client for node in nodes for client in self._clients[node])
        self._warn_of_later_answers(nodes)
        lost = {node: why for node, why in self._lost.items() if node not in nodes}
        return self._left_out(lost)._replace(accepted=[(everyone, accepted)])

    def _warn_of_later_answers(self, nodes: Set[int]) -> None:
        for node, why in sorted(self._lost.items()):
            if node in nodes and why is not None:
                _log.warning(
                    "round %d: the update of clients %s is in the sum, and their answer after it "
                    "is left out (%s): %s",
                    self._session.number,
                    few(self._clients[node], self._strategy.roster.names),
                    why.kind,
                    why.reason,
                )

    def _left_out(self, lost: Mapping[int, Rejected | None]) -> TrainReplies:
        found = sorted((self._clients[node], why) for node, why in lost.items())
        rejected = [(clients, why) for clients, why in found if why is not None]
        silent = [clients for clients, why in found if why is None]
        return TrainReplies([], rejected, silent, self._others)


def _registry(grid: Grid) -> dict[str, bytes]:
    membership = membership_of(grid)
    path = None if membership is None else membership.folder / REGISTRY
    return {} if path is None or not path.is_file() else {REGISTRY: path.read_bytes()}
