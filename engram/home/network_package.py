"""Networks of a run with their cards: a client's own, the common one, or one for a newcomer.

Those for clients that never took part are made by the method's own adaptation, from a few rows.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_map

from engram.client.memory import RamStore
from engram.cohort.trainer.trainer import Trainer
from engram.core.slots import is_known, unknown
from engram.core.streams import Stream, generator
from engram.data.federated import model_for
from engram.data.lazy import RowNumbers
from engram.data.new_rows import Newcomer, read_newcomer
from engram.data.ranges import inputs_in, ranges_of
from engram.data.schema.columns import Kind, Schema
from engram.data.standardize import own_units, standardized_by
from engram.home.card import FOLDS, UNLABELED, Evidence, ScoreEstimate, of_network, scored
from engram.home.evidence import evidence_of_network, intervals_on
from engram.home.exported import Package
from engram.home.learned import MODELS, Models
from engram.home.prediction_intervals import Interval, outputs_of
from engram.home.run_models import LearnedNetworks
from engram.home.serving import RECALLS, check_finite, plain_module, settled, without_medians
from engram.networks.base import Outputs, called
from engram.networks.export_modules import Recalling
from engram.scoring.tasks import TASKS
from engram.settings.errors import DataError, Refused
from engram.settings.experiment import Experiment, read_by
from engram.settings.families import METHODS
from engram.settings.fields import key_of
from engram.settings.method_for_data import shapes_on
from engram.settings.model_and_evaluation import ModelSettings
from engram.settings.network import NetworkMethod
from engram.settings.training import TrainingSettings
from engram.strategies.running.rounds import rounds

_OWN_UNITS = "It takes columns that are standardized by their client's own training rows."

Fit = Callable[[RowNumbers], nn.Module]
"""``rows -> module``: a model that has learned from these of the newcomer's rows."""


def notes_on(learned: LearnedNetworks, module: nn.Module, *, common: bool) -> list[str]:
    """Returns notes for the users of a network."""
    notes = [RECALLS] if isinstance(module, Recalling) else []
    if common and not is_known(learned.newcomers(unknown(learned.method.client.start))):
        notes.append("Some of its parameters are each client's own, and are here as they began.")
    if common and learned.standardizes_by_client:
        notes.append(_OWN_UNITS)
    return notes


def common_model(learned: LearnedNetworks, kind: Kind | None = None) -> nn.Module:
    """Returns the model that all clients share, for rows of a kind.

    Raises:
        Refused: If there are several, of which a client's rows choose one.
    """
    network = learned.network if kind is None else model_for(learned.experiment, kind)
    return learned.module(learned.common, network, 0)


def newcomer_of(learned: LearnedNetworks, path: Path) -> Newcomer:
    """Reads a newcomer's rows."""
    return read_newcomer(path, learned.kind, learned.experiment)


def _kind_of(learned: LearnedNetworks, newcomer: Newcomer, rows: RowNumbers) -> Kind:
    units = own_units(learned.experiment, newcomer.data(rows, 0), 0)
    return newcomer.kind._replace(units=units)


def adapted_package(learned: LearnedNetworks, path: Path, name: str) -> Package:
    """Returns a network for a client that never took part, by its rows, with its card."""
    newcomer = newcomer_of(learned, path)
    number, everything = learned.experiment.num_clients, np.arange(newcomer.size)
    kind = _kind_of(learned, newcomer, everything)
    if newcomer.y is None:
        module = common_model(learned, kind)
        found = Evidence(
            {}, evidence_of_network(learned, module, None, newcomer.kind.schema).ranges
        )
        notes = [UNLABELED, *notes_on(learned, module, common=True)]
    else:
        module = adapted(learned, newcomer, everything, number)
        scores, intervals = _scores(learned, newcomer, number)
        ranges = ranges_of(inputs_in(newcomer.x, newcomer.kind.schema))
        found = Evidence(scores, ranges, intervals)
        notes = notes_on(learned, module, common=False)
    origin = learned.origin(name, f"{newcomer.size} rows of {path}, and the run's")
    return of_network(origin, module, kind, found, notes)


def adapted(
    learned: LearnedNetworks, newcomer: Newcomer, rows: RowNumbers, client: int
) -> nn.Module:
    """Returns the model that the method serves a client by that never trains.

    It is what the protocol scores of unseen clients; with few shots, all of the ``rows`` are
    support. By the number of the ``client``, rows of batches are drawn.
    """
    network = model_for(learned.experiment, _kind_of(learned, newcomer, rows))
    e = learned.experiment.model_copy(update={"adapt_shots": len(rows)})
    data = newcomer.data(rows, client)

    def trainer() -> Trainer:
        return Trainer(e, data, RamStore(), engine="sequential")

    found = settled(learned.newcomers(), trainer, client)
    check_finite(e, found, newcomer.name)
    return plain_module(network, found, TASKS[e.task].targets, lambda: data, client)


def alone(learned: LearnedNetworks, newcomer: Newcomer, rows: RowNumbers) -> nn.Module:
    """Returns a network that has learned from these rows alone, by the reference of comparisons.

    It trains as one client would in each of the run's rounds, with the step size of the run's
    method, if that has one by the same name.
    """
    data = newcomer.data(rows, 0)
    e = _by_itself(learned, standardized_by(learned.experiment, data))
    trainer = Trainer(e, data, RamStore(), engine="sequential")
    train = partial(trainer.train, {}, [[0]], durable=0, losses=False)
    for _ in rounds(e, lambda step: train(server_round=step.number)):
        pass
    (memory,) = trainer.recalled([0], before=e.rounds + 1)
    found = trainer.method.serve({}, memory.kept, memory.trained)
    found = trainer.scorer.models.settled(found, 0)
    network = model_for(e, _kind_of(learned, newcomer, rows))
    return plain_module(network, found, TASKS[e.task].targets, lambda: data, 0)


def _by_itself(learned: LearnedNetworks, standardize: str) -> Experiment:
    e, config = learned.experiment, learned.experiment.to_config()
    groups = (*ModelSettings.model_fields, *TrainingSettings.model_fields)
    kept = {key_of(field): config[key_of(field)] for field in groups if key_of(field) in config}
    kept |= {key: config[key] for key in ("task", "loss", "seed", "metrics", "num-rounds")}
    kept |= {"standardize": standardize, "personal": ""}
    kept |= dict.fromkeys(("num-clients", "clients-per-round", "shards"), 1)
    eta = getattr(e.own, "eta", None)
    for name, method in METHODS.items():
        if issubclass(method, NetworkMethod) and method.reference:
            own = {} if eta is None else {f"{name}.eta": eta}
            found = Experiment.from_config(read_by(name, kept) | own | {"method": name})
            shapes = shapes_on(found, learned.network, learned.kind.outputs)
            if not (shapes.received or shapes.sent):
                return found
    raise AssertionError("no method learns without a server")  # for mypy: there is one


def cross_validated(newcomer: Newcomer, fit: Fit, seed: int) -> Outputs:
    """Returns each row's outputs by a model that has learned from the other folds' rows.

    Args:
        newcomer: The client, with two rows at least.
        fit: Learns from rows.
        seed: Draws the folds: five, or as many as there are rows.
    """
    order = generator(seed, Stream.FOLDS).permutation(newcomer.size)
    parts, folds = list[Outputs](), np.array_split(order, min(FOLDS, newcomer.size))
    for fold in folds:
        runs = partial(called, fit(np.sort(np.setdiff1d(order, fold))))
        x, _ = newcomer.data(fold, 0).train.take(torch.from_numpy(fold), exact=True)
        parts.append(outputs_of(runs, x, len(fold)))
    back = torch.from_numpy(np.argsort(np.concatenate(folds)))
    outputs: Outputs = tree_map(lambda *leaves: torch.cat(leaves)[back], *parts)
    return outputs


def _scores(
    learned: LearnedNetworks, newcomer: Newcomer, number: int
) -> tuple[dict[str, list[ScoreEstimate]], list[Interval]]:
    """Scores the newcomer's model and its alternatives by cross-validation.

    Its intervals are of the same predictions.
    """
    e, y = learned.experiment, newcomer.y
    assert y is not None  # for mypy: only labeled rows are scored
    metrics = e.of(NetworkMethod).metrics(e)
    fits: dict[str, Fit] = {
        "adapted, cross-validated": lambda rows: adapted(learned, newcomer, rows, number),
        "these rows alone, cross-validated": lambda rows: alone(learned, newcomer, rows),
    }
    found, intervals = {}, list[Interval]()
    values = TASKS[e.task].targets == "values"
    if newcomer.size > 1:
        outputs = {what: cross_validated(newcomer, fit, e.seed) for what, fit in fits.items()}
        found = {what: scored(metrics, each, y) for what, each in outputs.items()}
        intervals = intervals_on(next(iter(outputs.values())), y, values=values)
    try:
        everything = np.arange(newcomer.size)
        common = common_model(learned, _kind_of(learned, newcomer, everything))
    except Refused:  # a method with several, of which rows choose one
        return found, intervals
    shared = outputs_of(partial(called, common), newcomer.x, newcomer.size)
    return found | {"the common model": scored(metrics, shared, y)}, intervals


def package_of(learned: LearnedNetworks, client: int | None) -> Package:
    """Returns the network that serves a client, or the common one.

    Raises:
        Refused: If there is none, or its memories or rows are elsewhere.
    """
    if client is None:
        module, kind = common_model(learned), learned.kind
    else:
        learned = learned.of_client(client)
        module = learned.module(learned.personal(client), learned.network_of(client), client)
        kind = learned.kind_of(client)
    notes = notes_on(learned, module, common=client is None)
    kind = kind._replace(schema=_schema_here(learned, client))
    evidence = evidence_of_network(learned, module, client, kind.schema)
    return of_network(learned.origin(client), module, kind, evidence, notes)


def _schema_here(learned: LearnedNetworks, client: int | None) -> Schema | None:
    """Returns the schema of inputs, with the client's values for missing ones.

    Where the table is elsewhere, that is unknown: then the schema refuses missing values.
    """
    schema = learned.kind.schema
    if (elsewhere := without_medians(schema)) == schema:
        return schema
    try:
        return learned.data.schema_of(client if learned.by_task else None)
    except DataError:
        if not learned.may_lack_rows:
            raise
        return elsewhere


MODELS.register(NetworkMethod.plug_in)(Models(LearnedNetworks, package_of, adapted_package))
