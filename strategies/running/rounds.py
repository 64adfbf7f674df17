"""The server's side of a round, without messages: cohorts, weights, screening, merging, warnings.

Flower's strategy wraps it in messages; stacked runs call it directly.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from logging import getLogger
from statistics import fmean
from typing import Final, NamedTuple, Self, TypeVar

from engram.core.checks import must
from engram.core.method import Slots, Update
from engram.core.method_shapes import Shapes
from engram.core.rounds import received_by
from engram.core.slots import flat
from engram.core.streams import Stream, generator
from engram.core.tree import is_finite
from engram.core.types import Params
from engram.data.schema.columns import Kind
from engram.guards.chain import parted
from engram.guards.changes import rebased
from engram.guards.compression.codes import Layout
from engram.guards.compression.presets import coder_of
from engram.guards.merge import Merge
from engram.guards.noise import Noise
from engram.guards.secret_samples import secret_cohort
from engram.settings.errors import UNNAMED, Names, Refused, RunStopped, few
from engram.settings.experiment import Experiment
from engram.settings.method_for_data import client_axes, server_side
from engram.strategies.running.base import Row
from engram.strategies.running.reply_border import Rejected
from engram.strategies.running.screening import TrainReplies, first_of
from engram.wire.roster import Roster

_log = getLogger("flwr.engram")

_T = TypeVar("_T")

_ROUNDS: Final = 5  # rounds whose mean loss is compared: single cohorts' losses differ
_GROWTH: Final = 10


Draw = Callable[[int, int, Collection[int]], Sequence[int]]
"""``(number, count, busy) -> clients``: draws a cohort by a number, without those that are busy."""


class Step(NamedTuple):
    """A round of a run."""

    number: int  # >= 1
    usual: bool  # whether ``eval_every`` divides it
    final: bool  # whether it is the last one
    due: bool  # whether models are scored after it: either


def rounds(
    experiment: Experiment,
    train: Callable[[Step], _T],
    *,
    done: int = 0,
    over: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[Step, _T]]:
    """Trains an experiment's rounds after the first ``done``, each once it is asked for.

    It yields each with the outcome of its training, and ends early once the run is ``over``. Runs,
    stacked trials of tuning and newcomers' references are driven by this loop.
    """
    every, last = experiment.eval_every, experiment.rounds
    for number in range(done + 1, last + 1):
        if over():
            return
        usual, final = number % every == 0, number == last
        yield (step := Step(number, usual, final, usual or final)), train(step)


class Wave(NamedTuple):
    """Clients that start from the same slots of the server."""

    server_round: int  # the round, >= 1, that follows these slots
    slots: Slots
    clients: Sequence[int]  # ascending


class Together:
    """Rounds in which everybody who is asked trains, and time does not count.

    ``row`` has the round's entries in the record.
    """

    waits = False  # whether a round may leave messages to later ones

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self.working: Collection[int] = ()  # clients at work for later rounds
        self.state: Params = {}  # set it to resume
        self.late: Sequence[int] = ()  # clients of the last round that came too late
        self.row: Row = {}

    def next(self, server_round: int, slots: Slots, draw: Draw) -> list[Wave]:
        """Returns the clients of a round that starts from ``slots``."""
        return [Wave(server_round, slots, draw(server_round, self._wanted, ()))]


class Rounds(NamedTuple):
    """The server's side of a run's rounds: cohorts, screening of updates, and merging."""

    merge: Merge  # the server's merge of the method
    shapes: Shapes  # the slots of one client, whose names and shapes updates must have
    # Returns the axes of the server's arrays that have an entry for each client, by path.
    axes: Callable[[], Mapping[str, Sequence[int]]] = dict

    @classmethod
    def of(cls, experiment: Experiment, kind: Kind, noise: Noise, names: Names = UNNAMED) -> Self:
        """Builds the server's side of an experiment, for clients with this kind of data.

        Clients whose networks differ, by their ``names``, exchange arrays of the same shapes.

        Raises:
            Refused: The method does not go with the network, the data or the machine.
        """
        own = experiment.for_client(0, names)
        method, shapes, running = server_side(own, kind)
        _check_codes(experiment, shapes, running)
        merge = Merge(experiment, method, running, noise)
        return cls(merge, shapes, partial(client_axes, own, kind))

    @property
    def settings(self) -> Experiment:
        """The experiment."""
        return self.merge.settings

    def steps(self, rows: int) -> int:
        """Returns the local steps in a round of a client with so many rows."""
        e = self.settings
        return e.local_epochs * -(-rows // e.batch_size) if e.local_epochs else e.local_steps

    def cohort(
        self,
        server_round: int,
        clients: int,
        absent: Collection[int] = (),
        size: int | None = None,
        unseen: Collection[int] = (),
    ) -> list[int]:
        """Draws the cohort of a round; see ``draw_cohort`` and ``secret_cohort``.

        ``size`` clients are drawn by the seed, or ``clients_per_round``; ``unseen`` ones never
        train.
        """
        e = self.merge.settings
        if e.sampling != "fixed":
            noise = self.merge.noise
            return secret_cohort(e, server_round, clients, noise, absent=absent, unseen=unseen)
        absent, size = {*absent, *unseen}, size or e.clients_per_round
        return draw_cohort(e.seed, server_round, clients, size, shards=e.shards, absent=absent)

    def admitted(
        self, server: Slots, wave: Wave, replies: TrainReplies, server_round: int
    ) -> TrainReplies:
        """Returns a wave's replies with updates that guards have checked and bounded.

        Those of older slots become changes of ``server``; see ``guards.changes.rebased``.
        """
        merge, age = self.merge, server_round - wave.server_round
        at, accepted, rejected = merge.at(server, server_round), [], [*replies.rejected]
        for reply in replies.accepted:
            updates = reply.updates
            if age:
                then = partial(received_by, merge.method, wave.slots)
                updates = [rebased(at, then(u.client), u, age) for u in updates]
            updates, refused = parted([merge.guard.admit(at, update) for update in updates])
            if refused:
                rejected.append((reply.asked, Rejected.of(refused[0].kind, refused[0].reason)))
            else:
                accepted.append(reply._replace(updates=updates))
        return replies._replace(accepted=accepted, rejected=rejected)

    def learned(
        self, server: Slots, replies: TrainReplies, server_round: int, names: Names = UNNAMED
    ) -> tuple[Slots, TrainReplies]:
        """Returns the server's slots after a round, and the replies that it has learned from.

        Where cohorts are secret there may be none, where nobody was asked or a single client is
        missing, which counts as one that changed nothing. Such a round has noise, too.

        Raises:
            RunStopped: Most of the cohort diverged, too few updates are usable, or the merged slots
                are not finite.
        """
        merge, longer = self.merge, list[Update]()
        of = {id(u): i for i, reply in enumerate(replies.accepted) for u in reply.updates}
        at = merge.at(server, server_round, longer)._replace(reply=lambda u: of.get(id(u)))
        updates = [u for reply in replies.accepted for u in reply.updates]
        if not updates:
            self._check(replies, server_round, names)
            updates = [merge.nobodys(server, self.shapes.sent, server_round)]
        left, refused = parted(merge.guard.gather(at, updates))
        replies = replies.without(refused, longer)
        self._check(replies, server_round, names)
        slots = merge.after(server, left)
        if flat(slots) and not is_finite(flat(slots)):
            raise RunStopped(f"round {server_round}: the merged model became non-finite")
        return slots, replies

    def _check(self, replies: TrainReplies, server_round: int, names: Names) -> None:
        usable, least = replies.usable, max(1, self.merge.settings.min_clients)
        if not replies.complete and 2 * len(diverged := replies.diverged) > replies.asked:
            raise RunStopped(
                f"round {server_round} diverged: the models of clients "
                f"{few(sorted(diverged), names)} became non-finite; {first_of(diverged.values())}"
            )
        if usable < least and (replies.asked > 1 or not self.merge.settings.secret_cohorts):
            count = f"{usable} of {least} usable replies" if usable else "no usable reply"
            raise RunStopped(f"round {server_round} has {count}; {replies.in_words(names)}")


def _check_codes(e: Experiment, shapes: Shapes, running: Set[str]) -> None:
    """Refuses codes for a method without a common model to change.

    Raises:
        Refused: There is none.
    """
    if e.compress == "none":
        return
    why = "which sends each client a model of its own" if flat(shapes.own) else ""
    if not why and not Layout.of(coder_of(e), shapes.method.kinds, shapes.sent, running).coded:
        why = "whose clients send no model"
    if why:
        raise Refused(must("compress", e.compress, f"none for {e.method}, {why}"))


def draw_cohort(
    seed: int,
    server_round: int,
    num_clients: int,
    size: int,
    *,
    shards: int = 1,
    absent: Collection[int] = (),
) -> list[int]:
    """Returns ``size`` different clients of ``0..num_clients-1``, ascending.

    From each shard ``size / shards`` are drawn; shard s holds clients s, s + shards, ..., like node
    s of as many nodes. An ``absent`` client that is drawn is replaced by another of its shard, if
    there is one left.
    """
    cohort: list[int] = []
    for shard in range(shards):
        key = (shard,) if shards > 1 else ()
        rng = generator(seed, Stream.COHORT, server_round, *key)
        held = len(range(shard, num_clients, shards))
        drawn = (shard + shards * rng.choice(held, size=size // shards, replace=False)).tolist()
        if not (taken := set(drawn)).isdisjoint(absent):
            others = [c for c in range(shard, num_clients, shards) if c not in {*taken, *absent}]
            drawn = [client for client in drawn if client not in absent]
            spare = rng.permutation(others)[: size // shards - len(drawn)]
            drawn += spare.astype(int).tolist()
        cohort += drawn
    return sorted(cohort)


class Heavy:
    """Warns once of each client with more rows than count: see ``robust.row_weights``."""

    def __init__(self, max_weight: float) -> None:
        self._max_weight = max_weight
        self._named: set[int] = set()

    def among(
        self, clients: Iterable[int], roster: Roster, most: int, server_round: int
    ) -> list[int]:
        """Returns a round's clients with more rows than ``most``, and warns of new ones."""
        bounded = sorted(client for client in clients if roster.examples[client] > most)
        new = sorted({*bounded} - self._named)
        self._named.update(new)
        if new:
            who, limit = few(new, roster.names), (most, most, self._max_weight)
            _log.warning(
                "round %d: clients %s report more than %d rows, and count as if they had %d: "
                "max-weight = %g times what the median client has",
                *(server_round, who, *limit),
            )
        return bounded


class LossWatch:
    """Warns once, when the loss exceeds both ten times its minimum and the first round's.

    Below zero, where there are no such multiples, the loss must rise by nine times its minimum.

    ``lower`` has the settings that the warning advises to lower, in words.
    """

    def __init__(self, lower: str) -> None:
        self._lower = lower
        self._recent: deque[float] = deque(maxlen=_ROUNDS)
        self._first: float | None = None
        self._least, self._best = float("inf"), 0
        self._warned = False

    def see(self, server_round: int, loss: float) -> None:
        """Adds the median training loss of a round's clients."""
        self._recent.append(loss)
        mean = fmean(self._recent)
        if self._first is None:
            self._first = loss
        if mean < self._least:
            self._least, self._best = mean, server_round
        far = self._least + (_GROWTH - 1) * abs(self._least)  # of a loss above 0, ten times as much
        if not self._warned and mean > max(far, self._first):
            self._warned = True
            _log.warning(
                "round %d: the median training loss is %.3g, and was %.3g in round %d (means of %d "
                "rounds): the run may diverge; if inputs and targets are of usual size, lower %s",
                *(server_round, mean, self._least, self._best, len(self._recent), self._lower),
            )
