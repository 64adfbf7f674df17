"""Sites at nodes, by their answers so far.

The server repeats its computation after each exchange, up to the first question that has no answer
yet: that is what sites are asked next.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
import torch

from engram.core.arrays import Array
from engram.core.types import Params
from engram.tables.survival.federation.messages import read_own, read_sums, sums_size
from engram.tables.survival.partial import Sums
from engram.tables.survival.sharing import Scatter
from engram.tables.survival.site_effects import Sites

AT: Final = "at"
"""The question for sums, at each site's coefficients of shape (M, d)."""

SCATTER: Final = "scatter"
"""The question for what is apart by a ``Scatter``'s arrays, shape (4, d), and own estimates."""


class Unanswered(Exception):
    """A question that the sites have not answered yet."""

    def __init__(self, kind: str, question: Array) -> None:
        super().__init__(kind)
        self.kind, self.question = kind, question


class AskedSites(Sites):
    """Sites by a record of questions, numbered, and of all sites' answers by their numbers."""

    def __init__(self, count: int, dim: int, record: Params) -> None:
        super().__init__()
        self._size, self.record = (count, dim), record

    def __len__(self) -> int:
        return self._size[0]

    def add(self, asked: Unanswered, answers: Params) -> None:
        """Adds the sites' answers to a question."""
        n, rows = len(self.record), None if asked.question.any() else 1  # the first has one row
        self.record[f"{asked.kind}-{n}"] = torch.from_numpy(asked.question[:rows])
        self.record |= {f"{n}/{name}": part for name, part in answers.items()}

    def sums(self, coefs: Array) -> Sequence[Sums]:
        """Returns each site's sums at its coefficients, shape (M, d)."""
        answer = self._answer(AT, coefs)
        count, dim = self._size
        third = answer["sums"].shape[1] > sums_size(dim, third=False)
        return read_sums(answer, count, dim, third=third)

    def own(self, scatter: Scatter) -> Array:
        """Returns marks of those apart, and own coefficients, errors and limits, (M, d, 5)."""
        return read_own(self._answer(SCATTER, np.stack(scatter)), *self._size)

    def _answer(self, kind: str, question: Array) -> Params:
        for name, asked in self.record.items():
            if name.startswith(f"{kind}-") and (asked.numpy() == question).all():
                start = f"{name.removeprefix(kind)[1:]}/"
                answers = (each for each in self.record.items() if each[0].startswith(start))
                return {key.removeprefix(start): part for key, part in answers}
        raise Unanswered(kind, question)
