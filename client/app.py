"""The ClientApp, the same on Ray's workers, Flower's nodes and resident nodes."""

import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from logging import getLogger
from pathlib import Path
from typing import Any, NamedTuple

from engram.client.disk_memory import DiskStore
from engram.client.encrypted_file import read_key
from engram.client.hosts import Exchanging, Host, Opening, Summed, host_of
from engram.client.node_queries import by_own_schema, kept_here, own_settings
from engram.client.private_replies import Covers, RowCovers, covers_of, scores_of, withheld_scores
from engram.client.requests import Request, check_settings, check_source, round_of
from engram.client.round_log import Exchanged, metrics_of, noted
from engram.client.row_limits import admitted_rows
from engram.client.served_slots import keep_scored, needs_received
from engram.client.training_description import note_training, noted_rows
from engram.client.training_folders import prune
from engram.cohort.trainer.chunks import ClientFailed
from engram.cohort.trainer.worker_pool import training_from_now_on
from engram.core.checks import must
from engram.data.readers.digests import Rows
from engram.data.schema.columns import SUMS, Kind
from engram.data.tables.table_summary import site_schema
from engram.guards.presets import client_guards, is_scored
from engram.guards.secure.masking import MaskingHost
from engram.guards.secure.secure_parties import of_node
from engram.link.node_config import NodeConfig, hosted_clients, memory_folder, read_node_config
from engram.scoring.score_columns import Column
from engram.settings.errors import AWAITED, REFUSED, DataError, EngramError, Refused, one_line
from engram.settings.experiment import FIRST, Experiment
from engram.settings.method_for_data import server_side
from engram.settings.plugins import load_plugins, plugins
from engram.settings.settings_files import in_run_config
from engram.sites import policy_checks as rules
from engram.sites.approvals import APPROVALS, Awaited, require
from engram.sites.audit import AUDIT, Audit
from engram.sites.described import described
from engram.sites.policy import UNLIMITED, Policy, keep_policy
from engram.sites.privacy_account import Account
from engram.sites.terms import count, request_of
from engram.wire.clock import now
from engram.wire.flower import client_app
from engram.wire.messages import EVALUATE, TRAIN, Content, Error, NodeContext, Question, Reply
from engram.wire.roster import read_entry
from engram.wire.wire import (
    APPROVAL,
    CLIENTS,
    COLUMNS,
    MODEL,
    OWN_DATA,
    RELEASE,
    ROSTER,
    ROSTER_QUERY,
    SECONDS,
    SECURE_QUERY,
    TRAINING,
    config_of,
    size_of,
    units_of,
)

_log = getLogger("flwr.engram")


def _roster(node: "_Node", request: Request, context: NodeContext) -> "_Answered":
    """Answers which clients this node hosts, and which source it runs."""
    if node.account is not None:
        node.account.check()
    described = node.host.describe(request.hosted)
    if node.covers is not None:
        described = node.covers.roster(described)
    entry = described[ROSTER]
    if node.policy.approval:
        entry[APPROVAL] = True
    if node.policy.release:
        entry[RELEASE] = True
    if context.node_config.get("data"):
        entry[OWN_DATA] = True
    if node.policy.approval and not config_of(request.question.content).get(TRAINING):
        for key in [key for key in entry if key in SUMS]:
            del entry[key]
    rules.check(rules.of_sums(node.policy, entry))
    return _Answered(Reply(request.question, described))


def _train(node: "_Node", request: Request, context: NodeContext) -> "_Answered":
    """Trains the clients that the question names."""
    epsilon = node.charge(request.question, context.run_id)
    start = time.perf_counter()
    with _without_texts(node):
        (reply,) = node.host.train([request])
    if not reply.error:
        reply.content[CLIENTS][SECONDS] = time.perf_counter() - start
    told = reply
    if node.covers is not None and not reply.error:
        told = Reply(request.question, node.covers.training(reply.content))
    return _Answered(told, epsilon, metrics_of(reply))


def _secure(node: "_Node", request: Request, context: NodeContext) -> "_Answered":
    """Answers a stage of a secure round in which nobody trains."""
    del context
    if not isinstance(node.host, Exchanging):
        raise Refused("aggregation is plain in this run: it has no secure rounds")
    (reply,) = node.host.exchange([request])
    return _Answered(reply)


def _evaluate(node: "_Node", request: Request, context: NodeContext) -> "_Answered":
    """Scores the node's clients, and keeps their slots for exports."""
    question = request.question
    paid = node.pays(round_of(question.content))
    if node.withholds or not (paid and isinstance(node.covers, Covers)):
        reply = told = _scored(node, request)
        all_of_them = () if paid else scores_of(node.experiment)
        if not reply.error and (columns := all_of_them or node.withheld(reply.content)):
            told = Reply(question, withheld_scores(reply.content, columns))
        return _Answered(told, metrics=metrics_of(reply))
    node.covers.check_scores()
    epsilon = node.charge(question, context.run_id)
    reply = told = _scored(node, request)
    if not reply.error:
        told = Reply(question, node.covers.scores(reply.content))
    return _Answered(told, epsilon, metrics_of(reply))


_ANSWERS = {TRAIN: _train, EVALUATE: _evaluate, ROSTER_QUERY: _roster, SECURE_QUERY: _secure}


@contextlib.contextmanager
def _without_texts(node: "_Node") -> Iterator[None]:
    """Keeps texts of errors that may quote a row on the node, under local privacy."""
    try:
        yield
    except Exception as error:  # anybody's loss, metric or network
        ours = isinstance(error, EngramError) and not isinstance(error, ClientFailed)
        if node.covers is None or ours:
            raise
        _log.error("%s: %s", type(error).__name__, error)
        raise Refused("this node cannot answer: its log says why") from error


def _scored(node: "_Node", request: Request) -> Reply:
    with _without_texts(node):
        (reply,) = node.host.evaluate([request])
    if node.keeps is not None and not reply.error:
        node.keeps(request.question.content, reply.content)
    return reply


class _Answered(NamedTuple):
    reply: Reply
    epsilon: float | None = None  # of the site's data with this; None without a total, or a cost
    metrics: Mapping[str, Any] | None = None  # figures before noise; None for those of the answer
    is_new: bool = False  # whether it counts as a round of the day, though nobody has trained


class _Node(NamedTuple):
    """Answers a training's messages; a simulation's nodes have the first two entries alone."""

    host: Host
    experiment: Experiment  # the settings that the host was opened with
    rows: Mapping[int, int] = {}  # numbers of training rows, by client
    kind: Kind | None = None  # of its rows
    keeps: Callable[[Content, Content], None] | None = None  # keeps served slots for exports
    covers: Covers | RowCovers | None = None  # under privacy by clients' own noise
    account: Account | None = None  # where the site sets a total
    policy: Policy = UNLIMITED
    withholds: Sequence[Column] = ()  # columns of scores that stay on the node
    data: Rows | None = None  # the data as they are, where files have them

    def withheld(self, scores: Content) -> Sequence[Column]:
        """Returns the columns of scores that stay on the node: all if a client has too few rows."""
        rows = scores[CLIENTS].get("queries", [])
        few = isinstance(rows, list) and any(int(n) < self.policy.least_count for n in rows)
        return scores_of(self.experiment) if few else self.withholds

    def pays(self, server_round: int) -> bool:
        """Whether a round's scores may cost epsilon, of which site or run may have set a total."""
        total = self.account is not None or self.experiment.epsilon
        return not total or is_scored(self.experiment, server_round)

    def charge(self, question: Question, run: int) -> float | None:
        """Pays for an answer; returns epsilon after it, None if the site sets no total."""
        return None if self.account is None else self.account.charge(question, run).epsilon


def answer_question(question: Question, context: NodeContext) -> Reply:
    """Answers a question of a run's server, and notes it."""
    start, received, begun = time.perf_counter(), size_of(question.content), False
    cost = _Answered(Reply(question))
    try:
        if question.kind not in _ANSWERS:
            raise Refused(must("kind", question.kind, f"one of {', '.join(_ANSWERS)}"))
        load_plugins()
        asked = _asked(question, context, received)
        begun = True
        cost = _reply(question, context, asked)
        reply = cost.reply
    except EngramError as error:  # one line for the server, instead of Flower's traceback
        code = AWAITED if isinstance(error, Awaited) else REFUSED
        reply = Reply(question, {}, Error(code, str(error)))
    if "state" in context.node_config:  # else it is one of many nodes of a simulation
        try:
            name = _settings(_text(context.run_config)).get("method", FIRST)
        except EngramError:  # which the reply says
            name = ""
        names = name, config_of(question.content).get(TRAINING)
        method, training = (one_line(str(name or "")) for name in names)
        sent = size_of(reply.content) if not reply.error else 0
        sizes = received, sent, time.perf_counter() - start
        exchanged = Exchanged(context.run_id, training, method, *sizes, *cost[1:3])
        folder = Path(str(context.node_config["state"])) / AUDIT
        visits = MODEL in config_of(question.content)
        trains = question.kind == TRAIN
        counts = begun and (trains or visits or cost.is_new)
        reply = noted(question, reply, exchanged, Audit(folder), counts=counts)
    return reply


app = client_app(answer_question, ("roster", "secure"))


class _Asked(NamedTuple):
    config: NodeConfig
    policy: Policy
    received: int  # bytes of the message
    experiment: Experiment | None  # None to describe the node's table, or score a given model
    counts: Callable[[Question], None] | None = None  # an answer under the site's approval


def _asked(question: Question, context: NodeContext, received: int) -> _Asked:
    """Reads the request of a message; data are not read yet."""
    check_source(question.content)  # before reading settings, which may differ between sources
    config = read_node_config(context.node_config)
    policy = keep_policy(config.policy, config.state) if config.state is not None else UNLIMITED
    rounds = 0 if config.state is None else Audit(config.state / AUDIT).rounds(now())
    if config_of(question.content).get(COLUMNS):
        on_time = rules.of_now(policy, ROSTER_QUERY, rounds, now())
        rules.check(chain(on_time, rules.of_bytes(policy, received)))
        return _Asked(config, policy, received, None)
    if MODEL in config_of(question.content):
        as_a_round = rules.of_now(policy, TRAIN, rounds, now())
        unaccounted = rules.of_unaccounted(policy, "scores of a given model")
        size = chain(rules.of_bytes(policy, received), rules.of_size(policy, received))
        rules.check(chain(unaccounted, rules.of_scores(policy), as_a_round, size))
        return _Asked(config, policy, received, None)
    # Names of metrics are looked up for those alone that the policy lets in.
    settings = _text(context.run_config)
    experiment = _experiment(settings, "metrics")
    own, kind = bool(config.data), question.kind
    alone = kind == EVALUATE and not experiment.own.trains_network
    rules.check(
        chain(
            rules.of_settings(policy, experiment, own=own, plugins=plugins()),
            rules.of_reading(policy, experiment, site_schema(config.identity)) if own else (),
            rules.of_now(policy, kind, rounds, now()),
            rules.of_scores(policy) if alone else (),
            rules.of_bytes(policy, received),
        )
    )
    experiment = _experiment(settings)
    check_settings(question.content, experiment)
    experiment = _on_machine(experiment, _text(own_settings(context.node_config, config)))
    if config.data and config.partition_id >= experiment.num_clients:  # it came later
        experiment = experiment.model_copy(update={"num_clients": config.partition_id + 1})
    training, counts = str(config_of(question.content).get(TRAINING, "")), None
    if policy.approval and (training or kind != ROSTER_QUERY):  # a check names no training
        folder = memory_folder(config, experiment, context.run_id, training)
        request = request_of(experiment, folder.name, context.run_id)
        place = folder.parents[1] / APPROVALS
        require(place, request, now())
        counts = partial(count, place, request)
    return _Asked(config, policy, received, experiment, counts)


class _Text(str):
    """Settings as JSON, which stand for them in caches, with the settings as they were given."""

    given: Mapping[str, Any]


def _text(settings: Mapping[str, Any]) -> _Text:
    try:
        text = _Text(json.dumps({**settings}))
    except (TypeError, ValueError) as error:
        raise Refused(f"settings must be texts, numbers and truth values: {error}") from error
    text.given = settings
    return text


@lru_cache(maxsize=2)  # all messages of a run have the same settings
def _settings(config: _Text) -> Mapping[str, Any]:
    return in_run_config(config.given)


@lru_cache(maxsize=2)
def _experiment(config: _Text, aside: str = "") -> Experiment:
    return Experiment.from_run_config({k: v for k, v in _settings(config).items() if k != aside})


@lru_cache(maxsize=2)
def _on_machine(experiment: Experiment, own: _Text) -> Experiment:
    return experiment.on_machine(own.given)


def _reply(question: Question, context: NodeContext, asked: _Asked) -> _Answered:
    config, policy, received, experiment, counts = asked
    if experiment is None:
        if config_of(question.content).get(COLUMNS):
            found, is_new = described(question, context, config, policy)
            return _Answered(Reply(question, found), is_new=is_new)
        from engram.client.score_given_model import visited  # noqa: PLC0415 - rounds need nothing of what it loads

        return _Answered(Reply(question, visited(question, context, config, policy)))
    clients = hosted_clients(experiment.num_clients, config)
    training = str(config_of(question.content).get(TRAINING, ""))
    folder = memory_folder(config, experiment, context.run_id, training)
    # Ray's nodes take turns in a process: only the hosted clients depend on which node it is.
    if config.state is None and not config.data:
        config = config._replace(partition_id=0, num_partitions=1)
    node = _node(by_own_schema(experiment, config), config, folder, policy)
    rules.check(rules.of_rows(policy, experiment, node.rows))
    if node.account is not None:
        node.account.ledger.sound()
    if node.kind is not None and question.kind != ROSTER_QUERY:
        kind = node.kind._replace(units=units_of(question.content))
        _note(folder, node.experiment, kind, config.data, context.run_id, node.data)
    if counts is not None:
        counts(question)
    answered = _ANSWERS[question.kind](node, Request(question, clients), context)
    if not answered.reply.error:
        rules.check(rules.of_bytes(policy, received + size_of(answered.reply.content)))
    return answered


@lru_cache(maxsize=1)  # a worker answers many messages of one training, maybe of several nodes
def _node(experiment: Experiment, config: NodeConfig, folder: Path, policy: Policy) -> _Node:
    key = read_key(config.memory_key) if config.memory_key is not None else None
    limit = int(config.memory_limit * 2**20) or None
    if config.state is not None:
        prune(folder, days=config.memory_days or None)
        own = experiment.own.on_a_node()
        experiment = experiment.model_copy(update={"own": own})
    store = DiskStore(folder, key=key, limit=limit)
    training_from_now_on(experiment.cpu_threads)
    host = _host(experiment, config, store, policy)
    if client_guards(experiment).masks and isinstance(host, Summed):
        parties = of_node(config, experiment.num_clients)
        host = MaskingHost(host, parties, least=policy.secure, state=folder.parents[1])
    if config.state is None:
        return _Node(host, experiment)
    sources = [config.data] if config.data else experiment.own.sources(experiment)
    data = admitted_rows(sources, config, config.state, folder.name, noted_rows(folder))
    hosted = hosted_clients(experiment.num_clients, config)
    entry = read_entry(host.describe(hosted))
    keeps = None
    if experiment.own.trains_network:
        keeps = partial(keep_scored, store, needs_received(server_side(experiment, entry.kind)[0]))
    rows, covers = list(entry.clients.values()), covers_of(experiment)
    withheld = experiment.hides_rows or not policy.evaluate
    withholds = scores_of(experiment) if withheld else ()
    account = Account.of(config, policy, experiment, folder.name, rows)
    node = _Node(host, experiment, entry.clients, entry.kind, keeps, covers=covers, account=account)
    return node._replace(policy=policy, withholds=withholds, data=data)


@lru_cache(maxsize=1)  # written once a run
def _note(
    folder: Path, experiment: Experiment, kind: Kind, data: str, run: int, rows: Rows | None
) -> None:
    with contextlib.suppress(OSError):  # without it, models cannot be exported from here
        note_training(folder, experiment, kind, data, run, rows)


def _host(experiment: Experiment, config: NodeConfig, store: DiskStore, policy: Policy) -> Host:
    def admit(kind: Kind) -> None:
        if policy != UNLIMITED:
            rules.check(rules.of_models(policy, experiment, kind))

    experiment.refuse_attack()
    opening = Opening(
        experiment,
        store,
        own=config.data,
        client=config.partition_id,
        hosted=hosted_clients(experiment.num_clients, config),
        # Names stay on a node's own machine: they could be any column that the coordinator chooses.
        named=config.state is None,
        covers=config.state is not None,
        admit=admit,
        # Poisson samples are secret, and so is how many rows one has.
        least_drawn=0 if experiment.hides_rows else rules.least_drawn(policy, experiment),
        least_scored=policy.least_count,
    )
    try:
        with rules.of_servers_choice(experiment, config, policy):
            return host_of(opening)
    except DataError as error:
        source = opening.own or experiment.source
        named = config.state is not None and (source.has_columns or source.function is not None)
        if not (experiment.own.tables or opening.own.has_columns or named):
            raise
        # The message may quote values of a row, which must not reach the coordinator.
        raise kept_here(error) from error
