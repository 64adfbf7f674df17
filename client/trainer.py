"""Trains and scores the clients it is asked for: one, or thousands at once.

Both the ClientApp (with the clients of its node) and the in-process grid (with every client that
a round addresses) call it. The vectorized engine stacks models, memories and batches on a leading
client axis and runs each local step once for all; the sequential engine runs the same pure
functions client by client, and says which one fails, where.
"""

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from client.cohort import ClientRaised, Task, each_in_turn, pick, stacked
from client.memory import MemoryStore
from engram.meta.fine_tune import fine_tune
from engram.models import cross_entropy
from engram.types import Batch, Params
from federation.data.federated import FederatedData, model_for
from federation.data.partitions import Rows
from federation.errors import EngramError
from federation.experiment import Experiment
from federation.streams import Stream, generator

__all__ = ["ClientFailed", "Engine", "Scores", "Trained", "Trainer"]

Engine = Literal["vectorized", "sequential"]
_BLOCK = 2**22  # numbers of query inputs, or of parameters, that an evaluation holds at once


class ClientFailed(EngramError):
    """A client's local round raised an error; the message says whose, in which round and step."""


class Trained(NamedTuple):
    """What a local round made of a cohort.

    Attributes:
        clients: Those that trained, in the order in which they were asked for.
        params: Their models, stacked: each leaf has a leading axis of ``len(clients)``.
        examples: Their numbers of training rows.
        losses: Their losses on the last local batch, after the last step, in nats.
        failures: Those whose model or loss became non-finite, and what happened. They are in
            none of the above, and their memories are as they were.
    """

    clients: list[int]
    params: Params
    examples: list[int]
    losses: list[float]
    failures: dict[int, str]


class Scores(NamedTuple):
    """Accuracies (in [0, 1]) and losses (nats) on query rows; each of shape (clients,).

    Attributes:
        before: Accuracy of the common model.
        personalized: Accuracy after fine-tuning on the support rows.
        own: Accuracy of the model that the client keeps (LocalMOML's carried memory, pFedMe's
            theta), as it is; NaN for a client without one.
        loss_before: Loss of the common model.
        loss_personalized: Loss after fine-tuning.
        queries: Number of query rows.
    """

    before: Tensor
    personalized: Tensor
    own: Tensor
    loss_before: Tensor
    loss_personalized: Tensor
    queries: Tensor


class Trainer:
    """The local side of an experiment. Sets this process's number of torch threads.

    Args:
        experiment: The settings.
        data: Its data.
        store: Where memories are kept between rounds.
        engine: ``vectorized`` or ``sequential``. They give the same numbers, but for rounding.

    Raises:
        Refused: The network does not fit the data.
    """

    def __init__(
        self,
        experiment: Experiment,
        data: FederatedData,
        store: MemoryStore,
        *,
        engine: Engine = "vectorized",
    ) -> None:
        torch.set_num_threads(experiment.cpu_threads)
        self.experiment = experiment
        self.data = data
        self._store = store
        self._vectorized = engine == "vectorized"
        self._network = model_for(experiment, data.input_shape, data.num_classes)
        self._loss = cross_entropy(self._network)
        self._rule = experiment.local_rule(self._loss)
        self._remembers = experiment.keeps_memory and self._rule.state_is_model
        self._personalize = fine_tune(
            self._loss, lr=experiment.adapt_lr, steps=experiment.adapt_steps
        )

    # --- Training ------------------------------------------------------------------------

    def train(
        self, model: Params, clients: Sequence[int], *, server_round: int, durable: int
    ) -> Trained:
        """Runs one local round of each client, from the common model.

        Args:
            model: The common model w.
            clients: Whom to train; no client twice.
            server_round: The round, >= 1. With the seed and the client it determines every
                sample that is drawn.
            durable: As ``MemoryStore.save``.

        Raises:
            MemoryMismatch: A client's memory belongs to another model.
            ClientFailed: A client's step raised (sequential engine only).
        """
        e = self.experiment
        model = self._receive(model)
        initial, steps = self._draw(clients, server_round)
        task = Task(
            model=model,
            initial=None if initial is None else self.data.train.take(initial),
            memories=[self._memory(client, model, server_round) for client in clients],
            steps=(self._batches(steps[:, h]) for h in range(e.local_steps)),
        )
        try:
            done = (stacked if self._vectorized else each_in_turn)(self._rule, self._loss, task)
        except ClientRaised as error:
            raise ClientFailed(
                f"client {clients[error.position]} failed in round {server_round} at step "
                f"{error.step}: {error.__cause__!r}"
            ) from error
        kept = [i for i in range(len(clients)) if i not in done.broken]
        if self._remembers:
            for i in kept:
                memory = {name: leaf.clone() for name, leaf in pick(done.states, i).items()}
                self._store.save(clients[i], memory, server_round=server_round, durable=durable)
        return Trained(
            clients=[clients[i] for i in kept],
            params={name: leaf[kept] for name, leaf in done.models.items()},
            examples=[len(self.data.train.rows[clients[i]]) for i in kept],
            losses=[done.losses[i] for i in kept],
            failures={
                clients[i]: f"client {clients[i]}: its model or loss became non-finite in round "
                f"{server_round}" + (f" at step {step}" if step else "")
                for i, step in done.broken.items()
            },
        )

    def _receive(self, model: Params) -> Params:
        # Flower's own strategies compute in numpy, and some return float64.
        device = self.experiment.device
        return {name: leaf.to(device, torch.float32) for name, leaf in model.items()}

    def _draw(self, clients: Sequence[int], server_round: int) -> tuple[Rows | None, Rows]:
        """Draws with replacement: initial rows (c, K0) if needed, step rows (c, H, batches, K)."""
        e, rule = self.experiment, self._rule

        def draw(stream: Stream, *shape: int) -> Rows:
            rows = [self.data.train.rows[client] for client in clients]
            streams = [generator(e.seed, stream, server_round, client) for client in clients]
            return np.stack(
                [
                    own[rng.integers(len(own), size=shape)]
                    for own, rng in zip(rows, streams, strict=True)
                ]
            )

        steps = draw(Stream.LOCAL_STEPS, e.local_steps, rule.batches_per_step, e.batch_size)
        if not rule.needs_initial_batch:
            return None, steps
        return draw(Stream.INITIAL_BATCH, e.initial_batch_size), steps

    def _batches(self, rows: Rows) -> tuple[Batch, ...]:
        """Gathers a step's batches from rows of shape (c, batches, K)."""
        return tuple(self.data.train.take(rows[:, b]) for b in range(rows.shape[1]))

    def _memory(self, client: int, like: Params, before: int) -> Params | None:
        return self._store.load(client, like, before=before) if self._remembers else None

    # --- Evaluation ----------------------------------------------------------------------

    def evaluate(self, model: Params, clients: Sequence[int], *, server_round: int) -> Scores:
        """Scores the common model, personalized models and kept models of clients.

        A client's test rows are split once, by seed, into ``adapt-shots`` support rows and
        query rows, which are all others. Personalizing takes ``adapt-steps`` gradient steps on
        the support rows from a fresh copy of the model; the last one is scored.

        Args:
            model: The common model after ``server_round``.
            clients: Whom to score.
            server_round: Memories made up to this round are scored as kept models.
        """
        model = self._receive(model)
        size = sum(leaf.numel() for leaf in model.values())
        rows = self.data.test.rows
        inputs = int(np.prod(self.data.input_shape)) * max(len(rows[c]) for c in clients)
        block = max(1, _BLOCK // max(inputs, size)) if self._vectorized else 1
        parts = [
            self._evaluate_block(model, clients[start : start + block], server_round)
            for start in range(0, len(clients), block)
        ]
        return Scores(*(torch.cat(column).cpu() for column in zip(*parts, strict=True)))

    def _evaluate_block(self, model: Params, clients: Sequence[int], server_round: int) -> Scores:
        shots = self.experiment.adapt_shots
        shuffled = [
            generator(self.experiment.seed, Stream.SUPPORT, c).permutation(self.data.test.rows[c])
            for c in clients
        ]
        queries = [rows[shots:] for rows in shuffled]
        width = max(len(rows) for rows in queries)
        padded = np.stack([np.pad(rows, (0, width - len(rows)), mode="edge") for rows in queries])
        counted = np.arange(width) < np.array([[len(rows)] for rows in queries])
        support = self.data.test.take(np.stack([rows[:shots] for rows in shuffled]))
        x, y = self.data.test.take(padded)
        mask = torch.from_numpy(counted).to(x)
        query = (x, y, mask)
        before = self._each(lambda q: self._score(model, q), query)
        personalized = self._each(
            lambda s, q: self._score(self._personalize(model, s), q), support, query
        )
        own = torch.full((len(clients),), torch.nan)
        for i, client in enumerate(clients):
            memory = self._memory(client, model, server_round + 1)
            if memory is not None:
                own[i] = self._score(memory, (x[i], y[i], mask[i]))[0]
        return Scores(before[0], personalized[0], own, before[1], personalized[1], mask.sum(1))

    def _score(self, params: Params, query: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Returns accuracy and mean loss over the rows that the mask counts."""
        x, y, mask = query
        logits = self._network.apply(params, x)
        losses = functional.cross_entropy(logits, y, reduction="none")
        # The largest of NaNs is the first: a diverged model would be right about class 0.
        hits = ((logits.argmax(dim=-1) == y) & logits.isfinite().all(dim=-1)).to(mask)
        return (hits * mask).sum() / mask.sum(), (losses * mask).sum() / mask.sum()

    def _each(
        self, function: Callable[..., tuple[Tensor, ...]], *args: tuple[Tensor, ...]
    ) -> tuple[Tensor, ...]:
        """Applies a function to every client's slice of the arguments; stacks the results."""
        if self._vectorized:
            results: tuple[Tensor, ...] = vmap(function)(*args)
            return results
        each = [
            function(*(tuple(leaf[i] for leaf in arg) for arg in args))
            for i in range(len(args[0][0]))
        ]
        return tuple(torch.stack(column) for column in zip(*each, strict=True))
