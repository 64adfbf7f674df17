"""The base of hosts of tables: requests answered client by client, and noise on estimates."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from logging import getLogger
from typing import Any, TypeVar

from engram.client.memory import MemoryStore
from engram.client.requests import Request, answered, by_client
from engram.core.streams import Stream
from engram.core.types import Params
from engram.data.schema.columns import Kind
from engram.data.tables.tables import TableData
from engram.guards.calibration import noise_multiplier
from engram.guards.noise import Noise
from engram.settings.errors import EngramError
from engram.settings.experiment import Experiment
from engram.tables.federation.molar_messages import SITES
from engram.tables.private import estimate_of, noisy_statistics, statistics_size
from engram.tables.site import Rows, SiteEstimate
from engram.wire.messages import Content, Reply
from engram.wire.roster import describe_node
from engram.wire.wire import CLIENTS, METRICS

_log = getLogger("flwr.engram")

_T = TypeVar("_T")


class SiteHost:
    """Hosts clients with rows; where privacy is example, their estimates have ``noise``.

    With ``covers``, nothing then leaves that has no noise.
    """

    def __init__(self, e: Experiment, store: MemoryStore, noise: Noise, *, covers: bool) -> None:
        self.experiment, self.private = e, e.hides_rows
        self.covers = covers and self.private
        self._store, self._noise = store, noise

    @abstractmethod
    def _trained(self, content: Content, clients: Iterable[int]) -> Content: ...

    @abstractmethod
    def _evaluated(self, content: Content, clients: Iterable[int]) -> Content: ...

    def train(self, requests: Sequence[Request]) -> list[Reply]:
        """Sends the clients' estimates: see ``engram.tables.federation.molar_messages``."""
        return [answered(each, partial(self._trained, each.question.content)) for each in requests]

    def evaluate(self, requests: Sequence[Request]) -> list[Reply]:
        """Takes over what is shared; the clients' coefficients stay here."""
        return [
            answered(each, partial(self._evaluated, each.question.content)) for each in requests
        ]

    def _by_client(
        self, clients: Iterable[int], answer: Callable[[int], _T]
    ) -> tuple[dict[int, _T], dict[int, str]]:
        """Returns the answers of clients, and the reasons of those that have none.

        With ``covers`` these stay in the log: they may name a row, or a column.
        """
        found, failed = by_client(clients, answer)
        if not self.covers:
            return found, failed
        for client, reason in failed.items():
            _log.error("client %d: %s", client, reason)
        return found, dict.fromkeys(failed, "its log says why")

    def _noised(self, rows: Rows, client: int, server_round: int) -> SiteEstimate:
        """Estimate from one noisy look at these rows; the noise is new at each call."""
        e, size = self.experiment, statistics_size(rows.x.shape[1])
        normal = self._noise(size, Stream.CLIENT_NOISE, server_round, client).double().numpy()
        multiplier = noise_multiplier(e)
        noisy = noisy_statistics(rows, bound=e.clip, multiplier=multiplier, normal=normal)
        return estimate_of(noisy, len(rows.y), multiplier * e.clip**2)


class TableHost(SiteHost):
    """Hosts clients with tables."""

    def __init__(
        self, e: Experiment, data: TableData, store: MemoryStore, noise: Noise, *, covers: bool
    ) -> None:
        super().__init__(e, store, noise, covers=covers)
        self.data = data
        self.sizes = {i: len(rows.y) for i, rows in enumerate(data.train) if rows is not None}

    def _rows(self, client: int) -> Rows:
        """A client's rows to learn from."""
        rows = self.data.train[client]
        if rows is None:
            raise EngramError(f"client {self.data.names.get(client, client)} has no rows here")
        return rows

    def describe(self, hosted: Sequence[int]) -> Content:
        """Describes the clients' numbers of rows, and their columns."""
        clients = {client: self.sizes[client] for client in hosted if client in self.sizes}
        kind = Kind(schema=self.data.schema, classes=self.data.classes)
        return describe_node(clients, kind, self.data.names)


def reply(details: dict[str, Any], examples: int, sites: Params | None = None) -> Content:
    """Returns a reply with entries about its clients, and estimates if there are any."""
    found: Content = {} if sites is None else {SITES: sites}
    found[METRICS] = {"num-examples": examples}
    found[CLIENTS] = details
    return found
