"""Meta-Ban between sites: the server adapts and chooses, and asks about users' networks and rows.

A round is a turn. The server asks whose turn it is, what clients' networks predict for the arms,
and in each of J_2 steps for gradients; its last message says which arm to play.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from logging import getLogger
from statistics import median_low
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from engram.bandits.federation.meta_ban import MetaBan
from engram.bandits.federation.meta_ban_messages import (
    ARM,
    ARMS,
    ASKED,
    MEMBERS,
    PREDICTIONS,
    drawn_of,
    network_record,
    question_record,
    read_arms,
    read_network,
    read_predictions,
    summed,
)
from engram.bandits.federation.policy import policy_of
from engram.bandits.meta_learner import MetaState
from engram.bandits.networks import Weights
from engram.bandits.policy import CHOOSE, INIT, diverged, generator
from engram.bandits.replay import Drawn
from engram.bandits.training import descended
from engram.core.arrays import Array, Ints
from engram.core.types import Params
from engram.settings.errors import RunStopped, brief, few
from engram.settings.experiment import Experiment
from engram.strategies.running.base import Nodes, Row, strategies
from engram.strategies.running.site_strategy import (
    TOTALS,
    Read,
    Records,
    SiteStrategy,
    regret_in_words,
)
from engram.wire.messages import EVALUATE, TRAIN, Content, Entries, Question, Reply
from engram.wire.roster import Roster
from engram.wire.wire import (
    ARRAYS,
    CLIENTS,
    arrays_of,
    floats_record,
    read_float,
    read_int,
    read_list,
)

_log = getLogger("flwr.engram")
_ROUNDING = 1e-6  # of a regret that is 0
_LARGEST = 100.0  # of the entries of a gradient


Among = Collection[int] | None  # the clients asked; None: all
Ask = Callable[[list[int]], Records | None]


class _Astray(Exception):
    """An error of weights at which most sites' gradients are too large to go on."""


class _Turn(NamedTuple):
    number: int  # the round
    config: Entries  # sent to every node
    grid: Nodes


@strategies(MetaBan.plug_in)
class MetaBanTurns(SiteStrategy):
    """Algorithms 1 and 3 between sites, one round a turn.

    It makes the same choices as ``engram.bandits.meta_ban`` with the same seed and all users in one
    place. A site that does not reply, or sends invalid values, is warned of; its clients are in no
    group of this turn, and if it is the turn of one of them, nobody is served. Turns are those of
    the clients that are members when they begin; of several that claim one, it is whose were
    fewest, so that a site that claims all of them takes few from the others.

    Attributes:
        state: The state between rounds: ``came``, clients in the order of their first turns;
            ``chosen``, how often arms were chosen; ``served``, how often each client was told to
            play; and each client's reported sums of ``TOTALS``.
    """

    scored_from = None

    def __init__(self, experiment: Experiment, roster: Roster) -> None:
        super().__init__(experiment, roster)
        self._experiment = experiment
        self._policy = policy_of(experiment, len(self.sites.columns))
        self._start = self._policy.start([generator(experiment.seed, 0, INIT)])
        self._theta = network_record(self._start)
        self._played: dict[str, int] = {}
        self._far: set[int] = set()  # clients whose gradients the turn has found too large
        self._part: set[int] = set()  # clients that the turn has asked anything
        self._last: Mapping[str, Any] | None = None
        self.state: Params = {}

    def init(self) -> Params:
        """Initializes the state; returns Theta_0."""
        zeros = torch.zeros(self._experiment.num_clients, dtype=torch.float64)
        self.state = {name: zeros.clone() for name in (*TOTALS, "served")}
        self.state |= {"came": torch.zeros(0, dtype=torch.int64), "chosen": torch.tensor(0)}
        return self._theta

    def questions(self, *given: Any, **others: Any) -> list[Question]:
        """See ``SiteStrategy.questions``; notes who takes part in the turn."""
        questions = super().questions(*given, **others)
        self._part.update(self.cohort)
        return questions

    def row(self, absent: Mapping[int, str]) -> Row:
        """Returns all sites that the turn's questions have asked, not those of the last alone."""
        return {**super().row(absent), "cohort": sorted({*self._part, *absent})}

    def configure_train(
        self, server_round: int, arrays: Params, config: Mapping[str, Any], grid: Nodes
    ) -> Iterable[Question]:
        """Asks for the turn's client, chooses an arm, and returns the message that says so."""
        told = {**config, MEMBERS: sorted(self.sites.nodes)}
        turn = _Turn(server_round, told, grid)
        self.left_out, self._theta, self._played = {}, arrays, {}
        self._part, self._far = set(), set()
        offer = self._offer(turn)
        self.check_enough(len(self._there()))
        if offer is None:
            return self._ask(turn, "play", set())
        served, arms = offer
        self._played = {"served": served}
        if served not in self._came:
            self.state["came"] = torch.tensor([*self._came, served])
        predictions, rows = self._predictions(turn, arms)
        if not np.isfinite(predictions[self._came.index(served)]).all():  # nor will it play
            return self._ask(turn, "play", set())
        arm = self._choose(turn, served, arms, predictions, rows)
        self._played["arm"] = arm
        self.state["served"][served] += 1
        told = {**turn.config, ARM: arm}
        return self._ask(turn._replace(config=told), "play", {served})

    def aggregate_train(self, server_round: int, replies: Sequence[Reply]) -> tuple[Params, Row]:
        """Adds the site's report to the totals.

        Returns:
            Theta_t; and ``sites`` (number that answered), ``left-out`` (number that did not),
            ``told`` (turns reported so far), ``untold`` (turns played that are not) and ``regret``
            in the former; and, as far as the turn got, ``served`` (the client), ``arm`` and
            ``groups`` (number of different groups).

        Raises:
            RunStopped: Too few replies are usable.
        """

        def told(content: Content, clients: list[int]) -> None:
            outcome = _outcome(content, self._untold(clients))
            for name, value in zip(TOTALS, outcome, strict=True):
                self.state[name][clients[0]] += value

        self.left_out |= self.gather(server_round, replies, told)
        self.check_enough(len(self._there()))
        found = {"sites": len(self._there()), "left-out": len(self.left_out)}
        return self._theta, {**found, **self._totals(), **self._played}

    def configure_evaluate(
        self, server_round: int, arrays: Params, config: Mapping[str, Any], grid: Nodes
    ) -> Iterable[Question]:
        """Asks for the turns that have not been reported."""
        del arrays
        self._last = None
        return self.questions(EVALUATE, server_round, config, grid, lambda clients: {})

    def aggregate_evaluate(self, server_round: int, replies: Sequence[Reply]) -> Row:
        """Returns the sums of ``TOTALS`` over nodes with enough turns to report."""
        found = np.zeros(len(TOTALS))

        def told(content: Content, clients: list[int]) -> None:
            found.__iadd__(_outcome(content, self._untold(clients)))

        self.gather(server_round, replies, told)
        self._last = dict(zip(TOTALS, found.tolist(), strict=True))
        return {**self._last}

    @property
    def evaluated(self) -> bool:
        """Whether sites have been asked for their unreported turns."""
        return self._last is not None

    def results(self, arrays: Params, row: Row) -> Row:
        """Returns each client's and the total reported turns, rewards and regrets."""
        del arrays
        return {
            "turns": self._experiment.num_rounds,
            "sites": row["sites"],
            "left-out": row["absent"],
            "clients": {name: self.state[name].tolist() for name in TOTALS},
            **self._totals(self._last),
        }

    in_words = staticmethod(regret_in_words)

    def _totals(self, last: Mapping[str, float] | None = None) -> dict[str, float]:
        more = last or dict.fromkeys(TOTALS, 0.0)
        told, reward, regret = (float(self.state[name].sum() + more[name]) for name in TOTALS)
        untold = float(self.state["served"].sum()) - told
        return {"told": told, "reward": reward, "regret": regret, "untold": untold}

    @property
    def _came(self) -> list[int]:
        found: list[int] = self.state["came"].tolist()
        return found

    def _untold(self, clients: list[int]) -> float:
        """Returns the number of these clients' unreported turns, the most they can report."""
        return float((self.state["served"] - self.state["turns"])[clients].sum())

    def _offer(self, turn: _Turn) -> tuple[int, Array] | None:
        """Returns the turn's client and its arms; None if no client claims it.

        Of several, one lies at least: it is that one's who was served least, and the others have no
        part in it.
        """
        offers: dict[int, Array] = {}

        def read(content: Content, clients: list[int]) -> None:
            served = read_list(content[CLIENTS], "served", int)
            if len(served) > 1 or not set(served) <= set(clients):
                raise ValueError(f"its node offers arms to {brief(served)}")
            if served:
                record = arrays_of(content, ARMS)
                offers[served[0]] = read_arms(record, len(self.sites.columns))

        self._exchange(turn, "offer", None, read)
        ordered = sorted(offers, key=lambda client: (float(self.state["served"][client]), client))
        if len(ordered) > 1:
            claiming = few(sorted(offers), self.sites.names)
            why = f"{claiming} claim the same turn: {self.called(ordered[0])} was served least"
            self.left_out |= dict.fromkeys(ordered[1:], why)
        return next(((client, offers[client]) for client in ordered), None)

    def _predictions(self, turn: _Turn, arms: Array) -> tuple[Array, Ints]:
        """Asks for n clients' predictions, (n, K), infinite where missing; and their rows, (n,)."""
        came = self._came
        found = np.full((len(came), len(arms)), np.inf)
        rows = np.zeros(len(came), dtype=np.intp)

        def read(content: Content, clients: list[int]) -> None:
            counts = read_list(content[CLIENTS], "rows", int)
            most = self.state["served"][clients].tolist()  # rows are weights, one of each turn
            alike = len(counts) == len(most)
            if not (alike and all(0 <= n <= m for n, m in zip(counts, most, strict=True))):
                raise ValueError("its clients' numbers of rows are impossible")
            record = arrays_of(content, PREDICTIONS)
            places = [came.index(client) for client in clients]
            found[places] = read_predictions(record, (len(clients), len(arms)))
            rows[places] = counts

        asked = {ARMS: floats_record(arms=arms)}
        self._exchange(turn, "predictions", came, read, lambda clients: asked)
        return found, rows

    def _choose(self, turn: _Turn, served: int, arms: Array, predictions: Array, rows: Ints) -> int:
        learner, users = self._policy.learner, np.array([self._came.index(served)])
        chosen = int(self.state["chosen"])
        meta = MetaState(self._start, self._network(self._theta, 1), chosen)
        rng = generator(self._experiment.seed, turn.number - 1, CHOOSE)
        groups = learner.groups(torch.from_numpy(predictions)[None], users)
        descent = partial(self._descent, turn)
        adapted = partial(
            learner.adapted, users=users, counts=rows[None], descent=descent, rngs=[rng]
        )
        x = torch.from_numpy(arms)[None].mT
        try:
            (arm,), meta = learner.choose(meta, groups, x, adapted, [rng])
        except _Astray:
            self.left_out = {c: why for c, why in self.left_out.items() if c not in self._far}
            told = "round %d: most gradients are too large, since meta-eta is or a site lies: the "
            _log.warning(told + "server begins anew", turn.number)
            meta = meta._replace(theta=self._start)
            (arm,), meta = learner.choose(meta, groups, x, lambda thetas, _: thetas, [rng])
        if arm < 0:
            what = f"what the meta-learner has learned by round {turn.number}"
            raise RunStopped(f"{what} {diverged(arms, 'lower meta-eta')}")
        self._theta = network_record(meta.theta)
        self.state["chosen"] = torch.tensor(meta.rounds)
        self._played["groups"] = len(groups.runs)
        return int(arm)

    def _descent(
        self, turn: _Turn, weights: Weights, drawn: Drawn, eta: Tensor, lam: Tensor
    ) -> Weights:
        def gradients(step: int, at: Weights) -> Weights:
            return self._gradients(turn, at, drawn.step(step))

        return descended(weights, gradients, self._policy.learner.steps, eta, lam)

    def _gradients(self, turn: _Turn, weights: Weights, drawn: Drawn) -> Weights:
        """Returns the gradients at these weights, summed over the sites' replies.

        Sites whose gradient is far larger than that of most are left out of the turn.

        Raises:
            _Astray: Most gradients, of three at least, are impossibly large; or most clients, and
                three at least, would be left out.
        """
        came = self._came
        drawn = drawn._replace(users=np.array(came)[drawn.users])
        heard: list[tuple[list[int], Weights]] = []

        def ask(clients: list[int]) -> Records | None:
            part = drawn_of(clients, drawn)
            return None if part is None else {ARRAYS: question_record(weights, part)}

        def read(content: Content, clients: list[int]) -> None:
            heard.append((clients, self._network(arrays_of(content, ARRAYS), len(drawn.runs))))

        self._exchange(turn, "gradients", came, read, ask)
        entries = [max(float(layer.abs().max()) for layer in part) for _, part in heard]
        usual = median_low(entries) if len(entries) > 2 else 0.0  # of two, either may be a liar's
        limit = _LARGEST * max(1.0, usual)
        far = {
            client: f"its gradient has the impossible entry {entry:.3g}"
            for (clients, _), entry in zip(heard, entries, strict=True)
            for client in clients * (entry > limit)
        }
        self._far |= far.keys()
        if usual > _LARGEST or len(self._far) > max(2, len(came) // 2):
            raise _Astray
        self.left_out |= far
        near = [(clients, part) for clients, part in heard if clients[0] not in far]
        taken = [client for clients, _ in near for client in clients]
        return summed(weights, drawn, taken, [part for _, part in near])

    def _network(self, record: Params, count: int) -> Weights:
        widths = (self._policy.dim, *self._policy.hidden)
        return read_network(record, widths, count)

    def _exchange(
        self, turn: _Turn, asked: str, among: Among, read: Read, records: Ask = lambda clients: {}
    ) -> None:
        questions = self._ask(turn, asked, among, records)
        replies = turn.grid.ask(questions, timeout=self._experiment.timeout)
        self.left_out |= self.gather(turn.number, replies, read)

    def _ask(
        self, turn: _Turn, asked: str, among: Among, records: Ask = lambda clients: {}
    ) -> list[Question]:
        clients = set(self.sites.nodes if among is None else among) - self.left_out.keys()
        config = {**turn.config, ASKED: asked}
        return self.questions(TRAIN, turn.number, config, turn.grid, records, clients)

    def _there(self) -> set[int]:
        return set(self.sites.nodes) - self.left_out.keys()


def _outcome(content: Content, most: float) -> tuple[int, float, float]:
    details = content[CLIENTS]
    turns = read_int(details, "turns")
    reward, regret = read_float(details, "reward"), read_float(details, "regret")
    possible = 0 <= turns <= most and all(
        -_ROUNDING <= total <= turns + _ROUNDING for total in (reward, regret)
    )
    if not possible:
        raise ValueError("its turns, rewards or regrets are impossible")
    return turns, reward, regret
