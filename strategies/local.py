"""Methods that train a network: the server asks a random cohort, and merges its models."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from logging import getLogger
from typing import Any, Self

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord
from flwr.serverapp import Grid

from engram.core.method import Slots
from engram.core.rounds import sent_to
from engram.core.slots import flat, unflat
from engram.metrics import METRICS, Metric
from engram.networks import FLAT
from engram.tasks import CLASSIFICATION, task_of
from engram.types import Params
from federation.aggregation import server_step_notes
from federation.errors import few
from federation.experiment import Experiment
from federation.fingerprint import fingerprint
from federation.methods.network import COMMON, TUNED, NetworkMethod
from federation.noise import Noise
from federation.roster import Roster
from federation.wire import to_params, to_record, units_entries
from strategies.base import Row, RunStrategy, strategies
from strategies.evaluation import Evaluation, center_key
from strategies.loss_watch import LossWatch
from strategies.outgoing import outgoing
from strategies.reading import first_answers
from strategies.rounds import Rounds
from strategies.row_weights import RowWeights
from strategies.score_replies import collect_scores
from strategies.scorekeeping import Scorekeeper, Scoring
from strategies.selection import is_selection
from strategies.train_replies import TrainReplies, collect_replies, in_numbers, warn_of

__all__ = ["Federated"]

_ADVICE = "if their inputs and targets are of usual size"
_log = getLogger("flwr.engram")  # below Flower's logger, whose handlers show it


@strategies(NetworkMethod.plug_in)
class Federated(RunStrategy):
    """Asks a random cohort to train, and merges the replies into the server's slots.

    The method is ``rounds.merge.method``, a record of pure functions; no method has a subclass.
    Cohorts are drawn from ``(seed, round)`` over the roster's clients, and replies are ordered by
    client before they are merged, so that a resumed run, or one on other nodes, computes the same
    model.

    Args:
        rounds: The decisions of its rounds.
        roster: The clients and their nodes. Clients that have not joined are not asked.
        max_weight: As for ``RowWeights``.
        scoring: How clients are scored; by default, by accuracy.
        losses: Whether clients are asked for training losses in every round; if not, only in
            rounds whose config has ``losses`` or does not mention it.
        loss: The metric of these losses; by default, the loss of classifiers.
        steps: The settings to lower if the run diverges, in words.
        notes: Further entries of the results.

    Attributes:
        rounds: As given.
        roster: As given; set it again when clients have joined or moved.
        state: The slots that are not sent unchanged, and the scores. Set it to resume from a
            checkpoint.
        slots: The server's slots from which the last round began.
        drawn: Its clients by node.
        loss: The metric of its training losses; None if they are not wanted.
        left_out: Its clients whose updates were not merged, with reasons.
    """

    def __init__(
        self,
        rounds: Rounds,
        roster: Roster,
        *,
        max_weight: float = np.inf,
        scoring: Scoring | None = None,
        losses: bool = False,
        loss: Metric = CLASSIFICATION.metric,
        steps: str = "the step size",
        notes: Row | None = None,
    ) -> None:
        self.rounds = rounds
        self._weights = RowWeights(rounds.merge.by, max_weight)
        self.roster = roster
        self._scores = Scorekeeper(scoring or Scoring.by_accuracy(), len(roster.nodes))
        self._always_losses = losses
        self._loss = loss
        self.loss: Metric | None = loss
        self._watch = LossWatch(steps)
        self._notes = notes or {}
        self.slots: Slots = {}
        self.drawn: Mapping[int, list[int]] = {}
        self._asked: list[tuple[Message, list[int]]] = []
        self._state: Params = {}
        self._ways: Counter[str] = Counter()
        self.left_out: dict[int, str] = {}

    @property
    def roster(self) -> Roster:
        """The clients and their nodes; set it again when clients have joined or moved."""
        return self._roster

    @roster.setter
    def roster(self, roster: Roster) -> None:
        self._roster = roster
        self._nodes = frozenset(roster.nodes)
        self._weights.compare(roster.examples, roster.names)

    @property
    def state(self) -> Params:
        """The slots that are not sent unchanged, and the scores; set it to resume."""
        return self._state | self._scores.state

    @state.setter
    def state(self, state: Params) -> None:
        self._scores.state = state
        self._state = {name: leaf for name, leaf in state.items() if not is_selection(name)}

    @property
    def evaluation(self) -> Evaluation | None:
        """The last evaluation's scores of every client, or None."""
        return self._scores.evaluation

    @property
    def over(self) -> bool:
        """Whether ``patience`` evaluations have passed without a better score."""
        return self._scores.over

    @property
    def picks(self) -> Mapping[str, int]:
        """The round picked so far, by validation rows, for each model."""
        return self._scores.picks

    @classmethod
    def build(cls, experiment: Experiment, roster: Roster, noise: Noise) -> Self:
        """Builds the strategy of a run: the experiment's network, merge and cohorts."""
        e = experiment
        rounds = Rounds.of(e, roster.kind, noise)
        model = rounds.merge.method.server.start.get("model", {})
        running = rounds.merge.walker.running
        parameters = sum(leaf.numel() for name, leaf in model.items() if name not in running)
        notes = server_step_notes(e, parameters)
        if notes and not notes["exp-concave"]:
            _log.warning(
                "%d parameters are too many for the ensemble's learners for exp-concave losses",
                parameters,
            )
        return cls(
            rounds,
            roster,
            max_weight=e.max_weight,
            scoring=Scoring.of(e, rounds.shapes),
            losses=e.model in FLAT,
            loss=task_of(e.task, e.loss).metric,
            steps=" or ".join(e.of(NetworkMethod).step_sizes()),
            notes=notes,
        )

    def _apart(self, slots: Slots) -> tuple[Slots, Slots]:
        """Divides the server's slots into those sent to all clients unchanged, and the others."""
        method = self.rounds.merge.method
        common, _ = sent_to(method, method.server.start, [0])
        public = {slot: x for slot, x in slots.items() if slot in common}
        return public, {slot: x for slot, x in slots.items() if slot not in common}

    def _whole(self, arrays: ArrayRecord) -> Slots:
        """Joins ``arrays``, the slots sent to all clients unchanged, with the server's others."""
        start = self.rounds.merge.method.server.start
        return unflat(self._state | to_params(arrays), start)

    def init(self) -> ArrayRecord:
        """Initializes the slots; returns those that are sent to all clients unchanged."""
        public, others = self._apart(self.rounds.merge.method.server.start)
        self._state = flat(others)
        return to_record(flat(public))

    def meet(self, roster: Roster) -> None:
        """Updates the clients and their nodes."""
        self.roster = roster

    def row(self, absent: Mapping[int, str]) -> Row:
        """Returns the number of nodes that trained in each of the ``WAYS``."""
        del absent
        return {"ways": dict(sorted(self._ways.items()))} if self._ways else {}

    @property
    def evaluated(self) -> bool:
        """Whether any client was scored in the last evaluation."""
        return self.evaluation is not None

    def scores(self) -> Row:
        """Returns the summary of the last evaluation."""
        return self._scores.scores()

    def client_scores(self) -> Row:
        """Returns each client's main scores in the last evaluation, in columns."""
        return self._scores.main()

    def results(self, arrays: ArrayRecord, row: Row) -> Row:
        """Returns the last evaluation's summary, each client's scores, and the server's step.

        ``client-bytes`` is the traffic of a client that trains in one round, both ways, if it is
        the only client of its node.
        """
        del row
        size = sum(leaf.nbytes for leaf in to_params(arrays).values())
        return {**self._scores.results(), "client-bytes": 2 * size, **self._notes}

    @staticmethod
    def in_words(row: Mapping[str, Any]) -> str:
        """Returns the first metric in a line; "" for a round without an evaluation."""
        name = next((name for name in row if name in METRICS), None)
        if name is None:
            return ""
        metric = METRICS[name]
        served, common = (
            metric.in_words(row[key], 1) if key in row else ""
            for key in (center_key(name + which, metric) for which in ("", COMMON))
        )
        unit = " %" if metric.percent else ""
        which = "median " if metric.center == "median" else ""
        beside = f" (common model: {common}{unit})" if common and common != served else ""
        return f"{which}{name} {served}{unit}{beside}"

    def summary(self) -> None:
        """Logs the settings, once, before the first round."""
        _log.info(
            "%d clients on %d nodes, %d a round, seed %d",
            len(self.roster.nodes),
            len(self._nodes - {None}),
            self.rounds.clients_per_round,
            self.rounds.seed,
        )

    def draw(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> None:
        """Begins a round: its ``slots``, the clients ``drawn``, and whether losses are wanted."""
        self.slots = self._whole(arrays)
        absent = self._absent(grid) | self._scores.scoring.unseen
        cohort = self.rounds.cohort(server_round, len(self.roster.nodes), absent)
        self.drawn = self.roster.by_node(cohort)
        self.loss = self._loss if self._always_losses or config.get("losses", True) else None

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Makes the messages to the nodes of this round's cohort, with the slots for each."""
        self.draw(server_round, arrays, config, grid)
        self._asked = []
        content = outgoing(self.rounds.merge.method, self.slots)
        units = units_entries(self.roster.kind.units)
        for node, clients in self.drawn.items():
            settings = ConfigRecord(
                {
                    **config,
                    "server-round": server_round,
                    "fingerprint": fingerprint(),
                    "clients": clients,
                    "most-examples": self.most,
                    "combine": self.rounds.merge.combines,
                    "losses": self.loss is not None,
                    **units,
                }
            )
            sent = content(settings, clients)
            message = Message(sent, dst_node_id=node, message_type=MessageType.TRAIN)
            self._asked.append((message, clients))
        return [message for message, _ in self._asked]

    @property
    def cohort(self) -> list[int]:
        """The clients that the last round asks, ascending."""
        return sorted(client for clients in self.drawn.values() for client in clients)

    @property
    def most(self) -> int:
        """Largest number of a client's rows that count; 1 if all clients count alike."""
        return self._weights.most

    def askable(self, grid: Grid) -> int:
        """Returns how many clients are on nodes that can be asked now."""
        return len(self.roster.nodes) - len(self._absent(grid) | self._scores.scoring.unseen)

    def _few(self, clients: Sequence[int]) -> str:
        return few(clients, self.roster.names)

    def _absent(self, grid: Grid) -> set[int]:
        missing = self._nodes.difference(grid.get_node_ids())
        if not missing:
            return set()
        return {client for client, node in enumerate(self.roster.nodes) if node in missing}

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Merges the replies that pass screening; returns as ``learn``."""
        replied = collect_replies(
            replies,
            self._asked,
            server_round=server_round,
            shapes=self.rounds.shapes,
            roster=self.roster,
            most=self.most,
            merge=self.rounds.merge,
            loss=self.loss,
        )
        return self.learn(server_round, replied)

    def learn(self, server_round: int, replied: TrainReplies) -> tuple[ArrayRecord, MetricRecord]:
        """Merges what the clients of a round have made of its slots.

        Returns:
            The next arrays, and the round's metrics: ``cohort`` (the clients asked), ``train-loss``
            and ``train-loss-median`` (mean and median over clients, if they were asked for it),
            ``clients`` (number that the model learned from), ``left-out`` (number asked, but
            without a usable reply), ``bounded`` (clients whose weight was limited by
            ``max_weight``, if any), and ``rejected-KIND`` (number of rejected replies of each kind
            that occurred).

        Raises:
            RunStopped: Too few replies are usable, or most of the cohort diverged.
        """
        rounds, names = self.rounds, self.roster.names
        found = rounds.screened(self.slots, replied)
        self.left_out = found.left_out
        updates = rounds.updates(found, server_round, names)
        found.log(server_round, names)
        losses = [loss for _, reply in found.accepted for loss in reply.losses]
        means = {}
        if losses:
            means["train-loss"], median = float(np.mean(losses)), float(np.median(losses))
            means["train-loss-median"] = median
            self._watch.see(server_round, median)
        slots = rounds.merged(self.slots, updates, server_round)
        public, others = self._apart(slots)
        self._state = flat(others)
        self._ways = Counter(reply.way for _, reply in found.accepted if reply.way)
        rows = {c: self.roster.examples[c] for _, reply in found.accepted for c in reply.clients}
        bounded = self._weights.bounded(rows, server_round)
        return to_record(flat(public)), MetricRecord(
            {
                "cohort": self.cohort,
                **means,
                "clients": found.usable,
                "left-out": found.asked - found.usable,
                **({"bounded": bounded} if bounded else {}),
                **in_numbers(found.kinds),
            }
        )

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks every online node to score its clients, whether or not they trained."""
        present = set(grid.get_node_ids())
        self._scores.evaluation = None
        units = units_entries(self.roster.kind.units)
        settings = ConfigRecord(
            {**config, "server-round": server_round, "fingerprint": fingerprint(), **units}
        )
        content = outgoing(self.rounds.merge.method, self._whole(arrays))
        everyone = [c for c in range(len(self.roster.nodes)) if c not in self.roster.unscored]
        self._asked = [
            (Message(content(settings, clients), node, MessageType.EVALUATE), clients)
            for node, clients in self.roster.by_node(everyone).items()
            if node in present
        ]
        return [message for message, _ in self._asked]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Gathers the scores, by client, into ``evaluation``.

        Returns:
            ``clients`` (number scored), and ``rejected-KIND`` (number of rejected replies of each
            kind that occurred); None if no client was scored.
        """
        asked = [message for message, _ in self._asked]
        answers, kinds = first_answers(replies, asked)
        warn_of(kinds, server_round)
        scores, rejected = collect_scores(
            answers,
            self._asked,
            server_round=server_round,
            columns=self._scores.scoring.columns,
            names=self.roster.names,
        )
        kinds += rejected
        if not scores:
            return None
        evaluation = self._scores.take(server_round, scores)
        self._warn_of_losses(server_round, evaluation)
        for name, clients in self._scores.outlying.items():
            _log.warning(
                "round %d: the mean %s is what clients %s say, and no others; its median counts",
                server_round,
                name,
                self._few(clients),
            )
        return MetricRecord({"clients": len(scores), **in_numbers(kinds)})

    def _warn_of_losses(self, server_round: int, evaluation: Evaluation) -> None:
        """Warns of models whose losses on test rows are not finite."""
        lost = {
            which: ~np.isfinite(evaluation.columns[f"loss{which}"])
            for which in (COMMON, "", TUNED)
            if f"loss{which}" in evaluation.columns
        }
        common = lost.get(COMMON, np.zeros(len(evaluation.clients), dtype=bool))
        for some, told in (
            (common, "the common model's loss on test rows is not finite for clients %s"),
            (lost[""] & ~common, "the loss on test rows is not finite for clients %s"),
            (
                lost.get(TUNED, lost[""]) & ~common & ~lost[""],
                f"fine-tuning diverged for clients %s: {_ADVICE}, lower adapt-lr",
            ),
        ):
            if some.any():
                clients = np.array(evaluation.clients)[some].tolist()
                _log.warning(f"round %d: {told}", server_round, self._few(clients))
