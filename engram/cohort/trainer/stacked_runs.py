"""Trains the cohorts of several runs together; the runs differ in seeds and in float settings.

A client of a stack starts from its own run's slots, takes steps of its own run's sizes, and draws
the same rows as if this run trained alone. So a stack gives every run's numbers, up to rounding,
and takes little longer than one run where overhead, not arithmetic, dominates a step.
"""

from collections.abc import Hashable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_flatten

from engram.cohort.dense import first_base
from engram.cohort.draws import Draws
from engram.cohort.round import ClientRaised, Cohort, Outcome, joined
from engram.cohort.trainer.chunks import Asked, Chunk, failed, outcome_of
from engram.cohort.trainer.trainer import Trainer
from engram.core.method import Slots
from engram.core.rounds import first_steps
from engram.core.settings import numbers
from engram.core.standardization import Units
from engram.core.tree import concatenated, repeated
from engram.data.federated import Split
from engram.data.row_trees import has_lazy
from engram.settings.fields import key_of
from engram.wire.training_result import Trained

_SHARED: Final = frozenset({"seed", "adapt-lr"})
"""Shared settings in which runs of a stack may differ, beside the method's numbers."""


def likeness(trainer: Trainer) -> Hashable:
    """Returns a key that is equal for runs that can be stacked."""
    e, method = trainer.experiment, trainer.method
    free = _SHARED | {
        f"{e.method}.{key_of(name)}" for name in numbers(type(trainer.learner.settings))
    }
    free -= {f"{e.method}.eta"} if e.eta_by else set()  # by which its ratios are made
    settings = [(key, value) for key, value in e.to_config().items() if key not in free]
    # Lazily read rows of several seeds are not joined, which may not fit into memory; nor are
    # networks that may have drawn something besides their parameters.
    read = has_lazy(trainer.data.train.x)
    client = method.client
    phases = [
        (phase.batches, phase.affine, phase.one_gradient_per_batch) for phase in client.phases
    ]
    # Of epochs, each client has as many steps as it has rows.
    begun: list[float] = [phase.fraction for phase in client.phases]
    if not e.local_epochs:
        begun = [*map(float, first_steps(client.phases, e.local_steps))]
    return (
        *settings,
        *phases,
        *begun,
        client.initial_rows,
        frozenset(client.sends),
        frozenset(method.kinds.items()),
        *(_form(slots) for slots in (method.server.start, client.start)),
        *trainer.ways,
        str(trainer.data.kind._replace(units=Units(targets=trainer.data.units.targets))),
        e.seed if read or trainer.learner.model.drawn else None,
    )


def _form(tree: Any) -> Hashable:
    leaves, names = tree_flatten(tree)
    return str(names), *(leaf.shape for leaf in leaves)


class _Part(NamedTuple):
    """Clients of one run with memories of the same form."""

    run: int
    some: list[int]  # the clients' positions in the run's cohort
    clients: list[int]
    cohort: Cohort  # the same clients, with what they receive, keep and draw
    form: Hashable  # names and shapes of their memories' arrays


class Stack:
    """Trainers of several runs that train together.

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
        settings = [trainer.learner.settings for trainer in trainers]
        values = {
            name: [getattr(each, name) for each in settings]
            for name, by_clients in numbers(type(settings[0])).items()
            if by_clients
        }
        device = trainers[0].experiment.device
        self._scales = {
            name: torch.tensor(column, dtype=torch.float32, device=device)
            for name, column in values.items()
            if len(set(column)) > 1
        }

    def train(
        self,
        received: Sequence[tuple[Slots, Slots]],
        cohorts: Sequence[Sequence[int]],
        *,
        server_round: int,
        combine: Sequence[int | None],
        losses: bool = True,
    ) -> list[Trained]:
        """Runs one local round of each run's cohort, as ``Trainer.train`` does of one.

        Args:
            received: For each run, the slots that its cohort receives alike, and those of which
                each of its clients receives its own.
            cohorts: The clients that each run trains.
            server_round: The round, >= 1.
            combine: For each run, as for ``Trainer.train``.
            losses: As for ``Trainer.train``.

        Raises:
            ClientFailed: As for ``Trainer.train``.
        """
        if self._at_once(cohorts) < 2:
            alone = partial(Trainer.train, server_round=server_round, durable=0, losses=losses)
            return [
                alone(trainer, common, [some], own=own, combine=most)[0]
                for trainer, (common, own), some, most in zip(
                    self._trainers, received, cohorts, combine, strict=True
                )
            ]
        found = []
        for trainer in self._trainers:
            trainer.way = self._trainers[0].way
        for runs in self._blocks(cohorts):
            given = {i: self._given(i, received[i], cohorts[i], server_round, losses) for i in runs}
            parts = [
                _Part(i, some, clients, cohort, form)
                for i, task in given.items()
                for some, clients, form, cohort in self._trainers[i].cohorts(*task)
            ]
            done = self._run(parts, server_round)
            for i in runs:
                trainer, some = self._trainers[i], cohorts[i]
                mine = [(d, p.some) for p, d in zip(parts, done, strict=True) if p.run == i]
                outcome = mine[0][0] if len(mine) == 1 else joined(*zip(*mine, strict=True))
                left, places = trainer.finish(outcome, *given[i]), range(len(some))
                found.append(outcome_of(trainer, places, left, some, server_round, {}, combine[i]))
        return found

    def _at_once(self, cohorts: Sequence[Sequence[int]]) -> int:
        return self._trainers[0].block // len(cohorts[0])

    def _blocks(self, cohorts: Sequence[Sequence[int]]) -> Iterator[range]:
        everyone, size = range(len(self._trainers)), self._at_once(cohorts)
        yield from (everyone[start : start + size] for start in everyone[::size])

    def _given(
        self,
        i: int,
        received: tuple[Slots, Slots],
        clients: Sequence[int],
        server_round: int,
        losses: bool,
    ) -> tuple[Asked, Chunk]:
        common, own = self._trainers[i].receive(received)
        asked = Asked(common, server_round, durable=0, combine=None, losses=losses)
        return asked, Chunk([0] * len(clients), [*clients], own)

    def _run(self, parts: Sequence[_Part], server_round: int) -> list[Outcome]:
        """Trains clients with equal forms and numbers of rows together; keeps their order."""
        alike: dict[Hashable, list[int]] = {}
        for at, part in enumerate(parts):
            draws = part.cohort.draws
            drawn = draws.initial, draws.size, draws.rows.shape[1:]
            alike.setdefault((drawn, part.form), []).append(at)
        found: dict[int, Outcome] = {}
        for places in alike.values():
            some = [parts[at] for at in places]
            done = None if self._apart else self._together(some, server_round)
            if done is None:
                done = [self._run_one(part, server_round) for part in some]
            found |= zip(places, done, strict=True)
        return [found[at] for at in range(len(parts))]

    def _together(self, parts: Sequence[_Part], server_round: int) -> list[Outcome] | None:
        """Trains cohorts as one; returns None if the method fails with settings of several runs."""
        cohort, everyone = self._joined(parts), [c for part in parts for c in part.clients]
        ends = list(accumulate(len(part.clients) for part in parts))
        try:
            done = self._trainers[0].run(cohort, server_round, everyone)
        except ClientRaised as error:
            at = next(at for at, end in enumerate(ends) if error.position < end)
            trainer = self._trainers[parts[at].run]
            raise failed(trainer, everyone, error, server_round) from error
        except Exception:  # a method may look at a setting, which a stacked tensor does not show
            if not cohort.scales:
                raise
            self._apart = True  # from now on each run trains alone, and raises its own errors
            return None
        return [
            done.narrow(slice(start, end), first_base(part.cohort.common))
            for part, start, end in zip(parts, [0, *ends], ends, strict=False)
        ]

    def _run_one(self, part: _Part, server_round: int) -> Outcome:
        trainer = self._trainers[part.run]
        try:
            return trainer.run(part.cohort, server_round, part.clients)
        except ClientRaised as error:
            raise failed(trainer, part.clients, error, server_round) from error

    def _joined(self, parts: Sequence[_Part]) -> Cohort:
        cohorts = [part.cohort for part in parts]
        own, kept, states = concatenated(
            [(repeated(c.common, c.clients) | c.own, c.kept, [*c.states]) for c in cohorts]
        )
        runs = torch.tensor([part.run for part in parts for _ in part.clients])
        return Cohort(
            common={},
            own=own,
            kept=kept,
            states=states,
            draws=self._joined_draws(parts),
            scales={name: column[runs] for name, column in self._scales.items()},
            losses=cohorts[0].losses,
        )

    def _joined_draws(self, parts: Sequence[_Part]) -> Draws:
        draws = [part.cohort.draws for part in parts]
        seeds = [self._trainers[part.run].experiment.seed for part in parts]
        rows = [d.rows + self._starts[seed] for d, seed in zip(draws, seeds, strict=True)]
        whole = [np.full((len(d.rows), d.steps), d.size) for d in draws]
        sizes = [w if d.sizes is None else d.sizes for d, w in zip(draws, whole, strict=True)]
        starts = [np.broadcast_to(d.starts, (len(d.rows), d.starts.shape[1])) for d in draws]
        return draws[0]._replace(
            split=self._rows,
            rows=torch.cat(rows),
            seeds=None if draws[0].seeds is None else concatenated([d.seeds for d in draws]),
            keys=None if draws[0].keys is None else concatenated([d.keys for d in draws]),
            sizes=None if all(d.sizes is None for d in draws) else np.concatenate(sizes),
            starts=np.concatenate(starts),
        )


def _joined_rows(splits: Sequence[Split]) -> tuple[Split, list[int]]:
    first = splits[0]
    if len(splits) == 1:
        return first, [0]
    ends = list(accumulate(len(split.y) for split in splits))
    x, y = concatenated([(split.x, split.y) for split in splits])
    return first._replace(x=x, y=y), [0, *ends[:-1]]
