"""One exchange of estimates: sites' estimates are screened, and their weighted median sent back."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from logging import getLogger
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from engram.core.types import Params
from engram.guards.robust.weight_limit import bounded
from engram.scoring.evaluation import Evaluation
from engram.scoring.intervals import quantile
from engram.settings.errors import RunStopped
from engram.settings.experiment import Experiment
from engram.strategies.running.base import Nodes, Row, strategies
from engram.strategies.running.site_strategy import read_split, sites_in_words
from engram.tables.exchange import STILL, Told, answer, odd_sites
from engram.tables.families import FAMILIES
from engram.tables.federation.molar import COLUMNS, Molar
from engram.tables.federation.molar_messages import (
    SHARED,
    SITES,
    SharedEstimate,
    impossible,
    impossible_equations,
    read_equations,
    read_shared,
    read_sites,
    read_told,
    shared_record,
    told_record,
)
from engram.tables.federation.scored_sites import ScoredSites
from engram.tables.heterogeneity import REACH
from engram.tables.intervals import shared_half_width
from engram.tables.shrinkage import Shared, combine, median_weights, outweighing
from engram.tables.site import INTERCEPT, estimate_site
from engram.wire.messages import TRAIN, Content, Question, Reply
from engram.wire.roster import Roster
from engram.wire.wire import arrays_of

_log = getLogger("flwr.engram")

_DROPPED = "the rows of all sites together do not determine it: it is dropped"
_NOTHING: Row = {"one-site": [], "no-interval": {}, "unsettled": None}
_FAR = 100  # a site's loss counts as at most this many medians


@strategies(Molar.plug_in)
class Exchange(ScoredSites):
    """MOLAR between sites: Algorithms 1 and 4, with rows that stay at the sites.

    A round asks every site for its estimate, size and noise level, and computes the weighted median
    and the width of its interval. In the evaluation that follows, each site computes and keeps its
    personal coefficients, and reports their losses. A site that does not reply, or sends invalid
    values, is left out of the median and warned of.

    Attributes:
        estimates: The last round's usable estimates, or equations of adaptive sites, by client.
        left_out: The clients without a usable estimate, and why.
        notes: Which sites lack some coefficients, and why.
    """

    columns = COLUMNS

    def __init__(self, experiment: Experiment, roster: Roster) -> None:
        super().__init__(experiment, roster)
        self._own = own = experiment.of(Molar)
        self._max_weight = experiment.max_weight
        self._told: Told | None = None
        self._names = [*self.sites.columns, *([INTERCEPT] if own.intercept else [])]
        self.estimates: dict[int, Any] = {}
        self._remarks: Row = {}
        self.notes: dict[int, str] = {}

    def configure_train(
        self, server_round: int, arrays: Params, config: Mapping[str, Any], grid: Nodes
    ) -> Iterable[Question]:
        """Asks every site for its estimate; adaptive sites get the shared state so far."""
        again = self._own.sharing == "adaptive" and server_round > 1
        self.scored = None
        self._told = read_told(arrays, len(self._names)) if again else None
        shared = {SHARED: arrays} if again else {}
        return self.questions(TRAIN, server_round, config, grid, lambda _: shared)

    def aggregate_train(self, server_round: int, replies: Sequence[Reply]) -> tuple[Params, Row]:
        """Computes the weighted median of the usable estimates.

        Returns:
            The record of ``engram.tables.federation.molar_messages.shared_record``; and ``sites``
            (number of estimates in it), ``left-out`` (number of sites left out), and ``bounded``
            (sites whose weight was limited by ``max_weight``, if any).

        Raises:
            RunStopped: Too few estimates are usable, or a coefficient is determined by none.
        """
        self.estimates, self.notes, self.left_out = {}, {}, {}
        self.left_out |= self.gather(server_round, replies, self._read)
        if self._own.sharing == "adaptive":
            return self._answered()
        self.check_enough(len(self.estimates))
        for client, note in sorted(self.notes.items()):
            called = self.called(client)
            _log.warning("client %s gets coefficients that it lacks from others: %s", called, note)
        found = [self.estimates[client] for client in sorted(self.estimates)]
        weights, most = self._own.site_weights, self._max_weight
        each = median_weights(found, weights, most)
        unknown = (each == 0).all(axis=0)
        if unknown.any():
            names = ", ".join(np.array(self._names)[unknown])
            reasons = "; ".join(sorted(set(self.notes.values())))
            advice = "leave out columns that others give"
            raise RunStopped(f"no site's rows determine {names} ({reasons}): {advice}")
        self._warn_of_weight(each)
        shared = combine(found, weights, most)
        half = shared_half_width(
            found, shared, level=self._own.level, weights=weights, max_weight=most
        )
        above = outweighing(found, weights, most)
        bounded = self.name_bounded(np.array(sorted(self.estimates))[above], most)
        alone = (np.stack([site.coef for site in found]) == shared.coef) & (each > 0)
        self._remarks = {
            "one-site": np.array(self._names)[alone.any(axis=0)].tolist(),
            "no-interval": self._reasons(half, _why_none(each, self._own.level)),
        }
        metrics = {"sites": len(found), "left-out": len(self.left_out), **bounded}
        return shared_record(SharedEstimate(shared, half)), metrics

    def _answered(self) -> tuple[Params, Row]:
        """Returns the answer to adaptive sites, and the numbers of ``aggregate_train``."""
        own, intercept, names = self._own, self._own.intercept, [*self._names, "the target"]
        odd = odd_sites(self.estimates, intercept=intercept) if self.estimates else {}
        why = "is in other units than elsewhere, it seems"
        self.left_out |= {client: f"{names[column]} {why}" for client, column in odd.items()}
        clients = sorted(self.estimates.keys() - odd)
        self.check_enough(len(clients))
        most = 1.0 if own.site_weights == "equal" else self._max_weight
        found = answer(
            [self.estimates[client] for client in clients],
            self._told,
            family=own.family,
            reach=REACH * own.threshold_scale,
            max_weight=most,
            intercept=intercept,
        )
        self._told = found.told
        for one in found.dropped:
            _log.warning("column dropped at all sites: %s", one.in_words(self._names))
        half = quantile((1 + own.level) / 2, found.freedom) * found.error
        capped = found.capped & (own.site_weights == "precision")
        named = self.name_bounded(np.array(clients)[capped], most)
        unsettled = _finite(found.told.change) if found.told.change > STILL else None
        reasons = self._reasons(half, [_DROPPED] * len(half))
        self._remarks = {"no-interval": reasons, "unsettled": unsettled}
        size = float(bounded([self.sites.rows[client] for client in clients], most).sum())
        metrics = {"sites": len(clients), "left-out": len(self.left_out), **named}
        return told_record(found, SharedEstimate(Shared(found.coef, size), half)), metrics

    def _reasons(self, half: npt.NDArray[np.float64], why: Iterable[str]) -> dict[str, str]:
        each = zip(self._names, half, why, strict=True)
        return {name: reason for name, width, reason in each if not np.isfinite(width)}

    @property
    def over(self) -> bool:
        """Whether adaptive sites have nothing more to tell."""
        return self._told is not None and self._told.change <= STILL

    def _read(self, content: Content, clients: list[int]) -> None:
        ids, failed, notes = read_split(content, clients)
        self.notes |= notes
        family, given = self._own.family, (arrays_of(content, SITES), len(ids), len(self._names))
        adaptive = self._own.sharing == "adaptive"
        read: Callable[..., Sequence[Any]] = read_equations if adaptive else read_sites
        # In the first exchange all rows have the same weight.
        each = np.inf if self._told else float(FAMILIES[family].curvature(np.zeros(())))
        for client, sent in zip(ids, read(*given), strict=True):
            rows, self.estimates[client] = self.sites.rows[client], sent
            if adaptive:
                why = impossible_equations(sent, rows * each, intercept=self._own.intercept)
            else:
                why = impossible(sent, rows, family=family)
                most = rows if family == "linear" else np.inf  # its noise is estimated from rows
                self.estimates[client] = sent._replace(freedom=min(sent.freedom, most))
            if why:
                failed[client] = why
                del self.estimates[client]
        self.left_out |= failed

    def _warn_of_weight(self, weights: npt.NDArray[np.float64]) -> None:
        share = weights.max(axis=0) / weights.sum(axis=0)
        worst = int(np.argmax(share))
        if len(weights) > 2 and share[worst] > 0.5:
            client = sorted(self.estimates)[int(np.argmax(weights[:, worst]))]
            _log.warning(
                "client %s has %.0f %% of the median's weight, by the rows and the noise that it "
                "claims: site-weights=equal takes nobody's word for it",
                self.called(client),
                100 * share[worst],
            )

    def row(self, absent: Mapping[int, str]) -> Row:
        """Lists the sites asked, absent, or lacking some coefficients."""
        lacking = {str(client): note for client, note in sorted(self.notes.items())}
        return super().row(absent) | {"lacking": lacking} | _NOTHING | self._remarks | self._sent()

    def scores(self) -> Row:
        """Returns the summary of the sites' held-out losses."""
        return _losses(self.scored) if self.scored is not None else {}

    def results(self, arrays: Params, row: Row) -> Row:
        """Returns the shared coefficients, the sites left out and why, and each site's losses."""
        if self.scored is None:
            raise RunStopped("no site has replied to the shared estimate: see the warnings")
        (coef, size), half = read_shared(arrays, len(self._names))
        return {
            "sites": row["sites"],
            "left-out": row["absent"],
            "lacking": row["lacking"],
            "rows": size,
            **self.scores(),
            "shared": {
                "names": self._names,
                "coef": coef.tolist(),
                "low": [_finite(value) for value in coef - half],
                "high": [_finite(value) for value in coef + half],
                "no-interval": row["no-interval"],
                "one-site": row["one-site"],
            },
            "bounded": [self.called(client) for client in row.get("bounded", [])],
            "unsettled": row["unsettled"],
            "clients": self.scored.listed("rows"),
            "estimates": row["estimates"],
        }

    def _sent(self) -> Row:
        """The sites' own estimates, as they have sent them; of adaptive sites, by their equations.

        Of other families than linear ones, the latter are a step of Newton's method from where the
        exchanges ended.
        """
        ids, linear = sorted(self.estimates), self._own.family == "linear"
        found = [self.estimates[client] for client in ids]
        if self._own.sharing == "adaptive":
            sigma = None if linear else 1.0
            found = [estimate_site(site.rows(), sigma=sigma) for site in found]
        return {
            "estimates": {
                "sites": [self.called(client) for client in ids],
                "coef": [site.coef.tolist() for site in found],
                "error": [[_finite(value) for value in site.standard_error] for site in found],
                "freedom": [_finite(site.freedom) for site in found],
            }
        }

    @staticmethod
    def in_words(row: Mapping[str, Any]) -> str:
        """Describes the number of sites and their held-out losses."""
        words = sites_in_words(row)
        if not words or row["loss-personal"] is None:
            return words
        own, shared, personal = (row[f"loss-{kind}"] for kind in ("own", "shared", "personal"))
        of = f" of {row['scored']} sites" if row["scored"] != row["sites"] else ""
        return f"{words}, held-out loss{of} {personal:.4g} (alone {own:.4g}, shared {shared:.4g})"


def _losses(scored: Evaluation) -> dict[str, Any]:
    """Mean and median over sites of their held-out losses, and the number of sites.

    Only sites with all three losses count, so that the means are comparable. Losses are
    self-reported: in a mean, a site's counts as at most a hundred times the median.
    """
    table = np.stack([scored.columns[column.name] for column in COLUMNS])
    some = (scored.columns["rows"] > 0) & np.isfinite(table).all(axis=0)
    found: dict[str, Any] = {"scored": int(some.sum())}
    for column, losses in zip(COLUMNS, table[:, some], strict=True):
        found[column.name] = float(bounded(losses, _FAR).mean()) if some.any() else None
        found[f"{column.name}-median"] = float(np.median(losses)) if some.any() else None
    return found


def _why_none(weights: npt.NDArray[np.float64], level: float) -> list[str]:
    """Returns for each column why a median may have no interval (``shared_half_width``)."""
    needed = int(ndtri(1 - (1 - level) / 4) ** 2) + 1
    equal = weights.sum(axis=0) ** 2 / (weights**2).sum(axis=0)  # sites of equal weight, in effect
    few = f"a median's interval needs {needed} sites of equal weight, and these count as"
    return [
        f"{few} {n:.3g}: sharing=adaptive gives one" if n < needed else "too many sites differ"
        for n in equal
    ]


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
