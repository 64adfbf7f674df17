"""The server's questions to the sites of a secure round, and who of them is still there."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid

from engram.guards.secure.terms import digests, session_of, terms
from engram.guards.secure.wire import SECURE, STAGE, Stage, read_entries
from engram.settings.errors import RunStopped, few
from engram.strategies.network_strategy import Federated
from engram.strategies.reply_border import Kind, Rejected, first_answers, read_reply
from engram.strategies.screening import TrainReplies
from engram.wire.wire import CLIENTS, CONFIG, SECURE_QUERY, config_of, read_list

T = TypeVar("T")


class Exchange:
    """Asks the sites of a round, which are parties by the number of their first client.

    Attributes:
        session: The terms of the round.
        messages: The messages to train, by party.
        clients: The clients that are asked, by party.
        lost: Parties without a usable answer to their last question; None: without any.

    Raises:
        RunStopped: The terms are impossible, as with fewer than two sites.
    """

    def __init__(
        self, grid: Grid, strategy: Federated, messages: Sequence[Message], timeout: float
    ) -> None:
        e, roster = strategy.rounds.settings, strategy.roster
        self._grid, self._names, self._timeout = grid, roster.names, timeout
        first = {node: client for client, node in reversed([*enumerate(roster.nodes)])}
        self.messages = {first[m.metadata.dst_node_id]: m for m in messages}
        configs = {party: config_of(m.content) for party, m in self.messages.items()}
        self.clients = {party: read_list(c, CLIENTS, int) for party, c in configs.items()}
        asked = {party: len(clients) for party, clients in sorted(self.clients.items())}
        told = terms(asked, *digests(messages[0].content, e))
        for config in configs.values():
            config.update(told)
        self._configs = {party: dict(config) for party, config in configs.items()}
        self.session = session_of(configs[min(configs)], e)
        self.lost: dict[int, Rejected | None] = {}
        self._others: Counter[Kind] = Counter()
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
            for each in data.items():
                check(*each)
            return data

        asked = {}
        for party in parties:
            config = ConfigRecord({**self._configs[party], STAGE: stage})
            content = RecordDict({CONFIG: config, SECURE: ConfigRecord({**entries})})
            node = self.messages[party].metadata.dst_node_id
            asked[party] = Message(content, dst_node_id=node, message_type=SECURE_QUERY)
        return self.ask(stage, asked, read)

    def ask(
        self,
        what: str,
        messages: Mapping[int, Message],
        read: Callable[[int, RecordDict], T | Rejected],
    ) -> dict[int, T]:
        """Sends messages, and reads their answers, by party.

        Raises:
            RunStopped: There are fewer than the threshold.
        """
        replies = self._grid.send_and_receive(messages.values(), timeout=self._timeout)
        answers, others = first_answers(replies, messages.values())
        self._others += others
        found: dict[int, T] = {}
        for party, message in sorted(messages.items()):
            reply = answers.get(message.metadata.message_id)
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
        return TrainReplies.of(replies, self._others)


def own(told: Mapping[int, Mapping[int, bytes]]) -> dict[int, bytes]:
    """Returns each party's bytes of its own."""
    return {party: mine[party] for party, mine in told.items()}
