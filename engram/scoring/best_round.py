"""The best evaluation in a run so far, by scores on validation rows."""

from typing import NamedTuple, Self

import numpy as np
import torch

from engram.core.types import Params
from engram.scoring.evaluation import Evaluation, center
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import VALIDATION

_ROUND, _SINCE, _COLUMN = "round", "evaluations-since", "column/"


class Selection(NamedTuple):
    """The best evaluation so far of a model, by clients' scores on validation rows.

    Scores are compared by ``Metric.center``, the mean or the median of all clients that train.

    Test rows and clients that never train do not affect the choice: they stand for rows and
    clients that are not known yet when a model is chosen.

    Attributes:
        which: Suffix of the model whose scores are compared, such as ``TUNED``; empty for the
            served models.
        columns: Each client's scores in it, (clients,); NaN for a client that was not scored.
        round: The round that it followed; -1 before the first evaluation.
        since: Number of evaluations since then that had a score, none of which was better.
    """

    which: str
    columns: dict[str, torch.Tensor]
    round: int = -1
    since: int = 0

    @classmethod
    def empty(cls, which: str, names: list[str], clients: int) -> Self:
        """Returns the selection before the first evaluation."""
        nobody = torch.full((clients,), torch.nan, dtype=torch.float64)
        return cls(which, {name: nobody.clone() for name in names})

    def after(
        self, server_round: int, evaluation: Evaluation, metric: Metric, unseen: frozenset[int]
    ) -> Self:
        """Returns the selection after another evaluation; of two equal ones, the first stays."""
        found = {name: leaf.clone().fill_(torch.nan) for name, leaf in self.columns.items()}
        for name, column in evaluation.columns.items():
            found[name][evaluation.clients] = torch.from_numpy(column)
        seen = [c for c in range(len(next(iter(found.values())))) if c not in unseen]
        name = f"{VALIDATION}{metric.name}{self.which}"
        old, new = (
            center(columns[name][seen].numpy(), metric) for columns in (self.columns, found)
        )
        better = new > old if metric.better == "higher" else new < old
        if np.isnan(new):  # nobody has the score: it says nothing
            return self
        if better or self.round < 0:
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
        found = {_ROUND: torch.tensor(self.round), _SINCE: torch.tensor(self.since)}
        found |= {_COLUMN + name: leaf for name, leaf in self.columns.items()}
        return {_mark(self.which) + name: leaf for name, leaf in found.items()}

    @classmethod
    def from_state(cls, which: str, state: Params) -> Self:
        """Reads a model's selection from the tensors of ``to_state``."""
        mark = _mark(which)
        own = {n.removeprefix(mark): leaf for n, leaf in state.items() if n.startswith(mark)}
        columns = {n.removeprefix(_COLUMN): leaf for n, leaf in own.items() if _COLUMN in n}
        return cls(which, columns, int(own[_ROUND]), int(own[_SINCE]))


def _mark(which: str) -> str:
    return which.removeprefix("-") + "/"
