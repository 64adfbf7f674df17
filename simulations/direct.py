"""Rounds of clients in this process, which are trained without messages."""

from collections import Counter
from collections.abc import Callable, Sequence
from logging import getLogger

import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp import Grid
from torch import Tensor

from client.hosts.local import LocalHost
from client.requests import read_whole
from engram.core.method import Slots
from engram.core.rounds import sent_to
from engram.core.slots import over_slots
from engram.metrics import Metric
from federation.aggregation import Merge
from federation.errors import one_line
from federation.trained import Trained
from server.run import Round
from strategies.local import Federated
from strategies.reading import REASONS, Rejected
from strategies.screening import Accepted, judged
from strategies.train_replies import TrainReplies

__all__ = ["replies_of", "train_directly"]

_log = getLogger("flwr.engram")


def train_directly(
    host: LocalHost,
    strategy: Federated,
    server_round: int,
    arrays: ArrayRecord,
    config: ConfigRecord,
    grid: Grid,
    before: Callable[[], None],
) -> Round:
    """Trains and merges a round of clients that ``host`` hosts, as ``server.run.train_round``.

    It gives what messages give, to the bit, and the same reasons for clients that are left out.
    """
    strategy.draw(server_round, arrays, config, grid)
    before()
    merge, groups = strategy.rounds.merge, [*strategy.drawn.values()]
    sent = [sent_to(merge.method, strategy.slots, clients) for clients in groups]
    own: Slots = over_slots(lambda *leaves: torch.cat(leaves), *(mine for _, mine in sent))
    try:
        trained = host.in_units(strategy.roster.kind.units).train(
            sent[0][0],
            groups,
            own=own,
            server_round=server_round,
            durable=read_whole(config, "durable", 0),
            combine=strategy.most if merge.combines else None,
            losses=strategy.loss is not None,
        )
    except Exception as error:  # the strategy decides about clients' errors
        _log.debug("the client side raised", exc_info=error)
        reason = Rejected("error", one_line(str(error) or repr(error), longest=REASONS))
        replies = TrainReplies([], [(some, reason) for some in sorted(groups)], [], Counter())
    else:
        replies = replies_of(groups, trained, most=strategy.most, merge=merge, loss=strategy.loss)
    arrays, metrics = strategy.learn(server_round, replies)
    return Round(arrays, dict(metrics))


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
    for clients, each in sorted(zip(groups, trained, strict=True), key=lambda item: item[0]):
        here = each._replace(slots=over_slots(Tensor.cpu, each.slots))
        verdict = judged(here, most=most, merge=merge, loss=loss)
        if isinstance(verdict, Accepted):
            accepted.append((clients, verdict))
        else:
            rejected.append((clients, verdict))
    return TrainReplies(accepted, rejected, [], Counter())
