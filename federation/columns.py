"""Named columns of figures, one a client: what nodes and the server agree on."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from engram.metrics import Metric

__all__ = ["Column", "columns_of"]

_LARGEST: Final = float(np.finfo(np.float32).max)  # of finite values: sums of them are finite
_ROUNDING: Final = 1e-6  # of values at an end of the range


class Column(NamedTuple):
    """A metric of one of the models that every client is served by.

    Attributes:
        name: The metric's name, and which model's it is: ``accuracy``, ``accuracy-before``.
        metric: The metric.
        optional: Whether some clients have no value, which is NaN.
    """

    name: str
    metric: Metric
    optional: bool

    def impossible(self, values: Sequence[float]) -> str | None:
        """Returns what is wrong with values that somebody sent, if anything is."""
        metric, table = self.metric, np.array(values, dtype=np.float64)
        inside = (table >= metric.low - _ROUNDING) & (table <= metric.high + _ROUNDING)
        allowed = inside & ((np.abs(table) <= _LARGEST) | np.isinf(table))
        if self.optional:
            allowed |= np.isnan(table)
        if allowed.all():
            return None
        wrong = table[~allowed][0]
        return f"{self.name} must lie between {metric.low:g} and {metric.high:g}, got {wrong:g}"

    def counted(self, values: Sequence[float]) -> list[float]:
        """Returns possible values as they count in means: see ``Metric.most``."""
        most = self.metric.most
        return [most if most < value < np.inf else value for value in values]


def columns_of(metrics: Iterable[Metric], models: Mapping[str, bool]) -> list[Column]:
    """Returns a column for each metric of each model.

    Args:
        metrics: The metrics.
        models: What is put behind a metric's name, for each model; and whether some clients lack
            it.
    """
    return [
        Column(metric.name + suffix, metric, metric.partial or lacking)
        for metric in metrics
        for suffix, lacking in models.items()
    ]
