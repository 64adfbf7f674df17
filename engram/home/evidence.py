"""Evidence of a model, from the rows at hand or the run's scores: scores, intervals, ranges."""

from functools import partial
from typing import Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from engram.data.federated import FederatedData, Split
from engram.data.lazy import RowNumbers
from engram.data.ranges import inputs_in, ranges_of, some_of
from engram.data.schema.columns import Schema
from engram.home.card import Evidence, ScoreEstimate, scored
from engram.home.prediction_intervals import USUAL, Interval, coverage, intervals_of, outputs_of
from engram.home.run_models import LearnedNetworks
from engram.networks.base import Outputs, called
from engram.scoring.intervals import of_proportion
from engram.scoring.metrics import fitted
from engram.scoring.query_rows import query_rows
from engram.scoring.score_columns import COMMON, TUNED
from engram.scoring.tasks import TASKS
from engram.settings.errors import DataError
from engram.settings.experiment import Experiment
from engram.settings.network import NetworkMethod

_ENOUGH: Final = 9  # rows by which intervals of the usual probability are known


def of_client(
    e: Experiment, data: FederatedData, module: nn.Module, client: int, schema: Schema | None
) -> Evidence:
    """Evaluates a client's network on its rows.

    Its intervals are by its validation rows, if these are enough, and hold as its test rows say;
    else they are by its test rows. Those for validation are None if they have chosen the network.
    """
    ranges = ranges_of(inputs_in(some_of(data.train, data.train.rows[client]), schema))
    if client in data.unscored:
        return Evidence({}, ranges)
    tested = _answered(data.test, query_rows(e, data.test, client), module)
    count = f"its {len(tested.y)} test rows"
    scores = {count: _scored_on(e, tested)}
    held_out, values = data.validation, TASKS[e.task].targets == "values"
    if held_out is None or len(kept := held_out.rows[client]) < _ENOUGH:
        return Evidence(scores, ranges, intervals_on(*tested, values=values))
    intervals = intervals_on(*_answered(held_out, kept, module), values=values)
    for interval in intervals:
        if interval.level == USUAL:
            inside = coverage(*tested, interval).double().mean(dim=1)
            share = float(inside.mean())
            ends = of_proportion(float(inside.sum()), len(inside))
            what = f"its intervals of {USUAL:g}, by its {len(kept)} validation rows, on {count}"
            scores |= {what: [ScoreEstimate("coverage", share, *ends)]}
    return Evidence(scores, ranges, intervals)


class _Answered(NamedTuple):
    """A model's outputs on rows, and their targets, (n, ...)."""

    outputs: Outputs
    y: Tensor


def _answered(split: Split, rows: RowNumbers, module: nn.Module) -> _Answered:
    x, y = split.take(torch.from_numpy(rows), exact=True)
    return _Answered(outputs_of(partial(called, module), x, len(y)), y)


def on_test_rows(
    e: Experiment, data: FederatedData, module: nn.Module, client: int
) -> tuple[int, list[ScoreEstimate]]:
    """Returns a client's number of test rows, and a network's scores on them."""
    tested = _answered(data.test, query_rows(e, data.test, client), module)
    return len(tested.y), _scored_on(e, tested)


def _scored_on(e: Experiment, tested: _Answered) -> list[ScoreEstimate]:
    return scored(e.of(NetworkMethod).metrics(e), tested.outputs, tested.y)


def intervals_on(outputs: Outputs, targets: Tensor, *, values: bool) -> list[Interval]:
    """Returns intervals of predictions, if these are ``values``, by rows new to the model.

    There are none where a row's outputs are something else than its targets, such as a mean and a
    variance.
    """
    alike = getattr(fitted(outputs, targets), "shape", None) == targets.shape
    return intervals_of(outputs, targets) if values and alike else []


# --- Of models of a run or a node -----------------------------------------------------------------


def evidence_of_network(
    learned: LearnedNetworks, module: nn.Module, client: int | None, schema: Schema | None
) -> Evidence:
    """Evaluates a client's network, or the common one, on the rows at hand.

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


def _means(learned: LearnedNetworks) -> dict[str, list[ScoreEstimate]]:
    e, results = learned.experiment, learned.results
    metrics = e.of(NetworkMethod).metrics(e)
    names = [metric.name for metric in metrics if metric.name + COMMON in results]
    found = [ScoreEstimate(name, results[name + COMMON]) for name in names]
    return {"mean over clients": found} if found else {}


def _told(learned: LearnedNetworks, client: int) -> dict[str, list[ScoreEstimate]]:
    e, found = learned.experiment, learned.results.get("clients", {})
    if client not in found.get("ids", ()):
        return {}
    at = found["ids"].index(client)
    metrics = e.of(NetworkMethod).metrics(e)
    which = TUNED if learned.tuned else ""
    scores = [ScoreEstimate(metric.name, found[metric.name + which][at]) for metric in metrics]
    return {"its test rows, as the run says": scores}
