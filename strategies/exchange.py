"""One exchange of estimates: what sites send is screened, and its weighted median sent back."""

from collections.abc import Iterable, Mapping
from logging import getLogger
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from engram.molar.intervals import shared_half_width
from engram.molar.shrinkage import Weights, combine, median_weights
from engram.molar.site import SiteEstimate
from federation.errors import RunStopped, brief, few, one_line
from federation.estimates import (
    SHARED,
    SITES,
    SharedEstimate,
    impossible,
    read_sites,
    shared_record,
)
from federation.fingerprint import fingerprint
from federation.roster import Sites
from federation.wire import CLIENTS, CONFIG, read_int, read_list
from strategies.screening import first_answers

__all__ = ["Exchange", "Scores"]

_log = getLogger("flwr.engram")

Column = npt.NDArray[np.float64]


class Scores(NamedTuple):
    """Held-out losses of the sites, each column in the order of ``clients``, which ascends.

    Attributes:
        clients: Who was scored.
        rows: Rows that were held out; 0 for none, and NaN for the losses.
        own: Mean loss of the site's own estimate.
        shared: Of the shared coefficients.
        personal: Of the site's own coefficients, after the exchange.
    """

    clients: list[int]
    rows: Column
    own: Column
    shared: Column
    personal: Column


class Exchange(Strategy):
    """MOLAR between sites: Algorithm 1, and 4, with the rows where they are.

    A round asks every site for its estimate, size and noise level, and answers with the weighted
    median and the width of its interval. In the evaluation that follows each site makes its own
    coefficients of them, keeps them, and says how well they do. A site that does not answer, or
    sends what cannot be, is left out of the median, and named.

    Args:
        sites: The sites that there are.
        intercept: Whether there is one coefficient more than columns.
        weights: Of the median, as ``engram.molar.shrinkage.median_weights`` has them.
        level: Of intervals.
        least: Sites without whose usable estimates there is no median.

    Attributes:
        estimates: The last round's usable estimates, by client.
        left_out: Whose estimate is not among them, and why.
        notes: Which sites lack some coefficients, and why.
        scores: The last evaluation's, or None.
    """

    def __init__(
        self,
        sites: Sites,
        *,
        intercept: bool,
        weights: Weights = "precision",
        level: float = 0.95,
        least: int = 1,
    ) -> None:
        self._sites = sites
        self._dim = len(sites.columns) + intercept
        self._weights: Weights = weights
        self._level = level
        self._least = least
        self._asked: list[tuple[Message, list[int]]] = []
        self.estimates: dict[int, SiteEstimate] = {}
        self.left_out: dict[int, str] = {}
        self.notes: dict[int, str] = {}
        self.scores: Scores | None = None

    def summary(self) -> None:
        """Logs who is there, once."""
        _log.info("%d sites, %d coefficients", len(self._sites.nodes), self._dim)

    @property
    def cohort(self) -> list[int]:
        """The clients whom the last messages ask, ascending."""
        return sorted(client for _, clients in self._asked for client in clients)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks every site for its estimate. There is no model to send."""
        del arrays
        return self._ask(server_round, config, grid, MessageType.TRAIN, {})

    def _ask(
        self,
        server_round: int,
        config: ConfigRecord,
        grid: Grid,
        kind: str,
        arrays: Mapping[str, ArrayRecord],
    ) -> list[Message]:
        present = set(grid.get_node_ids())
        self._asked = []
        for node, clients in self._sites.by_node().items():
            if node not in present:
                continue
            settings = {
                **config,
                "server-round": server_round,
                "fingerprint": fingerprint(),
                "clients": clients,
            }
            content = RecordDict({**arrays, CONFIG: ConfigRecord(settings)})
            message = Message(content, dst_node_id=node, message_type=kind)
            self._asked.append((message, clients))
        return [message for message, _ in self._asked]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Makes the weighted median of the usable estimates.

        Returns:
            The record of ``federation.estimates.shared_record``; and ``sites`` (whose estimates
            are in it) and ``left-out`` (of those asked).

        Raises:
            RunStopped: Too few estimates are usable, or a coefficient is determined by none.
        """
        answers, _ = first_answers(replies, [message for message, _ in self._asked])
        self.estimates, self.notes = {}, {}
        asked = set(self.cohort)
        self.left_out = {c: "off line" for c in self._sites.nodes if c not in asked}
        for message, clients in self._asked:
            reply = answers.get(message.metadata.message_id)
            if reply is None:
                self.left_out |= dict.fromkeys(clients, "no reply")
            else:
                self._read(reply, clients, server_round)
        for client, reason in sorted(self.left_out.items()):
            _log.warning("client %d is left out: %s", client, reason)
        for client, note in sorted(self.notes.items()):
            _log.warning("client %d takes from the others what it lacks: %s", client, note)
        if len(self.estimates) < max(1, self._least):
            reasons = "; ".join(f"client {c}: {r}" for c, r in sorted(self.left_out.items())[:10])
            raise RunStopped(f"{len(self.estimates)} of {self._least} sites are usable; {reasons}")
        found = [self.estimates[client] for client in sorted(self.estimates)]
        each = median_weights(found, self._weights)
        unknown = (each == 0).all(axis=0)
        if unknown.any():
            name = [*self._sites.columns, "intercept"][int(np.argmax(unknown))]
            raise RunStopped(f"column {name} is determined by the rows of no site")
        self._warn_of_weight(each)
        shared = combine(found, self._weights)
        half = shared_half_width(found, shared, level=self._level, weights=self._weights)
        metrics = MetricRecord({"sites": len(found), "left-out": len(self.left_out)})
        return shared_record(SharedEstimate(shared, half)), metrics

    def _read(self, reply: Message, clients: list[int], server_round: int) -> None:
        """Takes in what a node says of its clients."""
        try:
            if reply.has_error():
                raise ValueError(reply.error.reason or "no reason given")
            details = reply.content.config_records[CLIENTS]
            number, ids = read_int(details, "server-round"), read_list(details, "ids", int)
            failed, reasons = read_list(details, "failed", int), read_list(details, "reasons", str)
            noted, notes = read_list(details, "noted", int), read_list(details, "notes", str)
            if number != server_round:
                raise ValueError(f"its reply is of round {brief(number)}")
            if sorted(ids + failed) != clients or ids != sorted(ids):
                raise ValueError(f"its node answers for {brief(ids)} and {brief(failed)}")
            if len(failed) != len(reasons) or len(noted) != len(notes) or set(noted) - set(ids):
                raise ValueError("its node's lists do not fit each other")
            found = read_sites(reply.content.array_records[SITES], len(ids), self._dim)
        except (KeyError, TypeError, ValueError) as error:
            self.left_out |= dict.fromkeys(clients, _why(error))
            return
        self.left_out |= {c: one_line(r) for c, r in zip(failed, reasons, strict=True)}
        self.notes |= {c: one_line(n) for c, n in zip(noted, notes, strict=True)}
        for client, site in zip(ids, found, strict=True):
            reason = impossible(site, self._sites.rows[client])
            if reason is None:
                self.estimates[client] = site
            else:
                self.left_out[client] = reason

    def _warn_of_weight(self, weights: Column) -> None:
        """Names a site that decides alone: legitimate if it is the largest, or a lie."""
        share = weights.max(axis=0) / weights.sum(axis=0)
        worst = int(np.argmax(share))
        if len(weights) > 2 and share[worst] > 0.5:
            client = sorted(self.estimates)[int(np.argmax(weights[:, worst]))]
            _log.warning(
                "client %d has %.0f %% of the median's weight, by the rows and the noise that it "
                "claims: site-weights=equal takes nobody's word for it",
                client,
                100 * share[worst],
            )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Sends the shared estimate to every site that is there, whether it took part or not."""
        self.scores = None
        return self._ask(server_round, config, grid, MessageType.EVALUATE, {SHARED: arrays})

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Gathers the sites' losses into ``scores``.

        Returns:
            ``clients`` that were scored; None if nobody was.
        """
        answers, _ = first_answers(replies, [message for message, _ in self._asked])
        table: dict[int, list[float]] = {}
        for message, clients in self._asked:
            reply = answers.get(message.metadata.message_id)
            try:
                if reply is None:
                    raise ValueError("no reply")
                table |= _read_scores(reply, clients, server_round)
            except (KeyError, TypeError, ValueError) as error:
                _log.warning("clients %s lack scores: %s", few(clients), _why(error))
        if not table:
            return None
        ordered = sorted(table)
        columns = np.array([table[client] for client in ordered], dtype=np.float64).T
        self.scores = Scores(ordered, *columns)
        return MetricRecord({"clients": len(ordered)})


def _read_scores(reply: Message, clients: list[int], server_round: int) -> dict[int, list[float]]:
    if reply.has_error():
        raise ValueError(reply.error.reason or "no reason given")
    details = reply.content.config_records[CLIENTS]
    if read_int(details, "server-round") != server_round:
        raise ValueError("its reply is of another round")
    if read_list(details, "ids", int) != clients:
        raise ValueError(f"its node answers for {brief(read_list(details, 'ids', int))}")
    rows = read_list(details, "rows", int)
    losses = [read_list(details, name, float) for name in ("own", "shared", "personal")]
    odd = [column for column in losses if len(column) != len(clients)]
    if odd or len(rows) != len(clients) or min(rows, default=0) < 0:
        raise ValueError("its node's lists do not fit each other")
    return {
        client: [float(count), *values]
        for client, count, *values in zip(clients, rows, *losses, strict=True)
    }


def _why(error: Exception) -> str:
    lacks = "its reply lacks " if isinstance(error, KeyError) else ""
    return one_line(f"{lacks}{error}")
