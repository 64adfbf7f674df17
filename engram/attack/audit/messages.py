"""Attacks on the first message of a client, and on the first merged model.

The first round is the easiest to attack: everybody knows the model that clients begin with.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.attack.inversion import recovered, rows_of_gradient, rows_of_layer
from engram.client.memory import RamStore
from engram.cohort.trainer.trainer import Trainer
from engram.cohort.trainer.worker_pool import training
from engram.core.method import Slots, Update
from engram.core.rounds import received_by
from engram.core.slots import over_slots
from engram.core.streams import Stream, torch_generator
from engram.core.types import Params
from engram.guards.changes import changes
from engram.guards.merge import Merge
from engram.guards.noise import simulated_noise
from engram.guards.presets import client_guards
from engram.home.run_models import LearnedNetworks
from engram.scoring.tasks import task_of
from engram.strategies.running.rounds import draw_cohort

MOST: Final = 64
"""Rows of a message that are looked for by their gradient; of more, nothing would be found."""

_STARTS: Final = 2
_ROUND: Final = 1


class Seen(NamedTuple):
    """Rows of a round that somebody can reconstruct."""

    by: Literal["server", "members"]  # the former sees each client's message, the latter the merged
    client: str  # its name; for members, the number of the round's clients, in words
    rows: int  # rows that the message is made of
    layer: float | None  # share that a first layer shows; None unless it is dense, with its bias
    gradient: float | None  # share found by matching gradients; None where that was not tried
    chance: float  # share of as many rows of other clients that the same guesses show

    @property
    def told(self) -> float:
        """The largest share that is shown."""
        return max(self.layer or 0.0, self.gradient or 0.0)


def messages(learned: LearnedNetworks, clients: Sequence[int]) -> list[Seen]:
    """Attacks the first round of a run: messages of some clients, and the merged model.

    Each client is attacked as if it were of the first cohort.
    """
    e = learned.experiment
    with training(e.cpu_threads):
        noise = simulated_noise(e.seed)
        trainer = Trainer(e, learned.data, RamStore(), engine="sequential", noise=noise)
        attack = _Attack(trainer)
        alone = [] if client_guards(e).masks else clients  # else the server sees no single one
        found = [attack.message(client, learned.called(client)) for client in alone]
        cohort = draw_cohort(e.seed, _ROUND, e.num_clients, e.clients_per_round)
        able = [client for client in cohort if len(trainer.data.train.rows[client])]
        return found + attack.merged(able)


class _Attack:
    """Somebody who knows the experiment's settings and where its clients begin."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer, self.method = trainer, trainer.method
        self.start: Slots = trainer.method.server.start
        train = trainer.data.train
        self.plain = isinstance(train.x, Tensor) and train.x.dtype != torch.int64
        everyone = torch.from_numpy(np.concatenate(train.rows))
        x = self._rows(everyone).flatten(1) if self.plain else torch.zeros(1, 1)
        self.mean, self.deviation = x.mean(0), x.std(0)
        self.spread = float(self.deviation.square().sum())

    def message(self, client: int, name: str) -> Seen:
        """Attacks a client's message."""
        received = received_by(self.method, self.start, client)
        sent = over_slots(lambda leaf: leaf[0], self._sent([client]))
        slots = changes(self.method, received, sent).values()
        models = [slot for slot in slots if isinstance(slot, dict)]
        return self._seen("server", name, [client], models)

    def merged(self, cohort: Sequence[int]) -> list[Seen]:
        """Attacks the model that a first round of these clients leaves."""
        train = self.trainer.data.train
        # Whoever adds central noise, the sum has as much of it.
        e = self.trainer.experiment.model_copy(update={"aggregation": "plain"})
        running = self.trainer.learner.network.running
        merge = Merge(e, self.method, running, simulated_noise(e.seed))
        sent = self._sent(cohort)
        updates = [
            Update(over_slots(lambda leaf, i=i: leaf[i], sent), len(train.rows[c]), 1, c)
            for i, c in enumerate(cohort)
        ]
        after = merge(self.start, updates, _ROUND)
        models = [
            {name: leaf - self.start[slot][name] for name, leaf in after[slot].items()}
            for slot, kind in self.method.kinds.items()
            if kind == "model" and slot in after and isinstance(after[slot], dict)
        ]
        several = f"{len(cohort)} clients together"
        return [self._seen("members", several, cohort, models)] if models else []

    def _sent(self, clients: Sequence[int]) -> Slots:
        common, own = self.method.server.send(self.start, clients)
        (trained,) = self.trainer.train(
            common, [clients], server_round=_ROUND, durable=0, own=own, losses=False
        )
        return trained.slots

    def _seen(
        self,
        by: Literal["server", "members"],
        name: str,
        clients: Sequence[int],
        models: Sequence[Params],
    ) -> Seen:
        own = self.trainer.data.train.rows
        drawn = [self.trainer.sampler.draw([client], _ROUND).rows.numpy() for client in clients]
        # Shorter batches are padded with a number that may be another client's.
        mine = [np.intersect1d(some, own[c]) for some, c in zip(drawn, clients, strict=True)]
        used = torch.from_numpy(np.concatenate(mine))
        if not self.plain:
            return Seen(by, name, len(used), None, None, 0.0)
        rows = self._rows(used).flatten(1)
        others = self._others(clients, len(used))
        shown, wrong = dict[str, float](), [0.0]

        def count(key: str, guesses: Tensor) -> None:
            share = float(recovered(rows, guesses, self.spread).float().mean())
            shown[key] = max(shown.get(key, 0.0), share)
            if len(others):
                wrong.append(float(recovered(others, guesses, self.spread).float().mean()))

        for change in models:
            if (layer := self._first_layer(change)) is not None:
                count("layer", rows_of_layer(*layer))
            if len(used) <= MOST and self._whole(change):
                count("gradient", self._matched(change, used).flatten(1))
        return Seen(by, name, len(used), shown.get("layer"), shown.get("gradient"), max(wrong))

    def _rows(self, numbers: Tensor) -> Tensor:
        x, _ = self.trainer.data.train.take(numbers)
        found: Tensor = x
        return found

    def _others(self, clients: Sequence[int], count: int) -> Tensor:
        """Returns as many rows of clients that have no part in the message, (n, d)."""
        rows = self.trainer.data.train.rows
        others = [own for client, own in enumerate(rows) if client not in clients and len(own)]
        if not others:
            return torch.zeros(0, len(self.mean))
        held = torch.from_numpy(np.concatenate(others))
        generator = torch_generator(self.trainer.experiment.seed, Stream.AUDIT)
        return self._rows(held[torch.randperm(len(held), generator=generator)[:count]]).flatten(1)

    def _first_layer(self, change: Params) -> tuple[Tensor, Tensor] | None:
        names = self.trainer.learner.network.layers[0] & change.keys()
        weights = [change[n] for n in names if change[n].shape[1:] == self.mean.shape]
        biases = [change[n] for n in names if change[n].ndim == 1]
        if len(weights) != 1 or len(biases) != 1:
            return None
        return weights[0], biases[0]

    def _whole(self, change: Params) -> bool:
        model, names = self.trainer.learner.model, self.trainer.learner.network.learned
        return names <= change.keys() and model.vectorizes and not model.noisy

    def _matched(self, change: Params, used: Tensor) -> Tensor:
        learner, e = self.trainer.learner, self.trainer.experiment
        x, y = self.trainer.data.train.take(used)
        w, names = learner.network.initial, learner.network.learned
        shape = x.shape[1:]
        mean, deviation = self.mean.view(shape), self.deviation.view(shape)
        slope = learner.objective(task_of(e.task, e.loss), "vmap").gradient
        starts = torch.randn(_STARTS, *x.shape, generator=torch_generator(e.seed, Stream.AUDIT, 1))
        u = rows_of_gradient(
            lambda u: slope(w, (mean + deviation * u, y), names),
            {name: change[name] for name in names},
            starts,
        )
        return mean + deviation * u
