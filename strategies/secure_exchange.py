"""The server's questions to the sites of a secure round, and who of them is still there."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from engram.guards.secure.terms import digests, session_of, terms
from engram.guards.secure.wire import SECURE, STAGE, Stage, read_entries
from engram.settings.errors import RunStopped, few
from engram.strategies.base import Nodes
from engram.strategies.network_strategy import Federated
from engram.strategies.reply_border import Rejected, read_reply
from engram.strategies.screening import TrainReplies
from engram.wire.messages import Content, Question
from engram.wire.wire import CLIENTS, CONFIG, SECURE_QUERY, config_of, read_list

T = TypeVar("T")


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
        read: Callable[[int, Content], T | Rejected],
    ) -> dict[int, T]:
        """Asks, and reads the answers, by party.

        Raises:
            RunStopped: There are fewer than the threshold.
        """
        replies = self._grid.ask(questions.values(), timeout=self._timeout)
        came = {reply.question: reply for reply in replies}
        found: dict[int, T] = {}
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
