"""The server's side of a round, without messages: cohorts, screening of updates, and merging.

Flower's strategy wraps it in messages; runs in lock step call it directly.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple, Self

from engram.core.method import Slots, Update
from engram.core.shapes import Shapes
from engram.core.slots import flat
from engram.tree import is_finite
from federation.aggregation import Merge, merge_of
from federation.errors import UNNAMED, RunStopped, few
from federation.experiment import Experiment
from federation.learning import server_side
from federation.names import Names
from federation.noise import Noise
from federation.roster import Kind
from strategies.cohorts import draw_cohort
from strategies.screening import implausible
from strategies.train_replies import TrainReplies, first_of

__all__ = ["Rounds"]


class Rounds(NamedTuple):
    """The server's side of a run's rounds: cohorts, screening of updates, and merging.

    Attributes:
        merge: The server's merge of the method.
        shapes: The slots of one client, whose names and shapes updates must have.
        seed: Root of the sampling stream.
        clients_per_round: Clients asked each round; at most as many as there are.
        shards: As in ``draw_cohort``.
        least: Minimum number of usable updates in a round, in clients.
    """

    merge: Merge
    shapes: Shapes
    seed: int
    clients_per_round: int
    shards: int = 1
    least: int = 1

    @classmethod
    def of(cls, experiment: Experiment, kind: Kind, noise: Noise) -> Self:
        """Builds the server's side of an experiment.

        Args:
            experiment: The settings.
            kind: Shapes and types of the clients' data.
            noise: Source of the noise of central privacy.

        Raises:
            Refused: The method does not go with the network, the data or the machine.
        """
        e = experiment
        method, shapes, running = server_side(e, kind)
        merge = merge_of(e, method, running, noise)
        return cls(merge, shapes, e.seed, e.clients_per_round, e.shards, e.min_clients)

    def cohort(self, server_round: int, clients: int, absent: Collection[int] = ()) -> list[int]:
        """Draws the cohort of a round from ``clients`` clients; see ``draw_cohort``."""
        size, shards = self.clients_per_round, self.shards
        return draw_cohort(self.seed, server_round, clients, size, shards=shards, absent=absent)

    def screened(self, server: Slots, replies: TrainReplies) -> TrainReplies:
        """Rejects updates that lie much farther from the server's slots than most do."""
        # Under central privacy, whether a reply is left out must not depend on the others.
        if self.merge.bounded:
            return replies
        near, far = implausible(replies.accepted, self.merge, server)
        return replies._replace(accepted=near, rejected=replies.rejected + far)

    def updates(
        self, replies: TrainReplies, server_round: int, names: Names = UNNAMED
    ) -> list[Update]:
        """Returns the usable updates of a round.

        Raises:
            RunStopped: Most of the cohort diverged, or too few updates are usable.
        """
        diverged, usable = replies.diverged, replies.usable
        if 2 * len(diverged) > replies.asked:
            raise RunStopped(
                f"round {server_round} diverged: the models of clients "
                f"{few(sorted(diverged), names)} became non-finite; {first_of(diverged.values())}"
            )
        if usable < self.least:
            count = f"{usable} of {self.least} usable replies" if usable else "no usable reply"
            raise RunStopped(f"round {server_round} has {count}; {replies.in_words(names)}")
        return [update for _, reply in replies.accepted for update in reply.updates]

    def merged(self, server: Slots, updates: Sequence[Update], server_round: int) -> Slots:
        """Returns the server's slots after a round.

        Raises:
            RunStopped: The merged slots are not finite.
        """
        slots = self.merge(server, updates, server_round)
        if flat(slots) and not is_finite(flat(slots)):
            raise RunStopped(f"round {server_round}: the merged model became non-finite")
        return slots
