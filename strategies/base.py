"""What a run asks of a strategy, beside what Flower does: one protocol for all families."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self, TypeVar

from flwr.app import ArrayRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from engram.types import Params
from federation.experiment import Experiment
from federation.noise import Noise
from federation.roster import Roster

__all__ = ["STRATEGIES", "Row", "RunStrategy", "strategies"]

Row = dict[str, Any]


class RunStrategy(Strategy):
    """A Flower strategy that a run can be made of, stopped, and gone on with.

    Attributes:
        scored_from: The first round of which an evaluation is part; None if there is one alone,
            after the last round, which is for the clients.
        state: What it remembers from one round to the next, in checkpoints. Set it to go on.
        left_out: Who of those asked in the last round had no part in it, and why.
    """

    scored_from: ClassVar[int | None] = 0
    state: Params
    left_out: dict[int, str]

    @classmethod
    @abstractmethod
    def build(cls, experiment: Experiment, roster: Roster, noise: Noise) -> Self:
        """Makes the strategy of a run.

        Args:
            experiment: The settings.
            roster: The clients.
            noise: Where the noise of central privacy comes from.

        Raises:
            Refused: The settings do not fit the clients' data.
        """

    @abstractmethod
    def meet(self, roster: Roster) -> None:
        """Takes in which clients there are, and on which nodes."""

    @abstractmethod
    def askable(self, grid: Grid) -> int:
        """Returns how many clients are on nodes that can be asked at the moment."""

    @property
    @abstractmethod
    def cohort(self) -> list[int]:
        """The clients whom the last messages ask, ascending."""

    @abstractmethod
    def init(self) -> ArrayRecord:
        """Sets ``state`` to that before the first round; returns the arrays that it starts from."""

    def row(self, absent: Mapping[int, str]) -> Row:
        """Returns what a round's record holds beside the metrics of ``aggregate_train``.

        Args:
            absent: Who had no part in it, and why.
        """
        del absent
        return {}

    @property
    @abstractmethod
    def evaluated(self) -> bool:
        """Whether somebody has answered the last evaluation."""

    def scores(self) -> Row:
        """Returns the figures of the last evaluation, for the record of its round."""
        return {}

    @abstractmethod
    def results(self, arrays: ArrayRecord, row: Row) -> Row:
        """Returns what ``results.json`` holds.

        Args:
            arrays: Those after the last round.
            row: The record of the last round.

        Raises:
            RunStopped: Nobody has answered the last evaluation, and there are none without.
        """

    @staticmethod
    @abstractmethod
    def in_words(row: Mapping[str, Any]) -> str:
        """Returns what a round, or a run, has found in some words; "" if nothing."""


STRATEGIES: dict[str, type[RunStrategy]] = {}
"""By family."""

_S = TypeVar("_S", bound=type[RunStrategy])


def strategies(plug_in: str) -> Callable[[_S], _S]:
    """Makes a class known as the strategy of a family; to be used as its decorator."""

    def register(strategy: _S) -> _S:
        STRATEGIES[plug_in] = strategy
        return strategy

    return register
