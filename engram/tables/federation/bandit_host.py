"""The sites' side of a bandit: choices, rows and coefficients stay here, only estimates leave.

A site's state is its memory. It plays a batch, and sends an estimate from its new rows; the next
message brings the combination of all sites' estimates.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from logging import getLogger
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engram.bandits.federation.environments import (
    COLUMNS,
    SIMULATED,
    simulated_environment,
    table_environment,
)
from engram.client.hosts.base import Opening, hosts
from engram.client.hosts.rows import read_tables, shared_by
from engram.client.memory import MemoryStore
from engram.client.requests import durable_of, round_of, split
from engram.core.streams import Stream, generator
from engram.core.types import Params
from engram.data.schema.columns import Column, Kind, Schema
from engram.data.tables.tables import TableData
from engram.guards.noise import Noise, secret_noise
from engram.settings.errors import UNNAMED, DataError, EngramError
from engram.settings.experiment import Experiment
from engram.tables.bandits.environments import TaskEnvironment, regret
from engram.tables.bandits.policies import batches, molar_bandit
from engram.tables.bandits.site import Buffer, TaskBandit, TaskState
from engram.tables.federation.molar import MolarBandit
from engram.tables.federation.molar_messages import SHARED, read_parameters, site_record
from engram.tables.federation.site_host import SiteHost, reply
from engram.tables.private import close_private_batch
from engram.tables.shrinkage import Shared, personalize
from engram.tables.site import INTERCEPT, SiteEstimate
from engram.wire.messages import Content
from engram.wire.roster import describe_node

_log = getLogger("flwr.engram")

Totals = npt.NDArray[np.float64]  # of turns, rewards and regrets


_SENT: Final = tuple(name for name in SiteEstimate._fields if name != "root")


def policy_of(experiment: Experiment) -> TaskBandit[SiteEstimate, Shared]:
    """Builds the policy of sites."""
    own, most = experiment.of(MolarBandit), experiment.max_weight
    return molar_bandit(
        c=own.threshold_scale, option=own.thresholding, history=own.history, max_weight=most
    )


class Kept(NamedTuple):
    """A client's memory.

    Attributes:
        state: Its state after a batch.
        untold: Turns that it has not reported, their rewards and regrets.
        sent: Its estimate with noise after this batch, if it sent one.
    """

    state: TaskState
    untold: Totals
    sent: SiteEstimate | None = None


class BanditSites(SiteHost):
    """Hosts clients' bandits; without ``data`` their turns are simulated.

    Raises:
        DataError: If the model is P, and there are tables.
    """

    def __init__(
        self,
        experiment: Experiment,
        data: TableData | None,
        store: MemoryStore,
        noise: Noise = secret_noise,
        *,
        covers: bool = False,
    ) -> None:
        super().__init__(experiment, store, noise, covers=covers)
        self.own = experiment.of(MolarBandit)
        if data is not None and self.own.bandit_model != "C":
            why = "whose rows are arms with contexts of their own"
            raise DataError(f"bandit-model must be C for a table, {why}")
        self.data = data
        self.called = UNNAMED if data is None else data.names
        self._site = policy_of(experiment)
        self.environment = lru_cache(maxsize=None)(self._environment)

    @property
    def columns(self) -> list[str]:
        """Names of the contexts' entries."""
        return list(self._schema.inputs)

    @property
    def _schema(self) -> Schema:
        if self.data is None:
            return Schema.of_numbers([f"x{k}" for k in range(COLUMNS)])
        ones = (Column(INTERCEPT),) if self.own.intercept else ()
        return replace(self.data.schema, columns=(*self.data.schema.columns, *ones))

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

        Where privacy is example, the estimate has noise, new at each call.

        Args:
            client: The client.
            replies: The shared estimate of each parameter after the previous batch; None in the
                first one.
            server_round: The batch, from 1.
            durable: As for ``MemoryStore.save``.

        Returns:
            The site's estimate of each parameter, None where it has too few new rows; and turns in
            which it was activated since its last report, with the sums of their rewards and
            expected regrets: 0 until they are ``report-every`` turns, since a sum over fewer would
            reveal too much of one, and always where only what has noise may leave.
        """
        e, environment = self.experiment, self.environment(client)
        if not 1 <= server_round <= e.rounds:
            raise EngramError(f"server-round must be in 1..{e.rounds}, got {server_round}")
        kept = self._load(client, server_round)
        state = kept.state if replies is None else self._received(kept, replies)
        batch = list(batches(self.own.first_batch, self.own.horizon(e)))[server_round - 1]
        now = environment.rounds(batch.start, batch.stop)
        ties = generator(e.seed, Stream.TIES, server_round, client)
        state, chosen, rewards = self._site.play(state, now, ties)
        untold = kept.untold + np.array([len(chosen), rewards.sum(), regret(now, chosen).sum()])
        tells = untold[0] >= self.own.report_every and not self.covers
        told = untold if tells else np.zeros(3)
        if self.private:
            sent, state = close_private_batch(
                self._site, state, lambda rows: self._noised(rows, client, server_round)
            )
            self._keep(client, Kept(state, untold - told, sent), server_round, durable)
            return (sent,), told
        self._keep(client, Kept(state, untold - told), server_round, durable)
        return self._site.close_batch(state), told

    def _received(self, kept: Kept, replies: Sequence[Shared | None]) -> TaskState:
        if not self.private:
            return self._site.receive(kept.state, replies)
        (shared,) = replies
        if kept.sent is None or shared is None:
            return kept.state
        option, c = self.own.thresholding, self.own.threshold_scale
        coef = personalize(kept.sent, shared, option=option, c=c)
        return kept.state._replace(coefs=coef[None])

    def learn(
        self, client: int, replies: Sequence[Shared | None], *, server_round: int, durable: int
    ) -> None:
        """Learns from the last batch's shared estimates, for choices after the run."""
        kept = self._load(client, server_round + 1)
        learned = Kept(self._received(kept, replies), kept.untold)
        self._keep(client, learned, server_round + 1, durable)

    def _load(self, client: int, before: int) -> Kept:
        memory = self._store.load(client, before=before)
        if memory is None:
            if before > 1:
                called = self.called.get(client, client)
                _log.warning("client %s remembers no earlier batch: it begins anew", called)
            environment = self.environment(client)
            dim = environment.contexts.shape[2]
            return Kept(self._site.init(environment.parameters, dim), np.zeros(3))
        arrays = {name: leaf.numpy() for name, leaf in memory.items()}
        parts = ([arrays[f"{part}.{k}"] for k in Buffer._fields] for part in ("fresh", "past"))
        fresh, past = (Buffer(*part) for part in parts)
        sent = None
        if "sent.coef" in arrays:
            coef, scale, *numbers = (arrays[f"sent.{name}"] for name in _SENT)
            size, sigma, freedom = map(float, numbers)
            sent = SiteEstimate(coef, scale, size, sigma, freedom)
        return Kept(TaskState(arrays["coefs"], fresh, past), arrays["untold"], sent)

    def _keep(self, client: int, kept: Kept, server_round: int, durable: int) -> None:
        arrays = {"coefs": kept.state.coefs, "untold": kept.untold}
        parts: dict[str, Any] = {"fresh": kept.state.fresh, "past": kept.state.past}
        for part, each in ({"sent": kept.sent} | parts).items():
            if each is not None:
                named = each._asdict().items()
                arrays |= {f"{part}.{name}": value for name, value in named if name != "root"}
        memory: Params = {name: torch.from_numpy(np.array(x)) for name, x in arrays.items()}
        self._store.save(client, memory, server_round=server_round, durable=durable)

    def describe(self, hosted: Sequence[int]) -> Content:
        """Describes the clients' number of turns, and their contexts."""
        clients = dict.fromkeys(hosted, self.own.horizon(self.experiment))
        return describe_node(clients, Kind(schema=self._schema), self.called)

    def _replies(self, content: Content) -> list[Shared | None] | None:
        if SHARED not in content:
            return None
        return shared_by(content, lambda record: read_parameters(record, self.own.parameters))

    def _trained(self, content: Content, clients: Iterable[int]) -> Content:
        number, durable, replies = round_of(content), durable_of(content), self._replies(content)
        played, failed = self._by_client(
            clients, lambda client: self.play(client, replies, server_round=number, durable=durable)
        )
        sent = [
            (client, p, estimate)
            for client, (estimates, _) in played.items()
            for p, estimate in enumerate(estimates)
            if estimate is not None
        ]
        totals = np.reshape([told for _, told in played.values()], (-1, 3))
        turns, reward, regret = totals.T.tolist()
        details = split(number, played, failed) | {
            "senders": [client for client, _, _ in sent],
            "parameters": [p for _, p, _ in sent],
            "turns": [int(count) for count in turns],
            "reward": reward,
            "regret": regret,
        }
        sites = site_record([estimate for _, _, estimate in sent], len(self.columns))
        return reply(details, int(sum(turns)), sites)

    def _evaluated(self, content: Content, clients: Iterable[int]) -> Content:
        number, durable = round_of(content), durable_of(content)
        replies = self._replies(content) or []
        done, failed = self._by_client(
            clients,
            lambda client: self.learn(client, replies, server_round=number, durable=durable),
        )
        return reply(split(number, done, failed), len(done))


@hosts(MolarBandit.plug_in)
def _open(opening: Opening) -> BanditSites:
    e = opening.experiment
    data = read_tables(opening) if opening.own or e.dataset != SIMULATED else None
    return BanditSites(e, data, opening.store, opening.noise, covers=opening.covers)
