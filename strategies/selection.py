"""The best evaluation of a run so far, by its scores on validation rows."""

from typing import Any, Final, NamedTuple, Self

import numpy as np
import torch

from engram.metrics import Metric
from engram.types import Params
from federation.methods.local import SERVED, VALIDATION
from strategies.evaluation import Evaluation

__all__ = ["Selection", "is_selection"]

_MARK: Final = "selection/"  # prefix of its names in a strategy's state
_ROUND, _SINCE = (f"{_MARK}{part}" for part in ("round", "evaluations-since"))
_COLUMN: Final = f"{_MARK}column/"


class Selection(NamedTuple):
    """The best evaluation so far, by the mean over clients of a metric on validation rows.

    Neither test rows nor clients that never train have a part in the choice: they stand for rows
    and clients that are not known yet when a model is chosen.

    Attributes:
        columns: Each client's scores in it, (clients,); NaN for a client that was not scored.
        round: The round that it followed; -1 before the first evaluation.
        since: Number of evaluations since then, none of which was better.
    """

    columns: dict[str, torch.Tensor]
    round: int = -1
    since: int = 0

    @classmethod
    def empty(cls, names: list[str], clients: int) -> Self:
        """Returns the selection before the first evaluation.

        Args:
            names: The columns' names.
            clients: Number of clients of the federation.
        """
        nobody = torch.full((clients,), torch.nan, dtype=torch.float64)
        return cls({name: nobody.clone() for name in names})

    def after(
        self, server_round: int, evaluation: Evaluation, metric: Metric, unseen: frozenset[int]
    ) -> Self:
        """Returns the selection after another evaluation; of two equal ones, the first stays.

        Args:
            server_round: The round that was evaluated.
            evaluation: Its scores.
            metric: The metric that is compared.
            unseen: Clients that never train.
        """
        found = {name: leaf.clone().fill_(torch.nan) for name, leaf in self.columns.items()}
        for name, column in evaluation.columns.items():
            found[name][evaluation.clients] = torch.from_numpy(column)
        seen = [c for c in range(len(next(iter(found.values())))) if c not in unseen]
        old, new = (_score(columns, metric, seen) for columns in (self.columns, found))
        better = new > old if metric.better == "higher" else new < old
        if better or (self.round < 0 and not np.isnan(new)):
            return self._replace(columns=found, round=server_round, since=0)
        return self._replace(since=self.since + 1)

    @property
    def evaluation(self) -> Evaluation | None:
        """The scores of the evaluation; None before the first."""
        if self.round < 0:
            return None
        arrays = {name: leaf.numpy() for name, leaf in self.columns.items()}
        scored = np.flatnonzero(~np.isnan(arrays["queries"]))
        columns = {name: array[scored] for name, array in arrays.items()}
        return Evaluation(scored.tolist(), columns)

    def to_state(self) -> Params:
        """Returns the selection as tensors, for a strategy's state."""
        numbers = {_ROUND: self.round, _SINCE: self.since}
        found = {name: torch.tensor(number) for name, number in numbers.items()}
        return found | {_COLUMN + name: leaf for name, leaf in self.columns.items()}

    @classmethod
    def from_state(cls, state: Params) -> Self:
        """Reads what ``to_state`` returned."""
        columns = {
            name.removeprefix(_COLUMN): leaf
            for name, leaf in state.items()
            if name.startswith(_COLUMN)
        }
        return cls(columns, int(state[_ROUND]), int(state[_SINCE]))


def is_selection(name: str) -> bool:
    """Whether a name in a strategy's state is one of a selection's."""
    return name.startswith(_MARK)


def _score(columns: dict[str, Any], metric: Metric, clients: list[int]) -> float:
    """Returns the clients' mean on validation rows; NaN if none was scored."""
    values = columns[f"{VALIDATION}{metric.name}{SERVED}"][clients]
    return float(values[~values.isnan()].mean())
