"""Cox's model at the server: sites' sums are screened and added."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from engram.core.types import Params
from engram.scoring.evaluation import Evaluation
from engram.scoring.intervals import quantile
from engram.settings.errors import RunStopped
from engram.settings.experiment import Experiment
from engram.strategies.base import Nodes, Row, strategies
from engram.strategies.site_strategy import read_split, sites_in_words
from engram.tables.federation.molar_messages import SHARED, SITES, read_shared, shared_record
from engram.tables.federation.scored_sites import ScoredSites
from engram.tables.survival.federation.cox import COLUMNS, Cox
from engram.tables.survival.federation.messages import (
    ascent_record,
    impossible_sums,
    read_ascent,
    read_sums,
)
from engram.tables.survival.newton import Ascent, NoMaximum, ascend
from engram.tables.survival.partial import Sums, total
from engram.wire.messages import EVALUATE, TRAIN, Content, Question, Reply
from engram.wire.roster import Roster
from engram.wire.wire import arrays_of


@strategies(Cox.plug_in)
class CoxExchange(ScoredSites):
    """Cox's model between sites that keep their subjects.

    A round asks every site for its sums at the coefficients so far, and takes one of Newton's steps
    by those of all. A site that does not reply, or sends impossible sums, is left out and warned
    of. After the last round each site computes its baseline hazard, and scores the coefficients.

    Attributes:
        found: The last round's usable sums, by client.
    """

    columns = COLUMNS

    def __init__(self, experiment: Experiment, roster: Roster) -> None:
        super().__init__(experiment, roster)
        self._own = experiment.of(Cox)
        self._ascent, self._clients = Ascent.begin(np.zeros(self._dim)), experiment.num_clients
        self.found: dict[int, Sums] = {}

    @property
    def _dim(self) -> int:
        return len(self.sites.columns)

    def init(self) -> Params:
        """Returns no arrays; the state is which sites were there, and whether it is over."""
        self.state = {"there": torch.zeros(self._clients), "done": torch.zeros(1)}
        return {}

    def configure_train(
        self, server_round: int, arrays: Params, config: Mapping[str, Any], grid: Nodes
    ) -> Iterable[Question]:
        """Asks every site for its sums at the coefficients so far."""
        shared: dict[str, Params] = {}
        self.scored = None
        if server_round > 1:
            self._ascent = read_ascent(arrays, self._dim, third=self._own.firth)
            shared = {SHARED: self._told(arrays)}
        return self.questions(TRAIN, server_round, config, grid, lambda _: shared)

    def _told(self, arrays: Params) -> Params:
        return shared_record(read_shared(arrays, self._dim))

    def aggregate_train(self, server_round: int, replies: Sequence[Reply]) -> tuple[Params, Row]:
        """Takes Newton's step by the sums of all usable sites.

        Returns:
            The record of ``ascent_record``; and ``sites`` (number of sites in the sums),
            ``left-out`` (of those that are not), ``events`` and ``loglik``.

        Raises:
            RunStopped: Too few sites are usable, or the likelihood has no maximum.
        """
        self.found, self.left_out = {}, {}
        self.left_out |= self.gather(server_round, replies, self._read)
        self.check_enough(len(self.found))
        sums, state = total([self.found[client] for client in sorted(self.found)]), self._ascent
        there = torch.zeros(self._clients)
        there[sorted(self.found)] = 1.0
        if not torch.equal(there, self.state["there"]):  # the likelihood is of others than before
            state = state._replace(sums=state.sums._replace(loglik=-np.inf))
        try:
            state = ascend(state, sums, [*self.sites.columns], penalized=self._own.firth)
        except NoMaximum as error:
            raise RunStopped(f"{error} (cox.firth=true)") from error
        state = state._replace(done=state.done or self._own.exchanges == 1)
        self._ascent = state
        self.state = {"there": there, "done": torch.full((1,), float(state.done))}
        counts = {"sites": len(self.found), "left-out": len(self.left_out)}
        row = counts | {"events": sums.events, "loglik": sums.loglik}
        half = quantile((1 + self._own.level) / 2, np.inf) * state.standard_error
        return ascent_record(state, half), row

    def _read(self, content: Content, clients: list[int]) -> None:
        ids, failed, _ = read_split(content, clients)
        given = arrays_of(content, SITES), len(ids), self._dim
        for client, sent in zip(ids, read_sums(*given, third=self._own.firth), strict=True):
            if why := impossible_sums(sent, self.sites.rows[client]):
                failed[client] = why
            else:
                self.found[client] = sent
        self.left_out |= failed

    @property
    def over(self) -> bool:
        """Whether the coefficients are those of the maximum."""
        return bool(self.state["done"].any())

    def configure_evaluate(
        self, server_round: int, arrays: Params, config: Mapping[str, Any], grid: Nodes
    ) -> Iterable[Question]:
        """Sends the coefficients to every online site, after the last exchange."""
        if not self.over and server_round < self._own.exchanges:
            return self.questions(EVALUATE, server_round, config, grid, lambda _: None)
        return super().configure_evaluate(server_round, self._told(arrays), config, grid)

    def scores(self) -> Row:
        """Returns the concordance over sites: the share of the pairs of all."""
        return {} if self.scored is None else _concordances(self.scored)

    def results(self, arrays: Params, row: Row) -> Row:
        """Returns the shared coefficients, the sites left out and why, and each site's scores."""
        if self.scored is None:
            raise RunStopped("no site has replied to the shared coefficients: see the warnings")
        state = read_ascent(arrays, self._dim, third=self._own.firth)
        (coef, _), half = read_shared(arrays, self._dim)
        return {
            "sites": row["sites"],
            "left-out": row["absent"],
            "events": state.sums.events,
            "exchanges": state.exchanges,
            "approximate": self._own.exchanges == 1,
            "settled": state.done,
            "loglik": state.sums.loglik,
            "null-loglik": state.first.loglik,
            **self.scores(),
            "shared": {
                "names": [*self.sites.columns],
                "coef": coef.tolist(),
                "error": state.standard_error.tolist(),
                "low": (coef - half).tolist(),
                "high": (coef + half).tolist(),
            },
            "clients": self.scored.listed("rows"),
        }

    @staticmethod
    def in_words(row: Mapping[str, Any]) -> str:
        """Describes the number of sites, events, and the concordance of held-out subjects."""
        words = sites_in_words(row)
        if not words:
            return ""
        words += f", {row['events']:g} events"
        if row.get("concordance-shared") is None:
            return words
        own, shared = (row[f"concordance-{kind}"] for kind in ("own", "shared"))
        alone = "" if own is None else f" (alone {own:.3f})"
        return f"{words}, held-out concordance {shared:.3f}{alone}"


def _concordances(scored: Evaluation) -> Row:
    """Concordance over the pairs of all sites that have an estimate."""
    found: Row = {"scored": int((scored.columns["pairs"] > 0).sum())}
    for name in ("concordance-own", "concordance-shared"):
        some = np.isfinite(scored.columns[name])
        pairs, values = scored.columns["pairs"][some], scored.columns[name][some]
        found[name] = float(pairs @ values / pairs.sum()) if some.any() else None
    return found
