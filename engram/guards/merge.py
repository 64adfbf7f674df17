"""The server's merge of a method behind its guards."""

from collections.abc import Sequence, Set
from functools import partial
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map

from engram.core.changes import origin_of
from engram.core.checks import must
from engram.core.contract import SlotFault, cause_of, check_merged
from engram.core.method import FromMean, Method, Slots, Update
from engram.core.method_shapes import Shapes
from engram.core.rounds import merged, received_by, weighed
from engram.core.slots import flat
from engram.core.streams import generator
from engram.guards.changes import rebased
from engram.guards.compression.codes import Layout
from engram.guards.compression.presets import coder_of
from engram.guards.facts import Fact
from engram.guards.guard import Guard
from engram.guards.noise import Noise, fresh, secret_noise
from engram.guards.places import At
from engram.guards.presets import guards_of, weighs_rows
from engram.guards.refusals import parted
from engram.settings.errors import EngramError, Refused, RunStopped
from engram.settings.experiment import Experiment

_MOST_ROWS: Final = 2**31  # a client can only claim fewer


class Merge:
    """The server's merge of a method.

    Attributes:
        method: The method, with the steps of guards.
        guard: The chain of guards.
        running: Names of running statistics.
        settings: The experiment.
        noise: Source of the noise of central privacy.
        by_rows: Whether updates weigh by rows, and not by clients.
        combines: Whether a node may send the mean of its clients' updates in their place.
        quiet: Whether nodes may keep training losses to themselves.
    """

    def __init__(
        self, method: Method, guard: Guard, running: frozenset[str], e: Experiment, noise: Noise
    ) -> None:
        self.method, self.guard, self.running = guard.method(method), guard, running
        self.settings, self.noise = e, noise
        self.by_rows = weighs_rows(method, guard)
        by_mean = isinstance(method.server.merge, FromMean)
        self.combines = by_mean and Fact.EACH not in guard.needs and e.attack == "none"
        self.quiet = bool(e.facts & {Fact.ROWS, Fact.COVERED})
        self._checked = False

    def rebased(self, server: Slots, then: Slots, update: Update, age: int) -> Update:
        """Returns an update of older slots as one of ``server``; see ``changes.rebased``."""
        return rebased(self.at(server, 0), self.received(then, update), update, age)

    def at(self, server: Slots, number: int, shortened: list[Update] | None = None) -> At:
        """Returns the place where guards act in a round of this number.

        They add to ``shortened`` the updates that are longer than is usual.
        """
        e = self.settings
        return At(
            self.method,
            self.running,
            e.clients_per_round,
            server,
            partial(self.received, server),
            fresh(self.noise, number),
            lambda stream: generator(e.seed, stream, number),
            note=(list[Update]() if shortened is None else shortened).append,
        )

    def __call__(self, server: Slots, updates: Sequence[Update], server_round: int) -> Slots:
        """Returns the server's slots after a round of updates that are not admitted yet."""
        at = self.at(server, server_round)
        admitted, _ = parted([self.guard.admit(at, update) for update in updates])
        found, _ = parted(self.guard.gather(at, admitted))
        return self.after(server, found)

    def most(self, rows: Sequence[int]) -> int:
        """Returns the most of a client's rows that count, for those of all clients (0: unknown)."""
        return int(min(self.guard.weigh(rows), _MOST_ROWS)) if self.by_rows else 1

    def after(self, server: Slots, updates: Sequence[Update]) -> Slots:
        """Returns the server's slots after a round of updates that have passed the guards.

        Raises:
            RunStopped: The method's merge raises, or its first result breaks its contract.
        """
        e = self.settings
        try:
            after = merged(self.method, server, updates)
        except Exception as error:  # anybody's method
            if isinstance(error, EngramError):
                raise
            words = f"method {e.method}, server: merge raised {cause_of(e.method, error)}"
            raise RunStopped(words) from error
        if not self._checked:
            try:
                check_merged(e.method, server, after)
            except SlotFault as fault:
                raise RunStopped(str(fault)) from fault
            self._checked = True
        return after

    def received(self, server: Slots, update: Update) -> Slots:
        """Returns the slots that an update's client receives; of a mean, those of all alike."""
        if update.client is None:
            return self.method.server.send(server, [])[0]
        return received_by(self.method, server, update.client)

    def nobodys(self, server: Slots, sent: Slots, server_round: int) -> Update:
        """Returns the update of no client; it changes nothing. ``sent`` has names and shapes."""
        received, _ = self.method.server.send(server, [])
        zeros = tree_map(lambda leaf: torch.zeros(leaf.shape, dtype=leaf.dtype), sent)
        nothing = Update(origin_of(self.method, received, zeros), 0, 0)
        ((update,), _) = parted([self.guard.admit(self.at(server, server_round), nothing)])
        return update


def merge_of(
    e: Experiment, method: Method, running: frozenset[str], noise: Noise = secret_noise
) -> Merge:
    """Builds the server's merge of a method.

    Raises:
        Refused: ``server-step`` is universal, and the method's server has a step of its own.
    """
    if e.weighting != "paper":
        method = weighed(method, e.weighting)
    merge = method.server.merge
    if e.server_step != "replace" and isinstance(merge, FromMean) and merge.steps:
        expected = f"replace for {e.method}, whose server has a step of its own"
        raise Refused(must("server-step", e.server_step, expected))
    return Merge(method, guards_of(e, method, running), running, e, noise)


def check_codes(e: Experiment, shapes: Shapes, running: Set[str]) -> None:
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


def server_step_notes(e: Experiment, parameters: int) -> dict[str, Any]:
    """Returns entries of a run's results about its server step, for so many ``parameters``.

    Empty where the merged model replaces the last one. Otherwise ``server-step``,
    ``server-radius``, and whether there are base learners for ``exp-concave`` losses.
    """
    if e.server_step == "replace":
        return {}
    from engram.online.server_step import has_exp_concave  # noqa: PLC0415 - loads numba

    return {
        "server-step": e.server_step.partition(":")[0],
        "server-radius": e.server_radius,
        "exp-concave": has_exp_concave(parameters),
    }
