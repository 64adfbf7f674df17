"""What clients weigh in the mean of a round: their rows, as far as these are not too many."""

from collections.abc import Mapping, Sequence
from logging import getLogger

from engram.aggregates import Weighting
from engram.shares import weight_limit
from federation.errors import UNNAMED, few
from federation.names import Names

__all__ = ["RowWeights"]

_log = getLogger("flwr.engram")

_MOST_ROWS = 2**31  # more than a client can say that it has


class RowWeights:
    """Bounds what clients weigh by the rows that they say they have.

    All clients of a federation are compared, not those of a round: these are few, and may by
    chance be liars for the most part; and what a client weighs would depend on whom else the
    round asks.

    Args:
        weighting: Of the mean.
        max_weight: The most that a client weighs, in weights of the median client, as
            ``engram.shares.weight_limit`` has it; infinity for no bound.

    Attributes:
        most: How many rows of a client count at most; 1 where clients count alike.
    """

    def __init__(self, weighting: Weighting, max_weight: float) -> None:
        self.most = 1
        self._by_rows = weighting == "examples"
        self._max_weight = max_weight
        self._named: set[int] = set()
        self._names = UNNAMED

    def compare(self, examples: Sequence[int], names: Names) -> None:
        """Takes in the numbers of rows of all clients, 0 where not known, and clients' names."""
        self._names = names
        if self._by_rows:
            self.most = int(min(float(weight_limit(examples, self._max_weight)), _MOST_ROWS))

    def bounded(self, examples: Mapping[int, int], server_round: int) -> list[int]:
        """Returns which of a round's clients have more rows than count; a warning names each once.

        Args:
            examples: Rows of each of the clients.
            server_round: The round.
        """
        if not self._by_rows:
            return []
        bounded = sorted(client for client, rows in examples.items() if rows > self.most)
        new = [client for client in bounded if client not in self._named]
        self._named.update(new)
        if new:
            _log.warning(
                "round %d: clients %s say that they have more than %d rows, and count as if they "
                "had %d: max-weight = %g times what the median client has",
                server_round,
                few(new, self._names),
                self.most,
                self.most,
                self._max_weight,
            )
        return bounded
