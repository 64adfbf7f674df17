"""Cox's model at the server: sites' sums are screened and added."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from engram.core.arrays import Array
from engram.core.method import Update
from engram.core.types import Params
from engram.guards.secure.quantize import WORDS, Words, narrow
from engram.guards.secure.secure_sum import MASKED
from engram.scoring.evaluation import Evaluation
from engram.scoring.intervals import quantile
from engram.settings.errors import RunStopped
from engram.settings.experiment import Experiment
from engram.strategies.running.base import Nodes, Row, strategies
from engram.strategies.running.screening import Accepted
from engram.strategies.running.secure_rounds import Exchange
from engram.strategies.running.site_strategy import read_split, sites_in_words
from engram.tables.federation.molar_messages import (
    SHARED,
    SITES,
    SharedEstimate,
    read_shared,
    shared_record,
)
from engram.tables.federation.scored_sites import ScoredSites
from engram.tables.shrinkage import Shared
from engram.tables.survival.federation.asked_sites import SCATTER, AskedSites, Unanswered
from engram.tables.survival.federation.cox import COLUMNS, Cox
from engram.tables.survival.federation.messages import (
    impossible_sums,
    read_own,
    read_sums,
    sums_record,
    sums_size,
)
from engram.tables.survival.naming import Naming, name_sites
from engram.tables.survival.newton import Ascent, NoMaximum, ascend
from engram.tables.survival.partial import total
from engram.tables.survival.shared_intervals import shared_intervals
from engram.tables.survival.sharing import Sharing, share
from engram.wire.messages import EVALUATE, TRAIN, Content, Question, Reply
from engram.wire.roster import Roster
from engram.wire.wire import arrays_of, floats_record, read_array


@strategies(Cox.plug_in)
class CoxExchange(ScoredSites):
    """Cox's model between sites that keep their subjects.

    A round asks every site for its sums at the coefficients so far, and takes one of Newton's steps
    by those of all. With adaptive sharing the search for sites that differ, and for the scatter,
    goes on in the same way. A site that does not reply, or sends impossible sums, is left out and
    warned of; where the usable sites change, all begins anew. With secure sums the server sees
    their total alone, as if it were of one site, and sites see to it that they do not change. After
    the last round each site computes its baseline hazard, and scores the coefficients.

    Attributes:
        found: The last round's usable answers, by client.
    """

    columns = COLUMNS

    def __init__(self, experiment: Experiment, roster: Roster) -> None:
        super().__init__(experiment, roster)
        self._own, self._names = experiment.of(Cox), [*self.sites.columns]
        self.found: dict[int, Any] = {}
        self.masks = experiment.aggregation == "secure"
        self._compute({})

    def _compute(self, arrays: Params) -> None:
        """Computes as much as a round's arrays allow, and the next question to the sites.

        Raises:
            RunStopped: The likelihood has no maximum.
        """
        own, names, dim = self._own, self._names, len(self._names)
        self._there: list[int] = arrays["clients"].tolist() if arrays else []
        count = min(len(self._there), 1) if self.masks else len(self._there)
        self._answers = sites = AskedSites(count, dim, arrays)
        self._compared: tuple[Naming, Sharing] | None = None
        self._ascent, self._over = Ascent.begin(np.zeros(dim)), False
        try:
            while not self._ascent.done:
                sums = total(sites.sums(np.tile(self._ascent.coef, (max(count, 1), 1))))
                state = ascend(self._ascent, sums, names, penalized=own.firth)
                self._ascent = state._replace(done=state.done or own.exchanges == 1)
            if own.sharing == "adaptive" and count > 1:
                naming = name_sites(sites, dim, level=own.level, names=names)
                self._compared = naming, share(sites, dim, lambda at: sites.own(at)[..., 0] > 0)
            self._over = True
        except Unanswered as asked:
            self._next = asked
        except NoMaximum as error:
            raise RunStopped(f"{error} (cox.firth=true)") from error

    def init(self) -> Params:
        """Returns no arrays; the state is whether it is over."""
        self.state = {"done": torch.zeros(1)}
        return {}

    def configure_train(
        self, server_round: int, arrays: Params, config: Mapping[str, Any], grid: Nodes
    ) -> Iterable[Question]:
        """Asks every site for its sums at its coefficients so far, or for marks of those apart."""
        self.scored = None
        self._compute(arrays)
        kind, question = self._next.kind, self._next.question
        config = {**config, "most-examples": 1}  # whose sites count alike
        rows, other = dict(zip(self._there, question, strict=False)), np.zeros(len(self._names))

        def ask(clients: list[int]) -> dict[str, Params]:
            alike = kind == SCATTER or self.masks
            own = question if alike else np.stack([rows.get(c, other) for c in clients])
            return {SHARED: {kind: torch.from_numpy(own)}}

        return self.questions(TRAIN, server_round, config, grid, ask)

    def aggregate_train(self, server_round: int, replies: Sequence[Reply]) -> tuple[Params, Row]:
        """Takes the next step by the answers of all usable sites.

        Returns:
            All answers so far, and the shared coefficients; and ``sites`` (number of sites in
            them), ``left-out`` (of those that are not), ``events`` and ``loglik``.

        Raises:
            RunStopped: Too few sites are usable, or the likelihood has no maximum.
        """
        self.found, self.left_out = {}, {}
        self.left_out |= self.gather(server_round, replies, self._read)
        self.check_enough(len(self.found))
        answers = [self.found[client] for client in sorted(self.found)]
        if self._next.kind == SCATTER:
            record = floats_record(own=np.stack(answers))
        else:
            record = sums_record(answers, len(self._names), third=self._own.firth)
        return self._learn(server_round, sorted(self.found), record)

    def read_part(self, sites: Exchange, party: int, content: Content) -> Accepted:
        """Reads a node's masked sums, which are of all its clients."""
        clients, shape = (
            sites.clients[party],
            (sums_size(len(self._names), third=self._own.firth), WORDS),
        )
        words = read_array(arrays_of(content, SITES)[MASKED], shape, torch.int32)
        return Accepted(clients, [Update({MASKED: words}, 0, len(clients))], [], {}, "")

    def learn_sum(
        self, sites: Exchange, trained: Mapping[int, Accepted], total: Words
    ) -> tuple[Params, Row]:
        """Takes the next step by the sum over sites; returns and raises as ``aggregate_train``."""
        clients = sorted(client for each in trained.values() for client in each.clients)
        away = self.gather(sites.session.number, (), self._read)
        for party, lost in sites.lost.items():
            away |= dict.fromkeys(sites.clients[party], lost.reason if lost else "no reply")
        self.left_out = {client: why for client, why in away.items() if client not in clients}
        self.check_enough(len(clients))
        record = floats_record(sums=narrow(total)[None])
        (found,) = read_sums(record, 1, len(self._names), third=self._own.firth)
        if why := impossible_sums(found, sum(self.sites.rows[client] for client in clients)):
            raise RunStopped(f"the sites' total is impossible: {why}")
        return self._learn(sites.session.number, clients, record)

    def _learn(self, server_round: int, clients: list[int], record: Params) -> tuple[Params, Row]:
        """Takes the next step by the clients' answers to the last question."""
        told, asked = self._answers.record, self._next
        if clients != self._there:
            told = {"clients": torch.tensor(clients)}
        if clients == self._there or not asked.question.any():  # else it was another's question
            AskedSites(len(clients), len(self._names), told).add(asked, record)
        self._compute(told)
        self.state, state = {"done": torch.full((1,), float(self._over))}, self._ascent
        row: Row = {"sites": len(clients), "left-out": len(self.left_out)}
        row |= {"events": state.sums.events, "loglik": state.sums.loglik}
        if not state.exchanges:
            row["loglik"] = None
            if server_round == self._own.exchanges:
                raise RunStopped("other sites were there in the last exchange: start the run again")
            return told, row
        half = quantile((1 + self._own.level) / 2, np.inf) * state.standard_error
        shared = SharedEstimate(Shared(state.coef, state.sums.events), half)
        return told | shared_record(shared), row

    def _read(self, content: Content, clients: list[int]) -> None:
        ids, failed, _ = read_split(content, clients)
        self.left_out |= failed
        given = arrays_of(content, SITES), len(ids), len(self._names)
        if self._next.kind == SCATTER:
            self.found |= dict(zip(ids, read_own(*given), strict=True))
            return
        for client, sent in zip(ids, read_sums(*given, third=self._own.firth), strict=True):
            if why := impossible_sums(sent, self.sites.rows[client]):
                self.left_out[client] = why
            else:
                self.found[client] = sent

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
        self._compute(arrays)
        told = shared_record(read_shared(arrays, len(self._names)))
        if self._compared is not None:
            told |= floats_record(scatter=np.stack(self._compared[1].scatter))
        return super().configure_evaluate(server_round, told, config, grid)

    def scores(self) -> Row:
        """Returns the concordance over sites: the share of the pairs of all."""
        return {} if self.scored is None else _concordances(self.scored)

    def results(self, arrays: Params, row: Row) -> Row:
        """Returns the shared coefficients, the sites left out and why, and each site's scores."""
        if self.scored is None:
            raise RunStopped("no site has replied to the shared coefficients: see the warnings")
        self._compute(arrays)
        state, (coef, _), half = self._ascent, *read_shared(arrays, len(self._names))
        return {
            "sites": row["sites"],
            "left-out": row["absent"],
            "events": state.sums.events,
            "exchanges": row["round"],
            "approximate": self._own.exchanges == 1,
            "settled": self.over,
            "loglik": state.sums.loglik,
            "null-loglik": state.first.loglik,
            **self.scores(),
            "shared": {
                "names": self._names,
                "coef": coef.tolist(),
                "error": state.standard_error.tolist(),
                "low": (coef - half).tolist(),
                "high": (coef + half).tolist(),
            },
            **self._comparison(),
            "clients": self.scored.listed("rows"),
        }

    def _comparison(self) -> Row:
        """Own estimates, sites that differ, and coefficients of all sites but one at most."""
        if self._compared is None:
            return {}
        (shared, _, differences), (*_, scatter) = self._compared
        names, sites = self._names, [self.called(client) for client in self._there]
        own = map(_listed, np.moveaxis(self._answers.own(scatter), 2, 0)[1:])
        return {
            "all-but-one": [*map(_listed, shared_intervals(shared, level=self._own.level)[2])],
            "estimates": dict(zip(("coef", "error", "low", "high"), own, strict=True))
            | {"sites": sites, "freedom": [None] * len(sites)},
            "differences": [
                {**one._asdict(), "site": sites[one.site], "column": names[one.column]}
                for one in differences
            ],
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
        own, mine = (row[f"concordance-{kind}"] for kind in ("own", "personal"))
        alone = "" if own is None else f" (alone {own:.3f})"
        return f"{words}, held-out concordance {mine:.3f}{alone}"


def _listed(values: Array) -> Any:
    """Values as JSON has them."""
    return np.where(np.isfinite(values), values, np.array(None, dtype=object)).tolist()


def _concordances(scored: Evaluation) -> Row:
    """Concordance over the pairs of all sites that have an estimate."""
    found: Row = {"scored": int((scored.columns["pairs"] > 0).sum())}
    for name in (column.name for column in COLUMNS[:-1]):
        some = np.isfinite(scored.columns[name])
        pairs, values = scored.columns["pairs"][some], scored.columns[name][some]
        found[name] = float(pairs @ values / pairs.sum()) if some.any() else None
    return found
