"""Evidence of a model from the rows at hand: its scores, its intervals, its inputs' ranges."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import Tensor, nn

from client.card import ScoreEstimate, mean_of, scored
from client.coefficients import Coefficients
from client.training.scoring import query_rows
from engram.arrays import Array
from engram.metrics import fitted
from engram.models.base import Outputs, called
from engram.models.plain import layered
from engram.molar.families import FAMILIES
from engram.tasks import TASKS
from federation.data.new_rows import InputColumn
from federation.data.ranges import Range, inputs_in, ranges_of, some_of
from federation.data.tables import table_data
from federation.errors import DataError
from federation.methods.molar import Molar
from federation.methods.network import COMMON, TUNED, NetworkMethod
from federation.predicted import Interval, intervals_of, outputs_of
from federation.roster import Kind
from simulations.learned import Learned

__all__ = ["Evidence", "intervals_on", "of_coefficients", "of_network"]


class Evidence(NamedTuple):
    """Evidence of a model from rows.

    Attributes:
        scores: By what they are of, figures.
        ranges: Where the inputs lie in the rows that it has learned from.
        intervals: Of predictions, where these are values.
    """

    scores: dict[str, list[ScoreEstimate]]
    ranges: Sequence[Range] = ()
    intervals: Sequence[Interval] = ()

    @classmethod
    def of_table(
        cls,
        scores: dict[str, list[ScoreEstimate]],
        x: Array,
        names: Sequence[str],
        intervals: Sequence[Interval],
    ) -> Self:
        """Returns figures, the ranges of a table's columns, and intervals."""
        found = inputs_in(torch.from_numpy(x), Kind(columns=tuple(names)), [], "refuse")
        return cls(scores, ranges_of(found), intervals)


def of_network(
    learned: Learned, module: nn.Module, client: int | None, columns: Sequence[InputColumn]
) -> Evidence:
    """Returns what the rows say of a client's model, or of the common one.

    Where they are elsewhere, it is the run's scores, without intervals.
    """
    try:
        data = learned.data
    except DataError:
        return Evidence(_means(learned) if client is None else _told(learned, client))
    owners = data.train.rows if client is None else [data.train.rows[client]]
    x = some_of(data.train, np.concatenate(owners))
    e = learned.experiment
    ranges = ranges_of(inputs_in(x, learned.kind, columns, e.missing))
    if client is None or client in data.unscored:
        return Evidence(_means(learned) if client is None else {}, ranges)
    x, y = data.test.take(torch.from_numpy(query_rows(e, data.test, client)))
    outputs = outputs_of(partial(called, module), x, len(y))
    name = data.names.get(client, client)
    metrics = [metric.of(name) for metric in e.of(NetworkMethod).metrics(e)]
    scores = {f"its {len(y)} test rows": scored(metrics, outputs, y)}
    return Evidence(scores, ranges, intervals_on(learned, outputs, y))


def intervals_on(learned: Learned, outputs: Outputs, targets: Tensor) -> list[Interval]:
    """Returns intervals of predictions, if these are values, by rows that are new to the model.

    There are none where a row's outputs are something else than its targets, such as a mean and a
    variance.
    """
    e = learned.experiment
    if learned.trains_network:
        values = TASKS[e.task].targets == "values"
    else:
        values = e.of(Molar).family != "logistic"
    alike = getattr(fitted(outputs, targets), "shape", None) == targets.shape
    return intervals_of(outputs, targets) if values and alike else []


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
        data = table_data(e)
    except DataError:
        return Evidence(scores)
    test = None if client is None else data.test[client]
    intervals: list[Interval] = []
    if test is not None:
        family = FAMILIES[e.of(Molar).family]
        with torch.no_grad():
            eta = layered(found.state)(torch.from_numpy(test.x))[:, 0].numpy()
        rows, means = family.loss(eta, test.y), family.mean(eta)
        scores[f"its {len(rows)} test rows"] = [mean_of("loss", torch.from_numpy(rows))]
        intervals = intervals_on(learned, torch.from_numpy(means), torch.from_numpy(test.y))
    train = [own.x for own in (data.train if client is None else [data.train[client]]) if own]
    return Evidence.of_table(scores, np.concatenate(train), found.columns, intervals)
