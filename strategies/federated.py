"""The one round loop that every algorithm of this platform shares."""

from collections import Counter
from collections.abc import Iterable, Sequence
from logging import getLogger
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from engram.aggregates import Aggregate
from engram.tree import add_scaled, is_finite, norm
from engram.types import Params
from federation.errors import RunStopped, few
from federation.fingerprint import fingerprint
from federation.roster import Roster
from federation.streams import Stream, generator
from federation.wire import ARRAYS, CLIENTS, CONFIG, to_params, to_record
from strategies.screening import Accepted, Rejected, screen

__all__ = ["Evaluation", "Federated", "draw_cohort"]

_log = getLogger("flwr.engram")  # below Flower's logger, whose handlers show it

_FAR = 100  # honest updates of one round differ by less

Column = npt.NDArray[np.float64]


class Evaluation(NamedTuple):
    """Scores of all clients, each column in the order of ``clients``, which ascends.

    Attributes:
        clients: Who was scored.
        before: Accuracy of the common model, in [0, 1].
        personalized: Accuracy after personalization.
        own: Accuracy of the model that the client keeps; NaN where it keeps none.
        loss_before: Loss of the common model, in nats.
        loss_personalized: Loss after personalization.
        queries: Rows scored.
    """

    clients: list[int]
    before: Column
    personalized: Column
    own: Column
    loss_before: Column
    loss_personalized: Column
    queries: Column


class Federated(Strategy):
    """Asks a random cohort to train, and replaces the model by an aggregate of the replies.

    What is specific to an algorithm comes in as ``aggregate``, a record of pure functions; there
    is no subclass per algorithm. Cohorts are drawn from ``(seed, round)`` over the roster's
    clients, and replies are ordered by client before they are merged, so that a resumed run, or
    one on other nodes, computes the same model.

    Args:
        aggregate: The server's share of the algorithm.
        roster: The clients, and the nodes that host them.
        clients_per_round: Clients asked each round; 1..len(roster.nodes).
        seed: Root of the sampling stream.
        shards: As in ``draw_cohort``.

    Attributes:
        aggregate: As given.
        state: What the aggregate remembers; None until the first round starts. Set it to go on
            from a checkpoint.
        evaluation: The last evaluation's scores of every client, or None.
    """

    def __init__(
        self,
        aggregate: Aggregate,
        roster: Roster,
        *,
        clients_per_round: int,
        seed: int,
        shards: int = 1,
    ) -> None:
        self.aggregate = aggregate
        self._roster = roster
        self._clients_per_round = clients_per_round
        self._seed = seed
        self._shards = shards
        self._model: Params = {}
        self._asked: list[tuple[Message, list[int]]] = []
        self.state: Params | None = None
        self.evaluation: Evaluation | None = None

    def summary(self) -> None:
        """Logs the settings, once, before the first round."""
        _log.info(
            "%d clients on %d nodes, %d a round, seed %d",
            len(self._roster.nodes),
            len(set(self._roster.nodes)),
            self._clients_per_round,
            self._seed,
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Addresses the current model to the nodes that host this round's cohort."""
        del grid
        self._model = to_params(arrays)
        if self.state is None:
            self.state = self.aggregate.init(self._model)
        cohort = draw_cohort(
            self._seed,
            server_round,
            len(self._roster.nodes),
            self._clients_per_round,
            shards=self._shards,
        )
        self._asked = []
        for node, clients in self._roster.by_node(cohort).items():
            settings = ConfigRecord(
                {
                    **config,
                    "server-round": server_round,
                    "fingerprint": fingerprint(),
                    "clients": clients,
                    "weighting": self.aggregate.weighting,
                    "combine": self.aggregate.additive,
                }
            )
            content = RecordDict({ARRAYS: arrays, CONFIG: settings})
            message = Message(content, dst_node_id=node, message_type=MessageType.TRAIN)
            self._asked.append((message, clients))
        return [message for message, _ in self._asked]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Merges the replies that pass screening.

        Returns:
            The next model, and the round's metrics: ``cohort`` (who was asked), ``train-loss``
            (mean over clients), ``clients`` (that the model now learned from), ``left-out``
            (asked, but without a usable reply), and ``rejected-KIND`` for each kind of rejection
            that occurred.

        Raises:
            RunStopped: No reply is usable, or most of the cohort diverged.
        """
        accepted, rejected, silent = self._screen(replies)
        # Under central privacy, whether a reply is left out must not depend on the others.
        if not self.aggregate.bounded:
            accepted, far = _implausible(accepted, self._model)
            rejected += far
        diverged = {
            client: reason for _, reply in accepted for client, reason in reply.failed.items()
        }
        for clients, reply in rejected:
            if reply.kind in ("diverged", "non-finite"):
                diverged |= dict.fromkeys(clients, reply.reason)
        asked = sum(len(clients) for _, clients in self._asked)
        if 2 * len(diverged) > asked:
            raise RunStopped(
                f"round {server_round} diverged: the models of clients {few(sorted(diverged))} "
                "became non-finite; start anew with a smaller alpha or eta"
            )
        if not accepted:
            reasons = [f"clients {few(clients)}: {reply.reason}" for clients, reply in rejected]
            reasons += [f"clients {few(clients)}: no reply" for clients in silent]
            raise RunStopped(f"round {server_round} has no usable reply; {'; '.join(reasons)}")
        for clients, reply in rejected:
            _log.warning(
                "round %d: the reply of clients %s is left out (%s): %s",
                server_round,
                few(clients),
                reply.kind,
                reply.reason,
            )
        for _, usable in accepted:
            for reason in usable.failed.values():
                _log.warning("round %d: left out: %s", server_round, reason)
        updates = [update for _, reply in accepted for update in reply.updates]
        losses = [loss for _, reply in accepted for loss in reply.losses]
        model, state = self.aggregate.merge(self._model, self.state or {}, updates)
        if not is_finite(model):
            raise RunStopped(f"round {server_round}: the merged model became non-finite")
        self.state = state
        kinds = Counter(reply.kind for _, reply in rejected)
        return to_record(model), MetricRecord(
            {
                "cohort": sorted(client for _, clients in self._asked for client in clients),
                "train-loss": float(np.mean(losses)),
                "clients": len(losses),
                "left-out": asked - len(losses),
                **{f"rejected-{kind}": count for kind, count in sorted(kinds.items())},
            }
        )

    def _screen(
        self, replies: Iterable[Message]
    ) -> tuple[list[tuple[list[int], Accepted]], list[tuple[list[int], Rejected]], list[list[int]]]:
        """Sorts replies into accepted and rejected ones, in the order of their clients."""
        # An error that Flower reports for a node carries the server's node id, so replies are
        # told apart by the message that they answer.
        answers = {reply.metadata.reply_to_message_id: reply for reply in replies}
        accepted, rejected, silent = [], [], []
        for message, clients in sorted(self._asked, key=lambda item: item[1]):
            reply = answers.get(message.metadata.message_id)
            if reply is None:
                silent.append(clients)
                continue
            verdict = screen(
                reply,
                model=self._model,
                asked=clients,
                examples={client: self._roster.examples[client] for client in clients},
                aggregate=self.aggregate,
            )
            if isinstance(verdict, Accepted):
                accepted.append((clients, verdict))
            else:
                rejected.append((clients, verdict))
        return accepted, rejected, silent

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Asks every node to score all of its clients, not only those that trained."""
        del grid
        self.evaluation = None
        settings = {**config, "server-round": server_round, "fingerprint": fingerprint()}
        content = RecordDict({ARRAYS: arrays, CONFIG: ConfigRecord(settings)})
        self._asked = [
            (Message(content, dst_node_id=node, message_type=MessageType.EVALUATE), clients)
            for node, clients in self._roster.by_node(range(len(self._roster.nodes))).items()
        ]
        return [message for message, _ in self._asked]

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Gathers the scores, by client, into ``evaluation``; returns their means."""
        hosted = {message.metadata.message_id: clients for message, clients in self._asked}
        scores: dict[int, list[float]] = {}
        for reply in replies:
            clients = hosted.get(reply.metadata.reply_to_message_id, [])
            try:
                scores |= _read_scores(reply, clients)
            except ValueError as error:
                _log.warning("round %d: clients %s lack scores: %s", server_round, clients, error)
        if not scores:
            return None
        table = np.array([scores[client] for client in sorted(scores)], dtype=np.float64)
        self.evaluation = Evaluation(sorted(scores), *table.T)
        lost = ~np.isfinite(self.evaluation.loss_personalized)
        if lost.any():
            clients = np.array(self.evaluation.clients)[lost].tolist()
            _log.warning(
                "round %d: personalizing diverged for clients %s: lower adapt-lr",
                server_round,
                few(clients),
            )
        return MetricRecord(
            {
                "accuracy": float(self.evaluation.personalized.mean()),
                "accuracy-before": float(self.evaluation.before.mean()),
                "clients": len(scores),
            }
        )


def draw_cohort(
    seed: int, server_round: int, num_clients: int, size: int, *, shards: int = 1
) -> list[int]:
    """Returns ``size`` different clients of ``0..num_clients-1``, ascending.

    With several shards, ``size / shards`` of each: shard s holds clients s, s + shards, ..., as
    node s does of so many nodes.
    """
    if shards == 1:
        rng = generator(seed, Stream.COHORT, server_round)
        return sorted(rng.choice(num_clients, size=size, replace=False).tolist())
    cohort: list[int] = []
    for shard in range(shards):
        rng = generator(seed, Stream.COHORT, server_round, shard)
        held = len(range(shard, num_clients, shards))
        drawn = rng.choice(held, size=size // shards, replace=False)
        cohort += (shard + shards * drawn).tolist()
    return sorted(cohort)


def _read_scores(reply: Message, clients: Sequence[int]) -> dict[int, list[float]]:
    if reply.has_error():
        raise ValueError(reply.error.reason)
    try:
        record = reply.content.config_records[CLIENTS]
        columns = [record[name] for name in ("ids", *Evaluation._fields[1:])]
        table = np.array(columns, dtype=np.float64).T
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"malformed reply: {error!r}") from error
    if table.ndim != 2 or table[:, 0].tolist() != sorted(clients):
        raise ValueError(f"clients {list(clients)} were asked, others answered")
    shares = table[:, 1:4]  # before, personalized, own; the last is NaN where there is none
    known = shares[~np.isnan(shares)]
    if np.isnan(shares[:, :2]).any() or (known < 0).any() or (known > 1).any():
        raise ValueError("accuracies must lie between 0 and 1")
    return {int(client): scores for client, *scores in table.tolist()}


def _implausible(
    accepted: list[tuple[list[int], Accepted]], model: Params
) -> tuple[list[tuple[list[int], Accepted]], list[tuple[list[int], Rejected]]]:
    """Parts off replies whose models lie much farther from the old one than most do.

    Finite numbers can be as harmful as infinite ones. With fewer than three replies there is no
    saying which is odd.
    """
    if len(accepted) < 3:
        return accepted, []
    distances = [
        max(float(norm(add_scaled(update.params, -1.0, model))) for update in reply.updates)
        for _, reply in accepted
    ]
    limit = _FAR * float(np.median(distances))
    near, far = [], []
    for (clients, reply), distance in zip(accepted, distances, strict=True):
        if distance > limit > 0:
            reason = f"its model moved by {distance:.3g}, {_FAR} times what is usual, or more"
            far.append((clients, Rejected("size", reason)))
        else:
            near.append((clients, reply))
    return near, far
