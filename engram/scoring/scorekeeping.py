"""Keeps the scores of a run: the last evaluation, and the best one on validation rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from logging import getLogger
from types import MappingProxyType
from typing import NamedTuple, Self

import numpy as np

from engram.core.arrays import Bools
from engram.core.method_shapes import Shapes
from engram.core.slots import has_common, has_tuned
from engram.core.streams import scored
from engram.core.types import Params
from engram.data.clients import all_unseen
from engram.guards.presets import protections
from engram.scoring.best_round import Selection
from engram.scoring.evaluation import Evaluation, Scored, outlying, summary
from engram.scoring.metrics import Metric
from engram.scoring.score_columns import (
    COMMON,
    TUNED,
    UNSEEN,
    VALIDATION,
    Column,
    ranges_of,
    selected_by,
    told,
)
from engram.settings.errors import Names, RunStopped, few
from engram.settings.experiment import Experiment
from engram.settings.network import NetworkMethod
from engram.strategies.running.base import Row

_log = getLogger("flwr.engram")


class Scoring(NamedTuple):
    """Metrics, models and stopping of a run's evaluations.

    Attributes:
        metrics: The metrics; the first decides which evaluation is best.
        columns: The columns that nodes send.
        models: Models that are scored beside the served ones: ``COMMON``, ``TUNED``.
        validates: Whether rows are held out for validation, whose scores are columns, too.
        patience: Evaluations in a row without a better score after which a run stops; 0: none.
        unseen: Clients that never train.
        drawn: Picks the clients of an evaluation, of those that can be scored, ascending.
        noise: The deviation of nodes' noise on a client's scores, by column.
        private: Whether no client tells its scores, as where privacy is ``example``.
    """

    metrics: tuple[Metric, ...]
    columns: tuple[Column, ...]
    models: tuple[str, ...] = ()
    validates: bool = False
    patience: int = 0
    unseen: frozenset[int] = frozenset()
    drawn: Callable[[Sequence[int]], list[int]] = list
    noise: Mapping[str, float] = MappingProxyType({})
    private: bool = False

    @classmethod
    def of(cls, experiment: Experiment, shapes: Shapes, names: Names) -> Self:
        """Returns the scoring of an experiment.

        Raises:
            Refused: As ``all_unseen``.
        """
        e, own = experiment, experiment.of(NetworkMethod)
        has = {COMMON: has_common(shapes.common, shapes.served), TUNED: has_tuned(shapes.served)}
        models = tuple(which for which, there in has.items() if there)
        columns, never = own.columns(e, models), all_unseen(e, names)
        return cls(
            tuple(own.metrics(e)),
            tuple(told(column, covered=e.covers_clients) for column in columns),
            models,
            e.validates,
            e.patience,
            never,
            partial(scored, e, never=never),
            protections(e).report(ranges_of(columns)),
            e.hides_rows,
        )


class Selections(dict[str, Selection]):
    """The evaluations that are picked so far, by model."""

    @property
    def state(self) -> Params:
        """The state that checkpoints keep; set it to resume."""
        return {name: leaf for each in self.values() for name, leaf in each.to_state().items()}

    @state.setter
    def state(self, state: Params) -> None:
        self.update({which: Selection.from_state(which, state) for which in self})


class Scorekeeper:
    """Keeps the scores of a run.

    Attributes:
        scoring: As given.
        evaluation: The last evaluation's scores of every client, or None.
        selections: The best evaluations, where rows are held out for validation.
        lacking: Why clients lack scores of the last evaluation that was tried.
    """

    def __init__(self, scoring: Scoring, clients: int) -> None:
        self.scoring = scoring
        self.evaluation: Evaluation | None = None
        self.lacking = ""
        self._silent: set[int] = set()  # clients that were warned of
        names = [*(column.name for column in scoring.columns), "queries"]
        self.selections = Selections(
            (which, Selection.empty(which, names, clients))
            for which in ("", *scoring.models)
            if scoring.validates and which != COMMON
        )

    def take(self, server_round: int, scores: Scored, names: Names, *, noisy: bool = False) -> None:
        """Adds the scores of an evaluation, and warns of odd ones; noisy ones select no round."""
        s = self.scoring
        found = Evaluation.of(scores)._replace(noise=s.noise if noisy else {})
        if not found.noise:
            for which, before in self.selections.items():
                after = before.after(server_round, found, s.metrics[0], s.unseen)
                self.selections[which] = after
        self.evaluation = found
        self._warn(server_round, found, names)

    def _warn(self, server_round: int, found: Evaluation, names: Names) -> None:
        """Warns of infinite losses, of means of a few clients, and once of those without scores."""
        silent = set[int]() if self.scoring.private else set(found.silent) - self._silent
        self._silent |= silent
        told = ("clients %s keep their scores to themselves", silent)
        for what, clients in (told, *_lost(found)):
            if clients:
                _log.warning(f"round %d: {what}", server_round, few(sorted(clients), names))
        for name, far in self.outlying.items():
            line = "round %d: the mean %s is what clients %s say, and no others; its median counts"
            _log.warning(line, server_round, name, few(far, names))

    @property
    def picks(self) -> dict[str, int]:
        """The round that is picked so far for each model, by the key of its results."""
        return {selected_by(which): each.round for which, each in self.selections.items()}

    @property
    def outlying(self) -> dict[str, list[int]]:
        """Clients that dominate the mean of the last evaluation, by metric."""
        if self.evaluation is None:
            return {}
        return outlying(self.evaluation, self.scoring.metrics, self.scoring.unseen)

    def scores(self) -> Row:
        """Returns the summary of the last evaluation; empty if nobody was scored."""
        if self.evaluation is None:
            return {}
        return summary(self.evaluation, self.scoring.metrics, self.scoring.unseen)

    def is_score(self, name: str) -> bool:
        """Whether an entry of a round's record belongs to the summary of its evaluation."""
        column = name.removeprefix(UNSEEN).removeprefix(VALIDATION)
        names = (metric.name for metric in self.scoring.metrics)
        return name == "scored" or any(f"{column}-".startswith(f"{one}-") for one in names)

    def client_scores(self) -> Row:
        """Returns each client's scores by the first metric, on test rows; empty if none was scored.

        They are rounded to six digits, since every evaluation writes a line of them.
        """
        if self.evaluation is None:
            return {}
        name, columns = self.scoring.metrics[0].name, self.evaluation.columns
        kept = [name + which for which in (COMMON, "") if name + which in columns]
        found: Row = {"ids": self.evaluation.clients}
        for column in kept:
            values = columns[column].tolist()
            found[column] = [float(f"{v:.6g}") if np.isfinite(v) else None for v in values]
        return found

    def score_results(self) -> Row:
        """Returns the summary and each client's scores, of the last evaluation and the best one.

        ``selected`` is the best evaluation by the served models, ``selected-tuned`` by these after
        fine-tuning, where that is scored. ``outlying`` is there if a client dominates a mean.

        Raises:
            RunStopped: No client was scored.
        """
        if self.evaluation is None:
            why = self.lacking or "none could be asked"
            raise RunStopped(f"no client could be scored; resume the run to try again ({why})")
        s = self.scoring
        found = {**self.scores(), "clients": self.evaluation.listed("queries")}
        if s.unseen:
            found["unseen"] = sorted(s.unseen)
        if far := self.outlying:
            found["outlying"] = far
        for which, picked in self.selections.items():
            if picked.evaluation is not None:
                scores = summary(picked.evaluation, s.metrics, s.unseen)
                clients = picked.evaluation.listed("queries")
                key = selected_by(which)
                found[key] = {"round": picked.round, **scores, "clients": clients}
        return found


def _lost(evaluation: Evaluation) -> Iterator[tuple[str, set[int]]]:
    nobody = np.zeros(len(evaluation.clients), dtype=bool)

    def lost(which: str) -> Bools:
        column = evaluation.columns.get(f"loss{which}")
        return nobody if column is None else np.isinf(column)

    common, served = lost(COMMON), lost("")
    tuned = lost(TUNED) if f"loss{TUNED}" in evaluation.columns else served
    for what, some in (
        ("the common model's loss on test rows is not finite for clients %s", common),
        ("the loss on test rows is not finite for clients %s", served & ~common),
        (
            "fine-tuning diverged for clients %s: if their inputs and targets are of usual size, "
            "lower adapt-lr",
            tuned & ~common & ~served,
        ),
    ):
        yield what, set(np.array(evaluation.clients)[some].tolist())
