"""Trains the clients it is asked for: one, or thousands at once.

The ClientApp calls it with the clients of its node, and the in-process grid with every client that
a round addresses. The vectorized engine runs each local step once for a block of clients, as many
as caches and memory allow; that may be one, if the network is large. The sequential engine runs the
same pure functions client by client, and an error says which client failed, and at which step.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from logging import getLogger
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_map

from client.memory import MemoryStore, RamStore
from client.training.budget import block_size
from client.training.cohort import (
    CohortModels,
    CohortTask,
    LocalRound,
    Rules,
    each_in_turn,
    vmapped,
)
from client.training.dense_cohort import cost, dense, pays
from client.training.diagnosis import Seen, cause_of
from client.training.outcome import ClientFailed, Group, Trained, failed
from client.training.recollection import Recollection
from client.training.sampler import Sampler
from client.training.scoring import Scorer, Scores
from client.training.trial import on_rows
from engram.augmentations import AUGMENTATIONS, check_augmentation
from engram.cohort.task import ClientRaised
from engram.core.optimizers import check_optimizer
from engram.dense import FIRST
from engram.derivatives import all_at_once, by_autograd, by_cohorts
from engram.mixtures import loss_of
from engram.models import (
    cohort_losses,
    dense_loss_of,
    in_units,
    keep,
    mean_loss,
    standardized_loss,
)
from engram.networks import FLAT
from engram.optimizers import scaled, with_optimizer
from engram.steps import step_factor
from engram.tasks import Task, task_of
from engram.tree import part
from engram.types import Candidates, LocalRule, LossFn, Params, Scale
from engram.units import Units
from federation.data.federated import FederatedData, model_for, with_known_tokens
from federation.data.standards import standardized
from federation.demand import check_kept
from federation.errors import Refused, one_line
from federation.experiment import Experiment
from federation.machine import check_threads
from federation.methods.local import LocalMethod
from federation.noise import Noise, secret_noise
from federation.protection import leave_client
from federation.streams import Stream, torch_generator

__all__ = ["ClientFailed", "Engine", "Trainer"]

_log = getLogger("flwr.engram")

Engine = Literal["vectorized", "sequential"]
# As measured in benchmarks/NOTES.md:
_BLOCK = 2**25  # most numbers that a block of clients holds on a CPU: with more, caches help less
_LARGE = 2**18  # networks with more parameters are trained client by client on a CPU
_EXPLAINED = 3  # clients of a block whose models broke and that are looked at: it takes a while
_TRIES = 2  # timings of each way, since the first one takes longer

Way = partial[LocalRound]
Form = Callable[[LossFn], LossFn]


def _as_it_is(loss: LossFn) -> LossFn:
    return loss


def _vectorizes(e: Experiment) -> bool:
    """Returns whether ``vmap`` can run the experiment's optimizers.

    Raises:
        ValueError: One of them does not return what it should.
    """
    return all([check_optimizer(e.optimizer), check_optimizer(e.adapt_optimizer)])


class Trainer:
    """The local side of an experiment, for use within ``client.training.process.training``.

    Args:
        experiment: The settings.
        data: Its data.
        store: Where memories are kept between rounds.
        engine: ``vectorized`` or ``sequential``; both give the same numbers, up to rounding.
        noise: The source of the noise of local privacy.

    Attributes:
        experiment: As given.
        given: The data as given.
        data: The same, after a check of its tokens, with inputs as the network takes them.
        rule: The method's local rule.
        sampler: Draws the rows of each round.
        tailored: The parameters that the server makes for each client.
        constants: As ``Model.constants``.
        ways: By name, the ways to run a cohort that may be the fastest.
        block: The largest number of clients that are trained at once.

    Raises:
        Refused: The network, the loss, a metric or the augmentation does not fit the data, the rule
            has no direction for an optimizer, or the memory budget does not fit one client.
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
        self.experiment = experiment
        self._store = store
        self._noise, self._engine = noise, engine
        self.given, self._standard = data, data.units.targets
        data = standardized(experiment, data)
        self._network = model_for(experiment, data.kind, data.example)
        self.data = with_known_tokens(data, self._network, experiment)
        self._task = task_of(experiment.task, experiment.loss)
        self._own = experiment.of(LocalMethod)
        augment = AUGMENTATIONS.get(experiment.augment)
        model = self._network.init(torch_generator(experiment.seed, Stream.MODEL))
        try:
            metrics = self._own.metrics(experiment)
            start = self.receive(model)
            self._task = on_rows(self._task, metrics, self._network, start, self.data)
            self._learned = standardized_loss(self._task, self._standard)
            self._parted = self._own.in_parts(self._network, experiment)
            self.rule = self._rule_on(_as_it_is)
            vectorized = engine == "vectorized" and _vectorizes(experiment)
            for number in range(1, experiment.num_rounds + 1):
                step_factor(experiment.schedule, number, experiment.num_rounds)
            if augment is not None:
                check_augmentation(augment, data.example)
        except ValueError as error:
            raise Refused(one_line(str(error))) from error
        self.sampler = Sampler(experiment, self.data.train, self.rule, self._network, augment)
        self._remembers = self._own.keeps_memory and self.rule.state_is_model
        self._keeps = experiment.optimizer_state == "kept" and self.rule.moments is not None
        self._reads = self._remembers and self.rule.reads_state
        self._personal = keep(model, self._network.personal, personal=True)
        self._memories = Recollection(
            store,
            self.rule,
            self._personal,
            whole=self._remembers,
            moments=self._keeps,
            device=experiment.device,
        )
        if isinstance(store, RamStore):
            check_kept(experiment, self._memories.shapes(model))
        self.tailored = self._network.tailored
        self.constants = self._network.constants
        vectorized &= self._network.vectorizes and self._task.vectorizes
        self.ways = self._choose_ways(model, vectorized=vectorized)
        self._times: dict[str, list[float]] = {name: [] for name in self.ways}
        self.block = self._choose_block(model)
        self._scorer = Scorer(experiment, self._network, self.data, vectorized=vectorized)

    def in_units(self, units: Units) -> "Trainer":
        """Returns a trainer of the same clients whose rows are in other units."""
        given = self.given._replace(units=units)
        options: dict[str, Any] = {"engine": self._engine, "noise": self._noise}
        return type(self)(self.experiment, given, self._store, **options)

    @property
    def _size(self) -> int:
        """The most rows of a batch: ``batch-size``, or all of the largest client's."""
        return min(self.experiment.batch_size, max(map(len, self.data.train.rows)) or 1)

    @property
    def _rows(self) -> int:
        """The most rows that a client draws in a round of ``local-steps``."""
        steps = self.experiment.local_steps * self.rule.batches_per_step
        return self._own.initial_rows + steps * self._size

    def _rule_on(
        self,
        form: Form,
        scales: Mapping[str, Scale] = {},
        *,
        factor: float = 1.0,
        task: Task | None = None,
    ) -> LocalRule:
        """Builds the rule with a form of its loss; ``scales`` replace some of its settings."""
        e, task = self.experiment, task or self._learned
        own = self._own.model_copy(update=dict(scales)) if scales else self._own
        rule = with_optimizer(
            self._parted(own.rule(form(own.loss(self._network, task)))),
            e.optimizer,
            momentum=e.momentum,
            weight_decay=e.weight_decay,
            clip=e.gradient_clip,
            statistics=self._network.running,
        )
        return scaled(rule, factor)

    def _reported(self, loss: LossFn) -> LossFn:
        """Returns the loss of the model that serves clients, which may not be the trained one."""
        served, candidates = self._network.kept, self._network.candidates
        if candidates is not None:
            return lambda w, batch: loss_of(candidates(w), loss, batch)
        return loss if served is None else lambda w, batch: loss(served(w), batch)

    def _in_turn(self, task: Task) -> Way:
        """Returns the way to train one client after the other."""
        network = self._network
        return partial(
            each_in_turn,
            partial(self._rule_on, by_autograd, task=standardized_loss(task, self._standard)),
            self._reported(mean_loss(network, task)),
            statistics=network.statistics,
        )

    def _choose_ways(self, model: Params, *, vectorized: bool) -> Mapping[str, Way]:
        """Returns, by name, the ways to run a cohort that may be the fastest."""
        network, rule, statistics = self._network, self.rule, self._network.statistics
        rules: Callable[[Form], Rules] = partial(partial, self._rule_on)
        plain_loss = mean_loss(network, self._task)
        reported = self._reported(plain_loss)
        in_turn = {"in-turn": self._in_turn(self._task)}
        together = {"vmap": partial(vmapped, rules(_as_it_is), reported, statistics=statistics)}
        if not vectorized:
            return in_turn
        plain = type(self._own).loss is LocalMethod.loss  # only this loss has a written-out form
        features, ends_dense = network.features, network.dense_layers > 0
        own_first = [name for name in self._personal if name.endswith(FIRST)]
        learned = ends_dense and rule.single_use and not self._reads and pays(model, self._rows)
        learned &= not rule.companions
        held = (
            rule.affine
            and plain
            and not (own_first and self._reads)
            and not self._keeps
            and not self.experiment.local_epochs
        )
        if held and ends_dense and (features is None or learned):
            shape = network.dense_layers, self.data.outputs
            loss, targets = dense_loss_of(self._task, *shape, self._standard)
            seen = self._reported(dense_loss_of(in_units(self._task, self._standard), *shape)[0])
            way = partial(dense, rules(lambda _: loss), seen, targets=targets, features=features)
            return {"dense": way}
        if self.experiment.device != "cpu":
            return together
        learned_ones, losses = (cohort_losses(network, t) for t in (self._learned, self._task))
        if plain and losses is not None and learned_ones is not None:
            loss = by_cohorts(mean_loss(network, self._learned), learned_ones)
            update = network.statistics_together
            together["grouped"] = partial(
                vmapped,
                rules(lambda _: loss),
                self._reported(all_at_once(losses)),
                statistics=update and all_at_once(update),
            )
        if self.experiment.model in FLAT:
            # A large network fills the caches: finishing one client first is faster.
            return in_turn if sum(x.numel() for x in model.values()) > _LARGE else together
        return in_turn | together  # training finds out which is faster

    @property
    def way(self) -> str:
        """The fastest way to train a cohort; if there are several, each is first timed twice."""
        untried = [name for name, times in self._times.items() if len(times) < _TRIES]
        if untried and len(self.ways) > 1:
            return min(untried, key=lambda name: len(self._times[name]))
        return min(self.ways, key=lambda name: min(self._times[name], default=0.0))

    def _choose_block(self, model: Params) -> int:
        """Returns how many clients to train at once."""
        e = self.experiment
        size = sum(leaf.numel() for leaf in model.values())
        step = self.rule.batches_per_step * self._size
        numbers = 4 * step * self._network.activations
        if "dense" in self.ways:
            numbers += cost(model, self._rows)
        else:
            rows = step if e.local_epochs else self._rows
            numbers += rows * self.data.train.numbers + 16 * size
        numbers += 4 * size if self.rule.moments else 0
        numbers += 10 * size if e.clip else 0  # clipping copies in float64
        block = block_size(4 * numbers, int(e.memory_budget * 2**30), device=e.device)
        if "vmap" not in self.ways and "dense" not in self.ways:
            return 1
        if e.device != "cpu":
            return block
        useful = _BLOCK if self._network.features is None else 8 * _BLOCK
        return min(block, max(1, useful // numbers))

    # --- Training ------------------------------------------------------------------------

    def train(
        self,
        model: Params,
        groups: Sequence[Sequence[int]],
        *,
        server_round: int,
        durable: int,
        tailored: Params = {},  # noqa: B006 - nobody changes it
        combine: int | None = None,
        losses: bool = True,
    ) -> list[Trained]:
        """Runs one local round of each client, from the common model.

        Clients are trained in blocks. Memories of a block are stored before the next one is
        trained: after an error, earlier clients are as if their replies had been lost.

        Args:
            model: The common model w, without what is tailored.
            groups: The clients to train, in groups with separate results; no client twice.
            server_round: The round, >= 1. With the seed and the client it determines every
                sample that is drawn.
            durable: As ``MemoryStore.save``.
            tailored: The arrays that the server made for each of these clients, in their order.
            combine: The largest weight of a client, in rows, in the mean of its group, >= 1; with
                1, all clients count alike. None to return every client's model.
            losses: Whether training losses are wanted, which take a forward pass of each client.

        Raises:
            MemoryMismatch: A client's memory belongs to another model.
            ClientFailed: A client's step raised an error, and clients are trained in turn.
        """
        model, tailored = self.receive(model), self.receive(tailored)
        results = [Group(combine, self.data.names) for _ in groups]
        way = self.way
        queue = [(number, client) for number, group in enumerate(groups) for client in group]
        for start in range(0, len(queue), self.block):
            members = queue[start : start + self.block]
            clients = [client for _, client in members]
            own = {name: leaf[start : start + self.block] for name, leaf in tailored.items()}
            task = self.task(model, clients, server_round, own)._replace(losses=losses)
            try:
                done = self.run(task, server_round, way, clients)
            except ClientRaised as error:
                raise failed(clients, error, server_round, self.data.names) from error
            done = self.finish(done, model, clients, server_round, durable)
            causes = {i: self._cause(task, i, clients[i]) for i in [*done.broken][:_EXPLAINED]}
            examples = [len(self.data.train.rows[client]) for client in clients]
            for number, some in groupby(range(len(members)), key=lambda i: members[i][0]):
                results[number].add(list(some), done, clients, examples, server_round, causes)
        return [result.trained(way) for result in results]

    def _cause(self, task: CohortTask, i: int, client: int) -> str:
        """Returns likely causes of a non-finite model of a cohort's i-th client.

        With privacy on, this is said in the client's own log alone.
        """
        e, named = self.experiment, self._task.of(self.data.names.get(client, client))
        draws, w = task.draws.of(i), {name: leaf[i] for name, leaf in task.start.items()}
        batches = [
            tree_map(lambda leaf: leaf[0], batch)
            for step in draws.steps()
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
        learned = standardized_loss(named, self._standard)
        loss = by_autograd(self._own.loss(self._network, learned))
        found = cause_of(loss, w, batches, rows, self._network.running) or (
            "its inputs, targets, statistics and loss are finite and of usual size before the "
            f"first step: lower {' or '.join(self._own.step_sizes())}"
        )
        if e.privacy == "none":
            return found
        _log.warning("client %s: %s", self.data.names.get(client, client), found)
        return "its log says more"

    def task(
        self, model: Params, clients: Sequence[int], server_round: int, tailored: Params
    ) -> CohortTask:
        """Returns the inputs of a round: looks memories up, and draws rows."""
        kept: list[tuple[Params | None, Params]] = [(None, {})] * len(clients)
        if self._reads or self._keeps or self._personal:
            like = model | {name: leaf[0] for name, leaf in tailored.items()}
            kept = [self._memories.recall(like, client, before=server_round) for client in clients]
        memories = [state if self._reads or self._keeps else None for state, _ in kept]
        own = {name: torch.stack([mine[name] for _, mine in kept]) for name in self._personal}
        own |= tailored
        anew = self.rule.needs_initial_batch and not (self._reads and None not in memories)
        draws = self.sampler.draw(clients, server_round, initial=anew)
        return CohortTask(model, memories, draws, own)

    def run(
        self, task: CohortTask, server_round: int, way: str, clients: Sequence[int]
    ) -> LocalRound:
        """Trains a cohort in one of the ways; its first runs are timed.

        Args:
            task: What to do.
            server_round: The round, >= 1.
            way: The way's name.
            clients: The cohort; a single client where the loss wants its name.

        Raises:
            ClientRaised: A client's step raised an error, and clients are trained in turn.
        """
        start = time.process_time()  # not wall time: others may use the machine, too
        done = self._way_in(way, server_round, clients)(task)
        if len(self._times[way]) < _TRIES:
            self._times[way].append((time.process_time() - start) / len(task.memories))
        return done

    def finish(
        self,
        done: LocalRound,
        model: Params,
        clients: Sequence[int],
        server_round: int,
        durable: int,
    ) -> LocalRound:
        """Stores the clients' memories; returns the outcome that may leave them."""
        self._memories.keep(done, clients, server_round, durable)
        shared = done.models.leaves.keys() - self._personal.keys()
        done = done._replace(models=done.models.only(shared))
        return self._protect(done, model, clients, server_round) if self.experiment.clip else done

    def _way_in(self, name: str, server_round: int, clients: Sequence[int]) -> Way:
        """Returns a way to train, with the step size that the schedule has in this round."""
        e, way = self.experiment, self.ways[name]
        factor = step_factor(e.schedule, server_round, e.num_rounds)
        if self._task.named:
            (client,) = clients
            way = self._in_turn(self._task.of(self.data.names.get(client, client)))
        if factor == 1:
            return way
        rules, *rest = way.args
        return partial(way.func, partial(rules, factor=factor), *rest, **way.keywords)

    def _protect(
        self, done: LocalRound, model: Params, clients: Sequence[int], server_round: int
    ) -> LocalRound:
        """Clips and noises the models. Memories are not noised: they never leave the client."""
        leaving = leave_client(
            self.experiment,
            done.models.stack(),
            model,
            statistics=self._network.running,
            clients=clients,
            server_round=server_round,
            noise=self._noise,
        )
        return done._replace(models=CohortModels(leaving))

    def receive(self, model: Params) -> Params:
        """Returns a model in float32, on the device that trains it."""
        # Flower's own strategies compute in numpy, and some return float64.
        device = self.experiment.device
        return {name: leaf.to(device, torch.float32) for name, leaf in model.items()}

    def evaluate(
        self,
        model: Params,
        clients: Sequence[int],
        *,
        server_round: int,
        tailored: Params = {},  # noqa: B006 - nobody changes it
    ) -> Scores:
        """Scores the common model, personalized models and kept models of clients.

        Args:
            model: The common model after ``server_round``, without what is tailored.
            clients: The clients to score.
            server_round: Memories made up to this round are scored as kept models.
            tailored: The arrays that the server made for each of these clients, in their order.
        """
        model, network = self.receive(model), self._network
        sent, position = self.receive(tailored), {client: i for i, client in enumerate(clients)}

        def kept(client: int) -> tuple[Candidates | None, Params]:
            own = {name: leaf[position[client]] for name, leaf in sent.items()}
            state, mine = self._memories.recall(model | own, client, before=server_round + 1)
            mine |= own
            if network.candidates is not None:
                return network.candidates(model | mine), part(mine)
            if network.kept is None:
                return (Candidates((state,)) if state and self._remembers else None), mine
            began = self._store.newest(client, before=server_round + 1) > 0
            return (Candidates((network.kept(model | mine),)) if began else None), part(mine)

        return self._scorer.scores(part(model), clients, kept)
