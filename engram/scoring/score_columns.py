"""Named metric columns with one value per client, as nodes and the server agree on them."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isinf, isnan
from typing import Final, NamedTuple

from engram.scoring.metrics import Metric

COMMON, TUNED = "-common", "-tuned"
"""Column suffixes: the common model as it is, and the served model after fine-tuning. Without one,
a column is of the model that serves the client."""

ELSEWHERE: Final = "-elsewhere"
"""Column suffix, after a model's: its scores on other clients' test rows."""

MODELS: Final = "", COMMON, TUNED, ELSEWHERE, TUNED + ELSEWHERE
"""Every suffix of a column."""

VALIDATION, UNSEEN = "validation-", "unseen-"
"""Column prefixes: rows that are held out for validation, and clients that never train."""

LARGEST: Final = 3.4028234663852886e38  # of float32: sums of finite values are finite
_ROUNDING: Final = 1e-6  # of values at an end of the range


def selected_by(which: str) -> str:
    """Returns the key in a run's results of the best evaluation by a model's scores."""
    return f"selected{which}"


class Column(NamedTuple):
    """A metric of one of the models that are evaluated on every client.

    Attributes:
        name: The metric's name and the model's suffix: ``accuracy``, ``accuracy-common``.
        metric: The metric.
        optional: Whether some clients have no value, which is NaN.
    """

    name: str
    metric: Metric
    optional: bool

    def impossible(self, values: Sequence[float]) -> str | None:
        """Returns the fault of values from a node, or None."""
        metric = self.metric
        low, high = metric.low - _ROUNDING, metric.high + _ROUNDING

        def allowed(value: float) -> bool:
            if isnan(value):
                return self.optional
            return low <= value <= high and (abs(value) <= LARGEST or isinf(value))

        wrong = next((value for value in values if not allowed(value)), None)
        if wrong is None:
            return None
        return f"{self.name} must lie between {metric.low:g} and {metric.high:g}, got {wrong:g}"

    def counted(self, values: Sequence[float]) -> list[float]:
        """Returns values as they enter means, capped at ``Metric.most``."""
        most = self.metric.most
        return [most if most < value < inf else value for value in values]


def told(column: Column, *, covered: bool) -> Column:
    """Returns a column as nodes send it.

    Where all that leaves a client is ``covered`` by noise, bounded values leave their range, and
    there are no others.
    """
    if not covered:
        return column
    return Column(column.name, column.metric._replace(low=-inf, high=inf), optional=True)


def ranges_of(columns: Iterable[Column]) -> dict[str, float]:
    """Returns lengths of metrics' ranges, some infinite, by column."""
    return {column.name: column.metric.high - column.metric.low for column in columns}


def columns_of(metrics: Iterable[Metric], models: Mapping[str, bool]) -> list[Column]:
    """Returns a column for each metric of each model.

    Args:
        metrics: The metrics.
        models: Each model's suffix to a metric's name, and whether some clients lack the model.
    """
    return [
        Column(metric.name + suffix, metric, metric.partial or lacking)
        for metric in metrics
        for suffix, lacking in models.items()
    ]
