"""The scores of a network's clients: every online node scores its own, by the server's slots."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from logging import getLogger
from typing import Any

from engram.core.method import Slots
from engram.core.types import Params
from engram.scoring.evaluation import Scored, read_scores
from engram.scoring.score_columns import Column
from engram.scoring.scorekeeping import Scorekeeper, Scoring
from engram.settings.errors import Names, brief, few
from engram.settings.fingerprint import fingerprint
from engram.strategies.running.base import Nodes, Row, RunStrategy
from engram.strategies.running.compressed_messages import Traffic, outgoing
from engram.strategies.running.reply_border import Kind, Rejected, read_reply
from engram.strategies.running.rounds import Rounds
from engram.strategies.running.screening import in_numbers
from engram.wire.messages import EVALUATE, Content, Question, Reply
from engram.wire.roster import Roster
from engram.wire.wire import CLIENTS, NOISE, WITHHELD, read_int, read_list, units_entries

_log = getLogger("flwr.engram")

_TOLD = 10  # most reasons that are listed

Answer = Scored | Rejected | None
"""The scores of a node's clients, or why they are left out; None without a reply."""


class ScoredStrategy(Scorekeeper, RunStrategy):
    """Base of strategies that have clients score a network; a subclass trains it.

    Attributes:
        rounds: The server's side of rounds, with the method.
        roster: The clients and their nodes.
    """

    def __init__(self, rounds: Rounds, roster: Roster) -> None:
        self.rounds = rounds
        scoring = Scoring.of(rounds.settings, rounds.shapes, roster.names)
        super().__init__(scoring, len(roster.nodes))
        self.unseen = scoring.unseen
        cast = rounds.merge.guard.broadcast
        self._traffic = Traffic(cast, rounds, len(roster.nodes)) if cast else None
        self._asked: list[tuple[Question, list[int]]] = []  # to score
        self.meet(roster)

    def meet(self, roster: Roster) -> None:
        """Updates the clients and their nodes."""
        self.roster = roster
        able = [c for c in range(len(roster.nodes)) if c not in roster.unscored]
        self._scored = self.scoring.drawn(able)
        self._all_scored = len(self._scored) == len(able)

    @abstractmethod
    def _whole(self, model: Params) -> Slots:
        """Returns the server's slots by those that are sent to all clients unchanged."""

    @property
    def evaluated(self) -> bool:
        """Whether any client was scored in the last evaluation."""
        return self.evaluation is not None

    def asked_to_score(self, model: Params, grid: Nodes) -> tuple[Slots, dict[int, list[int]]]:
        """Begins an evaluation; returns the server's slots, and the clients to score by node.

        Every online node scores its clients, whether or not they trained.
        """
        present = set(grid.get_node_ids())
        self.evaluation = None
        by_node = self.roster.by_node(self._scored).items()
        return self._whole(model), {node: some for node, some in by_node if node in present}

    def configure_evaluate(
        self, server_round: int, arrays: Params, config: Mapping[str, Any], grid: Nodes
    ) -> Iterable[Question]:
        """Asks every online node to score its clients, whether or not they trained."""
        slots, asked = self.asked_to_score(arrays, grid)
        units = units_entries(self.roster.kind.units)
        settings = {**config, "server-round": server_round, "fingerprint": fingerprint(), **units}
        content = outgoing(self.rounds.merge.method, slots, self._traffic)

        def asking(node: int, clients: list[int]) -> Question:
            whom = {} if self._all_scored else {"clients": clients}
            config = {**settings, **whom}
            return Question(node, EVALUATE, content(config, clients))

        self._asked = [(asking(node, clients), clients) for node, clients in asked.items()]
        return [question for question, _ in self._asked]

    def aggregate_evaluate(self, server_round: int, replies: Sequence[Reply]) -> Row:
        """Gathers the scores, by client, into ``evaluation``; returns as ``take_scores``."""
        came = {reply.question: reply for reply in replies}
        read = partial(screen_scores, server_round=server_round, columns=self.scoring.columns)

        def answer(question: Question, asked: list[int]) -> Answer:
            reply = came.get(question)
            return None if reply is None else read_reply(reply, partial(read, asked=asked))

        each = [(clients, answer(question, clients)) for question, clients in self._asked]
        noisy = any(NOISE in reply.content.get(CLIENTS, {}) for reply in replies)
        return self.take_scores(server_round, each, noisy=noisy)

    def take_scores(
        self,
        server_round: int,
        answers: Sequence[tuple[list[int], Answer]],
        *,
        noisy: bool = False,
    ) -> Row:
        """Gathers the nodes' scores, by client, into ``evaluation``.

        Each answer is beside the clients that were asked for it; ``noisy`` ones have the noise of
        local privacy.

        Returns:
            ``clients`` (number scored), and ``rejected-KIND`` (number of rejected answers of each
            kind that occurred); nothing if no client was scored.
        """
        names = self.roster.names
        scores, kinds, self.lacking = collect_scores(answers, server_round, names)
        if self._traffic:
            self._traffic.forget({c for clients, _ in answers for c in clients} - scores.keys())
        if not scores:
            return {}
        self.take(server_round, scores, names, noisy=noisy)
        return {"clients": len(scores), **in_numbers(kinds)}


def collect_scores(
    answers: Iterable[tuple[list[int], Answer]], server_round: int, names: Names
) -> tuple[Scored, Counter[Kind], str]:
    """Returns the scores by client, the number of rejected answers by kind, and why others lack.

    ``answers`` are those of nodes, with the clients that each was asked for.
    """
    scores: Scored = {}
    kinds: Counter[Kind] = Counter()
    lacking: list[str] = []
    for clients, found in answers:
        who = f"clients {few(clients, names)}"
        if found is None:
            lacking.append(f"{who}: no reply")
        elif isinstance(found, Rejected):
            kinds[found.kind] += 1
            lacking.append(f"{who}: {found.reason}")
            told = "round %d: %s lack scores (%s): %s"
            _log.warning(told, server_round, who, found.kind, found.reason)
        else:
            scores |= found
    more = f"; ... {len(lacking)} in all" if len(lacking) > _TOLD else ""
    return scores, kinds, "; ".join(lacking[:_TOLD]) + more


def screen_scores(
    content: Content, *, server_round: int, asked: Sequence[int], columns: Sequence[Column]
) -> Scored | Rejected:
    """Checks the content of a reply to an evaluation, for ``read_reply``.

    Raises:
        KeyError: If an entry is missing.
        TypeError, ValueError: If it is something else.
    """
    record = content[CLIENTS]
    number, ids = read_int(record, "server-round"), read_list(record, "ids", int)
    if record.get(WITHHELD):
        columns = [column._replace(optional=True) for column in columns]
    scored = read_scores(record, ids, columns, "queries", least=1)
    if number != server_round:
        return Rejected.of("round", f"it is of round {brief(number)}")
    if ids != list(asked):
        return Rejected.of("clients", f"{few(asked)} were asked, {brief(ids)} answered")
    return scored
