"""Trains and scores clients: one, or thousands at once.

The ClientApp calls it with the clients of its node, and a run in one process with every client that
a round addresses. The vectorized engine runs each local step once for a block of clients, as many
as caches and memory allow; that may be one, if the network is large. The sequential engine runs the
same pure functions client by client, and an error says which client failed, and at which step.
"""

import time
from collections.abc import Hashable, Sequence
from functools import lru_cache
from itertools import groupby
from logging import getLogger
from typing import Any, Final, Literal, NamedTuple

import torch
from torch.utils._pytree import tree_map

from client.memory import MemoryStore, RamStore
from client.training.budget import block_size
from client.training.diagnosis import Seen, cause_of
from client.training.outcome import ClientFailed, Group, failed
from client.training.recollection import Memory, Recollection
from client.training.sampler import Sampler
from client.training.scoring import Scorer, Scores
from client.training.trial import on_rows
from client.training.ways import Learner
from engram.augmentations import AUGMENTATIONS, check_augmentation
from engram.cohort.dense import cost
from engram.cohort.problem import network_of
from engram.cohort.round import ClientRaised, Cohort, Held, Outcome, stacked
from engram.cohort.sizes import joined
from engram.core.contract import Contract, SlotFault
from engram.core.method import Method, Served, Slots
from engram.core.optimizers import check_optimizer, optimizer_of
from engram.core.slots import flat, over_slots, unflat
from engram.core.walkers import Walker
from engram.steps import step_factor
from engram.tasks import Task, task_of
from engram.types import Params
from engram.units import Units
from federation.aggregation import leave_client
from federation.data.federated import FederatedData, model_for, with_known_tokens
from federation.data.standards import standardized
from federation.demand import check_kept
from federation.errors import Refused, one_line
from federation.experiment import Experiment
from federation.learning import shapes_on
from federation.machine import check_threads
from federation.methods.network import NetworkMethod
from federation.noise import Noise, secret_noise
from federation.streams import Stream, torch_generator, unseen
from federation.trained import Trained

__all__ = ["ClientFailed", "Engine", "Received", "Trainer"]

_log = getLogger("flwr.engram")

Engine = Literal["vectorized", "sequential"]
# As measured in benchmarks/NOTES.md:
_BLOCK: Final = 2**25  # most numbers that a block holds on a CPU: with more, caches help less
_EXPLAINED: Final = 3  # clients of a block whose slots broke and that are looked at: it takes long
_TRIES: Final = 2  # timings of each way, since the first one takes longer


class Received(NamedTuple):
    """The arrays that clients receive, by path, with their shapes.

    Attributes:
        common: Those that all clients receive alike.
        own: Those of which each receives its own, without the clients' axis.
    """

    common: dict[str, tuple[int, ...]]
    own: dict[str, tuple[int, ...]]


class Trainer:
    """Trains and scores an experiment's clients, within ``client.training.process.training``.

    Args:
        experiment: The settings.
        data: Its data.
        store: The store of clients' memories.
        engine: ``vectorized`` or ``sequential``; both give the same numbers, up to rounding.
        noise: The source of the noise of local privacy.

    Attributes:
        experiment: As given.
        given: The data as given.
        data: The same, after a check of its tokens, with inputs as the network takes them.
        method: The method.
        received: What clients receive.
        sampler: Draws the rows of each round.
        ways: Names of the ways to train a cohort of which one may be the fastest.
        block: The largest number of clients that are trained at once.

    Raises:
        Refused: The network, the loss, a metric or the augmentation does not fit the data, or the
            memory budget does not fit one client.
    """

    def __init__(
        self,
        experiment: Experiment,
        data: FederatedData,
        store: MemoryStore,
        *,
        engine: Engine = "vectorized",
        noise: Noise = secret_noise,
    ) -> None:
        check_threads(experiment.cpu_threads)
        e = self.experiment = experiment
        self._store, self._noise, self._engine = store, noise, engine
        self.given, self._standard = data, data.units.targets
        data = standardized(e, data)
        model = model_for(e, data.kind, data.example)
        self.data = with_known_tokens(data, model, e)
        self._task = task_of(e.task, e.loss)
        self._own = e.of(NetworkMethod)
        shapes = shapes_on(e, model, data.outputs)
        self._empty = unflat({}, shapes.received)  # messages have no arrays of such slots
        if isinstance(store, RamStore):
            check_kept(e, shapes)
        generator = torch_generator(e.seed, Stream.MODEL)
        initial = self.receive(model.init(generator))
        augment = AUGMENTATIONS.get(e.augment)
        try:
            metrics = self._own.metrics(e)
            mixed = shapes.served.weights is not None
            self._task = on_rows(self._task, metrics, model, initial, self.data, mixed=mixed)
            optimizer = optimizer_of(
                e.optimizer,
                momentum=e.momentum,
                weight_decay=e.weight_decay,
                clip=e.gradient_clip,
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
            )
            self.method: Method = self.learner.method(self._task)
            users = [check_optimizer(e.optimizer), check_optimizer(e.adapt_optimizer)]
            for number in range(1, e.num_rounds + 1):
                step_factor(e.schedule, number, e.num_rounds)
            if augment is not None:
                check_augmentation(augment, data.example)
        except ValueError as error:
            raise Refused(one_line(str(error))) from error
        self.received = Received(
            {path: tuple(leaf.shape) for path, leaf in flat(shapes.common).items()},
            {path: tuple(leaf.shape[1:]) for path, leaf in flat(shapes.own).items()},
        )
        self.sampler = Sampler(e, self.data.train, self.method.client, model, augment)
        self._memories = Recollection(
            store,
            self.method,
            initial,
            moments=e.optimizer_state == "kept" and optimizer.remembers,
            device=e.device,
            unseen=unseen(e.seed, e.num_clients, e.unseen_clients),
        )
        vectorized = engine == "vectorized" and all(users)
        vectorized &= model.vectorizes and self._task.vectorizes
        self.ways: tuple[str, ...] = ("in-turn",)
        if vectorized:
            self.ways = self.learner.fastest(
                self._task,
                shapes,
                name=e.model,
                device=e.device,
                rows=self._rows,
                whole=bool(e.local_epochs),
                keeps=self._memories.moments,
            )
        self._trains = lru_cache(maxsize=4)(self.learner.trains)  # the last factors and losses
        self._checked: set[frozenset[str]] = set()
        self._times: dict[str, list[float]] = {name: [] for name in self.ways}
        self.block = self._choose_block(initial)
        self._scorer = Scorer(e, self.learner, self.data, self._task, vectorized=vectorized)

    def in_units(self, units: Units) -> "Trainer":
        """Returns a trainer of the same clients with rows in other units."""
        given = self.given._replace(units=units)
        options: dict[str, Any] = {"engine": self._engine, "noise": self._noise}
        return type(self)(self.experiment, given, self._store, **options)

    @property
    def _size(self) -> int:
        """Largest number of rows in a batch: ``batch-size``, or all rows of the largest client."""
        return min(self.experiment.batch_size, max(map(len, self.data.train.rows)) or 1)

    @property
    def _rows(self) -> int:
        """Largest number of rows that a client draws in a round of ``local-steps``."""
        client = self.method.client
        steps = self.experiment.local_steps * client.phases[0].batches
        return client.initial_rows + steps * self._size

    @property
    def way(self) -> str:
        """The fastest way to train a cohort; if there are several, each is first timed twice."""
        untried = [name for name, times in self._times.items() if len(times) < _TRIES]
        if untried and len(self.ways) > 1:
            return min(untried, key=lambda name: len(self._times[name]))
        return min(self.ways, key=lambda name: min(self._times[name], default=0.0))

    def _choose_block(self, model: Params) -> int:
        """Returns the number of clients to train at once."""
        e, client = self.experiment, self.method.client
        size = sum(leaf.numel() for leaf in model.values())
        step = client.phases[0].batches * self._size
        numbers = 4 * step * self.learner.model.activations
        if "dense" in self.ways:
            numbers += cost(model, self._rows)
        else:
            rows = step if e.local_epochs else self._rows
            numbers += rows * self.data.train.numbers + 16 * size
        numbers += 4 * size if self.learner.optimizer.remembers else 0
        numbers += 10 * size if e.clip else 0  # clipping copies in float64
        block = block_size(4 * numbers, int(e.memory_budget * 2**30), device=e.device)
        if "vmap" not in self.ways and "dense" not in self.ways:
            return 1
        if e.device != "cpu":
            return block
        useful = _BLOCK if self.learner.model.features is None else 8 * _BLOCK
        return min(block, max(1, useful // numbers))

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
    ) -> list[Trained]:
        """Runs one local round of each client.

        Clients are trained in blocks. Slots of a block are stored before the next one is trained:
        after an error, earlier clients are as if their replies had been lost.

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

        Raises:
            MemoryMismatch: A client's memory is that of another method or network.
            ClientFailed: A client's step raised an error, and clients are trained in turn.
        """
        e, names = self.experiment, self.data.names
        common, own = self._empty | self.receive(common), self.receive(own)
        results = [Group(combine, names, e.device) for _ in groups]
        way = self.way
        queue = [(number, client) for number, group in enumerate(groups) for client in group]
        for start in range(0, len(queue), self.block):
            members = queue[start : start + self.block]
            clients, at = [client for _, client in members], slice(start, start + self.block)
            mine: Slots = tree_map(lambda leaf, at=at: leaf[at], own)
            done, causes = self._block(way, common, mine, clients, server_round, losses)
            done = self.finish(done, common, mine, clients, server_round, durable=durable)
            examples = [len(self.data.train.rows[client]) for client in clients]
            for number, some in groupby(range(len(members)), key=lambda i: members[i][0]):
                results[number].add(list(some), done, clients, examples, server_round, causes)
        return [result.trained(way) for result in results]

    def _block(
        self,
        way: str,
        common: Slots,
        own: Slots,
        clients: Sequence[int],
        server_round: int,
        losses: bool,
    ) -> tuple[Outcome, dict[int, str]]:
        """Trains a block; returns its outcome, and causes of non-finite slots by position."""
        parts, causes, groups = [], dict[int, str](), self.alike(clients, server_round)
        for some, memories in groups:
            mine: Slots = tree_map(lambda leaf, some=some: leaf[some], own)
            asked = [clients[i] for i in some]
            cohort = self.cohort(common, mine, memories, asked, server_round)._replace(
                losses=losses
            )
            try:
                part = self.run(cohort, server_round, way, asked)
            except ClientRaised as error:
                raise failed(asked, error, server_round, self.data.names) from error
            for i in [*part.broken][:_EXPLAINED]:
                causes[some[i]] = self._cause(cohort, i, asked[i])
            parts.append(part)
        if len(parts) == 1:
            return parts[0], causes
        return joined(parts, [some for some, _ in groups]), causes

    def alike(
        self, clients: Sequence[int], server_round: int
    ) -> list[tuple[list[int], list[Memory]]]:
        """Groups clients by the forms of their memories: positions in ``clients``, and memories."""
        groups: dict[Hashable, tuple[list[int], list[Memory]]] = {}
        for i, client in enumerate(clients):
            memory = self._memories.recall(client, before=server_round)
            some, memories = groups.setdefault(memory.form, ([], []))
            some.append(i)
            memories.append(memory)
        return list(groups.values())

    def cohort(
        self,
        common: Slots,
        own: Slots,
        memories: Sequence[Memory],
        clients: Sequence[int],
        server_round: int,
    ) -> Cohort:
        """Returns clients whose memories have the same form as a cohort, with rows drawn."""
        kept = over_slots(lambda *each: torch.stack(each), *(memory.kept for memory in memories))
        states = stacked([list(memory.states) for memory in memories])
        return Cohort(common, own, kept, states, self.sampler.draw(clients, server_round))

    def run(self, cohort: Cohort, server_round: int, way: str, clients: Sequence[int]) -> Outcome:
        """Trains a cohort in one of the ways; its first runs are timed.

        Args:
            cohort: The clients.
            server_round: The round, >= 1.
            way: The way's name.
            clients: Their numbers; a single client if the loss has its name.

        Raises:
            ClientRaised: A client's step raised an error, and clients are trained in turn.
        """
        e, learned = self.experiment, self._task
        if learned.named:
            (client,) = clients
            learned = learned.of(self.data.names.get(client, client))
        self._check(cohort, learned, clients[0])
        factor = step_factor(e.schedule, server_round, e.num_rounds)
        start = time.process_time()  # not wall time: others may use the machine, too
        done = self._trains(way, learned, factor)(cohort)
        if len(self._times[way]) < _TRIES:
            self._times[way].append((time.process_time() - start) / cohort.clients)
        return done

    def _check(self, cohort: Cohort, learned: Task, client: int) -> None:
        """Checks that the method fulfills its contract, once for each form of memory.

        Raises:
            ClientFailed: The method breaks its contract.
        """
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

    def finish(
        self,
        done: Outcome,
        common: Slots,
        own: Slots,
        clients: Sequence[int],
        server_round: int,
        *,
        durable: int,
    ) -> Outcome:
        """Stores the memories of clients, and clips and noises the slots that they send."""
        self._memories.keep(done, clients, server_round, durable)
        if not self.experiment.clip:
            return done
        leaving = leave_client(
            self.experiment,
            Walker(self.method, self.learner.network.running),
            common,
            own,
            done.sent.stack(),
            clients=clients,
            server_round=server_round,
            noise=self._noise,
        )
        return done._replace(sent=Held(leaving))

    def _cause(self, cohort: Cohort, i: int, client: int) -> str:
        """Returns likely causes of non-finite slots of a cohort's i-th client.

        Under privacy, only the client's log has them.
        """
        e, named = self.experiment, self._task.of(self.data.names.get(client, client))
        draws = cohort.draws.of([i])
        w = self.learner.network.initial
        for slots, each in ((cohort.common, False), (cohort.own, True), (cohort.kept, True)):
            for slot, x in slots.items():
                if self._is_network(slot, x):
                    w = {n: leaf[i] for n, leaf in x.items()} if each else x
        batches = [
            tree_map(lambda leaf: leaf[0], batch)
            for step in draws.each_step()
            for batch in step.batches
        ]
        place = {row: at for at, row in enumerate(self.data.train.rows[client].tolist())}
        drawn = [row for row in sorted(set(draws.rows[0].tolist())) if row in place]  # no padding
        own_classes = named.targets == "classes" and not named.own
        x, y = self.data.train.take(torch.tensor(drawn, device=e.device))
        rows = Seen(
            x,
            y if self._standard is None else self._standard.standardized(y),
            [place[row] for row in drawn],
            self.data.outputs if own_classes else 0,
        )
        learned = self.learner.objective(named, "in-turn")
        found = cause_of(learned, w, batches, rows, self.learner.network.running) or (
            "its inputs, targets, statistics and loss are finite and of usual size before the "
            f"first step: lower {' or '.join(self._own.step_sizes())}"
        )
        if e.privacy == "none":
            return found
        _log.warning("client %s: %s", self.data.names.get(client, client), found)
        return "its log says more"

    def _is_network(self, slot: str, x: Any) -> bool:
        whole = self.learner.network.initial.keys()
        return self.method.kinds[slot] == "model" and x.keys() == whole

    def receive(self, slots: Any) -> Any:
        """Returns slots in float32, on the device that trains them."""
        # Flower's own strategies compute in numpy, and some return float64.
        device = self.experiment.device
        return tree_map(lambda leaf: leaf.to(device, torch.float32), slots)

    def evaluate(
        self,
        common: Slots,
        clients: Sequence[int],
        *,
        server_round: int,
        own: Slots = {},  # noqa: B006 - nobody changes it
    ) -> Scores:
        """Scores the served models, and the common model.

        Args:
            common: The slots that all clients receive alike after ``server_round``.
            clients: The clients to score.
            server_round: Slots that clients kept up to this round are used.
            own: Slots of which each of these clients receives its own, in their order.
        """
        memories = [self._memories.recall(c, before=server_round + 1) for c in clients]
        common = self._empty | self.receive(common)
        return self._scorer.scores(common, self.receive(own), clients, memories)

    def serving(self, common: Slots, client: int, *, server_round: int) -> Served:
        """Returns the models that serve a client of a method without own slots.

        Args:
            common: As for ``evaluate``.
            client: The client.
            server_round: As for ``evaluate``.
        """
        memory = self._memories.recall(client, before=server_round + 1)
        served = self.method.serve(self.receive(common), memory.kept, memory.trained)
        return self.settled(served, client)

    def settled(self, served: Served, client: int) -> Served:
        """Returns what serves a client, with its model chosen and fine-tuned, as it is scored."""
        return self._scorer.settled(served, client)


def _first(stack: Any) -> Any:
    return tree_map(lambda leaf: None if leaf is None else leaf[0], stack)
