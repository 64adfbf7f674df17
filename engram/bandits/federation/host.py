"""The sites' side of Meta-Ban: users' rows and networks stay here, only answers leave.

In a turn the server asks whose turn it is and which arms are offered, then for the predictions of
the clients' networks for these arms, then for gradients of the loss on rows that it draws by
number; last, it says which arm to play. This arm and its reward become a row, on which the client's
network is trained. Rewards are reported only as sums over several turns.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np
import torch

from engram.bandits.environments.environment import Round
from engram.bandits.federation.bandit_turns import Arrivals, drawn_arrivals, table_arrivals
from engram.bandits.federation.meta_ban import MetaBan
from engram.bandits.federation.meta_ban_messages import (
    ARM,
    ARMS,
    ASKED,
    MEMBERS,
    PREDICTIONS,
    network_record,
    read_arms,
    read_question,
)
from engram.bandits.federation.policy import policy_of
from engram.bandits.networks import Weights
from engram.bandits.policy import INIT, UPDATE, generator
from engram.bandits.replay import Drawn, kept_rows
from engram.bandits.site import UserSiteState, recalled, remembered
from engram.client.hosts.base import Opening, hosts
from engram.client.hosts.rows import read_tables
from engram.client.memory import MemoryStore
from engram.client.requests import Request, answered, durable_of, round_of
from engram.core.arrays import Array, Ints
from engram.core.types import Params
from engram.data.schema.columns import Kind
from engram.settings.errors import EngramError, brief, one_line
from engram.settings.experiment import Experiment
from engram.wire.messages import Content, Reply
from engram.wire.roster import describe_node
from engram.wire.wire import (
    ARRAYS,
    CLIENTS,
    arrays_of,
    config_of,
    floats_record,
    read_int,
    read_list,
)


class UserSites:
    """Hosts users, one per client: their networks and rows, kept in ``store``.

    Raises:
        Refused: Networks of so many ``clients`` do not fit into memory.
    """

    def __init__(
        self, experiment: Experiment, arrivals: Arrivals, store: MemoryStore, clients: int
    ) -> None:
        self.experiment = experiment
        self.arrivals = arrivals
        self._store = store
        self.own = experiment.of(MetaBan)
        policy = policy_of(experiment, arrivals.dim, clients)
        self._site = policy.site
        start = policy.start([generator(experiment.seed, 0, INIT)])
        self._state = self._site.init(start)
        self._new = _kept(self._state, 0, np.zeros(3))
        self._places: dict[int, int] = {}
        self._untold: dict[int, Array] = {}
        self._versions: dict[int, int] = {}
        self.turn = lru_cache(maxsize=4)(arrivals.turn)

    def offer(
        self, clients: Sequence[int], members: Sequence[int], server_round: int
    ) -> Round | None:
        """Returns the arms offered in this round, if it is the turn of one of these clients."""
        found = self.turn(server_round - 1, tuple(members))
        return found if found is not None and found.user in clients else None

    def predictions(
        self, clients: Sequence[int], arms: Array, server_round: int
    ) -> tuple[Array, list[int]]:
        """Returns f(x_i; theta^u) of clients, (n, K), and each one's number of rows."""
        places = self._placed(clients, server_round)
        found = self._site.predictions(self._state, torch.from_numpy(arms)[None].mT)[0, places]
        return found.numpy(), kept_rows(self._state.rows)[0, places].tolist()

    def gradients(self, weights: Weights, drawn: Drawn, server_round: int) -> Weights:
        """Returns the gradients of each network on the rows drawn; their users are clients.

        Raises:
            ValueError: If these rows do not exist.
        """
        clients, which = np.unique(drawn.users, return_inverse=True)
        places = self._placed(clients.tolist(), server_round)
        drawn = drawn._replace(users=places[which].reshape(drawn.users.shape))
        there = kept_rows(self._state.rows)[0, drawn.users]
        if ((drawn.slots >= there) & ((drawn.shares > 0) | (drawn.slots > 0))).any():
            raise ValueError("the server asks about rows that are not there")
        return self._site.gradients(self._state, weights, drawn)

    def play(
        self, client: int, members: Sequence[int], arm: int, *, server_round: int, durable: int
    ) -> Array:
        """Plays an arm of this round, trains the client's network, and stores it.

        The turn is drawn among the ``members``; ``durable`` is as for ``MemoryStore.save``.

        Returns:
            Numbers of turns, rewards and regrets since the last report; 0 until there are enough
            turns for a report.

        Raises:
            ValueError: If it is not the client's turn, or there is no such arm.
            MemoryFull: If there is no space to store the network, which then is unchanged.
        """
        offer = self.offer([client], members, server_round)
        if offer is None:
            raise ValueError(f"round {server_round} is not its turn")
        if not 0 <= arm < len(offer.arms):
            raise ValueError(f"it was offered {len(offer.arms)} arms, and is told to play {arm}")
        (place,) = self._placed([client], server_round)
        rng = generator(self.experiment.seed, server_round - 1, UPDATE)
        x, reward = offer.arms[arm][None], offer.rewards[arm]
        users, meta = np.array([place]), self._state.start  # unused with these settings
        state = self._site.learn(self._state, users, x, np.array([reward]), meta, [rng])
        untold = self._untold[client] + [1, reward, offer.means.max() - offer.means[arm]]
        told = untold if untold[0] >= self.own.report_every else np.zeros(3)
        kept = _kept(state, place, untold - told)
        self._store.save(client, kept, server_round=server_round, durable=durable)
        self._state, self._untold[client] = state, untold - told  # only once it is stored
        self._versions[client] = server_round
        return told

    def untold(self, clients: Sequence[int], server_round: int) -> Array:
        """Returns these clients' unreported turns, rewards and regrets in sum; 0 if too few."""
        self._placed(clients, server_round + 1)
        total = np.sum([self._untold[client] for client in clients], axis=0)
        return total if total[0] >= self.own.report_every else np.zeros(3)

    def _placed(self, clients: Sequence[int], server_round: int) -> Ints:
        """Returns clients' indices in the state, after restoring each as it was before the round.

        A repeated round thus starts from the same state as at first. The store may also be newer
        than this state, since Ray has several workers for one node.
        """
        for client in clients:
            version = self._store.newest(client, before=server_round)
            if self._versions.get(client) == version:
                continue
            place = self._places.setdefault(client, len(self._places))
            kept = dict(self._store.load(client, before=server_round) or self._new)
            self._untold[client] = kept.pop("untold").numpy()
            self._state = self._site.welcome(self._state, np.array([place]))
            self._state = recalled(self._state, [place], kept)
            self._versions[client] = version
        return np.array([self._places[client] for client in clients], dtype=np.intp)

    def describe(self, hosted: Sequence[int]) -> Content:
        """Describes the number of turns, and the features of the arms."""
        clients = dict.fromkeys(hosted, self.experiment.num_rounds)
        names = [f"x{k}" for k in range(self.arrivals.dim)]
        return describe_node(clients, Kind.of_table(names), self.arrivals.names)

    def train(self, requests: Sequence[Request]) -> list[Reply]:
        """Answers questions of a turn."""
        return [answered(request, partial(_answer, self, request)) for request in requests]

    def evaluate(self, requests: Sequence[Request]) -> list[Reply]:
        """Reports turns, rewards and regrets that have not been reported yet."""
        return [answered(request, partial(_totals, self, request)) for request in requests]


@hosts(MetaBan.plug_in)
def _open(opening: Opening) -> UserSites:
    e, hosted = opening.experiment, opening.hosted
    rows = bool(opening.own) or e.own.holds_rows(e)
    arrivals = table_arrivals(e, read_tables(opening)) if rows else drawn_arrivals(e)
    clients = 1 if opening.own else e.num_clients if hosted is None else len(hosted)
    return UserSites(e, arrivals, opening.store, clients)


def _kept(state: UserSiteState, place: int, untold: Array) -> Params:
    return remembered(state, [place]) | {"untold": torch.from_numpy(untold.copy())}


def _answer(host: UserSites, request: Request, clients: list[int]) -> Content:
    content = request.question.content
    answer = _ANSWERS.get(str(config_of(content).get(ASKED)))
    if answer is None:
        raise EngramError(f"{ASKED} must be one of {', '.join(_ANSWERS)}")
    try:
        return answer(host, content, clients, round_of(content))
    except (KeyError, TypeError, ValueError) as error:
        raise EngramError(one_line(f"{error}")) from error


def _offer(host: UserSites, content: Content, clients: list[int], number: int) -> Content:
    found = host.offer(clients, _members(content), number)
    served = [] if found is None else [found.user]
    records = {} if found is None else {ARMS: floats_record(arms=found.arms)}
    return _reply(number, records, served=served)


def _predictions(host: UserSites, content: Content, clients: list[int], number: int) -> Content:
    arms = read_arms(arrays_of(content, ARMS), host.arrivals.dim)
    found, rows = host.predictions(clients, arms, number)
    return _reply(number, {PREDICTIONS: floats_record(predictions=found)}, rows=rows)


def _gradients(host: UserSites, content: Content, clients: list[int], number: int) -> Content:
    widths = host.arrivals.dim, *host.experiment.hidden_widths
    weights, drawn = read_question(arrays_of(content, ARRAYS), widths, clients)
    found = host.gradients(weights, drawn, number)
    return _reply(number, {ARRAYS: network_record(found)})


def _play(host: UserSites, content: Content, clients: list[int], number: int) -> Content:
    (client,) = clients
    arm, durable = read_int(config_of(content), ARM), durable_of(content)
    members = _members(content)
    return _report(number, host.play(client, members, arm, server_round=number, durable=durable))


def _members(content: Content) -> list[int]:
    found = read_list(config_of(content), MEMBERS, int)
    if not found or found != sorted(set(found)):
        raise ValueError(f"{MEMBERS} must be clients in ascending order, got {brief(found)}")
    return found


def _reply(number: int, records: Mapping[str, Params], **details: Any) -> Content:
    return {**records, CLIENTS: {"server-round": number, **details}}


def _report(number: int, totals: Array) -> Content:
    turns, reward, regret = totals.tolist()
    return _reply(number, {}, turns=int(turns), reward=reward, regret=regret)


_ANSWERS = {"offer": _offer, "predictions": _predictions, "gradients": _gradients, "play": _play}


def _totals(host: UserSites, request: Request, clients: list[int]) -> Content:
    number = round_of(request.question.content)
    return _report(number, host.untold(clients, number))
