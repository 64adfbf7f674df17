"""A round's clients in chunks, and their outcomes by groups of clients.

Chunks are trained, or scored, one after the other, or beside each other.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from engram.cohort.round import ClientRaised, Outcome
from engram.core.contract import line_of
from engram.core.method import Slots
from engram.core.slots import over_slots
from engram.core.tree import select
from engram.settings.errors import EngramError
from engram.wire.training_result import Trained

if TYPE_CHECKING:
    from engram.cohort.trainer.trainer import Trainer
    from engram.scoring.score_clients import Scores

_LENT: Final = 2**27  # bytes of memories that others are lent at once, to score their clients


class Asked(NamedTuple):
    """The arguments of ``Trainer.train`` that are the same for all clients of a round.

    With ``scores``, clients are not trained, but scored before the round.
    """

    common: Slots
    server_round: int
    durable: int
    combine: int | None
    losses: bool
    version: int | None = None
    scores: bool = False


class Chunk(NamedTuple):
    """Clients that are trained, or scored, at once."""

    numbers: list[int]  # for each client, the number of its group
    clients: list[int]
    own: Slots  # slots of which each of them receives its own, in their order


Parts = list[tuple[int, Any]]
"""The outcome of a chunk: for each group with clients in it, its number and what came of them:
``Trained``, or ``Scores``."""

Share = Callable[["Trainer", Asked, Sequence[Chunk]], Iterable[Parts]]
"""Trains the chunks of a round; returns their outcomes in the order of the chunks.

A round of one chunk is not shared, unless it has an attribute ``cuts`` that is true.
"""


def in_order(trainer: "Trainer", asked: Asked, chunks: Sequence[Chunk]) -> Iterable[Parts]:
    """Trains chunks one after the other, in this process."""
    return map(partial(trainer.chunk, asked), chunks)


def deal(groups: Sequence[Sequence[int]], own: Slots, block: int) -> list[Chunk]:
    """Deals a round's clients in chunks of nearly equal size, in the order of the clients.

    The chunks do not depend on the number of processes, so that a product over a chunk's clients
    is the same to the bit whoever computes it. There are 2^k of them, which so many processes
    finish together, or one for each client.

    Args:
        groups: The clients, in groups with separate results.
        own: Slots of which each of these clients receives its own, in their order.
        block: The largest number of clients that may be trained at once; chunks have half as many,
            which costs nothing measurable, and leaves two of a cohort of one block.
    """
    numbers = np.repeat(range(len(groups)), [*map(len, groups)]).tolist()
    clients = [*chain.from_iterable(groups)]
    parts = 1 << max(0, -(-2 * len(clients) // block) - 1).bit_length()
    return cut(Chunk(numbers, clients, own), parts)


def cut(chunk: Chunk, parts: int) -> list[Chunk]:
    """Cuts a chunk in parts of nearly equal size, of one client at least, in their order."""
    numbers, clients, own = chunk
    count = len(clients)
    parts = min(count, parts)
    ends = [count * i // parts for i in range(parts + 1)] if parts else [0]
    return [
        Chunk(numbers[start:end], clients[start:end], select(own, slice(start, end)))
        for start, end in pairwise(ends)
    ]


def score(
    trainer: "Trainer",
    common: Slots,
    clients: Sequence[int],
    *,
    server_round: int,
    own: Slots = {},  # noqa: B006 - nobody changes it
    share: Share = in_order,
) -> "Scores":
    """Scores the models that serve clients, and the common model, after ``server_round``.

    Slots that clients kept up to this round are used; the rest is as for ``Trainer.train``.
    """
    if len(parted := trainer.parted(clients)) > 1 or parted[0][0] is not trainer:
        each = [(one, [clients[i] for i in some], select(own, some)) for one, some in parted]
        scores = [
            score(one, common, whom, server_round=server_round, own=mine, share=share)
            for one, whom, mine in each
        ]
        return trainer.scorer.joined(scores, [some for _, some in parted])
    memories = trainer.recalled(clients, before=server_round + 1)
    common, own = trainer.empty | trainer.receive(common), trainer.receive(own)
    blocks = trainer.scorer.blocks(clients, memories)

    def chunk(some: list[int]) -> Chunk:
        return Chunk([0] * len(some), [clients[i] for i in some], select(own, some))

    def here(some: list[int]) -> "Scores":
        _, who, mine = chunk(some)
        return trainer.scorer.block(common, mine, who, [memories[i] for i in some])

    alone = share is in_order or getattr(share, "cuts", False)  # scores are worth no network
    if alone or len(blocks) == 1 or _nbytes((own, memories)) > _LENT:
        return trainer.scorer.joined([here(some) for some in blocks], blocks)
    asked = Asked(common, server_round + 1, server_round, None, losses=False, scores=True)
    outcomes = share(trainer, asked, [chunk(some) for some in blocks])
    return trainer.scorer.joined([scores for ((_, scores),) in outcomes], blocks)


def _nbytes(tree: Any) -> int:
    return sum(leaf.nbytes for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor))


# --- Outcomes ----------------------------------------------------------------------------------


class ClientFailed(EngramError):
    """An error in a client's training; the message names client, round and step."""


def failed(
    trainer: "Trainer", clients: Sequence[int], error: ClientRaised, server_round: int
) -> ClientFailed:
    """Returns the error with the client's name in its message, and the method's line."""
    client, method = clients[error.position], trainer.experiment.method
    where = f"client {trainer.data.names.get(client, client)} failed in round {server_round}"
    line = line_of(method, error.__cause__)
    line = f" in method {method}{line}" if line else ""
    return ClientFailed(f"{where} at step {error.step}: {error.__cause__!r}{line}")


def outcome_of(
    trainer: "Trainer",
    positions: Sequence[int],
    done: Outcome,
    clients: Sequence[int],
    server_round: int,
    causes: Mapping[int, str],
    combine: int | None,
) -> Trained:
    """Returns the outcome for some of a cohort's clients, by position in ``done``.

    ``causes`` are likely ones of what broke, by position; ``combine`` is as for ``Trainer.train``.
    """
    data, failures = trainer.data, dict[int, str]()
    kept, mine, examples, losses = list[int](), list[int](), list[int](), list[float]()
    for i in positions:
        if i in done.broken:
            cause = f"; {causes[i]}" if i in causes else ""
            step = f" at step {done.broken[i]}" if done.broken[i] else ""
            failures[clients[i]] = (
                f"client {data.names.get(clients[i], clients[i])}: its model or loss became "
                f"non-finite in round {server_round}{step}{cause}"
            )
        else:
            kept.append(i)
            mine.append(clients[i])
            examples.append(len(data.train.rows[clients[i]]))
            losses += done.losses[i : i + 1]  # if they are computed
    slots: Slots = {}
    if kept:
        sent = done.sent if len(kept) == len(clients) else done.sent.of(kept)
        if combine is None:
            slots = sent.stack()
        else:
            weights = torch.tensor(examples).clamp(max=combine)
            shares = (weights / int(weights.sum())).float()
            slots = sent.mean(shares.to(data.train.y.device))
    return Trained(mine, slots, examples, losses, failures, trainer.way)


class Group:
    """Collects the outcome for a group of clients, chunk by chunk."""

    def __init__(self, combine: int | None) -> None:
        self._combine = combine
        self._all = Trained([], {}, [], [], {}, "")
        self._sent: list[Slots] = []  # of each chunk; or only the mean of all
        self._weight = 0

    def add(self, part: Trained) -> None:
        """Adds clients, in the order in which they were asked for."""
        everyone = self._all
        everyone.clients.extend(part.clients)
        everyone.examples.extend(part.examples)
        everyone.losses.extend(part.losses)
        everyone.failures.update(part.failures)
        if not part.clients:
            return
        most = self._combine
        if most is None:
            self._sent.append(part.slots)
            return
        total = sum(min(count, most) for count in part.examples)
        self._weight += total
        if not self._sent:
            self._sent = [part.slots]
            return
        share = total / self._weight
        self._sent = [over_slots(lambda x, y: torch.lerp(x, y, share), self._sent[0], part.slots)]

    def trained(self, way: str) -> Trained:
        """Returns the outcome for the whole group."""
        slots = self._sent[0] if len(self._sent) == 1 else {}
        if len(self._sent) > 1:
            slots = over_slots(lambda *leaves: torch.cat(leaves), *self._sent)
        return self._all._replace(slots=slots, way=way)
