"""Rounds of clients in this process, which are trained without messages."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from logging import getLogger
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from engram.client.hosts.local import LocalHost
from engram.core.method import Slots
from engram.core.slots import over_slots
from engram.core.types import Params
from engram.guards.merge import Merge
from engram.scoring.metrics import Metric
from engram.server.engine import Engine
from engram.settings.errors import one_line
from engram.strategies.base import Round
from engram.strategies.network_strategy import Federated
from engram.strategies.reply_border import REASONS, Rejected
from engram.strategies.rounds import Wave
from engram.strategies.screening import Accepted, TrainReplies, judged
from engram.wire.training_result import Trained

_log = getLogger("flwr.engram")


def train_directly(
    host: LocalHost,
    grid: Engine,
    strategy: Federated,
    server_round: int,
    model: Params,
    config: Mapping[str, Any],
    before: Callable[[], None] | None,
    *,
    timeout: float,
    spoiled: Callable[[Merge, Slots, Slots, list[Trained]], list[Trained]] | None = None,
) -> Round:
    """Trains and merges a round of clients of ``host``, as ``Engine.train``.

    It gives what messages give, to the bit, and the same reasons for clients that are left out.
    ``spoiled`` is what attackers make of it: see ``engram.attack.attacks``.
    """
    del timeout
    away = set[int]() if grid.still else strategy.absent(grid)
    strategy.draw(server_round, model, losses=config["losses"], away=away)
    if before is not None:
        before()
    each = [_trained(host, strategy, wave, config, spoiled) for wave in strategy.waves]
    return Round(*strategy.learn(server_round, *each))


def _trained(
    host: LocalHost,
    strategy: Federated,
    wave: Wave,
    config: Mapping[str, Any],
    spoiled: Callable[[Merge, Slots, Slots, list[Trained]], list[Trained]] | None,
) -> TrainReplies:
    merge, groups = strategy.rounds.merge, [*strategy.roster.by_node(wave.clients).values()]
    if not groups:  # a secret cohort may have nobody
        return TrainReplies([], [], [], Counter())
    sent = [merge.method.server.send(wave.slots, clients) for clients in groups]
    (common, *_), each = zip(*sent, strict=True)
    own: Slots = over_slots(lambda *leaves: torch.cat(leaves), *each)
    try:
        if host.trainer.data.units != strategy.roster.kind.units:  # in the first round
            host.in_units(strategy.roster.kind.units)
        trained = host.trainer.train(
            common,
            groups,
            own=own,
            server_round=wave.server_round,
            durable=config["durable"],
            combine=strategy.most if merge.combines else None,
            losses=strategy.loss is not None,
            way=config["way"],
            share=host.share,
        )
    except Exception as error:  # the strategy decides about clients' errors
        _log.debug("the client side raised", exc_info=error)
        reason = Rejected("error", one_line(str(error) or repr(error), longest=REASONS))
        return TrainReplies([], [(some, reason) for some in sorted(groups)], [], Counter())
    if spoiled is not None:
        trained = spoiled(merge, common, own, trained)
    return replies_of(groups, trained, most=strategy.most, merge=merge, loss=strategy.loss)


def replies_of(
    groups: Sequence[list[int]],
    trained: Sequence[Trained],
    *,
    most: int,
    merge: Merge,
    loss: Metric | None,
) -> TrainReplies:
    """Returns the outcomes of a round's groups of clients as its replies."""
    accepted, rejected = [], []
    for clients, each in sorted(zip(groups, trained, strict=True), key=itemgetter(0)):
        here = each._replace(slots=over_slots(Tensor.cpu, each.slots))
        verdict = judged(here, merge, most=most, loss=loss)
        if isinstance(verdict, Accepted):
            accepted.append((clients, verdict))
        else:
            rejected.append((clients, verdict))
    return TrainReplies(accepted, rejected, [], Counter())
