"""A secure round: the server asks for its stages in turn, and merges the sum that is unmasked.

Nothing of a single client's update is in what it receives: see ``engram.guards.secure``.
"""

from collections.abc import Callable, Mapping
from functools import partial
from logging import getLogger
from typing import Any

import numpy as np
import torch

from engram.core.method import Update
from engram.core.slots import flat
from engram.core.types import Params
from engram.guards.chain import parted
from engram.guards.changes import size_of
from engram.guards.secure.quantize import Words
from engram.guards.secure.registry import REGISTRY
from engram.guards.secure.secure_sum import MASKED
from engram.guards.secure.server import unmask
from engram.guards.secure.signatures import Advert
from engram.guards.secure.wire import SECURE, to_entries
from engram.settings.errors import Refused, RunStopped, few
from engram.strategies.base import Nodes, Round
from engram.strategies.network_strategy import Federated
from engram.strategies.reply_border import Rejected
from engram.strategies.screening import Accepted, TrainReplies
from engram.strategies.secure_exchange import Exchange, own
from engram.strategies.train_replies import screen
from engram.wire.messages import Content

_log = getLogger("flwr.engram")


def train_securely(
    grid: Nodes,
    strategy: Federated,
    server_round: int,
    model: Params,
    config: Mapping[str, Any],
    before: Callable[[], None] | None = None,
    *,
    timeout: float,
) -> Round:
    """Trains a round, as ``Engine.train``, and learns its updates' sum alone.

    Training losses are not asked for.

    Raises:
        RunStopped: Fewer sites than the threshold are left, or shares are false.
    """
    settings = {**config, "losses": False}
    questions = [*strategy.configure_train(server_round, model, settings, grid)]
    if before is not None:
        before()
    sites = Exchange(grid, strategy, questions, timeout)
    trained, total = _summed(sites, strategy, _registry(grid))
    return Round(*strategy.learn(server_round, _replies(sites, strategy, trained, total)))


def _summed(
    sites: Exchange, strategy: Federated, registry: Mapping[str, bytes]
) -> tuple[dict[int, Accepted], Words]:
    keys = own(sites.query("keys", [*sites.questions], registry, check=Advert.read))
    shares = sites.query("shares", keys, to_entries(keys), keys)
    asked = {party: sites.questions[party] for party in shares}
    for party, question in asked.items():
        sealed = {other: mine[party] for other, mine in shares.items() if other != party}
        question.content[SECURE] = to_entries(sealed)
    trained = sites.ask("masked updates", asked, partial(_read, sites, strategy))
    signatures = own(sites.query("survivors", trained, {"parties": sorted(trained)}))
    revealed = sites.query("unmask", signatures, to_entries(signatures), shares)
    parts = [each.updates[0].slots[MASKED].numpy() for each in trained.values()]
    try:
        total = unmask(
            sites.session,
            np.add.reduce([part.view(np.uint32) for part in parts], dtype=np.uint32),
            adverts={party: Advert.read(party, data) for party, data in keys.items()},
            commitments=own(shares),
            survivors=trained.keys(),
            revealed=revealed,
        )
    except Refused as error:
        raise RunStopped(f"round {sites.session.number}: {error}") from error
    return trained, total


def _read(
    sites: Exchange, strategy: Federated, party: int, content: Content
) -> Accepted | Rejected:
    rounds, clients, session = strategy.rounds, sites.clients[party], sites.session
    size = size_of(flat(rounds.shapes.sent))
    masked = rounds.shapes._replace(sent={MASKED: torch.empty(size, dtype=torch.int32)})
    return screen(
        content,
        server_round=session.number,
        rounds=rounds._replace(shapes=masked),
        asked=clients,
        examples={client: strategy.roster.examples[client] for client in clients},
        most=session.most,
        loss=None,
        server=strategy.slots,
    )


def _replies(
    sites: Exchange, strategy: Federated, trained: Mapping[int, Accepted], total: Words
) -> TrainReplies:
    rounds, session, replies = strategy.rounds, sites.session, trained.values()
    for party in sorted(sites.lost.keys() & trained.keys()):
        if why := sites.lost[party]:
            _log.warning(
                "round %d: the update of clients %s is in the sum, and their answer after it "
                "is left out (%s): %s",
                session.number,
                few(sites.clients[party], strategy.roster.names),
                why.kind,
                why.reason,
            )
    ids = sorted(client for reply in replies for client in reply.clients)
    rows = sum(reply.updates[0].rows for reply in replies)
    at = rounds.merge.at(strategy.slots, session.number)
    at = at._replace(sum=session.sum, like=rounds.shapes.sent)
    masked = Update({MASKED: torch.from_numpy(total.view(np.int32))}, rows, len(ids))
    updates, _ = parted([rounds.merge.guard.arrive(at, masked)])
    failed = {client: why for reply in replies for client, why in reply.failed.items()}
    ways = {reply.way for reply in replies}
    accepted = Accepted(ids, updates, [], failed, ways.pop() if len(ways) == 1 else "")
    return sites.without(trained)._replace(accepted=[accepted])


def _registry(grid: Nodes) -> dict[str, bytes]:
    folder = getattr(getattr(grid, "membership", None), "folder", None)  # of a federation
    path = None if folder is None else folder / REGISTRY
    return {} if path is None or not path.is_file() else {REGISTRY: path.read_bytes()}
