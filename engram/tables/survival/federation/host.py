"""The sites' side of Cox's model: subjects, event times and baseline hazards stay here."""

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
import torch

from engram.client.hosts.base import Opening, hosts
from engram.client.hosts.rows import read_tables, shared_by
from engram.client.memory import MemoryStore
from engram.client.requests import Request, round_of, split
from engram.core.arrays import Array, Bools
from engram.data.tables.tables import TableData
from engram.guards.noise import secret_noise
from engram.guards.places import Sum
from engram.guards.secure.quantize import WORDS, add, widen
from engram.guards.secure.secure_sum import MASKED
from engram.scoring.survival_scores import concordant_pairs
from engram.settings.experiment import Experiment
from engram.tables.federation.molar_messages import SHARED, SITES, SharedEstimate, read_shared
from engram.tables.federation.site_host import TableHost, reply
from engram.tables.site import Rows
from engram.tables.survival.baseline import baseline_hazard
from engram.tables.survival.federation.asked_sites import AT, SCATTER
from engram.tables.survival.federation.cox import COLUMNS, Cox
from engram.tables.survival.federation.messages import sums_record
from engram.tables.survival.newton import fit
from engram.tables.survival.own_intervals import own_intervals
from engram.tables.survival.partial import likelihood_sums, risk_sets
from engram.tables.survival.sharing import Scatter, personalize
from engram.tables.survival.site_effects import site_sums
from engram.wire.messages import Content, Reply
from engram.wire.wire import CLIENTS, floats_record, read_floats

ENOUGH: Final = 30
"""Events of a site whose estimate alone may stand for it."""

EXPOSED: Final = 5
"""Likewise, in each group of a column of two values."""

_NEVER: Final = -1e30
_SCORES: Final = ("rows", *(column.name for column in COLUMNS))


class CoxSites(TableHost):
    """Hosts clients with subjects, and keeps their baseline hazards.

    Nothing leaves of fewer events than ``least`` but in masked sums, nor scores of fewer held-out
    events.
    """

    def __init__(
        self, experiment: Experiment, data: TableData, store: MemoryStore, *, least: int = 1
    ) -> None:
        super().__init__(experiment, data, store, secret_noise, covers=False)
        self.own, self._least = experiment.of(Cox), least
        self._secure = experiment.aggregation == "secure"

    def usable_rows(self, client: int) -> Rows:
        """Returns a client's rows to learn from.

        Raises:
            ValueError: They cannot be used; the message names no row, which stays here.
        """
        rows = self._rows(client)
        for own in filter(None, (rows, self.data.test[client])):
            self._check(own)
        return rows

    def _check(self, rows: Rows) -> None:
        x, time, weights, _, entry, _ = rows
        entry = np.full(len(time), -np.inf) if entry is None else entry
        weights = np.ones(len(time)) if weights is None else weights
        for right, words in (
            (np.isfinite(x), "columns must be finite"),
            (np.isfinite(time) & (time >= 0), "times must be finite and at least 0"),
            (entry < time, "times of entry must be before those of exit"),
            (np.isfinite(weights) & (weights > 0), "weights must be finite and above 0"),
        ):
            if not right.all():
                raise ValueError(f"{words} in every row")

    def answer(self, client: int, coef: Array, scatter: Scatter | None = None) -> Any:
        """Returns a client's sums at coefficients; of a single exchange, those of its estimate.

        The latter are of the parabola with the likelihood's maximum and curvature there. With a
        ``scatter`` instead, it returns marks of what is apart by it, and the client's own
        coefficients, errors and limits, shape (d, 5).

        Raises:
            ValueError: Its rows cannot be used, or its events are too few.
        """
        rows, own = self.usable_rows(client), self.own
        if not self._secure and _events(rows) < self._least:
            few = f"fewer than {self._least} events (least-count), whose sums would tell of each"
            few += ": set aggregation=secure, for the sum over sites alone"
            raise ValueError(f"it has {few if self._least > 1 else 'no event'}")
        if scatter is not None:
            estimate, error, limits = own_intervals(rows, ties=own.ties, level=own.level)
            apart = self._personal(rows, scatter)[1]
            return np.stack([apart, estimate, error, *limits], axis=1)
        if own.exchanges > 1:
            return likelihood_sums(risk_sets(rows, own.ties), coef, third=own.firth)
        self._check_enough(rows)
        found = fit([rows], own.ties, names=self.data.columns)
        score = found.sums.information @ found.coef
        loglik = found.sums.loglik - float(score @ found.coef) / 2
        return found.sums._replace(loglik=loglik, score=score)

    def _check_enough(self, rows: Rows) -> None:
        advice = "for a single exchange: set exchanges=20"
        if _events(rows) < ENOUGH:
            raise ValueError(f"it has fewer than {ENOUGH} events, which are too few {advice}")
        for name, column in zip(self.data.columns, rows.x.T, strict=True):
            values = np.unique(column)
            groups = [rows.take(np.flatnonzero(column == value)) for value in values[:2]]
            if len(values) == 2 and min(map(_events, groups)) < EXPOSED:
                words = f"fewer than {EXPOSED} events in a group of {name}"
                raise ValueError(f"it has {words}, which are too few {advice}")

    def masked(self, request: Request, reply: Reply, total: Sum) -> Content:
        """Masks the total of a request's clients; see ``engram.client.hosts.Summed``.

        Raises:
            ValueError: Some of its clients have no sums.
        """
        del request
        if reasons := reply.content[CLIENTS]["reasons"]:
            raise ValueError("; ".join(reasons))
        # No infinity, of coefficients at which there is no likelihood, is added to what is masked.
        numbers = np.maximum(reply.content[SITES]["sums"].numpy().sum(axis=0), _NEVER)
        words = add(widen(numbers), total.mask(len(numbers), WORDS))
        return reply.content | {SITES: {MASKED: torch.from_numpy(words.view(np.int32))}}

    def personalize(
        self, client: int, shared: SharedEstimate, number: int, scatter: Scatter | None = None
    ) -> dict[str, float]:
        """Stores a client's baseline hazard and coefficients, and scores them.

        Returns:
            ``rows`` (that were held out); ``pairs`` of these that can be compared, and the share of
            them that the client's own estimate, and the shared and personal coefficients, have
            right (``concordance-own``, ``-shared`` and ``-personal``); NaN without.
        """
        rows, (coef, _), half_width = self.usable_rows(client), *shared
        own, _, limits = own_intervals(rows, ties=self.own.ties, level=self.own.level)
        mine = coef if scatter is None else self._personal(rows, scatter)[0]
        baseline = baseline_hazard(rows, mine)
        columns = coef, coef - half_width, coef + half_width, own, *limits, mine
        memory = floats_record(
            coefficients=np.stack(columns, axis=1),
            baseline=np.stack([baseline.time, baseline.hazard]),
            at=np.array([baseline.reference, baseline.end]),
        )
        self._store.save(client, memory, server_round=number, durable=0)
        return self._scores(client, own, coef, mine)

    def _scores(self, client: int, *each: Array) -> dict[str, float]:
        nothing = dict.fromkeys(_SCORES, np.nan) | {"rows": 0}
        rows = self.data.test[client]
        if rows is None or _events(rows) < self._least:
            return nothing
        time, event, entry, weights = rows.survival()
        etas = [rows.x @ coef for coef in each]
        counts = [concordant_pairs(time, event, eta, entry, weights) for eta in etas]
        pairs = float(counts[1][1])
        if not pairs:
            return nothing
        right = (
            n / pairs if np.isfinite(eta).all() else np.nan
            for (n, _), eta in zip(counts, etas, strict=True)
        )
        return dict(zip(_SCORES, (len(time), *map(float, right), pairs), strict=True))

    def _trained(self, content: Content, clients: Iterable[int]) -> Content:
        dim, number, clients = len(self.data.columns), round_of(content), [*clients]
        each, scatter = np.zeros((len(clients), dim)), self._scatter(content)
        if scatter is None:
            size = (1, dim) if self._secure else each.shape  # all sites are asked alike
            each = each + shared_by(content, lambda record: read_floats(record, AT, size))
        at = dict(zip(clients, each, strict=True))
        found, failed = self._by_client(clients, lambda c: self.answer(c, at[c], scatter))
        sent = (
            sums_record([*found.values()], dim, third=self.own.firth)
            if scatter is None
            else floats_record(own=np.reshape([*found.values()], (len(found), dim, 5)))
        )
        return reply(split(number, found, failed), sum(self.sizes[c] for c in found), sent)

    def _personal(self, rows: Rows, scatter: Scatter) -> tuple[Array, Bools]:
        return personalize(site_sums([rows], self.own.ties)[0], scatter)

    def _scatter(self, content: Content) -> Scatter | None:
        if SCATTER not in content.get(SHARED, {}):
            return None
        size = len(Scatter._fields), len(self.data.columns)
        return Scatter(*shared_by(content, lambda record: read_floats(record, SCATTER, size)))

    def _evaluated(self, content: Content, clients: Iterable[int]) -> Content:
        dim, number = len(self.data.columns), round_of(content)
        given = shared_by(content, lambda record: read_shared(record, dim)), number
        found, failed = self._by_client(
            clients, lambda c: self.personalize(c, *given, self._scatter(content))
        )
        columns = {name: [scores[name] for scores in found.values()] for name in _SCORES}
        return reply(split(number, found, failed) | columns, int(sum(columns["rows"])))


def _events(rows: Rows) -> int:
    return int(rows.survival()[1].sum())


@hosts(Cox.plug_in)
def _open(opening: Opening) -> CoxSites:
    given = opening.experiment, read_tables(opening), opening.store
    return CoxSites(*given, least=opening.least_scored)
