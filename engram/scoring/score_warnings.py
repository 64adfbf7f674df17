"""Warnings about an evaluation's scores."""

from collections.abc import Iterator
from logging import getLogger

import numpy as np

from engram.scoring.evaluation import Evaluation
from engram.scoring.score_columns import COMMON, TUNED
from engram.scoring.scorekeeping import Scorekeeper
from engram.settings.errors import Names, few

_log = getLogger("flwr.engram")


class ScoreWarnings:
    """Warns of infinite losses, of means of a few clients, and once of clients that tell no score.

    Args:
        private: Whether no client tells its scores, as where privacy is ``example``.
    """

    def __init__(self, *, private: bool) -> None:
        self._private = private
        self._silent: set[int] = set()  # clients that were warned of

    def see(self, server_round: int, scores: Scorekeeper, names: Names) -> None:
        """Warns of the last evaluation's scores.

        Args:
            server_round: The round after which clients were scored.
            scores: Their scores, of which there are some.
            names: The clients' names.
        """
        evaluation = scores.evaluation
        assert evaluation is not None  # for mypy: somebody was scored
        for told, clients in (*self._new(evaluation), *_lost(evaluation)):
            if clients:
                _log.warning(f"round %d: {told}", server_round, few(clients, names))
        for name, clients in scores.outlying.items():
            _log.warning(
                "round %d: the mean %s is what clients %s say, and no others; its median counts",
                server_round,
                name,
                few(clients, names),
            )

    def _new(self, evaluation: Evaluation) -> Iterator[tuple[str, list[int]]]:
        new = sorted(set(evaluation.silent) - self._silent)
        self._silent.update(new)
        if not self._private:
            yield "clients %s keep their scores to themselves", new


def _lost(evaluation: Evaluation) -> Iterator[tuple[str, list[int]]]:
    """Yields warnings of infinite losses, and their clients."""
    lost = {
        which: np.isinf(evaluation.columns[f"loss{which}"])
        for which in (COMMON, "", TUNED)
        if f"loss{which}" in evaluation.columns
    }
    common = lost.get(COMMON, np.zeros(len(evaluation.clients), dtype=bool))
    for told, some in (
        ("the common model's loss on test rows is not finite for clients %s", common),
        ("the loss on test rows is not finite for clients %s", lost[""] & ~common),
        (
            "fine-tuning diverged for clients %s: if their inputs and targets are of usual size, "
            "lower adapt-lr",
            lost.get(TUNED, lost[""]) & ~common & ~lost[""],
        ),
    ):
        yield told, np.array(evaluation.clients)[some].tolist()
