"""Stacked runs: many runs of a method at once, without messages, records or checkpoints.

Each run gives the numbers that it gives by itself, to rounding.
"""

import math
from collections.abc import Hashable, Sequence
from contextlib import ExitStack
from logging import getLogger
from pathlib import Path

from torch import Tensor

from engram.client.memory import RamStore
from engram.cohort.trainer.chunks import score
from engram.cohort.trainer.stacked_runs import Stack, likeness
from engram.cohort.trainer.trainer import Trainer
from engram.core.method import Slots
from engram.core.slots import over_slots
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
from engram.strategies.running.rounds import Rounds, Step, Wave
from engram.strategies.running.screening import TrainReplies, judged
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
        here = trained._replace(slots=over_slots(Tensor.cpu, trained.slots))
        each = [here] if self._merge.combines else [*here.apart()]
        groups = [[*some.clients, *some.failures] for some in each]
        verdicts = (judged(some, self._merge, most=self._most, loss=self._loss) for some in each)
        return TrainReplies.of(zip(groups, verdicts, strict=True))

    def scores(self, server_round: int, adapt_lr: float | None = None) -> Scores:
        """Scores its clients in ``scored`` after a round, with its step size of fine-tuning."""
        common, own = self.sent(self.scored)
        trainer = self.trainer if adapt_lr is None else self.trainer.tuning_by(adapt_lr)
        return score(trainer, common, self.scored, server_round=server_round, own=own)

    def validated(self, server_round: int, adapt_lr: float | None = None) -> float:
        """Returns ``Metric.center`` over clients of the score that decides, after a round.

        It is of the first metric of the model that serves them, on validation rows. Clients that
        never train have no part in it. NaN if nobody has such a score.
        If ``adapt_lr`` is given, that model is fine-tuned by this step size.
        """
        metric, unseen = self.scoring.metrics[0], self.scoring.unseen
        columns = self.scores(server_round, adapt_lr).columns
        which = "" if adapt_lr is None else TUNED
        if (column := columns.get(VALIDATION + metric.name + which)) is None:
            return math.nan
        seen = [i for i, client in enumerate(self.scored) if client not in unseen]
        return center(column[seen].double().numpy(), metric)


class Stacked:
    """Runs that train together, round by round: those that are alike as one stack of clients.

    Attributes:
        members: The runs.
        stacks: Those that go on, in groups that train as one stack each.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self.keep(members)

    def keep(self, members: Sequence[Member]) -> None:
        """Goes on with these runs alone; those that have stopped stay as they are."""
        self.members, alike = members, dict[Hashable, list[Member]]()
        for member in members:
            if not member.stopped:
                alike.setdefault(likeness(member.trainer), []).append(member)
        self.stacks = [(some, Stack([m.trainer for m in some])) for some in alike.values()]

    def train(self, step: Step) -> None:
        """Trains a round of each run."""
        if any(member.stopped for members, _ in self.stacks for member in members):
            self.keep(self.members)
        cohorts: dict[Hashable, list[int]] = {}
        for members, stack in self.stacks:
            asked = [_cohort(member, step.number, cohorts) for member in members]
            trained = stack.train(
                [*map(Member.sent, members, asked)],
                asked,
                server_round=step.number,
                combine=[member.combine for member in members],
                losses=step.due or members[0].experiment.model in FLAT,  # which show divergence
            )
            for member, made in zip(members, trained, strict=True):
                member.learn(made, step.number)


def _cohort(member: Member, server_round: int, drawn: dict[Hashable, list[int]]) -> list[int]:
    """Cohort of a run, drawn once for all runs of its seed and federation."""
    e = member.experiment
    federation = e.seed, e.num_clients, e.clients_per_round, e.shards
    key = *federation, member.scoring.unseen, *member.data.left_out
    if key not in drawn:
        drawn[key] = member.cohort(server_round)
    return drawn[key]


def members_of(
    experiments: Sequence[Experiment], loaded: dict[Hashable, FederatedData] | None = None
) -> list[Member]:
    """Opens runs of one method each, which may differ in anything; all of them, or none.

    ``loaded`` holds data that were loaded for other runs, and takes those of these.

    Raises:
        Refused: Data, network and settings do not fit each other.
    """
    loaded = {} if loaded is None else loaded
    with ExitStack() as stack:
        for source, data_dir in {(e.source, e.data_dir) for e in experiments}:
            stack.enter_context(unless_refused(source, Path(data_dir)))
        return [Member(e, _data_of(e, loaded)) for e in experiments]


def _data_of(experiment: Experiment, loaded: dict[Hashable, FederatedData]) -> FederatedData:
    shared = SharedSettings.all_keys()
    config = experiment.to_config().items()
    key = tuple((k, v) for k, v in config if k in shared and k != "adapt-lr")
    key += tuple(experiment.own.rows_needed.items())
    if key not in loaded:
        found = loaded[key] = in_fitted_units(experiment, federated_data(experiment))
        for some, words in ((found.left_out, "take no part"), (found.unscored, "train only")):
            if some:
                told = in_groups(some, found.names)
                _log.warning("seed %d: some clients %s: %s", experiment.seed, words, told)
    return loaded[key]
