"""The sites' side of an exchange of estimates: rows and personal coefficients stay here."""

from collections.abc import Callable, Iterable

import numpy as np
import torch

from engram.client.hosts.base import Opening, hosts
from engram.client.hosts.rows import read_tables, shared_by
from engram.client.memory import MemoryStore
from engram.client.requests import round_of, split
from engram.core.arrays import Array
from engram.core.checks import Fault
from engram.core.types import Params
from engram.data.tables.tables import TableData
from engram.guards.noise import Noise, secret_noise
from engram.settings.errors import DataError, one_line
from engram.settings.experiment import Experiment
from engram.tables.exchange import Equations, Told, personal, tell
from engram.tables.families import FAMILIES
from engram.tables.federation.molar import COLUMNS, Molar
from engram.tables.federation.molar_messages import (
    SHARED,
    equations_record,
    read_shared,
    read_told,
    site_record,
)
from engram.tables.federation.site_host import TableHost, reply
from engram.tables.heterogeneity import REACH
from engram.tables.intervals import Intervals, own_interval, site_interval
from engram.tables.shrinkage import Shared, personalize_rows
from engram.tables.site import INTERCEPT, Rows, SiteEstimate, estimate_site, why_undetermined
from engram.tables.tables import check_finite
from engram.wire.messages import Content

_NAMES = [column.name for column in COLUMNS]  # losses: own, shared, personal


class TableSites(TableHost):
    """Hosts clients with tables, and keeps their personal coefficients.

    Scores are of ``least_scored`` rows or more.

    Raises:
        DataError: If a column has the name of the intercept.
    """

    def __init__(
        self,
        experiment: Experiment,
        data: TableData,
        store: MemoryStore,
        noise: Noise = secret_noise,
        *,
        covers: bool = False,
        least_scored: int = 1,
    ) -> None:
        super().__init__(experiment, data, store, noise, covers=covers)
        self.own = experiment.of(Molar)
        if self.own.intercept and INTERCEPT in data.columns:
            text = f"no column may be called {INTERCEPT}, unless intercept is false"
            raise DataError(Fault(("intercept",), text))
        self._reach = REACH * self.own.threshold_scale
        self._least_scored = least_scored
        self._estimates: dict[int, SiteEstimate] = {}

    @property
    def names(self) -> list[str]:
        """Names of the coefficients."""
        return [*self.data.columns, *([INTERCEPT] if self.own.intercept else [])]

    def _rows(self, client: int) -> Rows:
        rows = super()._rows(client)
        return rows.with_ones() if self.own.intercept else rows

    def estimate(self, client: int) -> tuple[SiteEstimate, str | None]:
        """Returns a client's own estimate; and why it lacks some coefficients, if it does.

        Raises:
            ValueError: Its rows cannot be used; the message names column and row.
        """
        rows = self._rows(client)
        labels = np.full(len(rows.y), client)
        check_finite(rows.x, labels, self.names)
        model = FAMILIES[self.own.family]
        test = self.data.test[client]
        y = rows.y if test is None else np.append(rows.y, test.y)
        if not (np.isfinite(y) & model.valid(y)).all():  # not in which row: that stays here
            raise ValueError(f"{self.experiment.target_column} must be {model.target} in every row")
        if test is not None and not np.isfinite(test.x).all():
            raise ValueError("some held-out rows have NaN or infinity")
        if client not in self._estimates:
            self._estimates[client] = estimate_site(rows, family=self.own.family)
        site = self._estimates[client]
        if site.determined.all():
            return site, None
        return site, why_undetermined(rows, self.names, family=self.own.family)

    def answer(
        self, client: int, told: Told | None, server_round: int
    ) -> tuple[SiteEstimate | Equations, str | None]:
        """Returns a client's own estimate, or in adaptive sharing its normal equations.

        Where privacy is example, it is one with noise, new at each call. For the note and errors
        see ``estimate``.
        """
        site, note = self.estimate(client)
        if self.private:
            return self._noised(self._rows(client), client, server_round), None
        if self.own.sharing == "median":
            return site, note
        return tell(self._rows(client), told, family=self.own.family, reach=self._reach), note

    def _coefficients(
        self, client: int, shared: Shared, half_width: Array, told: Told | None
    ) -> tuple[SiteEstimate, Array, Intervals]:
        m, rows, (site, _) = self.own, self._rows(client), self.estimate(client)
        if told is not None:
            if not told.kept.all():
                site = estimate_site(rows._replace(x=rows.x * told.kept), family=m.family)
            coef = personal(rows, told, family=m.family, reach=self._reach)
            return site, coef, own_interval(site, level=m.level)
        coef = personalize_rows(
            rows,
            site,
            shared,
            family=m.family,
            intercept=m.intercept,
            option=m.thresholding,
            c=m.threshold_scale,
        )
        limits = site_interval(site, shared, half_width, level=m.level, intercept=m.intercept)
        return site, coef, limits

    def personalize(
        self,
        client: int,
        shared: Shared,
        half_width: Array,
        *,
        server_round: int,
        told: Told | None = None,
    ) -> dict[str, float]:
        """Computes and stores a client's coefficients, and scores them on its held-out rows.

        Returns:
            ``rows`` (that were held out) and the mean loss on them of the client's own estimate
            (``loss-own``), of the shared coefficients and of the personal ones; NaN without rows,
            or (``loss-own``) without an estimate of all coefficients. The losses are squared
            errors, or the family's deviances.
        """
        site, coef, limits = self._coefficients(client, shared, half_width, told)
        table = np.stack([coef, limits.low, limits.high, site.coef, shared.coef], axis=1)
        memory = {name: torch.from_numpy(row) for name, row in zip(self.names, table, strict=True)}
        self._store.save(client, memory, server_round=server_round, durable=0)
        held_out = self.data.test[client]
        few = held_out is None or len(held_out.y) < self._least_scored
        if held_out is None or few or self.covers:  # losses have no noise
            return {"rows": 0, **dict.fromkeys(_NAMES, np.nan)}
        test = held_out.with_ones() if self.own.intercept else held_out
        loss = FAMILIES[self.own.family].loss
        lacks = ~site.determined & (True if told is None else told.kept)
        own = site.coef if not lacks.any() else np.full_like(site.coef, np.nan)
        with np.errstate(over="ignore", invalid="ignore"):  # a Poisson mean may overflow
            scores = {
                name: float(np.mean(loss(test.x @ beta, test.y)))
                for name, beta in zip(_NAMES, (own, shared.coef, coef), strict=True)
            }
        finite = {name: score if np.isfinite(score) else np.nan for name, score in scores.items()}
        return {"rows": len(test.y), **finite}

    def _told(self, content: Content) -> Told | None:
        if self.own.sharing != "adaptive" or SHARED not in content:
            return None
        return shared_by(content, lambda record: read_told(record, len(self.names)))

    def _trained(self, content: Content, clients: Iterable[int]) -> Content:
        told, number = self._told(content), round_of(content)
        adaptive = self.own.sharing == "adaptive"
        record: Callable[..., Params] = equations_record if adaptive else site_record
        found, failed = self._by_client(clients, lambda client: self.answer(client, told, number))
        notes = {client: one_line(note) for client, (_, note) in found.items() if note is not None}
        sent = record([site for site, _ in found.values()], len(self.names))
        examples = sum(self.sizes[client] for client in found)
        return reply(split(number, found, failed, notes), examples, sent)

    def _evaluated(self, content: Content, clients: Iterable[int]) -> Content:
        shared, half = shared_by(content, lambda record: read_shared(record, len(self.names)))
        told, number = self._told(content), round_of(content)
        found, failed = self._by_client(
            clients,
            lambda client: self.personalize(client, shared, half, server_round=number, told=told),
        )
        columns = {name: [scores[name] for scores in found.values()] for name in ("rows", *_NAMES)}
        return reply(split(number, found, failed) | columns, int(sum(columns["rows"])))


@hosts(Molar.plug_in)
def _open(opening: Opening) -> TableSites:
    given = opening.experiment, read_tables(opening), opening.store, opening.noise
    return TableSites(*given, covers=opening.covers, least_scored=opening.least_scored)
