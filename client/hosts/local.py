"""Clients that train a network, for several messages at once if one process hosts all nodes."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, chain, pairwise

import numpy as np
import torch

from engram.client.hosts.base import Opening, hosts
from engram.client.hosts.mixed_trainer import MixedTrainer
from engram.client.requests import Request, asked_clients, durable_of, read_whole, round_of
from engram.cohort.trainer.chunks import Share, in_order, score
from engram.cohort.trainer.trainer import Received, Trainer
from engram.core.method import Slots, Update
from engram.core.slots import flat, over_slots, unflat
from engram.core.standardization import Units
from engram.core.tree import select
from engram.core.types import Params
from engram.data.federated import FederatedData
from engram.data.load_federation import federated_data, own_data
from engram.data.standardize import told, warn_of_scales
from engram.data.texts import told_words
from engram.guards.compression.codes import CODE
from engram.guards.places import At, Sum
from engram.guards.presets import client_guards
from engram.networks.registry import differs_by_client
from engram.scoring.score_clients import Scores
from engram.settings.errors import REFUSED, EngramError, Refused, brief
from engram.settings.network import NetworkMethod
from engram.wire.messages import Content, Entries, Error, Question, Reply
from engram.wire.roster import describe_node
from engram.wire.training_result import Trained
from engram.wire.wire import (
    ARRAYS,
    CLIENTS,
    DIVERGED,
    METRICS,
    OWN,
    VERSION,
    arrays_of,
    config_of,
    read_list,
    units_of,
)


class LocalHost:
    """Hosts clients that ``trainer`` trains and scores."""

    def __init__(self, trainer: Trainer, share: Share = in_order, *, least_drawn: int = 0) -> None:
        self.trainer, self.share, self.least_drawn = trainer, share, least_drawn
        self.experiment, self._warned = trainer.experiment, False

    def in_units(self, units: Units) -> Trainer:
        """Returns the trainer of rows in these units."""
        if units != self.trainer.data.units:
            self.trainer = self.trainer.in_units(units)
        return self.trainer

    def describe(self, hosted: Sequence[int]) -> Content:
        """Describes the clients' numbers of rows, and the kind of their data."""
        e, data = self.trainer.experiment, self.trainer.given
        if not self._warned:  # once, when a run begins
            self._warned = True
            warn_of_scales(e, data)
        clients = {c: len(data.train.rows[c]) for c in _without(data.left_out, hosted)}
        return describe_node(
            clients,
            data.kind._replace(units=Units()),
            data.names,
            left_out={c: why for c, why in data.left_out.items() if c in hosted},
            unscored={c: why for c, why in data.unscored.items() if c in hosted},
            told=told(e, data, clients)._replace(words=told_words(e, data, clients)),
        )

    def train(self, requests: Sequence[Request]) -> list[Reply]:
        """Trains the clients of all requests that start from the same model in one call.

        A reply carries the mean of its clients' models and their numbers of examples, so that
        Flower's strategies, which weigh replies by ``num-examples``, are right however many clients
        a node hosts. An impossible request, or one whose clients all diverged, is answered by an
        error, which does not affect the others.
        """

        def train(group: dict[int, list[int]]) -> Iterable[Reply]:
            first = requests[next(iter(group))].question.content
            most = _most_examples(config_of(first))
            trainer, version = self.in_units(units_of(first)), _version(first)
            self._check_drawn(trainer, group, round_of(first))
            trained = trainer.train(
                unflat(self._brought(first, group, before=round_of(first))),
                list(group.values()),
                own=_own(requests, group),
                server_round=round_of(first),
                durable=durable_of(first),
                combine=most,
                losses=bool(config_of(first).get("losses", True)),
                way=str(config_of(first).get("way", "")),
                version=version,
            )
            for i, result in zip(group, trained, strict=True):
                yield _train_reply(requests[i].question, result, most)

        aside = self.trainer.data.left_out
        return _in_groups(requests, train, aside, self.trainer.received)

    def masked(self, request: Request, reply: Reply, total: Sum) -> Content:
        """Masks the mean of a request's clients; training losses, which are of single ones, stay.

        See ``Summed``.
        """
        content, e, details = reply.content, self.experiment, reply.content[CLIENTS]
        rows = read_list(details, "examples", int)
        both = request.question.content, content
        received, sent = (unflat(arrays_of(each, ARRAYS)) for each in both)
        update = Update(sent, sum(min(count, total.most) for count in rows), len(rows))
        given = self.trainer.method, self.trainer.learner.network.running, e.clients_per_round
        at = At(*given, received, lambda update: received, sum=total)
        names = ("server-round", "ids", "failed", "reasons", "way")
        return {
            ARRAYS: client_guards(e).send(at, update).slots,
            METRICS: {"num-examples": sum(rows)},
            CLIENTS: {name: details[name] for name in names} | {"losses": []},
        }

    def _check_drawn(self, trainer: Trainer, group: dict[int, list[int]], number: int) -> None:
        """Refuses rounds in which a client draws too few different rows.

        Rows are drawn with replacement, by a seed that the server knows: it may choose rounds in
        which one row is drawn again and again.
        """
        for client in [client for some in group.values() for client in some]:
            drawn = trainer.sampler.different(client, number) if self.least_drawn else 0
            if drawn < self.least_drawn:
                raise Refused(
                    f"this site's policy is against it: an update must be made of at least "
                    f"{self.least_drawn} different rows, and client {client} draws {drawn} in "
                    f"round {number}: larger batch-size or local-steps draw more"
                )

    def _brought(self, content: Content, group: dict[int, list[int]], *, before: int) -> Params:
        """Returns the slots, by path, that a message brings to all of a group's clients alike."""
        arrays = arrays_of(content, ARRAYS)
        clients = [client for some in group.values() for client in some]
        version = _version(content) or 0
        if self.trainer.sending is None:
            return arrays
        return self.trainer.sending.received(arrays, version, clients, server_round=before)

    def evaluate(self, requests: Sequence[Request]) -> list[Reply]:
        """Scores the clients of all requests with the same model in one call."""

        def evaluate(group: dict[int, list[int]]) -> Iterable[Reply]:
            first = requests[next(iter(group))].question.content
            self.in_units(units_of(first))
            common = self._brought(first, group, before=round_of(first) + 1)
            if CODE in first[ARRAYS]:  # so that the site keeps the slots themselves
                for i in group:
                    requests[i].question.content[ARRAYS] = common
            own, some = _own(requests, group), group.values()
            parts = self.score(unflat(common), own, some, server_round=round_of(first))
            for (i, clients), part in zip(group.items(), parts, strict=True):
                yield _evaluate_reply(requests[i].question, clients, part)

        aside = {**self.trainer.data.left_out, **self.trainer.data.unscored}
        return _in_groups(requests, evaluate, aside, self.trainer.received)

    def score(
        self, common: Slots, own: Slots, groups: Iterable[list[int]], *, server_round: int
    ) -> Iterator[Scores]:
        """Scores groups of clients in one call, and yields the scores of each group.

        All receive the ``common`` slots, and each its ``own``, in their order.
        """
        ends = [0, *accumulate(map(len, groups := [*groups]))]
        everyone, share = [*chain.from_iterable(groups)], self.share
        scores = score(
            self.trainer, common, everyone, server_round=server_round, own=own, share=share
        )
        return (select(scores, slice(start, end)) for start, end in pairwise(ends))


@hosts(NetworkMethod.plug_in)
def _open(opening: Opening) -> LocalHost:
    e = opening.experiment
    if opening.own:
        data = own_data(e, opening.own, opening.client)
    else:
        data = federated_data(e, named=opening.named, hosted=opening.hosted)
    opening.admit(data.kind)
    return hosted_by(opening, data)


def hosted_by(opening: Opening, data: FederatedData) -> LocalHost:
    """Returns the host of an opening's clients, with loaded data."""
    e, store, engine, noise = opening.experiment, opening.store, opening.engine, opening.noise
    kind = MixedTrainer if differs_by_client(e.model) else Trainer
    trainer = kind(e, data, store, engine=engine, noise=noise, covers=opening.covers)
    return LocalHost(trainer, least_drawn=opening.least_drawn)


def _in_groups(
    requests: Sequence[Request],
    answer: Callable[[dict[int, list[int]]], Iterable[Reply]],
    aside: Collection[int],
    received: Received,
) -> list[Reply]:
    """Answers requests in groups with the same round and the same record, or version, of the model.

    ``answer`` takes the clients of each request of a group, by the request's index; clients in
    ``aside`` have too few rows.
    """
    replies: dict[int, Reply] = {}
    groups: dict[tuple[object, ...], dict[int, list[int]]] = {}
    for i, request in enumerate(requests):
        try:
            content = request.question.content
            clients = asked_clients(request._replace(hosted=_without(aside, request.hosted)))
            _check(content, len(clients), received)
            config = config_of(content)
            version = _version(content)  # the same slots, whatever they are written as
            record = id(content[ARRAYS]) if version is None else version
            losses = bool(config.get("losses", True))
            key = (record, round_of(content), _most_examples(config), losses)
            groups.setdefault(key, {})[i] = clients
        except (EngramError, TypeError) as error:
            replies[i] = Reply(request.question, {}, Error(REFUSED, str(error)))
    for group in groups.values():
        replies |= zip(group, answer(group), strict=True)
    return [replies[i] for i in range(len(requests))]


def _without(aside: Collection[int], clients: Sequence[int]) -> Sequence[int]:
    return [client for client in clients if client not in aside] if aside else clients


def _check(content: Content, clients: int, received: Received) -> None:
    if ARRAYS not in content:
        raise EngramError(f"a message must hold slots, as an array record {ARRAYS!r}")
    found, wanted = _shapes(arrays_of(content, ARRAYS)), received.common
    if found != wanted and found.keys() != {CODE}:  # which is checked as it is read
        name = min(n for n in found | wanted if found.get(n) != wanted.get(n))
        shape = f"of shape {wanted[name]}" if name in wanted else "in no message"
        got = f"shape {brief(found[name])}" if name in found else "none"
        raise EngramError(f"array record {ARRAYS!r} must hold {brief(name)} {shape}, got {got}")
    own = _shapes(arrays_of(content, OWN) if OWN in content else {})
    if own != {name: (clients, *shape) for name, shape in received.own.items()}:
        expected = f"{', '.join(sorted(received.own)) or 'nothing'}, for each of {clients} clients"
        raise EngramError(f"array record {OWN!r} must hold {expected}, got {brief(own)}")


def _shapes(record: Params) -> dict[str, tuple[int, ...]]:
    return {name: tuple(array.shape) for name, array in record.items()}


def _own(requests: Sequence[Request], group: Iterable[int]) -> Slots:
    each = [_slots(requests[i].question.content, OWN) for i in group]
    found: Slots = over_slots(lambda *leaves: torch.cat(leaves), *each)
    return found


def _slots(content: Content, name: str) -> Slots:
    return unflat(arrays_of(content, name)) if name in content else {}


def _version(content: Content) -> int | None:
    config = config_of(content)
    return read_whole(config, VERSION, 2**63 - 1) if VERSION in config else None


def _most_examples(config: Entries) -> int | None:
    """Returns a client's largest weight in a reply's mean; None if each model is asked for."""
    if not config.get("combine", True):
        return None
    most = read_whole(config, "most-examples", 2**63 - 1)
    if most < 1:
        raise EngramError(f"most-examples must be at least 1, got {most}")
    return most


def _train_reply(question: Question, trained: Trained, most: int | None) -> Reply:
    if not trained.clients:
        return Reply(question, {}, Error(DIVERGED, trained.reason))
    metrics: dict[str, float] = {"num-examples": sum(trained.examples)}
    if trained.losses:
        weights = None if most is None else [min(n, most) for n in trained.examples]
        metrics["train-loss"] = float(np.average(trained.losses, weights=weights))
    details = {"server-round": round_of(question.content), "ids": trained.clients}
    details.update({"examples": trained.examples, "losses": trained.losses})
    details["failed"], details["reasons"] = [*trained.failures], [*trained.failures.values()]
    details["way"] = trained.way
    slots = {path: leaf.cpu() for path, leaf in flat(trained.slots).items()}
    return Reply(question, {ARRAYS: slots, METRICS: metrics, CLIENTS: details})


def _evaluate_reply(question: Question, clients: Sequence[int], scores: Scores) -> Reply:
    details = {"server-round": round_of(question.content), "ids": list(clients)}
    details.update({name: column.tolist() for name, column in scores.columns.items()})
    details["queries"] = scores.queries.tolist()
    # Flower's own strategies expect the same means from every node.
    means = {name: float(column.mean()) for name, column in scores.columns.items()}
    metrics = {"num-examples": int(scores.queries.sum()), **means}
    return Reply(question, {METRICS: metrics, CLIENTS: details})
