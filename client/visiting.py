"""Scores of a model that comes from elsewhere, on a node's own test rows.

A model comes as parameters and a description, from which the node rebuilds it with its own source;
no code comes with it.
"""

from collections.abc import Mapping, Sequence
from logging import getLogger
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, RecordDict
from torch import nn

from client.card import ScoreEstimate
from client.coefficients import Coefficients
from client.evidence import of_test, on_test_rows
from engram.units import Units
from federation.data.dealing import federated_data, own_data
from federation.data.federated import FederatedData
from federation.data.tables import TableData, own_table, table_data
from federation.errors import Refused, few_names, one_line
from federation.experiment import Experiment
from federation.exported import Exported, rebuilt
from federation.files import parse_json
from federation.hosting import NodeConfig, hosted_clients
from federation.methods.molar import Molar
from federation.methods.network import NetworkMethod
from federation.schema import Kind, Schema
from federation.wire import ARRAYS, CLIENTS, MODEL, config_of, to_params

_log = getLogger("flwr.engram")


class Visit(NamedTuple):
    """A model that asks to be scored on a node.

    Attributes:
        exported: Its description.
        config: The node's configuration.
        experiment: The model's settings, with the machine's own.
    """

    exported: Exported
    config: NodeConfig
    experiment: Experiment


def check_visit(visit: Visit) -> None:
    """Refuses models that the site does not score, before they are rebuilt and rows are read.

    Raises:
        Refused: The node hosts no client, or the model is of a family that has no scores here.
    """
    e = visit.experiment
    if not hosted_clients(e.num_clients, visit.config):
        raise Refused("this node hosts no client whose rows could score a model")
    if not isinstance(e.own, NetworkMethod) and e.own.plug_in != Molar.plug_in:
        raise Refused(f"models of {e.method} are not scored on test rows")


def read_visit(content: RecordDict, config: NodeConfig, own: Mapping[str, Any]) -> Visit:
    """Reads the description of a model.

    Args:
        content: The message that brings it.
        config: The node's configuration.
        own: The machine's own settings.

    Raises:
        Refused: It is no description, or names what this process does not know.
    """
    try:
        exported = Exported.from_json(parse_json(str(config_of(content)[MODEL]).encode()))
    except (KeyError, TypeError, ValueError) as error:
        raise Refused(f"the model's description cannot be read: {one_line(str(error))}") from error
    e = exported.experiment.on_machine(own)
    if config.data:  # the model may be of a time when the federation was smaller
        e = e.model_copy(update={"num_clients": max(e.num_clients, config.num_partitions)})
    return Visit(exported, config, e)


def score_visit(visit: Visit, content: RecordDict) -> RecordDict:
    """Returns the model's scores on the test rows of each client that the node hosts.

    Raises:
        DataError: If rows cannot be read.
        Refused: If the parameters are another model's, or the rows are others than it takes.
    """
    exported, e = visit.exported, visit.experiment
    module = rebuilt(exported, to_params(content.array_records[ARRAYS]))
    score = _network if isinstance(e.own, NetworkMethod) else _coefficients
    found = score(visit, module)
    rows = {client: count for client, (count, _) in found.items() if count}
    if not rows:
        raise Refused("this node's clients have too few rows for test rows")
    names = [estimate.metric for estimate in found[next(iter(rows))][1]]
    columns = {name: [_figure(found[client][1], name) for client in rows] for name in names}
    told = ", ".join(f"{name} {values[0]:.4g}" for name, values in columns.items())
    _log.info(
        "%s was scored for clients %s on %s rows: %s",
        exported.what,
        few_names(rows),
        few_names(rows.values()),
        told,
    )
    details = ConfigRecord({"ids": [*rows], "rows": [*rows.values()], "metrics": names, **columns})
    return RecordDict({CLIENTS: details})


_Scores = dict[int, tuple[int, Sequence[ScoreEstimate]]]
"""By client, its number of test rows, and a model's scores on them."""


def _figure(estimates: Sequence[ScoreEstimate], name: str) -> float:
    (value,) = (each.value for each in estimates if each.metric == name)
    return float("nan") if value is None else value


def _network(visit: Visit, module: nn.Module) -> _Scores:
    e, found = visit.experiment, _Scores()
    for client in hosted_clients(e.num_clients, visit.config):
        data = _rows(visit, client)
        _check_alike(data.kind, visit.exported.kind)
        if client in data.left_out or client in data.unscored:
            found[client] = 0, []
            continue
        found[client] = on_test_rows(e, data, module, client)
    return found


def _rows(visit: Visit, client: int) -> FederatedData:
    if visit.config.data:
        return own_data(visit.experiment, visit.config.data, client)
    return federated_data(visit.experiment, named=False, hosted=[client])


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
    return f"inputs {one_line(kind.inputs)}{named} and outputs {few_names(kind.class_names)}"


def _coefficients(visit: Visit, module: nn.Module) -> _Scores:
    e, exported, found = visit.experiment, visit.exported, _Scores()
    columns, state = list(exported.kind.columns), dict(module.state_dict())
    model = Coefficients(state, exported.kind.schema or Schema(()), list(exported.classes))
    for client in hosted_clients(e.num_clients, visit.config):
        tables = _tables(visit, client)
        if tables.columns != columns:
            raise Refused(
                f"this node has the columns {few_names(tables.columns)}, and the model takes "
                f"{few_names(columns)}"
            )
        if exported.kind.classes and tables.classes != exported.kind.classes:
            raise Refused(
                f"this node has the classes {few_names(tables.classes) or 'none'}, and the model "
                f"{few_names(exported.kind.classes)}"
            )
        test = tables.test[client]
        scores, _ = of_test(e, model, test)
        for estimates in scores.values():
            found[client] = 0 if test is None else len(test.y), estimates
    return found


def _tables(visit: Visit, client: int) -> TableData:
    if visit.config.data:
        return own_table(visit.experiment, visit.config.data, client)
    return table_data(visit.experiment, [client])
