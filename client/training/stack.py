"""Trains the cohorts of several runs as one. The runs differ only in seeds and in scales.

A client of a stack starts from its own run's model, takes steps of its own run's sizes, and draws
the same rows as if this run trained alone. So a stack gives every run's numbers, up to rounding,
and takes little longer than one run where overhead, not arithmetic, dominates a step.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial
from itertools import accumulate
from typing import Final

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from client.training.cohort import CohortTask, Draws, LocalRound
from client.training.outcome import Group, Trained, failed
from client.training.trainer import Trainer
from engram.cohort.task import ClientRaised
from engram.types import Params
from engram.units import Units
from federation.data.federated import Split
from federation.data.lazy import Lazy
from federation.methods.base import Method
from federation.methods.network import NetworkMethod
from federation.settings.fields import key_of

__all__ = ["STACKED", "Stack", "likeness"]

STACKED: Final = frozenset({"seed", "adapt-lr"})
"""Shared settings in which runs of a stack may differ, beside ``scale_fields`` of the method."""

_FLAGS: Final = (
    *("batches_per_step", "needs_initial_batch", "state_is_model", "reads_state"),
    *("affine", "single_use"),
)


def scale_fields(method: type[Method]) -> list[str]:
    """Returns the numeric fields of a method's settings in which runs of a stack may differ."""
    unscaled: frozenset[str] = getattr(method, "unscaled", frozenset())
    numbers = [name for name, field in method.model_fields.items() if field.annotation is float]
    return [name for name in numbers if name not in unscaled]


def likeness(trainer: Trainer) -> Hashable:
    """Returns a key that is equal for runs that can be stacked."""
    e, rule = trainer.experiment, trainer.rule
    free = STACKED | {f"{e.method}.{key_of(name)}" for name in scale_fields(type(e.own))}
    settings = [(key, value) for key, value in e.to_config().items() if key not in free]
    # Lazily read rows of several seeds are not joined: they may not fit into memory.
    read = any(isinstance(leaf, Lazy) for leaf in tree_leaves(trainer.data.train.x))
    drawn = trainer.constants
    return (
        *settings,
        *(getattr(rule, flag) for flag in _FLAGS),
        rule.moments is None,
        *trainer.ways,
        str(trainer.data.kind._replace(units=Units(targets=trainer.data.units.targets))),
        drawn and drawn(),
        e.seed if read or (drawn and drawn() is None) else None,
    )


class Stack:
    """Several runs' trainers, whose clients train together.

    Args:
        trainers: One for each run, all of the same ``likeness``. Those of the same seed share a
            sampler from now on, since they draw the same rows.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self._trainers = trainers
        first: dict[int, Trainer] = {}
        for trainer in trainers:
            trainer.sampler = first.setdefault(trainer.experiment.seed, trainer).sampler
        self._rows, starts = _joined_rows([trainer.data.train for trainer in first.values()])
        self._starts = dict(zip(first, starts, strict=True))
        self._apart = False
        methods = [trainer.experiment.of(NetworkMethod) for trainer in trainers]
        values = {
            name: [getattr(method, name) for method in methods]
            for name in scale_fields(type(methods[0]))
        }
        device = trainers[0].experiment.device
        self._scales = {
            name: torch.tensor(column, dtype=torch.float32, device=device)
            for name, column in values.items()
            if len(set(column)) > 1
        }

    def train(
        self,
        models: Sequence[Params],
        cohorts: Sequence[Sequence[int]],
        *,
        tailored: Sequence[Params],
        server_round: int,
        combine: Sequence[int | None],
        losses: bool = True,
    ) -> list[Trained]:
        """Runs one local round of each run's cohort, as ``Trainer.train`` does of one.

        Args:
            models: The runs' models, without what is tailored.
            cohorts: The clients that each run trains.
            tailored: For each run, the arrays that its server made for each client of its cohort.
            server_round: The round, >= 1.
            combine: For each run, as for ``Trainer.train``.
            losses: As for ``Trainer.train``.

        Raises:
            ClientFailed: As for ``Trainer.train``.
        """
        if self._at_once(cohorts) < 2:
            alone = partial(Trainer.train, server_round=server_round, durable=0, losses=losses)
            return [
                alone(trainer, model, [some], tailored=own, combine=most)[0]
                for trainer, model, some, own, most in zip(
                    self._trainers, models, cohorts, tailored, combine, strict=True
                )
            ]
        way, found = self._trainers[0].way, {}
        for runs in self._blocks(cohorts):
            received = {i: self._trainers[i].receive(models[i]) for i in runs}
            tasks = {
                i: self._trainers[i]
                .task(received[i], cohorts[i], server_round, self._trainers[i].receive(tailored[i]))
                ._replace(losses=losses)
                for i in runs
            }
            for i, done in self._run(tasks, cohorts, server_round, way):
                trainer, some = self._trainers[i], cohorts[i]
                kept = trainer.finish(done, received[i], some, server_round, durable=0)
                group = Group(combine[i], trainer.data.names)
                examples = [len(trainer.data.train.rows[client]) for client in some]
                group.add(list(range(len(some))), kept, some, examples, server_round, {})
                found[i] = group.trained(way)
        return [found[i] for i in range(len(self._trainers))]

    def _at_once(self, cohorts: Sequence[Sequence[int]]) -> int:
        return self._trainers[0].block // len(cohorts[0])

    def _blocks(self, cohorts: Sequence[Sequence[int]]) -> Iterator[range]:
        """Yields the runs that are trained at once, as many as caches and memory allow."""
        everyone, size = range(len(self._trainers)), self._at_once(cohorts)
        yield from (everyone[start : start + size] for start in everyone[::size])

    def _run(
        self,
        tasks: Mapping[int, CohortTask],
        cohorts: Sequence[Sequence[int]],
        server_round: int,
        way: str,
    ) -> Iterator[tuple[int, LocalRound]]:
        """Runs tasks of as many clients and rows together; yields each run's outcome."""
        alike: dict[Hashable, list[int]] = {}
        for i, task in tasks.items():
            draws = task.draws
            alike.setdefault((draws.initial, draws.size, draws.rows.shape), []).append(i)
        for runs in alike.values():
            parts = None if self._apart else self._together(tasks, runs, cohorts, server_round, way)
            if parts is None:
                parts = [self._run_one(i, tasks[i], cohorts[i], server_round, way) for i in runs]
            yield from zip(runs, parts, strict=True)

    def _together(
        self,
        tasks: Mapping[int, CohortTask],
        runs: Sequence[int],
        cohorts: Sequence[Sequence[int]],
        server_round: int,
        way: str,
    ) -> list[LocalRound] | None:
        """Runs tasks as one; returns None if the rule fails with scales of several runs."""
        size, joined = len(cohorts[runs[0]]), self._joined(tasks, runs)
        everyone = [client for i in runs for client in cohorts[i]]
        try:
            done = self._trainers[0].run(joined, server_round, way, everyone)
        except ClientRaised as error:
            names = self._trainers[runs[error.position // size]].data.names
            raise failed(everyone, error, server_round, names) from error
        except Exception:  # a user's rule may look at a value, which a stacked tensor does not show
            if not joined.scales:
                raise
            self._apart = True  # from now on each run trains alone, and raises its own errors
            return None
        starts = range(0, size * len(runs), size)
        return [
            _part(done, slice(start, start + size), tasks[i].model)
            for i, start in zip(runs, starts, strict=True)
        ]

    def _run_one(
        self, i: int, task: CohortTask, clients: Sequence[int], server_round: int, way: str
    ) -> LocalRound:
        trainer = self._trainers[i]
        try:
            return trainer.run(task, server_round, way, clients)
        except ClientRaised as error:
            raise failed(clients, error, server_round, trainer.data.names) from error

    def _joined(self, tasks: Mapping[int, CohortTask], runs: Sequence[int]) -> CohortTask:
        """Returns one task for the clients of several runs."""
        some = [tasks[i] for i in runs]
        starts = [task.start for task in some]
        size = len(some[0].memories)
        return CohortTask(
            model={},
            losses=some[0].losses,
            memories=[memory for task in some for memory in task.memories],
            draws=self._joined_draws([task.draws for task in some], runs),
            own={name: torch.cat([start[name] for start in starts]) for name in starts[0]},
            scales={
                name: column[list(runs)].repeat_interleave(size)
                for name, column in self._scales.items()
            },
        )

    def _joined_draws(self, some: Sequence[Draws], runs: Sequence[int]) -> Draws:
        seeds = [self._trainers[i].experiment.seed for i in runs]
        moved = [d.rows + self._starts[seed] for d, seed in zip(some, seeds, strict=True)]
        count = (some[0].rows.shape[1] - some[0].initial) // some[0].step_size
        whole = np.full((len(some[0].rows), count), some[0].size)
        sizes = [whole if draws.sizes is None else draws.sizes for draws in some]
        turns = [draws.turns for draws in some if draws.turns is not None]
        return some[0]._replace(
            split=self._rows,
            rows=torch.cat(moved),
            seeds=_cat([draws.seeds for draws in some]),
            keys=_cat([draws.keys for draws in some]),
            sizes=None if all(d.sizes is None for d in some) else np.concatenate(sizes),
            turns=np.concatenate(turns) if turns else None,
        )


def _cat(columns: Sequence[Tensor | None]) -> Tensor | None:
    there = [column for column in columns if column is not None]
    return torch.cat(there) if there else None


def _joined_rows(splits: Sequence[Split]) -> tuple[Split, list[int]]:
    """Returns one split with all rows, and the row number at which each given split begins."""
    first = splits[0]
    if len(splits) == 1:
        return first, [0]
    x = tree_map(lambda *leaves: torch.cat(leaves), *(split.x for split in splits))
    ends = list(accumulate(len(split.y) for split in splits))
    return first._replace(x=x, y=torch.cat([split.y for split in splits])), [0, *ends[:-1]]


def _part(done: LocalRound, some: slice, model: Params) -> LocalRound:
    """Returns the outcome for some of the clients, which started from ``model``."""
    broken = {i - some.start: h for i, h in done.broken.items() if some.start <= i < some.stop}
    models, states = done.models.part(some, model), done.states.part(some, model)
    return LocalRound(models, states, done.losses[some], broken)
