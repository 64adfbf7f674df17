"""A bandit's batches: sites play, and get their combined estimates with the next batch."""

from collections.abc import Iterable, Mapping
from logging import getLogger
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from engram.molar.bandits.policies import MultitaskBandit, exchange
from engram.molar.shrinkage import Shared, outweighing
from engram.molar.site import SiteEstimate
from engram.shares import bounded
from engram.types import Params
from federation.columns import LARGEST
from federation.errors import brief
from federation.estimates import (
    SHARED,
    SITES,
    impossible,
    parameters_record,
    read_parameters,
    read_sites,
)
from federation.experiment import Experiment
from federation.methods.molar_bandit import REGRETS, MolarBandit
from federation.noise import Noise
from federation.roster import Roster, Sites
from federation.wire import CLIENTS, read_list
from strategies.base import Row, strategies
from strategies.sites import SiteStrategy, read_split, regret_in_words

__all__ = ["BanditExchange", "SiteOutcome"]

_log = getLogger("flwr.engram")

_FAR = 100  # a site's regret counts as at most this many medians


class SiteOutcome(NamedTuple):
    """A site's reported outcome of one or more batches.

    Attributes:
        turns: Number of turns in which it was activated.
        reward: Sum of their rewards.
        regret: Sum of their regrets.
    """

    turns: int
    reward: float
    regret: float


@strategies(MolarBandit.plug_in)
class BanditExchange(SiteStrategy):
    """MOLARB between sites: Algorithms 2 and 5, one round a batch.

    The shared estimates of a round are sent with the next one. A site that does not reply, or sends
    invalid values, is left out of the shared estimates and warned of, but still receives them.

    Args:
        sites: The sites.
        policy: The policy that they play.
        parameters: Number of parameters of each site: 1 under Model-C, K under Model-P.
        clients: Number of clients, including those that have not joined yet.
        horizon: Total number of turns.
        first_batch: Turns in the first batch, which bounds what sites can claim.
        least: Minimum number of sites with usable replies in a round.
        max_weight: Maximum weight of a site in the shared estimates, as in the policy.

    Attributes:
        state: Each client's sums of the fields of ``SiteOutcome``.
    """

    scored_from = None

    def __init__(
        self,
        sites: Sites,
        policy: MultitaskBandit[SiteEstimate, Shared],
        *,
        parameters: int,
        clients: int,
        horizon: int,
        first_batch: int = 1,
        least: int = 1,
        max_weight: float = np.inf,
    ) -> None:
        super().__init__(sites, least=least)
        self._max_weight = max_weight
        self._policy = policy
        self._parameters = parameters
        self._first = self._turns = first_batch
        self._sent: dict[int, list[SiteEstimate | None]] = {}
        self._outcomes: dict[int, SiteOutcome] = {}
        self._clients = clients
        self._horizon = horizon
        self._heard = False
        self.state: Params = {}

    @classmethod
    def build(cls, experiment: Experiment, roster: Roster, noise: Noise) -> Self:
        """Builds the strategy of a run."""
        del noise
        e, own = experiment, experiment.of(MolarBandit)
        return cls(
            roster.sites(),
            own.policy(e),
            parameters=own.parameters,
            clients=e.num_clients,
            horizon=own.horizon(e),
            first_batch=own.first_batch,
            least=e.min_clients,
            max_weight=e.max_weight,
        )

    def init(self) -> ArrayRecord:
        """Initializes the state; returns no arrays, since nothing is shared yet."""
        zeros = torch.zeros(self._clients, dtype=torch.float64)
        self.state = {name: zeros.clone() for name in SiteOutcome._fields}
        return ArrayRecord()

    @property
    def regret(self) -> dict[str, float]:
        """Mean and median regret over the sites that have reported turns, and how many have.

        Regrets are self-reported: in the mean, a site's counts as at most a hundred times the
        median.
        """
        told = self.state["regret"][self.state["turns"] > 0].numpy()
        if not told.size:
            return {"regret": 0.0, "regret-median": 0.0, "reporting": 0}
        mean = torch.from_numpy(bounded(told, _FAR)).mean()
        median = float(np.median(told))
        return {"regret": float(mean), "regret-median": median, "reporting": told.size}

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks every site to play a batch, and sends the shared estimates of the previous one."""
        shared = {SHARED: arrays} if len(arrays) else {}
        return self.ask(MessageType.TRAIN, server_round, config, grid, lambda _: shared)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Combines the usable estimates of each parameter.

        Returns:
            The record of ``federation.estimates.parameters_record``; and the numbers ``sites``
            (that replied), ``estimates`` (that they sent) and ``left-out``, the clients ``bounded``
            (as in ``Exchange``), and the entries of ``regret``.

        Raises:
            RunStopped: Too few replies are usable.
        """
        self._sent, self._outcomes, self.left_out = {}, {}, {}
        self._turns = self._first << (server_round - 1)
        self.left_out |= self.gather(server_round, replies, self._read)
        self.check_enough(len(self._outcomes))
        senders = sorted(self._sent)
        sent = [self._sent[client] for client in senders]
        answers = exchange(self._policy.site.method, sent)
        # All sites that sent an estimate of a parameter get the same answer; share it with all.
        shared = [
            next((own[p] for own in answers if own[p] is not None), None)
            for p in range(self._parameters)
        ]
        metrics = {
            "sites": len(self._outcomes),
            "estimates": sum(one is not None for own in sent for one in own),
            "left-out": len(self.left_out),
        }
        for client, outcome in self._outcomes.items():
            for name, value in outcome._asdict().items():
                self.state[name][client] += value
        record = parameters_record(shared, len(self.sites.columns))
        counts = {name: int(value) for name, value in metrics.items()}
        bounded = self.name_bounded(self._outweighing(), self._max_weight)
        return record, MetricRecord({**counts, **bounded, **self.regret})

    def _outweighing(self) -> set[int]:
        """Returns the clients whose weight was limited for some parameter."""
        found: set[int] = set()
        for p in range(self._parameters):
            each = {c: one for c in sorted(self._sent) if (one := self._sent[c][p]) is not None}
            if each:
                above = outweighing(list(each.values()), "precision", self._max_weight)
                found.update(np.array(list(each))[above].tolist())
        return found

    def _read(self, content: RecordDict, clients: list[int]) -> None:
        """Reads and checks a node's reports and estimates of its clients."""
        ids, failed, _ = read_split(content, clients)
        details = content.config_records[CLIENTS]
        senders = read_list(details, "senders", int)
        parameters = read_list(details, "parameters", int)
        turns, reward, regret = (
            read_list(details, "turns", int),
            read_list(details, "reward", float),
            read_list(details, "regret", float),
        )
        pairs = list(zip(senders, parameters, strict=False))
        possible = {(client, p) for client in ids for p in range(self._parameters)}
        if len(set(pairs)) < max(len(senders), len(parameters)) or not possible.issuperset(pairs):
            raise ValueError(f"its node sends estimates of {brief(pairs)}")
        if {len(turns), len(reward), len(regret)} != {len(ids)}:
            raise ValueError("its node's lists do not fit each other")
        left = (self._turns - self.state["turns"][ids]).tolist()  # unreported
        possible_turns = all(0 <= count <= most for count, most in zip(turns, left, strict=True))
        if not (possible_turns and all(abs(total) <= LARGEST for total in reward)):
            raise ValueError("its turns or rewards are impossible")
        if reason := REGRETS.impossible(regret):
            raise ValueError(reason)
        found = read_sites(content.array_records[SITES], len(pairs), len(self.sites.columns))
        reasons = {
            client: reason
            for (client, _), site in zip(pairs, found, strict=True)
            if (reason := impossible(site, self._turns, at_most=True)) is not None
        }
        self.left_out |= failed | reasons
        for client, outcome in zip(ids, map(SiteOutcome, turns, reward, regret), strict=True):
            if client not in reasons:
                self._outcomes[client] = outcome
                self._sent[client] = [None] * self._parameters
        for (client, p), site in zip(pairs, found, strict=True):
            if client not in reasons:
                self._sent[client][p] = site._replace(freedom=min(site.freedom, self._turns))

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends every site the shared estimates of the last batch."""
        self._heard = False
        return self.ask(
            MessageType.EVALUATE, server_round, config, grid, lambda _: {SHARED: arrays}
        )

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Returns how many ``sites`` have learned from the last batch."""
        failed: dict[int, str] = {}
        failed |= self.gather(
            server_round,
            replies,
            lambda content, clients: failed.update(read_split(content, clients)[1]),
        )
        for client, reason in failed.items():
            called = self.called(client)
            _log.warning("client %s has not learned from the last batch: %s", called, reason)
        self._heard = True
        return MetricRecord({"sites": len(self.sites.nodes) - len(failed)})

    @property
    def evaluated(self) -> bool:
        """Whether sites have been sent the shared estimates of the last batch."""
        return self._heard

    def results(self, arrays: ArrayRecord, row: Row) -> Row:
        """Returns mean and median regret, each site's sums, and the shared coefficients."""
        shared = read_parameters(arrays, self._parameters)
        return {
            "turns": self._horizon,
            "sites": row["sites"],
            "left-out": row["absent"],
            "clients": {name: self.state[name].tolist() for name in SiteOutcome._fields},
            **self.regret,
            "shared": {
                "names": self.sites.columns,
                "coef": [None if one is None else one.coef.tolist() for one in shared],
            },
        }

    @staticmethod
    def in_words(row: Mapping[str, Any]) -> str:
        """Returns how many sites took part, their mean regret, and how many have reported it."""
        return regret_in_words(row)
