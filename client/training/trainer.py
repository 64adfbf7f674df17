"""Trains the clients it is asked for: one, or thousands at once.

Both the ClientApp (with the clients of its node) and the in-process grid (with every client that
a round addresses) call it. The vectorized engine runs each local step once for a block of clients
at a time, as many as caches and memory allow (one, where a large network leaves no choice); the
sequential engine runs the same pure functions client by client, and says which one fails, where.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Literal

import torch

from client.memory import OWN, MemoryStore
from client.training.budget import block_size
from client.training.cohort import (
    ClientRaised,
    CohortModels,
    CohortTask,
    LocalRound,
    each_in_turn,
    vmapped,
)
from client.training.dense_cohort import cost, dense, pays
from client.training.outcome import Group, Trained
from client.training.sampler import Sampler
from client.training.scoring import Scores, Scoring
from engram.augmentations import AUGMENTATIONS, check_augmentation
from engram.dense import FIRST
from engram.derivatives import all_at_once, by_autograd, by_cohorts
from engram.models import cohort_losses, dense_loss_of, keep, mean_loss
from engram.networks import FLAT
from engram.optimizers import scaled, step_factor, with_optimizer
from engram.tasks import task_of
from engram.types import LocalRule, LossFn, Params
from federation.data.federated import FederatedData, model_for, with_known_tokens
from federation.errors import EngramError, Refused, one_line
from federation.experiment import Experiment
from federation.methods.local import LocalMethod
from federation.noise import Noise, secret_noise
from federation.protection import leave_client
from federation.shapes import example
from federation.streams import Stream, torch_generator

__all__ = ["ClientFailed", "Engine", "Trainer"]

Engine = Literal["vectorized", "sequential"]
# As measured in benchmarks/NOTES.md:
_BLOCK = 2**25  # numbers that a block of clients holds on a CPU; with more, caches help less
_LARGE = 2**18  # parameters of a network that a CPU trains client by client
_TRIES = 2  # of each way: a first one takes longer

Way = partial[LocalRound]


class ClientFailed(EngramError):
    """A client's local round raised an error; the message says whose, in which round and step."""


class Trainer:
    """The local side of an experiment. Sets this process's number of torch threads.

    Args:
        experiment: The settings.
        data: Its data.
        store: Where memories are kept between rounds.
        engine: ``vectorized`` or ``sequential``. They give the same numbers, but for rounding.
        noise: Where the noise of local privacy comes from.

    Raises:
        Refused: The network or the augmentation does not fit the data, the rule has no direction
            for an optimizer, or the memory budget does not fit one client.
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
        torch.set_num_threads(experiment.cpu_threads)
        self.experiment = experiment
        self._store = store
        self._noise = noise
        self._network = model_for(experiment, data.kind)
        self.data = with_known_tokens(data, self._network, experiment)
        self._task = task_of(experiment.task, experiment.loss)
        self._loss = mean_loss(self._network, self._task)
        self._own = experiment.of(LocalMethod)
        augment = AUGMENTATIONS.get(experiment.augment)
        try:
            self._rule = self._rule_on(self._loss)
            if augment is not None:
                check_augmentation(augment, example(data.kind.inputs))
        except ValueError as error:
            raise Refused(one_line(str(error))) from error
        self._sampler = Sampler(experiment, self.data.train, self._rule, self._network, augment)
        self._remembers = self._own.keeps_memory and self._rule.state_is_model
        self._keeps = experiment.optimizer_state == "kept" and self._rule.moments is not None
        self._reads = self._remembers and self._rule.reads_state
        model = self._network.init(torch_generator(experiment.seed, Stream.MODEL))
        self._personal = keep(model, self._network.personal, personal=True)
        vectorized = engine == "vectorized" and self._network.vectorizes
        self._ways = self._choose_ways(model, vectorized=vectorized)
        self._times: dict[str, list[float]] = {name: [] for name in self._ways}
        self._block = self._choose_block(model)
        self._scoring = Scoring(experiment, self._network, self.data, vectorized=vectorized)

    @property
    def _rows(self) -> int:
        """Rows that a client draws in a round of ``local-steps``, at most."""
        e = self.experiment
        return self._own.initial_rows + e.local_steps * self._rule.batches_per_step * e.batch_size

    def _rule_on(self, loss: LossFn) -> LocalRule:
        e = self.experiment
        return with_optimizer(
            self._own.rule(loss),
            e.optimizer,
            momentum=e.momentum,
            weight_decay=e.weight_decay,
            clip=e.gradient_clip,
            undecayed=self._network.running,
        )

    def _choose_ways(self, model: Params, *, vectorized: bool) -> Mapping[str, Way]:
        """Returns the ways to run a cohort that may be the fastest, by name."""
        network, rule, statistics = self._network, self._rule, self._network.statistics
        alone = by_autograd(self._loss)
        in_turn = {
            "in-turn": partial(each_in_turn, self._rule_on(alone), alone, statistics=statistics)
        }
        together = {"vmap": partial(vmapped, rule, self._loss, statistics=statistics)}
        if not vectorized:
            return in_turn
        features, ends_dense = network.features, network.dense_layers > 0
        learned = ends_dense and rule.single_use and not self._reads and pays(model, self._rows)
        held = (
            rule.affine
            and FIRST not in self._personal
            and not self._keeps
            and not self.experiment.local_epochs
        )
        if held and ends_dense and (features is None or learned):
            loss, targets = dense_loss_of(self._task, network.dense_layers, self.data.outputs)
            way = partial(dense, self._rule_on(loss), loss, targets=targets, features=features)
            return {"dense": way}
        if self.experiment.device != "cpu":
            return together
        losses = cohort_losses(network, self._task)
        if losses is not None:
            loss, update = by_cohorts(self._loss, losses), network.statistics_together
            together["grouped"] = partial(
                vmapped,
                self._rule_on(loss),
                all_at_once(losses),
                statistics=update and all_at_once(update),
            )
        if self.experiment.model in FLAT:
            # A large network fills the caches: it is faster to finish one client first.
            return in_turn if sum(x.numel() for x in model.values()) > _LARGE else together
        return in_turn | together  # which is found out while training

    @property
    def way(self) -> str:
        """The fastest way to train a cohort; where there are several, each is tried twice first."""
        untried = [name for name, times in self._times.items() if len(times) < _TRIES]
        if untried and len(self._ways) > 1:
            return min(untried, key=lambda name: len(self._times[name]))
        return min(self._ways, key=lambda name: min(self._times[name], default=0.0))

    def _choose_block(self, model: Params) -> int:
        """Returns how many clients to train at once."""
        e = self.experiment
        size = sum(leaf.numel() for leaf in model.values())
        step = self._rule.batches_per_step * e.batch_size
        numbers = 4 * step * self._network.activations
        if "dense" in self._ways:
            numbers += cost(model, self._rows)
        else:
            rows = step if e.local_epochs else self._rows
            numbers += rows * self.data.train.numbers + 16 * size
        numbers += 4 * size if self._rule.moments else 0
        numbers += 10 * size if e.clip else 0  # copies in float64
        block = block_size(4 * numbers, int(e.memory_budget * 2**30), device=e.device)
        if "vmap" not in self._ways and "dense" not in self._ways:
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
        combine: int | None = None,
    ) -> list[Trained]:
        """Runs one local round of each client, from the common model.

        Clients are trained in blocks, and those of a block keep what they remember before the next
        one is trained: an error leaves earlier clients as if their reply had been lost.

        Args:
            model: The common model w.
            groups: Whom to train, in groups whose results are wanted apart; no client twice.
            server_round: The round, >= 1. With the seed and the client it determines every
                sample that is drawn.
            durable: As ``MemoryStore.save``.
            combine: How many rows of a client count at most in the mean of its group, >= 1: with
                1 clients count alike. None for every client's model.

        Raises:
            MemoryMismatch: A client's memory belongs to another model.
            ClientFailed: A client's step raised, where clients are trained in turn.
        """
        model = self._receive(model)
        results = [Group(combine, self.data.names) for _ in groups]
        way = self.way
        queue = [(number, client) for number, group in enumerate(groups) for client in group]
        for start in range(0, len(queue), self._block):
            members = queue[start : start + self._block]
            clients = [client for _, client in members]
            done = self._run(model, clients, server_round, way)
            self._remember(done, clients, server_round, durable)
            done = done._replace(models=done.models.without(self._network.personal))
            if self.experiment.clip:
                done = self._protect(done, model, clients, server_round)
            examples = [len(self.data.train.rows[client]) for client in clients]
            for number, some in groupby(range(len(members)), key=lambda i: members[i][0]):
                results[number].add(list(some), done, clients, examples, server_round)
        return [result.trained(way) for result in results]

    def _run(
        self, model: Params, clients: Sequence[int], server_round: int, way: str
    ) -> LocalRound:
        kept: list[tuple[Params | None, Params]] = [(None, {})] * len(clients)
        if self._reads or self._keeps or self._personal:
            kept = [self._recall(model, client, before=server_round) for client in clients]
        memories = [state if self._reads or self._keeps else None for state, _ in kept]
        own = {name: torch.stack([mine[name] for _, mine in kept]) for name in self._personal}
        began = self._reads and all(memory is not None for memory in memories)
        anew = self._rule.needs_initial_batch and not began
        draws = self._sampler.draw(clients, server_round, initial=anew)
        task = CohortTask(model, memories, draws, own)
        start = time.perf_counter()
        try:
            done = self._way_in(way, server_round)(task)
        except ClientRaised as error:
            client = clients[error.position]
            called = self.data.names.get(client, client)
            raise ClientFailed(
                f"client {called} failed in round {server_round} at step {error.step}: "
                f"{error.__cause__!r}"
            ) from error
        if len(self._times[way]) < _TRIES:
            self._times[way].append((time.perf_counter() - start) / len(clients))
        return done

    def _way_in(self, name: str, server_round: int) -> Way:
        """Returns a way to train, with the step size of a round."""
        e = self.experiment
        factor = step_factor(e.schedule, server_round, e.num_rounds)
        way = self._ways[name]
        if factor == 1:
            return way
        rule, *rest = way.args
        return partial(way.func, scaled(rule, factor), *rest, **way.keywords)

    def _like(self, model: Params) -> Params:
        """Returns what has the names and shapes of a client's memory of its rule."""
        model = model | self._personal
        own = model if self._remembers else {}
        return own | (self._rule.moments(model) if self._keeps and self._rule.moments else {})

    def _recall(self, model: Params, client: int, *, before: int) -> tuple[Params | None, Params]:
        """Returns a client's memory of its rule, if it has one, and its personal parameters."""
        like = self._like(model)
        mine = {name: leaf.to(self.experiment.device) for name, leaf in self._personal.items()}
        if not like and not mine:
            return None, {}
        marked = {OWN + name: leaf for name, leaf in mine.items()}
        found = self._store.load(client, like | marked, before=before)
        if found is None:
            return None, mine
        state = {name: found[name] for name in like}
        return state or None, {name: found[OWN + name] for name in mine}

    def _remember(
        self, done: LocalRound, clients: Sequence[int], server_round: int, durable: int
    ) -> None:
        names = self._like(done.models.leaves)
        kept = [i for i in range(len(clients)) if i not in done.broken]
        if not kept or not (names or self._personal):
            return
        states = done.states.of(kept).stack() if names else {}
        states = {name: leaf.cpu() for name, leaf in states.items() if name in names}
        models = done.models.of(kept).leaves
        states |= {OWN + name: models[name].cpu() for name in self._personal}
        for position, i in enumerate(kept):
            memory = {name: leaf[position].clone() for name, leaf in states.items()}
            self._store.save(clients[i], memory, server_round=server_round, durable=durable)

    def _protect(
        self, done: LocalRound, model: Params, clients: Sequence[int], server_round: int
    ) -> LocalRound:
        """Clips and noises the models. Memories stay as they are: they stay where they are."""
        leaving = leave_client(
            self.experiment,
            done.models.stack(),
            model,
            clients=clients,
            server_round=server_round,
            noise=self._noise,
        )
        return done._replace(models=CohortModels(leaving))

    def _receive(self, model: Params) -> Params:
        # Flower's own strategies compute in numpy, and some return float64.
        device = self.experiment.device
        return {name: leaf.to(device, torch.float32) for name, leaf in model.items()}

    def evaluate(self, model: Params, clients: Sequence[int], *, server_round: int) -> Scores:
        """Scores the common model, personalized models and kept models of clients.

        Args:
            model: The common model after ``server_round``.
            clients: Whom to score.
            server_round: Memories made up to this round are scored as kept models.
        """
        model = self._receive(model)

        def kept(client: int) -> tuple[Params | None, Params]:
            state, mine = self._recall(model, client, before=server_round + 1)
            return (state if self._remembers else None), mine

        return self._scoring.scores(model, clients, kept)
