"""The protocol that strategies of all families implement."""

import operator
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol, Self

from engram.core.types import Params
from engram.guards.noise import Noise
from engram.settings.base import Families
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.wire.messages import Question, Reply
from engram.wire.roster import Roster

Row = dict[str, Any]


class Round(NamedTuple):
    """A round's model and metrics."""

    model: Params
    metrics: Row


class Nodes(Protocol):
    """The nodes of a run, as strategies ask them; ``engram.server.engine.Engine`` is one.

    Attributes:
        at_work: Nodes with a question to train that a later round waits for.
    """

    at_work: frozenset[int]

    def get_node_ids(self) -> Iterable[int]:
        """Returns the nodes that can be asked now."""

    def ask(self, questions: Iterable[Question], *, timeout: float) -> list[Reply]:
        """Asks nodes; returns the replies that came in time, one at most to each question."""


class RunStrategy:
    """Strategy of a run that can be stopped and resumed: whom to ask, and how to merge.

    Attributes:
        scored_from: The first round with an evaluation; None if there is only one evaluation,
            after the last round, from which clients learn.
        state: Its state between rounds, kept in checkpoints. Set it to resume.
        left_out: Clients that were asked in the last round but did not contribute, with reasons.
        masks: Whether updates come in masked sums alone, of which each round has one.
        unseen: Clients that are never asked to train.
    """

    scored_from: ClassVar[int | None] = 0
    state: Params
    left_out: dict[int, str]
    masks: bool = False
    unseen: frozenset[int] = frozenset()

    @classmethod
    @abstractmethod
    def build(cls, experiment: Experiment, roster: Roster, noise: Noise) -> Self:
        """Builds the strategy of a run; ``noise`` is the source of that of central privacy.

        Raises:
            Refused: The settings do not fit the clients' data.
        """

    @abstractmethod
    def meet(self, roster: Roster) -> None:
        """Updates the clients and their nodes."""

    def succeed(self, before: Self, model: Params) -> Params:
        """Goes on where a strategy of fewer clients has come to; ``init`` was called before.

        Those that have come begin as if they had been there from the beginning, and never asked.
        Takes the arrays that the next round would start from, and returns those that it starts
        from.
        """
        self.state = widened(before.state, self.state)
        return model

    def start_from(self, model: Params, state: Params) -> Params:
        """Starts from where another run has come to; ``init`` was called before.

        Takes the arrays that its next round would start from, and its state; returns the arrays
        that the first round starts from.

        Raises:
            Refused: The method trains no network, or another one.
        """
        del model, state
        raise Refused("start-from must be empty for a method that trains no network")

    def forget(self, clients: Sequence[int]) -> None:
        """Forgets the server's entries of clients that are no members any more."""
        del clients

    @property
    @abstractmethod
    def cohort(self) -> list[int]:
        """The clients that the last messages ask, ascending."""

    @abstractmethod
    def init(self) -> Params:
        """Initializes ``state``; returns the arrays that the first round starts from."""

    @abstractmethod
    def configure_train(
        self, server_round: int, arrays: Params, config: Mapping[str, Any], grid: Nodes
    ) -> Iterable[Question]:
        """Returns the questions of a round that starts from ``arrays``; ``config`` is for all."""

    @abstractmethod
    def aggregate_train(self, server_round: int, replies: Sequence[Reply]) -> tuple[Params, Row]:
        """Merges the replies to them; returns the next round's arrays, and metrics.

        Raises:
            RunStopped: Too few replies are usable, or the run diverged.
        """

    @abstractmethod
    def configure_evaluate(
        self, server_round: int, arrays: Params, config: Mapping[str, Any], grid: Nodes
    ) -> Iterable[Question]:
        """Returns the questions of an evaluation after a round, as ``configure_train``."""

    @abstractmethod
    def aggregate_evaluate(self, server_round: int, replies: Sequence[Reply]) -> Row:
        """Takes the replies to them; returns metrics, empty if nobody was scored."""

    def row(self, absent: Mapping[int, str]) -> Row:
        """Returns a round's entries in the record, beside the metrics of ``aggregate_train``.

        ``absent`` are clients that did not contribute to the round, with reasons.
        """
        del absent
        return {}

    @property
    @abstractmethod
    def evaluated(self) -> bool:
        """Whether any client has answered the last evaluation."""

    def scores(self) -> Row:
        """Returns the summary of the last evaluation, for the record of its round."""
        return {}

    def unscored(self, row: Row) -> Row:
        """Returns a round's record without the entries of its evaluation."""
        return row

    def client_scores(self) -> Row:
        """Returns each client's main scores in the last evaluation, in columns; may be empty."""
        return {}

    @property
    def over(self) -> bool:
        """Whether the run should end before its last round."""
        return False

    @property
    def picks(self) -> Mapping[str, int]:
        """The best evaluated round so far, by key of the results; -1 before the first."""
        return {}

    @abstractmethod
    def results(self, arrays: Params, row: Row) -> Row:
        """Returns the contents of ``results.json``, by the last round's arrays and record.

        Raises:
            RunStopped: No client has answered the last evaluation, which the results need.
        """

    @staticmethod
    @abstractmethod
    def in_words(row: Mapping[str, Any]) -> str:
        """Summarizes a round's record or a run's results in a few words; "" if not possible."""


STRATEGIES: Families[type[RunStrategy]] = Families("strategy")
"""The strategy of each family, by the family's name."""

strategies = STRATEGIES.register


def nested(state: Params) -> tuple[Params, dict[str, Params]]:
    """Returns the method's part of a network strategy's state, and the others' by owner."""
    method: Params = {}
    others: dict[str, Params] = {"selection": {}, "clock": {}, "traffic": {}}
    for name, leaf in state.items():
        owner, _, rest = name.partition("/")
        part, key = (others[owner], rest) if owner in others else (method, name)
        part[key] = leaf
    return method, others


def widened(state: Params, larger: Params) -> Params:
    """Returns a state with room for more clients: where shapes differ, the rest is ``larger``'s."""
    found = dict(state)
    for name, leaf in state.items():
        like = larger.get(name, leaf)
        if like.ndim == leaf.ndim and all(map(operator.ge, like.shape, leaf.shape)):
            found[name] = like.clone()
            found[name][tuple(map(slice, leaf.shape))] = leaf
    return found
