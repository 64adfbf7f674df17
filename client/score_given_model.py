"""Scores of a model that comes from elsewhere, on test rows that the site alone has chosen.

A model comes as parameters and a description, from which the node rebuilds it with its own source;
no code comes with it. One that serves a client of the node, as a training's memories say, is scored
on the rows that this training has held out, as it was there. Any other is scored on rows of the
node's own data that a key in its state draws: who chooses rows may choose a single one.
"""

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from secrets import randbits
from typing import Any, Final, NamedTuple

import torch
from torch import nn

from engram.client.disk_memory import DiskStore
from engram.client.encrypted_file import read_key
from engram.client.hosts.rows import trained_table
from engram.client.node_queries import by_own_schema, kept_here, own_settings
from engram.client.row_limits import own_digest
from engram.client.training_description import Training, read_training
from engram.core.standardization import Units
from engram.core.types import Params
from engram.data.schema.columns import Kind
from engram.home.card import ScoreEstimate
from engram.home.evidence import on_test_rows
from engram.home.exported import Exported, rebuilt
from engram.home.node_export import remembered_package
from engram.link.node_config import NodeConfig, hosted_clients
from engram.settings.errors import DataError, EngramError, Refused, few_names, one_line
from engram.settings.experiment import Experiment
from engram.settings.files import parse_json, read_json, refusing, replace_file
from engram.settings.plugins import plugins
from engram.sites.approvals import APPROVALS, Request, require
from engram.sites.policy import Policy
from engram.sites.policy_checks import check, of_names, of_servers_choice, of_sources
from engram.sites.terms import request_of
from engram.tables.federation.coefficients import Coefficients
from engram.tables.federation.models import of_test
from engram.wire.clock import now
from engram.wire.messages import Content, NodeContext, Question
from engram.wire.tensors import tensors_to_bytes
from engram.wire.wire import ARRAYS, CLIENTS, HELD_OUT, MODEL, arrays_of, config_of

_log = getLogger("flwr.engram")

_SPLIT: Final = "split.json"  # in the node's state
_SHARE: Final = 0.4  # of the rows, drawn for testing
_FEWEST: Final = 10  # rows of a score, as of tables' figures; a policy may ask for more


class Visit(NamedTuple):
    """A model that asks to be scored on a node."""

    exported: Exported
    parameters: Params
    config: NodeConfig
    state: Path  # the folder of the node's state
    experiment: Experiment  # the model's settings, with the machine's own

    def request(self, run: int) -> Request:
        """Returns the request for its scores; its terms are the model, and the node's own data."""
        data = own_digest([self.config.data] if self.config.data else [], self.state)
        about = json.dumps([self.exported.to_json(), data], sort_keys=True).encode()
        terms = hashlib.sha256(about + tensors_to_bytes(self.parameters)).hexdigest()[:32]
        asked = request_of(self.experiment, terms, run)
        what = f"scores of a {asked.method} model"
        return replace(asked, terms=terms, rounds=1, answers={}, every=1, method=what)


def visited(
    question: Question, context: NodeContext, config: NodeConfig, policy: Policy
) -> Content:
    """Scores a given model, to three digits, on test rows of the node's clients.

    Raises:
        Awaited: The site has yet to approve it.
        Refused: It is no model, or names what this process does not know; it is of a family that
            has no scores here; the node keeps no state; the policy is against it; the test rows are
            too few, or cannot be read, or are others than it takes.
    """
    visit = _read(question.content, config, own_settings(context.node_config, config))
    check(of_names(policy, visit.experiment, plugins()))
    if policy.approval:
        require(visit.state / APPROVALS, visit.request(context.run_id), now())
    try:
        return _scored(visit, policy)
    except DataError as error:
        raise kept_here(error) from error


def _read(content: Content, config: NodeConfig, own: Mapping[str, Any]) -> Visit:
    """Reads a model that asks to be scored, with the machine's own settings; it is not rebuilt."""
    try:
        exported = Exported.from_json(parse_json(str(config_of(content)[MODEL]).encode()))
        parameters = arrays_of(content, ARRAYS)
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"the model's description cannot be read: {one_line(str(error))}") from error
    if config.state is None:
        raise Refused("this node keeps no state, without which it scores no given model")
    e = exported.experiment.on_machine(own)
    if not (e.own.trains_network or e.own.remembered):
        raise Refused(f"models of {e.method} are not scored on test rows")
    return Visit(exported, parameters, config, config.state, e)


def _scored(visit: Visit, policy: Policy) -> Content:
    same = (each for each in _remembered(visit) if _is_near(visit.parameters, each[1]))
    known = next(same, None)
    training, module = known or (_drawn(visit), rebuilt(visit.exported, visit.parameters))
    e, least = training.experiment, max(_FEWEST, policy.least_count)
    check(of_sources(policy, e, own=training.own))
    score = _network if e.own.trains_network else _coefficients
    clients = hosted_clients(e.num_clients, visit.config)
    with of_servers_choice(e, visit.config, policy):
        found = {client: score(training, module, client) for client in clients}
    rows = {client: count for client, (count, _) in found.items() if count >= least}
    if not rows:
        raise Refused(f"this node's clients have too few test rows: a score is of {least} or more")
    each = zip(*(found[client][1] for client in rows), strict=True)
    columns = {some[0].metric: [_figure(one.value) for one in some] for some in each}
    told = ", ".join(f"{name} {values[0]:.4g}" for name, values in columns.items())
    what = visit.exported.what, few_names(rows), few_names(rows.values()), told
    _log.info("%s was scored for clients %s on %s rows: %s", *what)
    details = {"ids": [*rows], "rows": [*rows.values()], "metrics": [*columns], **columns}
    return {CLIENTS: {**details, HELD_OUT: known is not None}}


def _remembered(visit: Visit) -> Iterator[tuple[Training, nn.Module]]:
    """Yields the models of the method that serve the node's clients, each with its training."""
    config, method = visit.config, visit.experiment.method
    key = read_key(config.memory_key) if config.memory_key is not None else None
    for place in sorted((visit.state / "memory").glob("*")):
        store = DiskStore(place, key=key)
        for client in store.clients():
            with contextlib.suppress(EngramError):  # it is damaged, or its rows are not there
                e = (training := read_training(place)).experiment
                same = (e.source if training.own else "") == config.data
                same = same and not training.has_other_rows
                if e.method == method and same:
                    yield training, remembered_package(training, client, store).module


def _is_near(parameters: Params, module: nn.Module) -> bool:
    """Whether they are a module's but for last digits, in which engines may differ."""
    own = module.state_dict()
    return own.keys() == parameters.keys() and all(
        x.shape == parameters[n].shape
        and torch.allclose(x.double(), parameters[n].double(), rtol=1e-3, atol=1e-5)
        for n, x in own.items()
    )


def _drawn(visit: Visit) -> Training:
    """Returns settings that split the node's own data by the key in its state."""
    config, path = visit.config, visit.state / _SPLIT
    if not config.data:
        raise Refused(
            "this node has no data of its own (engram node --data), and scores those models alone "
            "that serve its clients in a training"
        )
    with refusing(f"{path} cannot be written"):
        if not path.exists():
            replace_file(path, json.dumps({"key": randbits(128), "fraction": _SHARE}).encode())
    match read_json(path):
        case {"key": int(key), "fraction": float(share)} if key >= 0 and 0 < share < 1:
            split = {"seed": key, "test_fraction": share, "protocol": "standard"}
        case _:
            raise Refused(f"{path} must have a key and a fraction: its operator deletes it")
    own = {"dataset": config.data, "num_clients": config.num_partitions, "device": "cpu"}
    e = by_own_schema(visit.experiment.model_copy(update=split | own), config)
    return Training(e, visit.exported.kind, visit.exported.source, own=True)


_Scores = tuple[int, Sequence[ScoreEstimate]]
"""A client's number of test rows, and a model's scores on them."""


def _figure(value: float | None) -> float:
    return float("nan") if value is None else float(f"{value:.3g}")


def _network(training: Training, module: nn.Module, client: int) -> _Scores:
    data = training.data(client)
    _check_alike(data.kind, training.kind)
    if client in data.left_out or client in data.unscored:
        return 0, []
    return on_test_rows(training.experiment, data, module, client)


def _check_alike(own: Kind, models: Kind) -> None:
    """Refuses a model of other rows.

    What stands for a missing value is the site's own, and units are in the model.
    """
    own, models = (kind._replace(units=Units()) for kind in (own, models))
    inputs = [kind.schema.inputs if kind.schema else () for kind in (own, models)]
    alike = own._replace(schema=None) == models._replace(schema=None)
    if not alike or inputs[0] != inputs[1]:
        raise Refused(f"this node has {_in_words(own)}, and the model takes {_in_words(models)}")


def _in_words(kind: Kind) -> str:
    named = f" ({few_names(kind.schema.inputs)})" if kind.schema else ""
    outputs = few_names(kind.class_names) or "numbers"
    return f"inputs {one_line(kind.inputs) or 'of a table'}{named} and outputs {outputs}"


def _coefficients(training: Training, module: nn.Module, client: int) -> _Scores:
    tables = trained_table(training, client)
    _check_alike(Kind(schema=tables.schema, classes=tables.classes), training.kind)
    test, model = tables.test[client], Coefficients(dict(module.state_dict()), tables.schema, [])
    scores, _ = of_test(training.experiment, model, test)
    return 0 if test is None else len(test.y), next(iter(scores.values()), [])
