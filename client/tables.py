"""The sites' side of an exchange of estimates: rows and personal coefficients stay here."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import ConfigRecord, Error, Message, MetricRecord, RecordDict

from client.handlers import (
    Request,
    answer_evaluate,
    answer_roster,
    answer_train,
    asked_clients,
    check_source,
    round_of,
)
from client.memory import MemoryStore
from engram.molar.families import FAMILIES
from engram.molar.intercept import personalize_rows
from engram.molar.intervals import site_interval
from engram.molar.shrinkage import Shared
from engram.molar.site import INTERCEPT, Rows, SiteEstimate, estimate_site, why_undetermined
from engram.molar.tables import check_finite
from federation.data.tables import TableData
from federation.errors import DataError, EngramError, one_line
from federation.estimates import SHARED, SITES, read_shared, site_record
from federation.experiment import Experiment
from federation.roster import describe_node
from federation.wire import CLIENTS, METRICS, REFUSED

__all__ = ["TableSites", "answered", "split"]

Array = npt.NDArray[np.float64]


class TableSites:
    """The tables of some clients, and what their coefficients have become.

    Args:
        experiment: The settings.
        data: The clients' rows.
        store: Where personal coefficients are kept.

    Raises:
        DataError: If a column is called as the intercept is.
    """

    def __init__(self, experiment: Experiment, data: TableData, store: MemoryStore) -> None:
        if experiment.intercept and INTERCEPT in data.columns:
            raise DataError(f"no column may be called {INTERCEPT}, unless intercept is false")
        self.experiment = experiment
        self.data = data
        self._store = store
        self._estimates: dict[int, SiteEstimate] = {}

    @property
    def names(self) -> list[str]:
        """What the coefficients are called."""
        return [*self.data.columns, *([INTERCEPT] if self.experiment.intercept else [])]

    def _rows(self, client: int) -> Rows:
        rows = self.data.train[client]
        if rows is None:
            raise EngramError(f"client {client} has no rows here")
        return rows.with_ones() if self.experiment.intercept else rows

    def estimate(self, client: int) -> tuple[SiteEstimate, str | None]:
        """Returns a client's own estimate; and why it lacks some coefficients, if it does.

        Raises:
            ValueError: Its rows cannot be used; the message names column and row.
        """
        rows = self._rows(client)
        labels = np.full(len(rows.y), client)
        check_finite(rows.x, labels, self.names)
        model = FAMILIES[self.experiment.family]
        test = self.data.test[client]
        y = rows.y if test is None else np.append(rows.y, test.y)
        if not (np.isfinite(y) & model.valid(y)).all():  # which row, stays here
            raise ValueError(f"{self.experiment.target_column} must be {model.target} in every row")
        if test is not None and not np.isfinite(test.x).all():
            raise ValueError("some held-out rows have NaN or infinity")
        if client not in self._estimates:
            self._estimates[client] = estimate_site(rows, family=self.experiment.family)
        site = self._estimates[client]
        if site.determined.all():
            return site, None
        return site, why_undetermined(rows, self.names, family=self.experiment.family)

    def personalize(
        self, client: int, shared: Shared, half_width: Array, *, server_round: int
    ) -> dict[str, float]:
        """Makes a client's coefficients, keeps them, and scores them on its held-out rows.

        Returns:
            ``rows`` (that were held out) and the mean loss on them of the client's ``own``
            estimate, of the ``shared`` coefficients and of the ``personal`` ones; NaN without
            rows, or (``own``) without an estimate of all coefficients. The losses are squared
            errors, or the family's deviances.
        """
        e = self.experiment
        site, _ = self.estimate(client)
        coef = personalize_rows(
            self._rows(client),
            site,
            shared,
            family=e.family,
            intercept=e.intercept,
            option=e.thresholding,
            c=e.threshold_scale,
        )
        limits = site_interval(site, shared, half_width, level=e.level, intercept=e.intercept)
        table = np.stack([coef, limits.low, limits.high, site.coef, shared.coef], axis=1)
        memory = {name: torch.from_numpy(row) for name, row in zip(self.names, table, strict=True)}
        self._store.save(client, memory, server_round=server_round, durable=0)
        held_out = self.data.test[client]
        if held_out is None:
            return {"rows": 0, "own": np.nan, "shared": np.nan, "personal": np.nan}
        test = held_out.with_ones() if e.intercept else held_out
        loss = FAMILIES[e.family].loss
        own = site.coef if site.determined.all() else np.full_like(site.coef, np.nan)
        with np.errstate(over="ignore", invalid="ignore"):  # a count's mean may be too large
            scores = {
                name: float(np.mean(loss(test.x @ beta, test.y)))
                for name, beta in (("own", own), ("shared", shared.coef), ("personal", coef))
            }
        finite = {name: score if np.isfinite(score) else np.nan for name, score in scores.items()}
        return {"rows": len(test.y), **finite}


@answer_roster.register
def _(host: TableSites, request: Request) -> Message:
    """Says which clients there are, with how many rows, and what the columns are."""
    held = [(client, host.data.train[client]) for client in request.hosted]
    clients = {client: len(rows.y) for client, rows in held if rows is not None}
    entry = describe_node(clients, (len(host.names),), 0, host.data.columns)
    return Message(entry, reply_to=request.message)


@answer_train.register
def _(host: TableSites, requests: Sequence[Request]) -> list[Message]:
    """Sends the clients' own estimates: see ``federation.estimates``."""
    return [answered(request, partial(_estimates, host, request)) for request in requests]


@answer_evaluate.register
def _(host: TableSites, requests: Sequence[Request]) -> list[Message]:
    """Personalizes the clients' coefficients, and sends their scores, and nothing else."""
    return [answered(request, partial(_scores, host, request)) for request in requests]


def answered(request: Request, answer: Callable[[list[int]], RecordDict]) -> Message:
    """Returns the reply to a request, of the clients that it names; or says what failed."""
    try:
        check_source(request.message.content)
        return Message(answer(asked_clients(request)), reply_to=request.message)
    except EngramError as error:
        return Message(Error(REFUSED, str(error)), reply_to=request.message)


def split(
    number: int,
    found: Iterable[int],
    failed: Mapping[int, str],
    notes: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Returns what a reply says of a round's clients, as ``strategies.sites.read_split`` reads it.

    Args:
        number: The round.
        found: Clients that the reply is of, ascending.
        failed: Others, and why.
        notes: What there is to say of some of the former.
    """
    notes = notes or {}
    return {
        "server-round": number,
        "ids": list(found),
        "failed": list(failed),
        "reasons": list(failed.values()),
        "noted": list(notes),
        "notes": list(notes.values()),
    }


def _estimates(host: TableSites, request: Request, clients: Iterable[int]) -> RecordDict:
    found: dict[int, SiteEstimate] = {}
    failed: dict[int, str] = {}
    notes: dict[int, str] = {}
    for client in clients:
        try:
            found[client], note = host.estimate(client)
        except ValueError as error:
            failed[client] = one_line(str(error))
            continue
        if note is not None:
            notes[client] = one_line(note)
    details = split(round_of(request.message.content), found, failed, notes)
    return RecordDict(
        {
            SITES: site_record(list(found.values()), len(host.names)),
            METRICS: MetricRecord({"num-examples": int(sum(s.size for s in found.values()))}),
            CLIENTS: ConfigRecord(details),
        }
    )


def _scores(host: TableSites, request: Request, clients: Iterable[int]) -> RecordDict:
    content = request.message.content
    try:
        shared, half_width = read_shared(content.array_records[SHARED], len(host.names))
    except (KeyError, TypeError, ValueError) as error:
        raise EngramError(f"the message lacks what sites share: {error}") from error
    number = round_of(content)
    found: dict[int, dict[str, float]] = {}
    failed: dict[int, str] = {}
    for client in clients:
        try:
            found[client] = host.personalize(client, shared, half_width, server_round=number)
        except ValueError as error:
            failed[client] = one_line(str(error))
    columns = {
        name: [scores[name] for scores in found.values()]
        for name in ("rows", "own", "shared", "personal")
    }
    details = split(number, found, failed) | columns
    count = int(sum(columns["rows"]))
    metrics = MetricRecord({"num-examples": count})
    return RecordDict({METRICS: metrics, CLIENTS: ConfigRecord(details)})
