"""Rounds of clients in this process, which are trained and scored without messages."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from logging import getLogger
from typing import Any

import torch
from torch import Tensor

from engram.client.hosts.local import LocalHost
from engram.core.method import Slots
from engram.core.slots import over_slots
from engram.core.types import Params
from engram.guards.merge import Merge
from engram.scoring.evaluation import read_scores
from engram.server.engine import Engine
from engram.settings.errors import one_line
from engram.strategies.running.base import Round
from engram.strategies.running.network_strategy import Federated
from engram.strategies.running.reply_border import REASONS, Impossible, Rejected
from engram.strategies.running.rounds import Wave
from engram.strategies.running.scored_strategy import Answer
from engram.strategies.running.screening import TrainReplies, judged
from engram.wire.messages import Reply
from engram.wire.training_result import Trained

_log = getLogger("flwr.engram")


@dataclass(frozen=True)
class Direct:
    """Trains and scores the clients of a host without messages.

    It gives what messages give, to the bit, and the same reasons for clients that are left out.

    Attributes:
        host: Hosts all clients.
        spoiled: ``(merge, common, own, trained) -> trained``: forges attackers' updates; see
            ``engram.attack.attacks``.
        claimed: ``(server_round, clients, scores) -> scores``: forges attackers' scores, by column.
    """

    host: LocalHost
    spoiled: Callable[[Merge, Slots, Slots, list[Trained]], list[Trained]] | None = None
    claimed: (
        Callable[[int, Sequence[int], Mapping[str, list[float]]], dict[str, list[float]]] | None
    ) = None

    def train(
        self,
        grid: Engine,
        strategy: Federated,
        server_round: int,
        model: Params,
        config: Mapping[str, Any],
        before: Callable[[], None] | None,
        *,
        timeout: float,
    ) -> Round:
        """Trains and merges a round, as ``Engine.train``."""
        del timeout
        away = set[int]() if grid.still else strategy.absent(grid)
        strategy.draw(server_round, model, losses=config["losses"], away=away)
        if before is not None:
            before()
        each = [self._trained(strategy, wave, config) for wave in strategy.waves]
        return Round(*strategy.learn(server_round, *each))

    def _trained(self, strategy: Federated, wave: Wave, config: Mapping[str, Any]) -> TrainReplies:
        merge, groups = strategy.rounds.merge, [*strategy.roster.by_node(wave.clients).values()]
        if not groups:  # a secret cohort may have nobody
            return TrainReplies.of([])
        common, own = _sent(merge, wave.slots, groups)
        try:
            if self.host.trainer.data.units != strategy.roster.kind.units:  # in the first round
                self.host.in_units(strategy.roster.kind.units)
            trained = self.host.trainer.train(
                common,
                groups,
                own=own,
                server_round=wave.server_round,
                durable=config["durable"],
                combine=strategy.most if merge.combines else None,
                losses=strategy.loss is not None,
                way=config["way"],
                share=self.host.share,
            )
        except Exception as error:  # the strategy decides about clients' errors
            reason = _reason(error)
            return TrainReplies.of((some, reason) for some in groups)
        if self.spoiled is not None:
            trained = self.spoiled(merge, common, own, trained)
        here = [each._replace(slots=over_slots(Tensor.cpu, each.slots)) for each in trained]
        most, loss = strategy.most, strategy.loss
        verdicts = (judged(each, merge, most=most, loss=loss) for each in here)
        return TrainReplies.of(zip(groups, verdicts, strict=True))

    def evaluate(
        self,
        grid: Engine,
        strategy: Federated,
        server_round: int,
        model: Params,
        config: Mapping[str, Any],
        before: Callable[[Sequence[Reply]], None] | None,
        *,
        timeout: float,
    ) -> None:
        """Scores all clients that are there, as ``Engine.evaluate``; no score has noise."""
        del config, before, timeout
        slots, asked = strategy.asked_to_score(model, grid)
        groups = [*asked.values()]
        strategy.take_scores(server_round, [*self._scored(strategy, slots, groups, server_round)])

    def _scored(
        self, strategy: Federated, slots: Slots, groups: Sequence[list[int]], server_round: int
    ) -> Iterator[tuple[list[int], Answer]]:
        if not groups:
            return
        common, own = _sent(strategy.rounds.merge, slots, groups)
        try:
            self.host.in_units(strategy.roster.kind.units)
            parts = self.host.score(common, own, groups, server_round=server_round)
        except Exception as error:  # the strategy decides about clients' errors
            reason = _reason(error)
            yield from ((clients, reason) for clients in groups)
            return
        columns = strategy.scoring.columns
        for clients, part in zip(groups, parts, strict=True):
            told = {name: column.tolist() for name, column in part.columns.items()}
            told["queries"] = part.queries.tolist()
            if self.claimed is not None:
                told = self.claimed(server_round, clients, told)
            try:
                yield clients, read_scores(told, clients, columns, "queries", least=1)
            except Impossible as error:
                yield clients, Rejected.of("scores", str(error))


def _sent(merge: Merge, slots: Slots, groups: Sequence[list[int]]) -> tuple[Slots, Slots]:
    """Returns the slots that clients receive alike, and those that each receives of its own."""
    sent = [merge.method.server.send(slots, clients) for clients in groups]
    (common, *_), each = zip(*sent, strict=True)
    own: Slots = over_slots(lambda *leaves: torch.cat(leaves), *each)
    return common, own


def _reason(error: Exception) -> Rejected:
    _log.debug("the client side raised", exc_info=error)
    return Rejected("error", one_line(str(error) or repr(error), longest=REASONS))
