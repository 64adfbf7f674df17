"""What the rows at hand say of a model: how well it does, and where its inputs lie."""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, Self

import numpy as np
import torch
from torch import nn

from client.card import Score, mean_of, scored
from client.coefficients import Coefficients
from client.training.scoring import Scoring
from engram.arrays import Array
from engram.models.plain import layered
from engram.models.skeleton import called
from engram.molar.families import FAMILIES
from federation.data.ranges import Range, inputs_in, ranges_of, some_of
from federation.data.tables import table_data
from federation.data.unlabeled import InputColumn
from federation.errors import DataError
from federation.methods.local import COMMON, SERVED, LocalMethod
from federation.methods.molar import Molar
from federation.predicted import outputs_of
from federation.roster import Kind
from simulations.learned import Learned
from strategies.scorekeeping import Scoring as Scores

__all__ = ["Evidence", "of_coefficients", "of_network"]


class Evidence(NamedTuple):
    """What rows say of a model.

    Attributes:
        scores: By what they are of, figures.
        ranges: Where the inputs lie in the rows that it has learned from.
    """

    scores: dict[str, list[Score]]
    ranges: Sequence[Range] = ()

    @classmethod
    def of_table(cls, scores: dict[str, list[Score]], x: Array, names: Sequence[str]) -> Self:
        """Returns figures, and the ranges of a table's columns."""
        found = inputs_in(torch.from_numpy(x), Kind(columns=tuple(names)), [], "refuse")
        return cls(scores, ranges_of(found))


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
    if client is None:
        return Evidence(_means(learned), ranges)
    rows = Scoring(e, learned.network, data, vectorized=False).queries([client]).rows[0]
    x, y = data.test.take(rows)
    outputs = outputs_of(partial(called, module), x, len(y))
    metrics = e.of(LocalMethod).metrics(e)
    return Evidence({f"its {len(y)} test rows": scored(metrics, outputs, y)}, ranges)


def _means(learned: Learned) -> dict[str, list[Score]]:
    """Returns what the run says of its common model; of several, it says nothing of all."""
    if learned.network.candidates is not None:
        return {}
    results, metrics = learned.record.results or {}, Scores.of(learned.experiment).metrics
    found = [Score(metric.name, results.get(metric.name + COMMON)) for metric in metrics]
    return {"mean over clients": found}


def _told(learned: Learned, client: int) -> dict[str, list[Score]]:
    e, found = learned.experiment, (learned.record.results or {})["clients"]
    at = found["ids"].index(client)
    metrics = e.of(LocalMethod).metrics(e)
    scores = [Score(metric.name, found[metric.name + SERVED][at]) for metric in metrics]
    return {"its test rows, as the run says": scores}


def of_coefficients(learned: Learned, found: Coefficients, client: int | None) -> Evidence:
    """Returns what the run, and the rows, say of a client's coefficients, or of the common ones."""
    e, clients = learned.experiment, (learned.record.results or {}).get("clients", {})
    scores: dict[str, list[Score]] = {}
    if client is not None:
        at = clients.get("ids", range(e.num_clients)).index(client)
        figures = {key: each[at] for key, each in clients.items() if key not in ("ids", "names")}
        scores["the run's"] = [Score(name, value) for name, value in figures.items()]
    if e.own.plug_in != Molar.plug_in:
        return Evidence(scores)
    try:
        data = table_data(e)
    except DataError:
        return Evidence(scores)
    test = None if client is None else data.test[client]
    if test is not None:
        with torch.no_grad():
            eta = layered(found.state)(torch.from_numpy(test.x))[:, 0].numpy()
        rows = FAMILIES[e.of(Molar).family].loss(eta, test.y)
        scores[f"its {len(rows)} test rows"] = [mean_of("loss", torch.from_numpy(rows))]
    train = [own.x for own in (data.train if client is None else [data.train[client]]) if own]
    return Evidence.of_table(scores, np.concatenate(train), found.columns)
