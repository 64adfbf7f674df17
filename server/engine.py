"""The protocol of engines, which ask the clients of a run."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engram.core.types import Params
from engram.data.schema.columns import Kind
from engram.guards.presets import client_guards
from engram.link.server.membership import Membership
from engram.settings.experiment import Experiment
from engram.strategies.running.base import Round, Row, RunStrategy
from engram.strategies.running.secure_rounds import train_securely
from engram.wire.messages import Question, Reply


class Engine:
    """Asks the clients of a run, and knows who is there.

    Strategies ask by ``Nodes``, which is a part of it; the loop of rounds and the attendance use
    the rest. Defaults are those of nodes in this process, which neither come nor go.

    Attributes:
        joins: Whether nodes may join later; else they have shares of the run's data.
        still: Whether nodes neither come nor go, so that none is waited for between rounds.
        fixed: Whether all nodes are waited for, which have to load their data first.
        replays: Whether nodes come and go as another run's record says.
        kind: Kind of the data, with their units, if it is known before nodes are asked.
        membership: The federation that the nodes are of; None if there is none.
        at_work: Nodes with a question to train that a later round waits for.
        trains: Trains rounds in another way than ``train``, with the same arguments; or None.
        evaluates: Scores clients in another way than ``evaluate``, likewise; or None.
        costs: The costs of a round so far, for its record.
        said: Replies to roster queries that came between rounds, by node.
    """

    joins = False
    still = False
    fixed = False
    replays = False
    kind: Kind | None = None
    membership: Membership | None = None
    at_work: frozenset[int] = frozenset()
    trains: Callable[..., Round] | None = None
    evaluates: Callable[..., None] | None = None

    def __init__(self) -> None:
        self.said: dict[int, Reply] = {}
        self.costs: Row = {}

    @abstractmethod
    def get_node_ids(self) -> Iterable[int]:
        """Returns the nodes that can be asked now."""

    @abstractmethod
    def ask(self, questions: Iterable[Question], *, timeout: float) -> list[Reply]:
        """Asks nodes; returns the replies that came in time, one at most to each question."""

    @property
    def stopping(self) -> bool:
        """Whether `engram stop` has asked for an end of the run after its current round."""
        return False

    def on_line(self) -> set[int]:
        """Returns all online nodes, also those that cannot be asked now."""
        return {*self.get_node_ids()}

    def names(self) -> dict[int, str]:
        """Returns the names of online nodes that are registered by name; none chooses its own."""
        return {}

    def excuse(self, node: int) -> str:
        """Returns why an online node is not asked, as the end of a sentence; "" if unknown."""
        del node
        return ""

    def begin(self, experiment: Experiment, folder: Path) -> None:
        """Begins a run in a folder."""
        del folder
        if client_guards(experiment).masks:
            self.trains = partial(train_securely, self, experiment)

    def stage(self, server_round: int, *, training: bool) -> None:
        """Begins a round, or its evaluation."""

    def train(
        self,
        strategy: RunStrategy,
        server_round: int,
        model: Params,
        config: Mapping[str, Any],
        before: Callable[[], None] | None = None,
        *,
        timeout: float,
    ) -> Round:
        """Trains one round by questions: no evaluation, no record.

        ``config`` is sent to every client: the training's name; ``durable``, the round of the
        oldest checkpoint, from which a run may be resumed; ``way``, in which it was trained before
        that; and ``losses``, whether training losses are wanted. ``before`` is called once the
        cohort is drawn, before anybody is asked.

        Raises:
            RunStopped: Too few replies were usable, or the run diverged.
        """
        questions = strategy.configure_train(server_round, model, config, self)
        if before is not None:
            before()
        replies = self.ask(questions, timeout=timeout)
        return Round(*strategy.aggregate_train(server_round, replies))

    def evaluate(
        self,
        strategy: RunStrategy,
        server_round: int,
        model: Params,
        config: Mapping[str, Any],
        before: Callable[[Sequence[Reply]], None] | None = None,
        *,
        timeout: float,
    ) -> None:
        """Scores clients after a round by questions.

        ``config`` is as for ``train``; ``before`` is called with the replies before the strategy
        takes them.
        """
        questions = strategy.configure_evaluate(server_round, model, config, self)
        replies = self.ask(questions, timeout=timeout)
        if before is not None:
            before(replies)
        strategy.aggregate_evaluate(server_round, replies)
