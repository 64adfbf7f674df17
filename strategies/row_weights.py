"""Bounds clients' weights in a round's mean, which are their self-reported numbers of rows."""

from collections.abc import Mapping, Sequence
from logging import getLogger

from engram.shares import weight_limit
from federation.errors import UNNAMED, few
from federation.names import Names

__all__ = ["RowWeights"]

_log = getLogger("flwr.engram")

_MOST_ROWS = 2**31  # a client can only claim fewer


class RowWeights:
    """Bounds clients' weights relative to the median client of the federation.

    All clients of a federation are compared, not only those of a round. In a round there are few,
    most of whom may lie by chance, and a client's weight would depend on who else is asked.

    Args:
        by: The weights of clients in the mean: ``rows`` or ``clients``.
        max_weight: Largest weight of a client, in weights of the median client, see
            ``engram.shares.weight_limit``; infinity for no bound.

    Attributes:
        most: Largest number of a client's rows that count; 1 if all clients count alike.
    """

    def __init__(self, by: str, max_weight: float) -> None:
        self.most = 1
        self._by_rows = by == "rows"
        self._max_weight = max_weight
        self._named: set[int] = set()
        self._names = UNNAMED

    def compare(self, examples: Sequence[int], names: Names) -> None:
        """Computes the bound from all clients' numbers of rows (0: unknown); stores their names."""
        self._names = names
        if self._by_rows:
            self.most = int(min(float(weight_limit(examples, self._max_weight)), _MOST_ROWS))

    def bounded(self, examples: Mapping[int, int], server_round: int) -> list[int]:
        """Returns a round's clients with more rows than ``most``, and warns once of each.

        Args:
            examples: Numbers of rows by client.
            server_round: The round.
        """
        if not self._by_rows:
            return []
        bounded = sorted(client for client, rows in examples.items() if rows > self.most)
        new = [client for client in bounded if client not in self._named]
        self._named.update(new)
        if new:
            _log.warning(
                "round %d: clients %s report more than %d rows, and count as if they had %d: "
                "max-weight = %g times what the median client has",
                server_round,
                few(new, self._names),
                self.most,
                self.most,
                self._max_weight,
            )
        return bounded
