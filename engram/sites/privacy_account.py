"""Costs of a node's answers, and the account that is charged before they leave."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from engram.client.requests import round_of
from engram.data.readers.digests import digest_of
from engram.guards.accounting.composition import costs
from engram.guards.accounting.releases import Event
from engram.guards.calibration import noise_multiplier, plan_of
from engram.guards.presets import protections
from engram.link.node_config import NodeConfig
from engram.settings.errors import EngramError, few
from engram.settings.experiment import Experiment
from engram.settings.files import refusing
from engram.sites.ledger import LEDGER, Ledger, Spent, Steps, key_of
from engram.sites.policy import Policy
from engram.wire.messages import TRAIN, Question
from engram.wire.wire import CLIENTS, config_of


class Account(NamedTuple):
    """The account of the data that a node serves in a training.

    One account is charged for whatever clients of the node are asked: in another run another client
    may have the same rows. So of a node with several clients it is an upper bound.
    """

    ledger: Ledger
    data: str  # digest of the data
    experiment: Experiment
    training: str  # the name of its memories
    rows: Sequence[int]  # training rows of each of the node's clients
    by: str  # who asks, as far as the node can tell

    def _cost(self, each: Event = "round") -> tuple[float, Steps]:
        """Returns mu^2 of an answer, and its other releases, for the client of fewest rows."""
        plan = plan_of(self.experiment, min(self.rows, default=1))
        found = [r for r in protections(self.experiment).releases(plan) if r.each == each]
        if not found:  # nothing is known of what it tells
            return math.inf, {}
        total, sampled, concentrated = costs(found)
        steps = {key_of(z, rate): count for (z, rate), count in sampled.items()}
        return total, steps | {key_of(z): count for z, count in concentrated.items()}

    @classmethod
    def of(
        cls,
        config: NodeConfig,
        policy: Policy,
        experiment: Experiment,
        training: str,
        rows: Sequence[int],
    ) -> "Account | None":
        """Returns a node's account; None if its site sets no total.

        Raises:
            Refused: The data cannot be read.
        """
        if not policy.epsilon or config.state is None:
            return None
        ledger = Ledger(config.state / LEDGER, policy.epsilon, policy.delta)
        sources = [config.data] if config.data else experiment.own.sources(experiment)
        with refusing("this node's data cannot be read"):
            data = digest_of(sources)
        return cls(ledger, data, experiment, training, rows, config.asked_by)

    def check(self) -> None:
        """Checks that the account can pay for one more answer.

        Raises:
            Refused: The budget does not suffice, or the ledger is damaged.
        """
        self.ledger.require(self.data, *self._cost())

    def charge(self, question: Question, run: int) -> Spent:
        """Notes the cost of an answer, before any of its noise is drawn.

        An answer that fails costs, too: that it failed may tell something.

        Raises:
            Refused: The budget does not suffice, or the ledger is damaged or cannot be written.
        """
        e, content = self.experiment, question.content
        trains = question.kind == TRAIN
        try:
            number = round_of(content)
        except EngramError:
            number = 0
        line: dict[str, Any] = {"kind": question.kind, "run": run}
        line |= {"training": self.training, "method": e.method, "round": number, "clients": "all"}
        if isinstance(asked := config_of(content).get(CLIENTS), list):
            line["clients"] = few([c for c in asked if isinstance(c, int)])
        line |= {"rows": sum(self.rows), "noise-multiplier": noise_multiplier(e)}
        line |= {"clip": e.clip if trains else None, "by": self.by}
        cost, steps = self._cost("round" if trains else "report")
        return self.ledger.spend(self.data, cost, line, steps)
