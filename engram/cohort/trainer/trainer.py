"""Trains clients: one, or thousands at once.

The ClientApp calls it with the clients of its node, and a run in one process with every client that
a round addresses. The vectorized engine runs each local step once for a block of clients, as many
as caches and memory allow; that may be one, if the network is large. The sequential engine runs the
same pure functions client by client, and an error says which client failed, and at which step.
"""

from collections.abc import Hashable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import groupby
from operator import methodcaller
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import torch
from torch.utils._pytree import tree_map

from engram.client.memory import MemoryStore, RamStore
from engram.cohort.round import ClientRaised, Cohort, Outcome, joined
from engram.cohort.trainer.block_size import block_of
from engram.cohort.trainer.chunks import (
    Asked,
    Chunk,
    ClientFailed,
    Group,
    Parts,
    Share,
    deal,
    failed,
    in_order,
    outcome_of,
)
from engram.cohort.trainer.client_memory import Memory, Recollection
from engram.cohort.trainer.loss_trial import on_rows
from engram.cohort.trainer.sampler import Sampler
from engram.cohort.trainer.ways import Learner, quickest
from engram.core.checks import must, require
from engram.core.contract import Contract, SlotFault, cause_of, line_of
from engram.core.machine import check_threads
from engram.core.method import Method, Slots
from engram.core.method_shapes import nbytes
from engram.core.slot_optimizers import State, check_optimizer, optimizer_of
from engram.core.slots import flat, unflat
from engram.core.standardization import Units
from engram.core.streams import Stream, torch_generator, unseen
from engram.core.tree import select, stacked
from engram.core.types import Params
from engram.data.augmentations import AUGMENTATIONS
from engram.data.federated import FederatedData, check_augmentation, model_for, with_known_tokens
from engram.data.standardize import in_units, standardized
from engram.guards.facts import Fact
from engram.networks.base import Model, matching, network_of
from engram.networks.losses import rows_of
from engram.networks.optimizers import by_pattern, step_factors
from engram.scoring.tasks import Task, task_of
from engram.settings.errors import Refused, one_line
from engram.settings.method_for_data import check_kept, costs, set_aside, shapes_on
from engram.wire.training_result import Trained

if TYPE_CHECKING:
    from engram.cohort.trainer.sending import Sending
    from engram.guards.guard import Guard
    from engram.guards.noise import Noise
    from engram.scoring.score_clients import Scorer
    from engram.settings.experiment import Experiment

__all__ = ["ClientFailed", "Engine", "Received", "Trainer"]

Engine = Literal["vectorized", "sequential"]
_TOGETHER: Final = (
    "; functions of clients that are trained together cannot look at values, or draw: use "
    "torch.where, or the engine sequential"
)
_EXPLAINED: Final = 3  # clients of a block whose slots broke and that are looked at: it takes long


class Received(NamedTuple):
    """The arrays that clients receive, by path, with their shapes."""

    common: dict[str, tuple[int, ...]]  # those that all clients receive alike
    # Those of which each receives its own, without the clients' axis.
    own: dict[str, tuple[int, ...]]


class Trainer:
    """Trains an experiment's clients, within ``engram.cohort.trainer.worker_pool.training``.

    Args:
        experiment: The settings.
        data: Its data.
        store: The store of clients' memories.
        engine: ``vectorized`` or ``sequential``; both give the same numbers, up to rounding.
        noise: The source of the noise of local privacy; by default a secret one.
        covers: Whether under local privacy all that clients send has noise; then what diverged is
            sent as if nothing had changed, and all clients of a mean count alike.

    Attributes:
        experiment: As given.
        given: The data as given.
        data: The same, after a check of its tokens, with inputs as the network takes them.
        method: The method.
        received: What clients receive.
        shapes: The slots of a client, without values.
        empty: Slots that they receive without arrays, which no message has.
        sampler: Draws the rows of each round.
        ways: Names of the ways to train a cohort of which one may be the fastest.
        way: The one that trains; empty until the first cohort has shown which is the fastest.
        store: As given, until others are lent.
        sending: Acts on updates, and reads what messages bring.
        block: The largest number of clients that are trained at once.
        bytes_each: Bytes that training one client takes.

    Raises:
        Refused: The network, the loss, a metric or the augmentation does not fit the data, or the
            memory budget does not fit one client.
    """

    def __init__(
        self,
        experiment: "Experiment",
        data: FederatedData,
        store: MemoryStore,
        *,
        engine: Engine = "vectorized",
        noise: "Noise | None" = None,
        covers: bool = False,
    ) -> None:
        check_threads(experiment.cpu_threads)
        e = self.experiment = experiment
        self.store, self._noise, self._engine = store, noise, engine
        self.given, self._standard = data, data.units.targets
        self._covers, row_guard = covers and e.covers_clients, _row_guard(e)
        data = standardized(e, data)
        model = model_for(e, data.kind, data.example)
        self.data = with_known_tokens(data, model, e)
        self._task = task_of(e.task, e.loss)
        self._own = e.network
        shapes = shapes_on(e, model, data.outputs)
        self.shapes, self.empty = shapes, unflat({}, shapes.received)
        generator = torch_generator(e.seed, Stream.MODEL)
        initial = set_aside(self.receive(model.init(generator)))
        augment = AUGMENTATIONS.get(e.augment)
        try:
            metrics = self._own.metrics(e)
            if shapes.served.weights is not None:  # which weigh rows
                rows_of(self._task)
            self._task = on_rows(self._task, metrics, model, initial, self.data)
            etas = self._by_pattern(model, initial, "eta", e.eta_by)
            optimizer = optimizer_of(
                e.optimizer,
                momentum=e.momentum,
                weight_decay=e.weight_decay,
                clip=e.gradient_clip,
                decays=self._by_pattern(model, initial, "weight-decay", e.weight_decay_by),
                ratios={n: eta / self._own.settings.eta for n, eta in etas.items()},
            )
            self.learner = Learner(
                settings=self._own.settings,
                model=model,
                network=network_of(model, initial, lambda: self.receive(model.init(generator))),
                outputs=data.outputs,
                clients=e.num_clients,
                generator=lambda: torch_generator(e.seed, Stream.HYPERNETWORK),
                optimizer=optimizer,
                standard=self._standard,
                work=shapes.work,
                guard=row_guard,
            )
            self._check_network(model)
            self.method: Method = self.learner.method(self._task)
            users = check_optimizer(e.optimizer)
            self._factors = step_factors(e.schedule, e.num_rounds)
            if augment is not None:
                check_augmentation(augment, data.example)
        except ValueError as error:
            raise Refused(one_line(str(error))) from error
        self.received = Received(
            {path: tuple(leaf.shape) for path, leaf in flat(shapes.common).items()},
            {path: tuple(leaf.shape[1:]) for path, leaf in flat(shapes.own).items()},
        )
        side, size = self.method.client, self.learner.size
        self.sampler = Sampler(
            e, self.data.train, side, model, augment, noise, size, by_chance=row_guard is not None
        )
        moments, never = e.optimizer_state == "kept" and optimizer.remembers, unseen(e, data.names)
        self._memories = Recollection(
            store, self.method, initial, moments=moments, device=e.device, unseen=never
        )
        vectorized = all((engine == "vectorized", users, model.vectorizes, self._task.vectorizes))
        self.ways: tuple[str, ...] = ("in-turn",)
        if vectorized:
            keeps, rows = self._memories.moments, self._rows
            self.ways = self.learner.fastest(e, shapes, rows=rows, size=self._size, keeps=keeps)
        self._trains = lru_cache(maxsize=4)(self.learner.trains)  # the last factors and losses
        what = self.method, shapes, self.learner.network.running, data.names, self._memories
        self.sending = _sending(e, *what, noise, self._covers)
        if isinstance(store, RamStore):
            keeps_sent = self.sending is not None and self.sending.guard.keeps
            check_kept(e, shapes, nbytes(shapes.sent) if keeps_sent else 0)
        self._checked, self.way = set[frozenset[str]](), ""
        self.block, self.bytes_each = block_of(self, self._size, self._rows)
        self._vectorized = vectorized

    @staticmethod
    def _by_pattern(model: Model, w: Params, key: str, text: str) -> dict[str, float]:
        return matching(model, [n for n in w if n not in model.running], by_pattern(text), key)

    def _check_network(self, model: Model) -> None:
        e = self.experiment
        private = self.learner.guard is not None
        if private and (model.statistics is not None or model.least_rows > 1):
            expected = "one without batch norm, such as norm group, where privacy is example"
            raise ValueError(must("model", e.model, f"{expected}: it mixes rows"))
        plain = "one that looks at no values (torch.func.vmap runs it) where privacy is example"
        require(model.vectorizes or not private, "model", e.model, plain)

    @cached_property
    def scorer(self) -> "Scorer":
        """Scores the clients; tuning trains many whom it never scores."""
        from engram.scoring.score_clients import Scorer  # noqa: PLC0415 - a round needs none
        from engram.scoring.served import ServedModels  # noqa: PLC0415 - a round needs none

        what = self.experiment, self.learner, self.data, self._task, self.shapes
        return Scorer(ServedModels(*what, vectorized=self._vectorized))

    @property
    def costs(self) -> str:
        """A client's traffic and memory in a round, in words."""
        return costs(self.experiment, self.shapes, self.learner.model.frozen)

    def lend(self, store: MemoryStore) -> None:
        """Keeps clients' memories in another store from now on."""
        self.store, self._memories = store, replace(self._memories, store=store)
        if self.sending is not None:
            self.sending = replace(self.sending, memories=self._memories)

    def tuning_by(self, adapt_lr: float) -> "Trainer":
        """Returns this trainer with another step size of fine-tuning, for scores alone."""
        found = copy(self)
        found.experiment = self.experiment.model_copy(update={"adapt_lr": adapt_lr})
        found.__dict__.pop("scorer", None)  # the cached one has the former step size
        return found

    def in_units(self, units: Units) -> "Trainer":
        """Returns a trainer of the same clients with rows in other units."""
        what = self.experiment, in_units(self.given, units), self.store
        found = type(self)(*what, engine=self._engine, noise=self._noise, covers=self._covers)
        found.way = self.way
        return found

    @property
    def _size(self) -> int:
        """Largest number of rows in a batch: ``batch-size``, or all rows of the largest client."""
        return min(self.experiment.batch_size, max(map(len, self.data.train.rows)) or 1)

    @property
    def _rows(self) -> int:
        e, client = self.experiment, self.method.client
        batches = -(-max(map(len, self.data.train.rows)) // e.batch_size)
        steps = e.local_epochs * batches if e.local_epochs else e.local_steps
        return client.initial_rows + steps * client.phases[0].batches * self._size

    # --- Training ------------------------------------------------------------------------

    def train(
        self,
        common: Slots,
        groups: Sequence[Sequence[int]],
        *,
        server_round: int,
        durable: int,
        own: Slots = {},  # noqa: B006 - nobody changes it
        combine: int | None = None,
        losses: bool = True,
        way: str = "",
        version: int | None = None,
        share: Share = in_order,
    ) -> list[Trained]:
        """Runs one local round of each client.

        Clients are trained in chunks. Memories of a chunk are stored before the next one is
        trained: after an error, earlier clients are as if their replies had been lost.

        Args:
            common: The slots that all clients receive alike.
            groups: The clients to train, in groups with separate results; no client twice.
            server_round: The round, >= 1. With the seed and the client it determines every
                sample that is drawn.
            durable: As ``MemoryStore.save``.
            own: Slots of which each of these clients receives its own, in their order.
            combine: The largest weight of a client, in rows, in the mean of its group, >= 1; with
                1, all clients count alike. None to return what every client sends.
            losses: Whether training losses are computed, by a forward pass for each client.
            way: The way in which an earlier process trained this run, so that what it did is
                repeated to the bit; empty if there was none.
            version: Version of the slots where a message brought them, whose answer is in bytes if
                guards say so; None in one process.
            share: Trains the chunks; by default one after the other, in this process.

        Raises:
            MemoryMismatch: A client's memory is that of another method or network.
            ClientFailed: A client's step raised an error, and clients are trained in turn.
        """
        common, own = self.receive(common), self.receive(own)
        common = self.empty | common
        if self._covers and combine is not None:
            combine = 1  # how many rows one client has must not weigh the others
        self.way = self.way or way
        asked = Asked(common, server_round, durable, combine, losses, version)
        results = [Group(combine) for _ in groups]
        chunks = deal(groups, own, self.block)
        shared = len(chunks) > 1 or getattr(share, "cuts", False)
        for parts in (share if shared else in_order)(self, asked, chunks):
            for number, part in parts:
                results[number].add(part)
        return [result.trained(self.way) for result in results]

    def chunk(self, asked: Asked, chunk: Chunk) -> Parts:
        """Trains a chunk of a round's clients, and stores their memories; or scores them."""
        numbers, clients = chunk.numbers, chunk.clients
        if asked.scores:
            memories = self.recalled(clients, before=asked.server_round)
            return [(0, self.scorer.block(asked.common, chunk.own, clients, memories))]
        parts, places, causes = [], [], dict[int, str]()
        for some, alike, _, cohort in self.cohorts(asked, chunk):
            try:
                part = self.run(cohort, asked.server_round, alike)
            except ClientRaised as error:
                raise failed(self, alike, error, asked.server_round) from error
            except Exception as error:  # of a method, whose clients are trained together
                if not line_of(name := self._own.name, error):
                    raise
                words = f"method {name}, round {asked.server_round}: {cause_of(name, error)}"
                raise ClientFailed(words + _TOGETHER * ("vmap" in words)) from error
            for i in [*part.broken][:_EXPLAINED]:
                from engram.cohort.trainer.diagnosis import told_cause  # noqa: PLC0415 - rarely needed

                causes[some[i]] = told_cause(self, self._task, cohort.of([i]), alike[i])
            parts.append(part)
            places.append(some)
        done = self.finish(parts[0] if len(parts) == 1 else joined(parts, places), asked, chunk)
        how = done, clients, asked.server_round, causes, asked.combine
        return [
            (number, outcome_of(self, list(some), *how))
            for number, some in groupby(range(len(clients)), key=numbers.__getitem__)
        ]

    def cohorts(
        self, asked: Asked, chunk: Chunk
    ) -> Iterator[tuple[list[int], list[int], Hashable, Cohort]]:
        """Draws the rows of clients, in cohorts with memories of the same form.

        Yields:
            The cohort's positions in ``chunk.clients``, its clients, the form, and the cohort.
        """
        groups: dict[Hashable, tuple[list[int], list[tuple[Slots, list[State]]]]] = {}
        for i, client in enumerate(chunk.clients):
            memory = self._memories.recall(client, before=asked.server_round)
            some, trees = groups.setdefault(memory.form, ([], []))
            some.append(i)
            trees.append((memory.kept, [*memory.states]))
        losses = asked.losses and self.learner.guard is None
        for form, (some, trees) in groups.items():
            own = select(chunk.own, some)
            clients, (kept, states) = [chunk.clients[i] for i in some], stacked(trees)
            drawn = self.sampler.draw(clients, asked.server_round)
            cohort = Cohort(asked.common, own, kept, states, drawn, losses=losses)
            yield some, clients, form, cohort

    def run(self, cohort: Cohort, server_round: int, clients: Sequence[int]) -> Outcome:
        """Trains a cohort.

        Raises:
            ClientRaised: A client's step raised an error, and clients are trained in turn.
        """
        learned = self._task
        self._check(cohort, learned, clients[0])
        factor = self._factors[min(server_round, len(self._factors)) - 1]
        if self.way not in self.ways:
            trains = {way: self._trains(way, learned, factor) for way in self.ways}
            self.way = quickest(trains, cohort)
        return self._trains(self.way, learned, factor)(cohort)

    def _check(self, cohort: Cohort, learned: Task, client: int) -> None:
        if (form := frozenset(flat(cohort.kept))) in self._checked:
            return
        self._checked.add(form)
        one, method = cohort.of([0]), self.learner.method(learned, "in-turn")
        own, kept, initial = _first((one.own, one.kept, one.draws.initial_batch()))
        batches: dict[int, Any] = {}
        for step in one.draws.each_step():
            batches.setdefault(step.phase, _first(step.batches))
            if len(batches) == len(method.client.phases):
                break
        contract = Contract(self._own.name, method, self.learner.network.initial)
        try:
            contract.round(
                self.data.names.get(client, client), cohort.common | own, kept, initial, batches
            )
        except SlotFault as fault:
            raise ClientFailed(str(fault)) from fault
        except Exception:  # anybody's method, whose training says which step raised it
            return

    def finish(self, done: Outcome, asked: Asked, chunk: Chunk) -> Outcome:
        """Stores the memories of clients after a round; returns their updates."""
        left, beside = self.sending.leave(done, asked, chunk) if self.sending else (done, [])
        self._memories.keep(done, chunk.clients, asked.server_round, asked.durable, beside)
        return left

    def receive(self, slots: Any) -> Any:
        """Returns slots in float32, on the device that trains them."""
        # Flower's own strategies compute in numpy, and some return float64.
        return tree_map(methodcaller("to", self.experiment.device, torch.float32), slots)

    def parted(self, clients: Sequence[int]) -> list[tuple["Trainer", list[int]]]:
        """Groups clients by their trainers; returns each trainer with positions in ``clients``."""
        return [(self, [*range(len(clients))])]

    def recalled(self, clients: Sequence[int], *, before: int) -> list[Memory]:
        """Returns clients' memories from rounds before the given one."""
        return [self._memories.recall(client, before=before) for client in clients]


def _row_guard(e: "Experiment") -> "Guard | None":
    if not e.hides_rows:
        return None
    from engram.guards.presets import client_guards  # noqa: PLC0415 - plain runs need none

    return client_guards(e)


def _sending(e: "Experiment", *args: Any) -> "Sending | None":
    if Fact.TRAINED in e.facts:
        return None
    from engram.cohort.trainer.sending import Sending  # noqa: PLC0415 - plain runs need none

    return Sending(e, *args)


def _first(stack: Any) -> Any:
    return tree_map(lambda leaf: None if leaf is None else leaf[0], stack)
