"""Runs in lock step: many runs of a method at once, without messages, records or checkpoints.

Each run gives the numbers that it gives by itself, to rounding.
"""

import math
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from logging import getLogger
from pathlib import Path

from engram.client.memory import RamStore
from engram.cohort.trainer.chunks import score
from engram.cohort.trainer.stacked_runs import Stack, likeness
from engram.cohort.trainer.trainer import Trainer
from engram.core.method import Slots
from engram.data.clients import in_groups
from engram.data.federated import FederatedData
from engram.data.load_federation import federated_data
from engram.data.readers.parquet_cache import unless_refused
from engram.data.texts import in_fitted_units
from engram.guards.noise import simulated_noise
from engram.networks.registry import FLAT
from engram.scoring.evaluation import center
from engram.scoring.score_clients import Scores
from engram.scoring.score_columns import TUNED, VALIDATION
from engram.scoring.scorekeeping import Scoring
from engram.scoring.tasks import task_of
from engram.settings.base import SharedSettings
from engram.settings.errors import RunStopped
from engram.settings.experiment import Experiment
from engram.simulations.in_process import replies_of
from engram.strategies.rounds import Rounds, Wave
from engram.strategies.screening import TrainReplies
from engram.wire.training_result import Trained

_log = getLogger("flwr.engram")


class Member:
    """One of several runs: its clients, and its server's part.

    Attributes:
        slots: The server's slots.
        stopped: The reason why it stopped, in words; empty while it goes on.
    """

    def __init__(self, experiment: Experiment, data: FederatedData) -> None:
        noise = simulated_noise(experiment.seed)
        self.experiment = experiment
        self.data = data
        self._store = RamStore()
        self.trainer = Trainer(experiment, data, self._store, noise=noise)
        self._rounds = Rounds.of(experiment, data.kind, noise)
        self._merge = self._rounds.merge
        self.slots: Slots = self._merge.method.server.start
        self.scoring = Scoring.of(experiment, self._rounds.shapes, data.names)
        self.stopped = ""
        self._most = self._merge.most([len(rows) for rows in data.train.rows])
        self._loss = task_of(experiment.task, experiment.loss).metric

    @property
    def combine(self) -> int | None:
        """Largest number of a client's rows that count in a mean; None without means."""
        return self._most if self._merge.combines else None

    def wants_losses(self, server_round: int) -> bool:
        """Whether training losses, which show divergence, are due in a round."""
        e = self.experiment
        due = server_round == e.rounds or server_round % e.eval_every == 0
        return due or e.model in FLAT

    def cohort(self, server_round: int) -> list[int]:
        """Returns the clients that it trains in a round."""
        absent = self.scoring.unseen | self.data.left_out.keys()
        return self._rounds.cohort(server_round, self.experiment.num_clients, absent)

    @property
    def scored(self) -> list[int]:
        """The clients that are scored."""
        aside = self.data.left_out.keys() | self.data.unscored.keys()
        return [c for c in range(self.experiment.num_clients) if c not in aside]

    def sent(self, clients: Sequence[int]) -> tuple[Slots, Slots]:
        """Returns the slots that clients receive alike, and those that each has of its own."""
        return self._merge.method.server.send(self.slots, clients)

    def learn(self, trained: Trained, server_round: int) -> None:
        """Merges its clients' updates into the slots, or stops as a run would."""
        rounds = self._rounds
        try:
            wave = Wave(server_round, self.slots, ())
            replies = rounds.admitted(self.slots, wave, self._replies(trained), server_round)
            self.slots, _ = rounds.learned(self.slots, replies, server_round, self.data.names)
        except RunStopped as error:
            self.stopped = str(error)

    def _replies(self, trained: Trained) -> TrainReplies:
        """Replies of one node with all clients, or of a node for each."""
        each = [trained] if self._merge.combines else [*trained.apart()]
        groups = [[*some.clients, *some.failures] for some in each]
        return replies_of(groups, each, most=self._most, merge=self._merge, loss=self._loss)

    def scores(self, server_round: int, adapt_lr: float | None = None) -> Scores:
        """Scores its clients in ``scored`` after a round, with its step size of fine-tuning."""
        common, own = self.sent(self.scored)
        trainer = self.trainer
        if adapt_lr is not None:
            other = self.experiment.model_copy(update={"adapt_lr": adapt_lr})
            trainer = Trainer(other, self.data, self._store)
        return score(trainer, common, self.scored, server_round=server_round, own=own)

    def validated(self, server_round: int, adapt_lr: float | None = None) -> float:
        """Returns ``Metric.center`` over clients of the score that decides, after a round.

        It is of the first metric of the model that serves them, on validation rows. Clients that
        never train have no part in it. NaN if nobody has such a score.

        Args:
            server_round: The round.
            adapt_lr: If given, that model is fine-tuned by this step size.
        """
        metric, unseen = self.scoring.metrics[0], self.scoring.unseen
        columns = self.scores(server_round, adapt_lr).columns
        which = "" if adapt_lr is None else TUNED
        if (column := columns.get(VALIDATION + metric.name + which)) is None:
            return math.nan
        seen = [i for i, client in enumerate(self.scored) if client not in unseen]
        return center(column[seen].double().numpy(), metric)


class LockStep:
    """Runs that go from round to round together: those that are alike as one stack of clients.

    Args:
        experiments: The first of them, as for ``join``.

    Attributes:
        members: The runs, in the order in which they joined.
        rounds: How many rounds have been trained.
    """

    def __init__(self, experiments: Sequence[Experiment] = ()) -> None:
        self._data = _Data()
        self.members: list[Member] = []
        self.rounds = 0
        self.join(experiments)

    def join(self, experiments: Sequence[Experiment]) -> range:
        """Takes in further runs, or none if one of them is refused; returns their numbers.

        Args:
            experiments: Of one method each; they may differ in anything.

        Raises:
            Refused: Data, network and settings do not fit each other.
        """
        first = len(self.members)
        with ExitStack() as stack:
            for source, data_dir in {(e.source, e.data_dir) for e in experiments}:
                stack.enter_context(unless_refused(source, Path(data_dir)))
            self.members += [Member(e, self._data.of(e)) for e in experiments]
        return range(first, len(self.members))

    def advance(
        self, rounds: int, some: Sequence[int], on_round: Callable[[int], None] = lambda _: None
    ) -> None:
        """Trains some of the runs, by number, up to a round; those that have stopped stay as is."""
        stacks = self.stacks(some)
        for server_round in range(self.rounds + 1, rounds + 1):
            if any(member.stopped for members, _ in stacks for member in members):
                stacks = self.stacks(some)
            cohorts: dict[Hashable, list[int]] = {}
            for members, stack in stacks:
                asked = [self._cohort(member, server_round, cohorts) for member in members]
                trained = stack.train(
                    [*map(Member.sent, members, asked)],
                    asked,
                    server_round=server_round,
                    combine=[member.combine for member in members],
                    losses=members[0].wants_losses(server_round),
                )
                for member, made in zip(members, trained, strict=True):
                    member.learn(made, server_round)
            on_round(server_round)
        self.rounds = rounds

    @staticmethod
    def _cohort(member: Member, server_round: int, drawn: dict[Hashable, list[int]]) -> list[int]:
        """Cohort of a run, drawn once for all runs of its seed and federation."""
        e = member.experiment
        federation = e.seed, e.num_clients, e.clients_per_round, e.shards
        key = *federation, member.scoring.unseen, *member.data.left_out
        if key not in drawn:
            drawn[key] = member.cohort(server_round)
        return drawn[key]

    def stacks(self, some: Sequence[int]) -> list[tuple[list[Member], Stack]]:
        """Returns those of some runs that go on, in groups that train as one stack each."""
        alike: dict[Hashable, list[Member]] = {}
        for member in (self.members[i] for i in some):
            if not member.stopped:
                alike.setdefault(likeness(member.trainer), []).append(member)
        return [(members, Stack([m.trainer for m in members])) for members in alike.values()]


class _Data:
    def __init__(self) -> None:
        self._held: dict[Hashable, FederatedData] = {}

    def of(self, experiment: Experiment) -> FederatedData:
        shared = SharedSettings.all_keys()
        config = experiment.to_config().items()
        key = tuple((k, v) for k, v in config if k in shared and k != "adapt-lr")
        key += tuple(experiment.own.rows_needed.items())
        if key not in self._held:
            found = self._held[key] = in_fitted_units(experiment, federated_data(experiment))
            for some, words in ((found.left_out, "take no part"), (found.unscored, "train only")):
                if some:
                    told = in_groups(some, found.names)
                    _log.warning("seed %d: some clients %s: %s", experiment.seed, words, told)
        return self._held[key]
