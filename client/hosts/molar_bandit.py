"""The sites' side of a bandit: choices, rows and coefficients stay here, only estimates leave.

A site's state is its memory. It plays a batch, and sends an estimate from its new rows; the next
message brings the combination of all sites' estimates.
"""

from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from logging import getLogger

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from client.hosts.base import Opening, hosts
from client.hosts.rows import read_tables, shared_by
from client.memory import MemoryStore
from client.requests import Request, answered, by_client, durable_of, round_of, split
from engram.molar.bandits.environments import TaskEnvironment, regret
from engram.molar.bandits.play import batches
from engram.molar.bandits.site import Buffer, TaskState
from engram.molar.shrinkage import Shared
from engram.molar.site import INTERCEPT, SiteEstimate
from engram.types import Params
from federation.data.environments import (
    COLUMNS,
    SIMULATED,
    simulated_environment,
    table_environment,
)
from federation.data.tables import TableData
from federation.errors import UNNAMED, DataError, EngramError
from federation.estimates import SHARED, SITES, read_parameters, site_record
from federation.experiment import Experiment
from federation.methods.molar_bandit import MolarBandit
from federation.roster import describe_node
from federation.schema import Kind
from federation.streams import Stream, generator
from federation.wire import CLIENTS, METRICS

__all__ = ["BanditSites"]

_log = getLogger("flwr.engram")

Totals = npt.NDArray[np.float64]  # of turns, rewards and regrets


class BanditSites:
    """Hosts clients' bandits.

    Args:
        experiment: The settings.
        data: The clients' tables; None where their turns are simulated.
        store: Where their states are kept.

    Raises:
        DataError: If the model is P, and there are tables.
    """

    def __init__(self, experiment: Experiment, data: TableData | None, store: MemoryStore) -> None:
        self.own = experiment.of(MolarBandit)
        if data is not None and self.own.bandit_model != "C":
            raise DataError(
                "bandit-model must be C for a table, whose rows are arms with contexts of their own"
            )
        self.experiment = experiment
        self.data = data
        self.called = UNNAMED if data is None else data.names
        self._store = store
        self._site = self.own.policy(experiment).site
        self.environment = lru_cache(maxsize=None)(self._environment)

    @property
    def columns(self) -> list[str]:
        """Names of the contexts' entries."""
        if self.data is None:
            return [f"x{k}" for k in range(COLUMNS)]
        return [*self.data.columns, *([INTERCEPT] if self.own.intercept else [])]

    def _environment(self, client: int) -> TaskEnvironment:
        if self.data is None:
            return simulated_environment(self.experiment, client)
        return table_environment(self.experiment, self.data, client)

    def play(
        self,
        client: int,
        replies: Sequence[Shared | None] | None,
        *,
        server_round: int,
        durable: int,
    ) -> tuple[tuple[SiteEstimate | None, ...], Totals]:
        """Plays a client's next batch, and stores its new state.

        Args:
            client: The client.
            replies: The shared estimate of each parameter after the previous batch; None in the
                first batch.
            server_round: The batch, from 1.
            durable: As for ``MemoryStore.save``.

        Returns:
            The site's estimate of each parameter, None where it has too few new rows; and turns in
            which it was activated since its last report, with the sums of their rewards and
            expected regrets: 0 until they are ``report-every`` turns, since a sum over fewer would
            reveal too much of one.
        """
        e, environment = self.experiment, self.environment(client)
        if not 1 <= server_round <= e.rounds:
            raise EngramError(f"server-round must be in 1..{e.rounds}, got {server_round}")
        state, untold = self._state(client, server_round)
        if replies is not None:
            state = self._site.receive(state, replies)
        batch = list(batches(self.own.first_batch, self.own.horizon(e)))[server_round - 1]
        now = environment.rounds(batch.start, batch.stop)
        ties = generator(e.seed, Stream.TIES, server_round, client)
        chosen = self._site.choose(state, now.contexts, ties)
        rewards = now.rewards[np.arange(len(chosen)), chosen]
        state = self._site.observe(state, now.contexts, chosen, rewards)
        untold = untold + np.array([len(chosen), rewards.sum(), regret(now, chosen).sum()])
        told = untold if untold[0] >= self.own.report_every else np.zeros(3)
        self._keep(client, state, untold - told, server_round, durable)
        return self._site.close_batch(state), told

    def learn(
        self, client: int, replies: Sequence[Shared | None], *, server_round: int, durable: int
    ) -> None:
        """Learns from the last batch's shared estimates, for choices after the run."""
        state, untold = self._state(client, server_round + 1)
        state = self._site.receive(state, replies)
        self._keep(client, state, untold, server_round + 1, durable)

    def _state(self, client: int, before: int) -> tuple[TaskState, Totals]:
        """Returns a client's state, and its unreported turns, rewards and regrets."""
        kept = self._store.load(client, before=before)
        if kept is None:
            if before > 1:
                called = self.called.get(client, client)
                _log.warning("client %s remembers no earlier batch: it begins anew", called)
            environment = self.environment(client)
            dim = environment.contexts.shape[2]
            return self._site.init(environment.parameters, dim), np.zeros(3)
        arrays = {name: leaf.numpy() for name, leaf in kept.items()}
        fresh, past = (
            Buffer(*(arrays[f"{part}.{name}"] for name in Buffer._fields))
            for part in ("fresh", "past")
        )
        return TaskState(arrays["coefs"], fresh, past), arrays["untold"]

    def _keep(
        self, client: int, state: TaskState, untold: Totals, server_round: int, durable: int
    ) -> None:
        memory: Params = {
            "coefs": torch.from_numpy(state.coefs.copy()),
            "untold": torch.from_numpy(untold.copy()),
        }
        for part, rows in (("fresh", state.fresh), ("past", state.past)):
            for name, column in rows._asdict().items():
                memory[f"{part}.{name}"] = torch.from_numpy(column.copy())
        self._store.save(client, memory, server_round=server_round, durable=durable)

    def describe(self, hosted: Sequence[int]) -> RecordDict:
        """Describes the clients' number of turns, and their contexts."""
        clients = dict.fromkeys(hosted, self.own.horizon(self.experiment))
        return describe_node(clients, Kind.of_table(self.columns), self.called)

    def train(self, requests: Sequence[Request]) -> list[Message]:
        """Plays a batch, and sends estimates from its rows."""
        return [answered(request, partial(_play, self, request)) for request in requests]

    def evaluate(self, requests: Sequence[Request]) -> list[Message]:
        """Learns from the last batch's shared estimates."""
        return [answered(request, partial(_learn, self, request)) for request in requests]


@hosts(MolarBandit.plug_in)
def _open(opening: Opening) -> BanditSites:
    e = opening.experiment
    drawn = not opening.own and e.dataset == SIMULATED
    return BanditSites(e, None if drawn else read_tables(opening), opening.store)


def _replies(host: BanditSites, content: RecordDict) -> list[Shared | None] | None:
    if SHARED not in content.array_records:
        return None
    return shared_by(content, lambda record: read_parameters(record, host.own.parameters))


def _play(host: BanditSites, request: Request, clients: Iterable[int]) -> RecordDict:
    content = request.message.content
    number, durable, replies = round_of(content), durable_of(content), _replies(host, content)
    played, failed = by_client(
        clients, lambda client: host.play(client, replies, server_round=number, durable=durable)
    )
    sent = [
        (client, p, estimate)
        for client, (estimates, _) in played.items()
        for p, estimate in enumerate(estimates)
        if estimate is not None
    ]
    told = np.reshape([totals for _, totals in played.values()], (-1, 3)).T.tolist()
    turns, (reward, regret) = [int(count) for count in told[0]], told[1:]
    details = split(number, played, failed) | {
        "senders": [client for client, _, _ in sent],
        "parameters": [p for _, p, _ in sent],
        "turns": turns,
        "reward": reward,
        "regret": regret,
    }
    return RecordDict(
        {
            SITES: site_record([estimate for _, _, estimate in sent], len(host.columns)),
            METRICS: MetricRecord({"num-examples": sum(turns)}),
            CLIENTS: ConfigRecord(details),
        }
    )


def _learn(host: BanditSites, request: Request, clients: Iterable[int]) -> RecordDict:
    content = request.message.content
    number, durable, replies = round_of(content), durable_of(content), _replies(host, content) or []
    done, failed = by_client(
        clients, lambda client: host.learn(client, replies, server_round=number, durable=durable)
    )
    metrics = MetricRecord({"num-examples": len(done)})
    return RecordDict({METRICS: metrics, CLIENTS: ConfigRecord(split(number, done, failed))})
