"""Exports the model that serves a client of a node, without the coordinator."""

from collections.abc import Callable
from functools import cache
from typing import Final

from engram.client.disk_memory import DiskStore
from engram.client.memory import RamStore
from engram.client.served_slots import Scored, read_scored
from engram.client.training_description import Training
from engram.cohort.trainer.trainer import Trainer
from engram.core.method import Served
from engram.core.rounds import received_by
from engram.core.slots import flat, is_known, unflat, unknown
from engram.core.standardization import Units
from engram.core.types import Params
from engram.data.federated import FederatedData, model_for
from engram.data.schema.columns import Kind
from engram.data.standardize import own_units
from engram.data.tables.tables import own_table, table_data
from engram.home.card import Evidence, Origin, of_network
from engram.home.evidence import of_client
from engram.home.exported import Package
from engram.home.serving import (
    RECALLS,
    check_finite,
    plain_module,
    served_of,
    settled,
    without_medians,
)
from engram.networks.export_modules import Recalling
from engram.scoring.tasks import TASKS
from engram.settings.errors import UNNAMED, DataError, Refused
from engram.settings.method_for_data import server_side
from engram.settings.network import NetworkMethod
from engram.tables.federation.coefficients import remembered
from engram.tables.federation.models import of_table, of_test
from engram.tables.federation.molar import Molar
from engram.wire.tensors import difference

_EVER: Final = 2**62  # after any round
_OTHER_ROWS: Final = (
    "Its client's data have changed since it learned from them: what is said of rows is true of "
    "those that are there now."
)
_WITHOUT_ROWS: Final = (
    "Its scores and the ranges of its inputs are not known, since its rows cannot be read here: {}"
)


def remembered_package(training: Training, client: int, store: DiskStore) -> Package:
    """Returns the model that serves a client, with its card.

    Of networks it is the one that was scored last; where it depends on nothing but the client's
    memory, and of coefficients, the newest one.

    Raises:
        Refused: If nothing is kept of the client, or only a part of its model; or its rows are
            needed, and cannot be read.
    """
    e, scored = training.experiment, read_scored(store, client)
    if scored is None:
        newest = store.newest(client, before=_EVER)
        if not newest:
            raise Refused(
                f"{store.folder} has no memory of client {client}: it had no part in the training "
                "yet; once a round has been scored, or it has trained, there is one"
            )
        scored = Scored(newest, {}, store.read(client, newest))
    settings = e.to_config()
    if training.own:  # where a site has its rows is nobody's business
        del settings["dataset"]
    origin = Origin(
        e,
        f"personal model of {client}",
        str(client),
        settings,
        training.source,
        {"run": f"{training.run or store.folder.name}, after round {scored.server_round}"},
        f"{e.source.described}: rows of client {client}, and others'",
        None if e.is_private else {},  # only the coordinator knows how much was spent
        [_OTHER_ROWS] if training.has_other_rows else [],
    )
    if isinstance(e.own, NetworkMethod):
        return _network(origin, training, client, scored)
    return _table(origin, training, client, scored.memory or {})


def _table(origin: Origin, training: Training, client: int, memory: Params) -> Package:
    e = training.experiment
    found = remembered(e, training.kind, memory)
    evidence, notes, schema = Evidence({}), list[str](), without_medians(found.schema)
    if e.own.plug_in == Molar.plug_in:
        try:
            data = own_table(e, e.source, client) if training.own else table_data(e, [client])
            scores, intervals = of_test(e, found, data.test[client])
            train, schema = data.train[client], data.schema_of(client)
            assert train is not None  # for mypy: it has rows here
            evidence = Evidence.of_table(scores, train.x, found.schema, intervals)
        except DataError as error:
            notes.append(_WITHOUT_ROWS.format(error))
    kind = Kind(schema=schema, classes=training.kind.classes)
    return of_table(origin, found, kind, evidence, notes)


def _network(origin: Origin, training: Training, client: int, scored: Scored) -> Package:
    e, data = training.experiment, cache(lambda: training.data(client))

    def rows() -> FederatedData:
        try:
            return data()
        except DataError as error:
            raise Refused(
                f"the model of client {client} is made of its rows, too, which cannot be read: "
                f"{error}"
            ) from error

    kind = training.kind._replace(units=_units(training, client, rows))
    network = model_for(e, kind)
    served = _served(training, client, scored)
    served = settled(served, lambda: Trainer(e, rows(), RamStore(), engine="sequential"), client)
    check_finite(e, served, str(client))
    module = plain_module(network, served, TASKS[e.task].targets, rows, client)
    notes = [RECALLS] if isinstance(module, Recalling) else []
    evidence = Evidence({})
    try:
        by_task = not training.own and e.partition == "natural"
        schema = data().schema_of(client if by_task else None)
        evidence = of_client(e, data(), module, client, schema)
    except DataError as error:
        schema = without_medians(training.kind.schema)
        notes.append(_WITHOUT_ROWS.format(error))
    return of_network(origin, module, kind._replace(schema=schema), evidence, notes)


def _units(training: Training, client: int, rows: Callable[[], FederatedData]) -> Units:
    e = training.experiment
    table = e.is_private and e.source.has_columns
    if e.standardize == "client" or (e.standardize == "auto" and table):
        return own_units(e, rows(), client)
    return training.kind.units


def _served(training: Training, client: int, scored: Scored) -> Served:
    e = training.experiment
    network = model_for(e, training.kind)
    (method, _, _), store = server_side(e, training.kind), RamStore()
    if scored.memory is not None:
        store.save(client, scored.memory, server_round=scored.server_round, durable=0)
    start = received_by(method, method.server.start, client)
    received = unflat(scored.received, start) if scored.received else unknown(start)
    if (wrong := difference(flat(received), flat(start))) is not None:
        raise Refused(
            f"client {client} was served by another network than the one called {e.model} here: "
            f"{wrong}"
        )
    given = network, store, received, client
    served = served_of(e, method, *given, before=scored.server_round + 1, names=UNNAMED)
    if not is_known(served):
        raise Refused(
            f"client {client} remembers no whole model, and nothing is kept here of what it "
            "received: a node keeps that each time that it scores a round (its log says so if "
            "--memory-limit leaves no room)"
        )
    return served
