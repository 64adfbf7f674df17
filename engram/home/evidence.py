"""Evidence of a run's models: from the rows at hand, or from the run's scores."""

import numpy as np
from torch import nn

from engram.data.ranges import inputs_in, ranges_of, some_of
from engram.data.schema.columns import Schema
from engram.home.card import ScoreEstimate
from engram.home.model_evidence import Evidence, of_client, of_test
from engram.home.run_models import Learned
from engram.scoring.score_columns import COMMON, TUNED
from engram.settings.errors import DataError
from engram.settings.network import NetworkMethod
from engram.tables.federation.coefficients import Coefficients
from engram.tables.federation.molar import Molar


def of_network(
    learned: Learned, module: nn.Module, client: int | None, schema: Schema | None
) -> Evidence:
    """Returns what the rows say of a client's model, or of the common one.

    Where they are elsewhere, it is the run's scores, without intervals.
    """
    try:
        data = learned.data
    except DataError:
        return Evidence(_means(learned) if client is None else _told(learned, client))
    if client is not None:
        data = data._replace(validation=None) if learned.picked else data
        return of_client(learned.experiment, data, module, client, schema)
    x = some_of(data.train, np.concatenate(data.train.rows))
    return Evidence(_means(learned), ranges_of(inputs_in(x, schema)))


def _means(learned: Learned) -> dict[str, list[ScoreEstimate]]:
    """Returns what the run says of its common model; nothing where it has scored none."""
    e, results = learned.experiment, learned.results
    metrics = e.of(NetworkMethod).metrics(e)
    names = [metric.name for metric in metrics if metric.name + COMMON in results]
    found = [ScoreEstimate(name, results[name + COMMON]) for name in names]
    return {"mean over clients": found} if found else {}


def _told(learned: Learned, client: int) -> dict[str, list[ScoreEstimate]]:
    e, found = learned.experiment, learned.results["clients"]
    if client not in found["ids"]:
        return {}
    at = found["ids"].index(client)
    metrics = e.of(NetworkMethod).metrics(e)
    which = TUNED if learned.tuned else ""
    scores = [ScoreEstimate(metric.name, found[metric.name + which][at]) for metric in metrics]
    return {"its test rows, as the run says": scores}


def of_coefficients(learned: Learned, found: Coefficients, client: int | None) -> Evidence:
    """Returns what the run, and the rows, say of a client's coefficients, or of the common ones."""
    e, clients = learned.experiment, (learned.record.results or {}).get("clients", {})
    scores: dict[str, list[ScoreEstimate]] = {}
    if client is not None:
        at = clients.get("ids", range(e.num_clients)).index(client)
        figures = {key: each[at] for key, each in clients.items() if key not in ("ids", "names")}
        scores["the run's"] = [ScoreEstimate(name, value) for name, value in figures.items()]
    if e.own.plug_in != Molar.plug_in:
        return Evidence(scores)
    try:
        data = learned.tables
    except DataError:
        return Evidence(scores)
    more, intervals = of_test(e, found, None if client is None else data.test[client])
    train = [own.x for own in (data.train if client is None else [data.train[client]]) if own]
    x = np.concatenate(train)
    return Evidence.of_table(scores | more, x, found.schema, intervals)
