"""A bandit's batches: sites play, and get their combined estimates with the next batch."""

from collections.abc import Iterable, Mapping, Sequence
from logging import getLogger
from typing import Any

import numpy as np
import torch

from engram.core.types import Params
from engram.guards.robust.weight_limit import bounded
from engram.scoring.score_columns import LARGEST
from engram.settings.errors import brief
from engram.settings.experiment import Experiment
from engram.strategies.running.base import Nodes, Row, strategies
from engram.strategies.running.site_strategy import (
    TOTALS,
    SiteStrategy,
    read_split,
    regret_in_words,
)
from engram.tables.bandits.policies import exchange, molar_bandit
from engram.tables.federation.molar import REGRETS, MolarBandit
from engram.tables.federation.molar_messages import (
    SHARED,
    SITES,
    impossible,
    parameters_record,
    read_parameters,
    read_sites,
)
from engram.tables.shrinkage import outweighing
from engram.tables.site import SiteEstimate
from engram.wire.messages import EVALUATE, TRAIN, Content, Question, Reply
from engram.wire.roster import Roster
from engram.wire.wire import CLIENTS, arrays_of, read_list

_log = getLogger("flwr.engram")

_FAR = 100  # a site's regret counts as at most this many medians


@strategies(MolarBandit.plug_in)
class BanditExchange(SiteStrategy):
    """MOLARB between sites: Algorithms 2 and 5, one round a batch.

    The shared estimates of a round are sent with the next one. A site that does not reply, or sends
    invalid values, is left out of the shared estimates and warned of, but still receives them.

    Attributes:
        state: Each client's sums of ``TOTALS``.
    """

    scored_from = None

    def __init__(self, experiment: Experiment, roster: Roster) -> None:
        super().__init__(experiment, roster)
        self._experiment, self._own = experiment, experiment.of(MolarBandit)
        self._turns = self._own.first_batch  # of a batch, which bounds what sites can claim
        self._sent: dict[int, list[SiteEstimate | None]] = {}
        self._outcomes: dict[int, tuple[float, ...]] = {}
        self._heard = False
        self.state: Params = {}

    def init(self) -> Params:
        """Initializes the state; returns no arrays, since nothing is shared yet."""
        zeros = torch.zeros(self._experiment.num_clients, dtype=torch.float64)
        self.state = {name: zeros.clone() for name in TOTALS}
        return {}

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
        self, server_round: int, arrays: Params, config: Mapping[str, Any], grid: Nodes
    ) -> Iterable[Question]:
        """Asks every site to play a batch, and sends the shared estimates of the previous one."""
        shared = {SHARED: arrays} if len(arrays) else {}
        return self.questions(TRAIN, server_round, config, grid, lambda _: shared)

    def aggregate_train(self, server_round: int, replies: Sequence[Reply]) -> tuple[Params, Row]:
        """Combines the usable estimates of each parameter.

        Returns:
            The record of ``engram.tables.federation.molar_messages.parameters_record``; and the
            numbers ``sites`` (that replied), ``estimates`` (that they sent) and ``left-out``, the
            clients ``bounded`` (as in ``Exchange``), and the entries of ``regret``.

        Raises:
            RunStopped: Too few replies are usable.
        """
        self._sent, self._outcomes, self.left_out = {}, {}, {}
        self._turns = self._own.first_batch << (server_round - 1)
        self.left_out |= self.gather(server_round, replies, self._read)
        self.check_enough(len(self._outcomes))
        senders = sorted(self._sent)
        sent = [self._sent[client] for client in senders]
        answers = exchange(molar_bandit(max_weight=self._experiment.max_weight).method, sent)
        # All sites that sent an estimate of a parameter get the same answer; share it with all.
        shared = [
            next((own[p] for own in answers if own[p] is not None), None)
            for p in range(self._own.parameters)
        ]
        metrics = {
            "sites": len(self._outcomes),
            "estimates": sum(one is not None for own in sent for one in own),
            "left-out": len(self.left_out),
        }
        for client, outcome in self._outcomes.items():
            for name, value in zip(TOTALS, outcome, strict=True):
                self.state[name][client] += value
        record = parameters_record(shared, len(self.sites.columns))
        bounded = self.name_bounded(self._outweighing(), self._experiment.max_weight)
        return record, {**metrics, **bounded, **self.regret}

    def _outweighing(self) -> set[int]:
        found, most = set[int](), self._experiment.max_weight
        for p in range(self._own.parameters):
            each = {c: one for c in sorted(self._sent) if (one := self._sent[c][p]) is not None}
            if each:
                above = outweighing(list(each.values()), "precision", most)
                found.update(np.array(list(each))[above].tolist())
        return found

    def _read(self, content: Content, clients: list[int]) -> None:
        ids, failed, _ = read_split(content, clients)
        details = content[CLIENTS]
        counts = ("senders", "parameters", "turns")
        senders, parameters, turns = (read_list(details, name, int) for name in counts)
        reward, regret = (read_list(details, name, float) for name in ("reward", "regret"))
        pairs = list(zip(senders, parameters, strict=False))
        possible = {(client, p) for client in ids for p in range(self._own.parameters)}
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
        found = read_sites(arrays_of(content, SITES), len(pairs), len(self.sites.columns))
        reasons = {
            client: reason
            for (client, _), site in zip(pairs, found, strict=True)
            if (reason := impossible(site, self._turns, at_most=True)) is not None
        }
        self.left_out |= failed | reasons
        for client, *outcome in zip(ids, turns, reward, regret, strict=True):
            if client not in reasons:
                self._outcomes[client] = tuple(outcome)
                self._sent[client] = [None] * self._own.parameters
        for (client, p), site in zip(pairs, found, strict=True):
            if client not in reasons:
                self._sent[client][p] = site._replace(freedom=min(site.freedom, self._turns))

    def configure_evaluate(
        self, server_round: int, arrays: Params, config: Mapping[str, Any], grid: Nodes
    ) -> Iterable[Question]:
        """Sends every site the shared estimates of the last batch."""
        self._heard = False
        shared = {SHARED: arrays}
        return self.questions(EVALUATE, server_round, config, grid, lambda _: shared)

    def aggregate_evaluate(self, server_round: int, replies: Sequence[Reply]) -> Row:
        """Counts the ``sites`` that have learned from the last batch."""
        failed: dict[int, str] = {}
        failed |= self.gather(
            server_round, replies, lambda content, ids: failed.update(read_split(content, ids)[1])
        )
        for client, reason in failed.items():
            called = self.called(client)
            _log.warning("client %s has not learned from the last batch: %s", called, reason)
        self._heard = True
        return {"sites": len(self.sites.nodes) - len(failed)}

    @property
    def evaluated(self) -> bool:
        """Whether sites have been sent the shared estimates of the last batch."""
        return self._heard

    def results(self, arrays: Params, row: Row) -> Row:
        """Returns mean and median regret, each site's sums, and the shared coefficients."""
        shared = read_parameters(arrays, self._own.parameters)
        return {
            "turns": self._own.horizon(self._experiment),
            "sites": row["sites"],
            "left-out": row["absent"],
            "clients": {name: self.state[name].tolist() for name in TOTALS},
            **self.regret,
            "shared": {
                "names": self.sites.columns,
                "coef": [None if one is None else one.coef.tolist() for one in shared],
            },
        }

    in_words = staticmethod(regret_in_words)
