"""Screening of updates, without messages. Nothing that a client sends is trusted."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from logging import getLogger
from operator import itemgetter
from typing import Any, Final, NamedTuple, Self

import numpy as np

from engram.core.arrays import Array, Bools
from engram.core.method import Update
from engram.core.slots import flat, over_slots
from engram.core.tree import is_finite
from engram.core.types import Params
from engram.guards.changes import is_running
from engram.guards.merge import Merge
from engram.guards.refusals import Refusal
from engram.networks.base import VARIANCE
from engram.scoring.metrics import Metric
from engram.settings.errors import Names, few, one_line
from engram.strategies.running.reply_border import REASONS, Kind, Rejected
from engram.wire.training_result import Trained

_log = getLogger("flwr.engram")

_LARGEST: Final = float(np.finfo(np.float32).max)  # of losses, which models compute in float32
_ROUNDING: Final = 1e-6  # of the least possible loss
_OWNS: Final = 10  # median distances from the median, times clients, of who owns a mean
_TOLD: Final = 10  # most reasons that an error lists


class Accepted(NamedTuple):
    """A usable reply."""

    clients: list[int]  # the clients whose models it holds, ascending
    # Their mean as one update; or one update per client, if the server needs each.
    updates: list[Update]
    losses: list[float]  # their training losses, capped; empty if they were not asked for
    # Clients of the same node that trained without a usable result, and the reasons, in one line
    # each.
    failed: dict[int, str]
    way: str  # the way in which they were trained, one of ``WAYS``; empty if it is not known

    @property
    def asked(self) -> list[int]:
        """The clients that the node was asked to train, ascending."""
        return sorted([*self.clients, *self.failed])


class TrainReplies(NamedTuple):
    """The replies of a round's nodes, in the order of the clients that each was asked to train."""

    accepted: list[Accepted]  # the replies that can be merged
    rejected: list[tuple[list[int], Rejected]]  # those that are left out, and the clients asked
    silent: list[list[int]]  # the clients of nodes without a reply
    shortened: Sequence[int] = ()  # clients whose updates were scaled down to a bound

    @classmethod
    def of(cls, replies: Iterable[tuple[list[int], Accepted | Rejected | None]]) -> Self:
        """Sorts the replies of nodes, each with the clients asked; None stands for no reply."""
        accepted, rejected, silent = [], [], []
        for clients, reply in sorted(replies, key=itemgetter(0)):
            if reply is None:
                silent.append(clients)
            elif isinstance(reply, Accepted):
                accepted.append(reply)
            else:
                rejected.append((clients, reply))
        return cls(accepted, rejected, silent)

    @property
    def complete(self) -> bool:
        """Whether each reply is usable, and of each of its clients."""
        return not (self.rejected or self.silent) and not any(
            reply.failed for reply in self.accepted
        )

    @property
    def asked(self) -> int:
        """Number of clients that were asked."""
        left_out = [*(clients for clients, _ in self.rejected), *self.silent]
        return sum(map(len, [*(reply.asked for reply in self.accepted), *left_out]))

    @property
    def usable(self) -> int:
        """Number of clients with a usable update."""
        return sum(len(reply.clients) for reply in self.accepted)

    @property
    def diverged(self) -> dict[int, str]:
        """Clients with non-finite models, and likely causes."""
        found = {c: reason for reply in self.accepted for c, reason in reply.failed.items()}
        for clients, reply in self.rejected:
            if reply.kind in ("diverged", "non-finite"):
                found |= dict.fromkeys(clients, reply.reason)
        return found

    @property
    def left_out(self) -> dict[int, str]:
        """Clients without a merged update, with the reason in a word or two."""
        found = {client: "no reply" for clients in self.silent for client in clients}
        found |= {client: reply.kind for clients, reply in self.rejected for client in clients}
        return found | {c: "diverged" for reply in self.accepted for c in reply.failed}

    @property
    def kinds(self) -> Counter[Kind]:
        """Number of replies that are left out, by kind."""
        return Counter(reply.kind for _, reply in self.rejected)

    def without(self, refused: Sequence[Refusal], shortened: Sequence[Update]) -> Self:
        """Returns the replies without refused ones, and the clients of ``shortened`` updates."""
        why, long = {id(x.update): x for x in refused}, {*map(id, shortened)}
        accepted, rejected, longer = [], [*self.rejected], list[int]()
        for reply in self.accepted:
            wrong = next((why[id(u)] for u in reply.updates if id(u) in why), None)
            if wrong:
                rejected.append((reply.asked, Rejected.of(wrong.kind, wrong.reason)))
                continue
            accepted.append(reply)
            for update in reply.updates:
                if id(update) in long:
                    longer += reply.clients if update.client is None else [update.client]
        return self._replace(accepted=accepted, rejected=rejected, shortened=longer)

    def in_words(self, names: Names) -> str:
        """Describes in words why replies are missing, with the clients' ``names``."""
        told = [(some, reply.reason) for some, reply in self.rejected]
        alike = dict[str, list[int]]()
        for clients, why in [*told, *((some, "no reply") for some in self.silent)]:
            alike.setdefault(why, []).extend(clients)
        reasons = [f"clients {few(some, names)}: {why}" for why, some in alike.items()]
        more = f"; ... {len(reasons)} in all" if len(reasons) > _TOLD else ""
        return "; ".join(reasons[:_TOLD]) + more

    def log(self, server_round: int, names: Names) -> None:
        """Warns of the clients that are left out of a round, in one line a kind of reason."""
        for kind in dict.fromkeys(reply.kind for _, reply in self.rejected):
            alike = [(clients, reply) for clients, reply in self.rejected if reply.kind == kind]
            who = few([client for clients, _ in alike for client in clients], names)
            what = server_round, who, kind, first_of(reply.reason for _, reply in alike)
            _log.warning("round %d: the reply of clients %s is left out (%s): %s", *what)
        if silent := [client for clients in self.silent for client in clients]:
            _log.warning("round %d: clients %s did not reply", server_round, few(silent, names))
        if self.shortened:
            told = (
                "round %d: the updates of clients %s are longer than is usual, and were shortened"
            )
            _log.warning(told, server_round, few([*self.shortened], names))
        if failed := [r for reply in self.accepted for r in reply.failed.values()]:
            _log.warning("round %d: left out: %s", server_round, first_of(failed))


def judged(
    trained: Trained, merge: Merge, *, most: int, loss: Metric | None
) -> Accepted | Rejected:
    """Checks the numbers of a well-formed outcome; arguments as for ``screen``."""
    if not trained.clients:
        return Rejected("diverged", one_line(trained.reason, longest=REASONS))
    params, losses = flat(trained.slots), trained.losses
    if not ((not params or is_finite(params)) and np.all(np.abs(losses) <= _LARGEST)):
        return Rejected.of("non-finite", "some parameters or losses are NaN or infinite")
    if merge.running and _below_zero(params, merge):
        return Rejected.of("non-finite", "a running variance is below zero")
    low, most_loss = (loss.low, loss.most) if loss else (0.0, 0.0)
    if min(losses, default=low) < low - _ROUNDING:
        return Rejected.of("scores", f"losses must be {low:g} or more")
    weights = [float(min(count, most)) for count in trained.examples]
    if merge.combines:
        updates = [Update(trained.slots, sum(weights), len(weights))]
    else:
        updates = [
            Update(over_slots(lambda leaf, i=i: leaf[i], trained.slots), weight, 1, client)
            for i, (client, weight) in enumerate(zip(trained.clients, weights, strict=True))
        ]
    failed = {client: one_line(reason) for client, reason in trained.failures.items()}
    capped: list[float] = np.minimum(losses, most_loss).tolist()
    return Accepted(trained.clients, updates, capped, failed, trained.way)


def _below_zero(params: Params, merge: Merge) -> bool:
    return any(
        is_running(merge.method, merge.running, path) and leaf.min() < 0
        for path, leaf in params.items()
        if path.endswith(VARIANCE)
    )


def first_of(reasons: Iterable[str]) -> str:
    """Returns the first of clients' reasons, and their number."""
    first, *others = dict.fromkeys(reasons)
    return f"{first} (the first of {1 + len(others)} reasons)" if others else first


def in_numbers(kinds: Counter[Kind]) -> dict[str, int]:
    """Returns a metric for each kind of reply that is left out."""
    return {f"rejected-{kind}": count for kind, count in sorted(kinds.items())}


def owners(values: Array) -> Bools:
    """Returns the owners of a mean of scores, none of them NaN.

    Such a client alone moves the mean over n clients by more than the median itself, and by more
    than ten times the median distance from it: its own distance is more than n of the one, and 10 n
    of the other. (Of few clients, two may be alike by chance.)
    """
    median = np.median(values) if values.size else np.nan
    with np.errstate(invalid="ignore"):  # of infinity less itself, where most have diverged
        away = np.abs(values - median)
        usual = np.median(away) if values.size else np.nan
        return np.asarray(away > values.size * max(_OWNS * usual, abs(median)))


def mean_of(metric: Metric) -> Callable[[Array], Any]:
    """Returns the mean of scores, one at least; NaN if a client owns it, and nothing bounds it."""
    bounded = np.isfinite(metric.low) and np.isfinite(metric.high)
    return np.mean if bounded else lambda v: np.nan if owners(v).any() else np.mean(v)
