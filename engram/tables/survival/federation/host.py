"""The sites' side of Cox's model: subjects, event times and baseline hazards stay here."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from engram.client.hosts.base import Opening, hosts
from engram.client.hosts.rows import read_tables, shared_by
from engram.client.memory import MemoryStore
from engram.client.requests import round_of, split
from engram.core.arrays import Array
from engram.data.tables.tables import TableData
from engram.guards.noise import secret_noise
from engram.scoring.intervals import quantile
from engram.scoring.survival_scores import concordant_pairs
from engram.settings.experiment import Experiment
from engram.tables.federation.molar_messages import SHARED, read_shared
from engram.tables.federation.site_host import TableHost, reply
from engram.tables.site import Rows
from engram.tables.survival.baseline import baseline_hazard
from engram.tables.survival.federation.cox import COLUMNS, Cox
from engram.tables.survival.federation.messages import sums_record
from engram.tables.survival.newton import NoMaximum, fit
from engram.tables.survival.partial import Subjects, Sums, likelihood_sums, risk_sets
from engram.wire.messages import Content
from engram.wire.wire import floats_record

ENOUGH: Final = 30
"""Events of a site whose estimate alone may stand for it."""

EXPOSED: Final = 5
"""Likewise, in each group of a column of two values."""

_SCORES: Final = ("rows", *(column.name for column in COLUMNS))


class CoxSites(TableHost):
    """Hosts clients with subjects, and keeps their baseline hazards.

    Nothing leaves of fewer events than ``least``, nor scores of fewer held-out events.
    """

    def __init__(
        self, experiment: Experiment, data: TableData, store: MemoryStore, *, least: int = 1
    ) -> None:
        super().__init__(experiment, data, store, secret_noise, covers=False)
        self.own, self._least = experiment.of(Cox), least

    def subjects(self, client: int) -> Subjects:
        """Returns a client's subjects to learn from.

        Raises:
            ValueError: They cannot be used; the message names no row, which stays here.
        """
        rows = self._rows(client)
        for own in filter(None, (rows, self.data.test[client])):
            self._check(own)
        return as_subjects(rows)

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

    def sums(self, client: int, coef: Array) -> Sums:
        """Returns a client's sums at coefficients; of a single exchange, those of its estimate.

        The latter are of the parabola with the likelihood's maximum and curvature there.

        Raises:
            ValueError: Its rows cannot be used, or its events are too few.
        """
        subjects, own = self.subjects(client), self.own
        if subjects.event.sum() < self._least:
            few = f"fewer than {self._least} events (least-count), whose sums would tell of each"
            raise ValueError(f"it has {few if self._least > 1 else 'no event'}")
        if own.exchanges > 1:
            sets = risk_sets(subjects, own.ties)
            return likelihood_sums(sets, coef, third=own.firth)
        self._check_enough(subjects)
        found = fit([subjects], own.ties, names=self.data.columns)
        score = found.sums.information @ found.coef
        loglik = found.sums.loglik - float(score @ found.coef) / 2
        return found.sums._replace(loglik=loglik, score=score)

    def _check_enough(self, subjects: Subjects) -> None:
        x, event = subjects.x, subjects.event
        advice = "for a single exchange: set exchanges=20"
        if event.sum() < ENOUGH:
            raise ValueError(f"it has fewer than {ENOUGH} events, which are too few {advice}")
        for name, column in zip(self.data.columns, x.T, strict=True):
            values = np.unique(column)
            if len(values) == 2 and min(event[column == value].sum() for value in values) < EXPOSED:
                words = f"fewer than {EXPOSED} events in a group of {name}"
                raise ValueError(f"it has {words}, which are too few {advice}")

    def personalize(
        self, client: int, coef: Array, half_width: Array, server_round: int
    ) -> dict[str, float]:
        """Stores a client's baseline hazard and coefficients, and scores them.

        Returns:
            ``rows`` (that were held out); ``pairs`` of these that can be compared, and the share of
            them that the client's own estimate and the shared coefficients have right
            (``concordance-own`` and ``-shared``); NaN without.
        """
        subjects = self.subjects(client)
        try:
            found = fit([subjects], self.own.ties, penalized=self.own.firth)
            own, error = found.coef, found.standard_error
        except NoMaximum:
            own = error = np.full_like(coef, np.nan)
        baseline = baseline_hazard(subjects, coef)
        reach = quantile((1 + self.own.level) / 2, np.inf) * error
        columns = coef, coef - half_width, coef + half_width, own, own - reach, own + reach
        memory = floats_record(
            coefficients=np.stack(columns, axis=1),
            baseline=np.stack([baseline.time, baseline.hazard]),
            at=np.array([baseline.reference, baseline.end]),
        )
        self._store.save(client, memory, server_round=server_round, durable=0)
        return self._scores(client, own, coef)

    def _scores(self, client: int, own: Array, shared: Array) -> dict[str, float]:
        nothing = dict.fromkeys(_SCORES, np.nan) | {"rows": 0}
        rows = self.data.test[client]
        if rows is None or as_subjects(rows).event.sum() < self._least:
            return nothing
        x, time, event, entry, weights = as_subjects(rows)
        right, pairs = concordant_pairs(time, event, x @ shared, entry, weights)
        if not pairs:
            return nothing
        alone = concordant_pairs(time, event, x @ own, entry, weights)[0]
        alone = np.nan if np.isnan(own).any() else alone
        figures = len(time), float(alone / pairs), float(right / pairs), float(pairs)
        return dict(zip(_SCORES, figures, strict=True))

    def _trained(self, content: Content, clients: Iterable[int]) -> Content:
        dim, number = len(self.data.columns), round_of(content)
        coef = np.zeros(dim)
        if SHARED in content:
            (coef, _), _ = shared_by(content, lambda record: read_shared(record, dim))
        found, failed = self._by_client(clients, lambda client: self.sums(client, coef))
        sent = sums_record([*found.values()], dim, third=self.own.firth)
        return reply(split(number, found, failed), sum(self.sizes[c] for c in found), sent)

    def _evaluated(self, content: Content, clients: Iterable[int]) -> Content:
        dim, number = len(self.data.columns), round_of(content)
        (coef, _), half = shared_by(content, lambda record: read_shared(record, dim))
        found, failed = self._by_client(clients, lambda c: self.personalize(c, coef, half, number))
        columns = {name: [scores[name] for scores in found.values()] for name in _SCORES}
        return reply(split(number, found, failed) | columns, int(sum(columns["rows"])))


def as_subjects(rows: Rows) -> Subjects:
    """Returns the subjects of rows of survival."""
    assert rows.event is not None  # for mypy: as tables of survival have it
    return Subjects(rows.x, rows.y, rows.event, rows.entry, rows.weights)


@hosts(Cox.plug_in)
def _open(opening: Opening) -> CoxSites:
    given = opening.experiment, read_tables(opening), opening.store
    return CoxSites(*given, least=opening.least_scored)
