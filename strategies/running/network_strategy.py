"""Methods that train a network: the server asks a random cohort, and merges its models."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from functools import partial
from logging import getLogger
from typing import Any, Self

import numpy as np
import torch

from engram.core.method import Slots, Update
from engram.core.slots import flat, unflat
from engram.core.tree import multiplied
from engram.core.types import Params
from engram.guards.chain import parted
from engram.guards.changes import size_of
from engram.guards.noise import Noise
from engram.guards.secure.quantize import Words
from engram.guards.secure.secure_sum import MASKED
from engram.networks.registry import FLAT
from engram.scoring.evaluation import center_key
from engram.scoring.metrics import METRICS, Metric
from engram.scoring.score_columns import COMMON
from engram.scoring.tasks import task_of
from engram.settings.errors import Refused, one_line
from engram.settings.experiment import Experiment
from engram.settings.fingerprint import fingerprint
from engram.settings.network import NetworkMethod
from engram.strategies.running.async_rounds import Sent, answered_of, joined, pacing_of
from engram.strategies.running.base import Nodes, Row, nested, strategies, widened
from engram.strategies.running.compressed_messages import outgoing
from engram.strategies.running.reply_border import Rejected
from engram.strategies.running.rounds import Heavy, LossWatch, Rounds, Wave
from engram.strategies.running.scored_strategy import ScoredStrategy
from engram.strategies.running.screening import Accepted, TrainReplies, in_numbers, mean_of
from engram.strategies.running.secure_rounds import Exchange
from engram.strategies.running.train_replies import collect_replies, screen
from engram.wire.messages import TRAIN, Content, Question, Reply
from engram.wire.roster import Roster
from engram.wire.tensors import difference
from engram.wire.wire import units_entries

_log = getLogger("flwr.engram")  # below Flower's logger, whose handlers show it


@strategies(NetworkMethod.plug_in)
class Federated(ScoredStrategy):
    """Asks a random cohort to train, and merges the replies into the server's slots.

    The method is ``rounds.merge.method``, a record of pure functions; no method has a subclass.
    Cohorts are drawn from ``(seed, round)`` over the roster's clients, and replies are ordered by
    client before they are merged, so that a resumed run, or one on other nodes, computes the same
    model. Clients of the roster that have not joined are not asked.
    """

    def __init__(self, rounds: Rounds, roster: Roster) -> None:
        super().__init__(rounds, roster)
        e, self.masks, method = rounds.settings, rounds.merge.guard.masks, rounds.merge.method
        self._public = method.server.send(method.server.start, [0])[0].keys()
        self._heavy = Heavy(e.max_weight)
        self._mean_loss = mean_of(self.scoring.metrics[-1])
        # Else only in rounds whose config has ``losses``, or does not mention it.
        self._always_losses = e.model in FLAT and not self.masks
        self._loss = task_of(e.task, e.loss).metric
        self.loss: Metric | None = self._loss  # of the last round; None if none are wanted
        self._watch = LossWatch(" or ".join(e.of(NetworkMethod).step_sizes()))
        model, running = method.server.start.get("model", {}), rounds.merge.running
        parameters = sum(leaf.numel() for name, leaf in model.items() if name not in running)
        self._notes = _step_notes(e, parameters)
        if self._notes and not self._notes["exp-concave"]:
            many = "%d parameters are too many for the ensemble's learners for exp-concave losses"
            _log.warning(many, parameters)
        self.slots: Slots = {}  # from which the last round began; none once it is scored
        self._pacing = pacing_of(rounds, roster, self._traffic.size if self._traffic else None)
        self.waves: list[Wave] = []  # of the last round
        self._sent: list[Sent] = []
        self._state: Params = {}
        self._ways: Counter[str] = Counter()
        self.left_out: dict[int, str] = {}

    @property
    def state(self) -> Params:
        """The slots that are not sent unchanged, and the scores; set it to resume."""
        each = ((f"{owner}/", part.state) for owner, part in self._owners.items())
        return self._state | {owner + name: x for owner, of in each for name, x in of.items()}

    @state.setter
    def state(self, state: Params) -> None:
        self._state, of = nested(state)
        for owner, part in self._owners.items():
            part.state = of[owner]

    @property
    def _owners(self) -> dict[str, Any]:
        """The owners of state beside the method's."""
        traffic = {"traffic": self._traffic} if self._traffic else {}
        return {"selection": self.selections, "clock": self._pacing, **traffic}

    @property
    def over(self) -> bool:
        """Whether ``patience`` evaluations have passed without a better score."""
        served = self.selections.get("")
        return served is not None and 0 < self.scoring.patience <= served.since

    @classmethod
    def build(cls, experiment: Experiment, roster: Roster, noise: Noise) -> Self:
        """Builds the strategy of a run: the experiment's network, merge and cohorts."""
        return cls(Rounds.of(experiment, roster.kind, noise, roster.names), roster)

    def _hold(self, slots: Slots) -> Params:
        """Returns the server's slots that are sent to all clients unchanged; holds the others."""
        self._state = flat({slot: x for slot, x in slots.items() if slot not in self._public})
        return flat({slot: x for slot, x in slots.items() if slot in self._public})

    def _whole(self, model: Params) -> Slots:
        return unflat(self._state | model, self.rounds.merge.method.server.start)

    def init(self) -> Params:
        """Initializes the slots; returns those that are sent to all clients unchanged."""
        return self._hold(self.rounds.merge.method.server.start)

    def meet(self, roster: Roster) -> None:
        """Updates the clients and their nodes."""
        super().meet(roster)
        self._nodes = frozenset(roster.nodes)
        self._nowhere = {client for client, node in enumerate(roster.nodes) if node is None}
        self.most = self.rounds.merge.most(roster.examples)

    def succeed(self, before: Self, model: Params) -> Params:
        """Goes on where a strategy of fewer clients has come to; see ``Server.means``."""
        super().succeed(before, model)
        if self._traffic:
            self._traffic.forget()  # whose means change, too
        self._sent = before._sent
        slots, among = self._whole(model), len(before.roster.nodes) / len(self.roster.nodes)
        means = self.rounds.merge.method.server.means
        return self._hold(slots | {slot: multiplied(slots[slot], among) for slot in means})

    def start_from(self, model: Params, state: Params) -> Params:
        """Starts from the slots of another run, as far as this method has them, too.

        Means over clients of what they keep begin anew, since what they keep does.
        """
        server = self.rounds.merge.method.server
        start = flat({slot: x for slot, x in server.start.items() if slot not in server.means})
        found = {path: leaf for path, leaf in (model | state).items() if path in start}
        each = {path: found[path] for path in self.rounds.axes() if path in found}
        found |= widened(each, start)
        wrong = difference(found, {path: start[path] for path in found})
        if not found or wrong:
            why = one_line(wrong or "it has none of this method's")
            expected = "a run of the same network, with as many clients or fewer"
            raise Refused(f"start-from must be {expected}: {why}")
        return self._hold(unflat(flat(server.start) | found, server.start))

    def forget(self, clients: Sequence[int]) -> None:
        """Resets the server's entries of clients to their initial values."""
        at, start = torch.tensor(clients), flat(self.rounds.merge.method.server.start)
        for path, axes in self.rounds.axes().items():
            for axis in axes:
                begun = start[path].index_select(axis, at)
                self._state[path] = self._state[path].index_copy(axis, at, begun)

    def row(self, absent: Mapping[int, str]) -> Row:
        """Returns the number of nodes that trained in each of the ``WAYS``, and the clock."""
        del absent
        ways = {"ways": dict(sorted(self._ways.items()))} if self._ways else {}
        return ways | self._pacing.row

    def unscored(self, row: Row) -> Row:
        """Returns a round's record without scores, and training losses if only they need them."""
        losses = () if self._always_losses else ("train-loss", "train-loss-median")
        lost = {key for key in row if key in losses or self.is_score(key)}
        return {key: value for key, value in row.items() if key not in lost}

    def results(self, arrays: Params, row: Row) -> Row:
        """Returns the last evaluation's summary, clients' scores, guards, and the server's step.

        ``client-bytes`` is the traffic of a client that trains in one round, both ways, if it is
        the only client of its node. ``client-gradients`` are of batches, and those that a client
        computes in a round, in the mean over clients; absent if they are unknown.
        """
        del arrays
        steps = Counter(self.rounds.steps(rows) for rows in self.roster.examples if rows)
        each = [(self.rounds.shapes.gradients(count), times) for count, times in steps.items()]
        known = [count * times for count, times in each if count is not None]
        cost = {"client-gradients": sum(known) / steps.total()} if known else {}
        size = self.rounds.shapes.traffic
        if self._traffic:
            asked = len(row["cohort"]) - len(self._pacing.late)
            size = round((row["bytes-sent"] + row["bytes-received"]) / max(1, asked))
        guards = {"guards": self.rounds.merge.guard.name}
        return {**self.score_results(), "client-bytes": size, **cost, **guards, **self._notes}

    @staticmethod
    def in_words(row: Mapping[str, Any]) -> str:
        """Returns the first metric in a line; "" for a round without an evaluation."""
        if (name := next((name for name in row if name in METRICS), None)) is None:
            return ""
        metric = METRICS[name]
        served, common = (
            metric.in_words(row[key], 1) if key in row else ""
            for key in (center_key(name + which, metric) for which in ("", COMMON))
        )
        unit = " %" if metric.percent else ""
        which = "median " if metric.center == "median" else ""
        beside = f" (global model: {common}{unit})" if common and common != served else ""
        return f"{which}{name} {served}{unit}{beside}"

    def draw(
        self, server_round: int, model: Params, *, losses: bool, away: Set[int] = frozenset()
    ) -> None:
        """Begins a round: its ``slots``, its ``waves``, and whether losses are wanted."""
        self.slots = self._whole(model)
        absent, everyone = self._nowhere | away, len(self.roster.nodes)

        def drawn(number: int, count: int, busy: Collection[int]) -> Sequence[int]:
            return self.rounds.cohort(number, everyone, absent | {*busy}, count, self.unseen)

        self.waves = self._pacing.next(server_round, self.slots, drawn)
        self.loss = self._loss if self._always_losses or losses else None

    def configure_train(
        self, server_round: int, arrays: Params, config: Mapping[str, Any], grid: Nodes
    ) -> Iterable[Question]:
        """Returns the questions to the nodes of this round's cohort, with the slots for each."""
        losses = bool(config.get("losses", True))
        self._asked = []  # which hold a model
        if self._traffic:
            self._traffic.messages = True
        nodes = grid.at_work
        self._pacing.working = self._working(nodes)
        away = self.absent(grid) | {c for c, node in enumerate(self.roster.nodes) if node in nodes}
        self.draw(server_round, arrays, losses=losses, away=away)
        new = [Sent(wave, self.loss, self._questions(wave, config)) for wave in self.waves]
        self._sent += new
        return [question for sent in new for question, _ in sent.asked]

    def _working(self, nodes: Collection[int]) -> set[int]:
        """Forgets questions but to nodes that are at work; returns the clients that these ask."""
        held = [sent.only(lambda question: question.node in nodes) for sent in self._sent]
        self._sent = [sent for sent in held if sent.asked]
        return {client for sent in self._sent for _, clients in sent.asked for client in clients}

    def _questions(self, wave: Wave, config: Mapping[str, Any]) -> list[tuple[Question, list[int]]]:
        content = outgoing(self.rounds.merge.method, wave.slots, self._traffic)
        units = units_entries(self.roster.kind.units)
        found = []
        for node, clients in self.roster.by_node(wave.clients).items():
            settings = {
                **config,
                "server-round": wave.server_round,
                "fingerprint": fingerprint(),
                "clients": clients,
                "most-examples": self.most,
                "combine": self.rounds.merge.combines,
                "losses": self.loss is not None,
                **units,
            }
            found.append((Question(node, TRAIN, content(settings, clients)), clients))
        return found

    @property
    def cohort(self) -> list[int]:
        """The clients that the last round asks, ascending; twice who trained on two models."""
        asked = [client for wave in self.waves for client in wave.clients]
        return sorted([*asked, *self._pacing.late])

    def absent(self, grid: Nodes) -> set[int]:
        """Returns the clients on nodes that cannot be asked now."""
        missing = self._nodes.difference(grid.get_node_ids())
        if not missing:
            return set()
        return {client for client, node in enumerate(self.roster.nodes) if node in missing}

    def aggregate_train(self, server_round: int, replies: Sequence[Reply]) -> tuple[Params, Row]:
        """Merges the replies that pass screening; returns as ``learn``."""
        came, due = {reply.question: reply for reply in replies}, self._sent
        if self._pacing.waits:
            due, self._sent, self._pacing.row = answered_of(server_round, due, came)
        self.waves, replied = [sent.wave for sent in due], []
        for sent in due:
            read = partial(
                screen,
                server_round=sent.wave.server_round,
                rounds=self.rounds,
                most=self.most,
                loss=sent.loss,
                server=sent.wave.slots,
            )
            replied.append(collect_replies(came, sent.asked, self.roster.examples, read))
        return self.learn(server_round, *replied)

    def read_part(self, sites: Exchange, party: int, content: Content) -> Accepted | Rejected:
        """Reads a party's masked update; see ``SummedStrategy``."""
        rounds, clients, session = self.rounds, sites.clients[party], sites.session
        size = size_of(flat(rounds.shapes.sent))
        masked = rounds.shapes._replace(sent={MASKED: torch.empty(size, dtype=torch.int32)})
        return screen(
            content,
            server_round=session.number,
            rounds=rounds._replace(shapes=masked),
            asked=clients,
            examples={client: self.roster.examples[client] for client in clients},
            most=session.most,
            loss=None,
            server=self.slots,
        )

    def learn_sum(
        self, sites: Exchange, trained: Mapping[int, Accepted], total: Words
    ) -> tuple[Params, Row]:
        """Merges the sum of a round's updates; returns and raises as ``learn``."""
        rounds, session, replies = self.rounds, sites.session, trained.values()
        ids = sorted(client for reply in replies for client in reply.clients)
        rows = sum(reply.updates[0].rows for reply in replies)
        at = rounds.merge.at(self.slots, session.number)
        at = at._replace(sum=session.sum, like=rounds.shapes.sent)
        masked = Update({MASKED: torch.from_numpy(total.view(np.int32))}, rows, len(ids))
        updates, _ = parted([rounds.merge.guard.arrive(at, masked)])
        failed = {client: why for reply in replies for client, why in reply.failed.items()}
        ways = {reply.way for reply in replies}
        accepted = Accepted(ids, updates, [], failed, ways.pop() if len(ways) == 1 else "")
        whole = sites.without(trained)._replace(accepted=[accepted])
        return self.learn(session.number, whole)

    def learn(self, server_round: int, *replied: TrainReplies) -> tuple[Params, Row]:
        """Merges the updates of a round's waves.

        Returns:
            The next slots that are sent to all clients unchanged, and the round's metrics:
            ``cohort`` (the clients asked), ``train-loss`` and ``train-loss-median`` (mean and
            median over clients, if they were asked for it; no mean that a single client owns, see
            ``screening.mean_of``), ``clients`` (number that the model learned from),
            ``left-out`` (number asked, but without a usable reply), ``bounded``
            (clients whose weight was limited by ``max_weight``, if any), ``clip`` (the bound of
            updates, where it is adaptive), and ``rejected-KIND`` (number of rejected replies of
            each kind that occurred).

        Raises:
            RunStopped: Too few replies are usable, or most of the cohort diverged.
        """
        rounds, names = self.rounds, self.roster.names
        replied = tuple(
            rounds.admitted(self.slots, wave, replies, server_round)
            for wave, replies in zip(self.waves, replied, strict=True)
        )
        traffic = self._traffic.note(self.waves, replied) if self._traffic else {}
        whole = replied[0] if len(replied) == 1 else joined(replied)
        slots, found = rounds.learned(self.slots, whole, server_round, names)
        self.left_out = dict.fromkeys(self._pacing.late, "late") | found.left_out
        if not found.complete:
            found.log(server_round, names)
        losses, clients, ways, means = list[float](), list[int](), list[str](), dict[str, float]()
        for reply in found.accepted:
            losses += reply.losses
            clients += reply.clients
            ways.append(reply.way)
        self._ways = Counter(filter(None, ways))
        if losses:
            mean = float(self._mean_loss(np.array(losses)))
            means |= {} if np.isnan(mean) else {"train-loss": mean}
            means["train-loss-median"] = median = float(np.median(losses))
            self._watch.see(server_round, median)
        model = self._hold(slots)
        heavy = clients if self.rounds.merge.by_rows else ()
        bounded = self._heavy.among(heavy, self.roster, self.most, server_round)
        return model, {
            "cohort": self.cohort,
            **means,
            "clients": len(clients),
            "left-out": len(self.cohort) - len(clients),
            **({"bounded": bounded} if bounded else {}),
            **({"clip": float(self.slots["clip"])} if rounds.merge.settings.clip_quantile else {}),
            **in_numbers(found.kinds),
            **traffic,
        }

    def asked_to_score(self, model: Params, grid: Nodes) -> tuple[Slots, dict[int, list[int]]]:
        """Begins an evaluation; see ``ScoredStrategy``."""
        # The former model, which messages hold as well, has no use any more.
        self.slots, self.waves = {}, [wave._replace(slots={}) for wave in self.waves]
        if not self._pacing.waits:
            self._sent = []
        return super().asked_to_score(model, grid)


def _step_notes(e: Experiment, parameters: int) -> dict[str, Any]:
    """Returns entries of a run's results about its server step, for so many ``parameters``.

    Empty where the merged model replaces the last one. Otherwise ``server-step``,
    ``server-radius``, and whether there are base learners for ``exp-concave`` losses.
    """
    if e.server_step == "replace":
        return {}
    from engram.online.server_step import has_exp_concave  # noqa: PLC0415 - loads numba

    return {
        "server-step": e.server_step.partition(":")[0],
        "server-radius": e.server_radius,
        "exp-concave": has_exp_concave(parameters),
    }
