"""The server's merge of a method behind its guards."""

from collections.abc import Sequence

import torch

from engram.core.checks import must
from engram.core.contract import SlotFault, cause_of, check_merged
from engram.core.method import FromMean, Method, Slots, Update
from engram.core.rounds import merged, received_by, weighed
from engram.core.slots import over_slots
from engram.core.streams import fresh, generator
from engram.guards.chain import parted
from engram.guards.changes import origin_of
from engram.guards.facts import Fact
from engram.guards.noise import Noise, secret_noise
from engram.guards.places import At
from engram.guards.presets import guards_of
from engram.guards.robust.row_weights import weighs_rows
from engram.settings.errors import EngramError, Refused, RunStopped
from engram.settings.experiment import Experiment


class Merge:
    """The server's merge of a method, for an experiment.

    Attributes:
        method: The method, with the steps of guards.
        guard: The chain of guards.
        running: Names of running statistics.
        settings: The experiment.
        noise: Source of the noise of central privacy.
        by_rows: Whether updates weigh by rows, and not by clients.
        combines: Whether a node may send the mean of its clients' updates in their place.
        quiet: Whether nodes may keep training losses to themselves.

    Raises:
        Refused: ``server-step`` is universal, and the method's server has a step of its own.
    """

    def __init__(
        self, e: Experiment, method: Method, running: frozenset[str], noise: Noise = secret_noise
    ) -> None:
        self.settings, self.running, self.noise = e, running, noise
        method = method if e.weighting == "paper" else weighed(method, e.weighting)
        merge = method.server.merge
        if e.server_step != "replace" and isinstance(merge, FromMean) and merge.steps:
            expected = f"replace for {e.method}, whose server has a step of its own"
            raise Refused(must("server-step", e.server_step, expected))
        self.guard = guards_of(e, method, running)
        self.method = self.guard.method(method)
        self.by_rows = weighs_rows(method, self.guard)
        self.combines = e.combines
        self.quiet = bool(e.facts & {Fact.ROWS, Fact.COVERED})
        self._checked = False

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
            lambda update: received_by(self.method, server, update.client),
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
        claimable = 2**31  # and fewer
        return int(min(self.guard.weigh(rows), claimable)) if self.by_rows else 1

    def after(self, server: Slots, updates: Sequence[Update]) -> Slots:
        """Returns the server's slots after a round of updates that have passed the guards.

        Raises:
            RunStopped: The method's merge raises, or its first result breaks its contract.
        """
        e = self.settings
        try:
            after = merged(self.method, server, updates)
            if not self._checked:
                check_merged(e.method, server, after)
                self._checked = True
        except EngramError:
            raise
        except SlotFault as fault:
            raise RunStopped(str(fault)) from fault
        except Exception as error:  # anybody's method
            words = f"method {e.method}, server: merge raised {cause_of(e.method, error)}"
            raise RunStopped(words) from error
        return after

    def nobodys(self, server: Slots, sent: Slots, server_round: int) -> Update:
        """Returns the update of no client; it changes nothing. ``sent`` has names and shapes."""
        zeros = over_slots(lambda leaf: torch.zeros(leaf.shape, dtype=leaf.dtype), sent)
        received = self.method.server.send(server, [])[0]
        nothing = Update(origin_of(self.method, received, zeros), 0, 0)
        ((update,), _) = parted([self.guard.admit(self.at(server, server_round), nothing)])
        return update
