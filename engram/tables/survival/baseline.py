"""Breslow's baseline hazard of a site, and curves of subjects by it."""

from typing import NamedTuple

import numpy as np

from engram.core.arrays import Array
from engram.tables.site import Rows
from engram.tables.survival.partial import risk_sets


class StepFunction(NamedTuple):
    """A curve that stays as it is until the next time."""

    x: Array  # times at which it changes, ascending, shape (T,)
    y: Array  # its values from each on, shape (T,)
    before: float  # its value before the first
    end: float  # the last time at which anybody was observed: later it is unknown

    def __call__(self, times: Array | float) -> Array:
        """Returns its value at each time; NaN beyond ``end``."""
        values = np.append(self.before, self.y)[np.searchsorted(self.x, times, "right")]
        return np.where(np.asarray(times) > self.end, np.nan, values)


class Baseline(NamedTuple):
    """The cumulative hazard of one site's subjects."""

    time: Array  # times of the site's events, ascending, shape (T,)
    hazard: Array  # cumulative hazard at each, shape (T,), where ``<x, beta>`` is ``reference``
    reference: float  # mean of ``<x, beta>`` over the site, so that nothing overflows
    end: float  # the last time at which anybody was observed

    def cumulative_hazard(self, eta: float) -> StepFunction:
        """The cumulative hazard of a subject with ``<x, beta>`` of ``eta``."""
        return StepFunction(self.time, self.hazard * np.exp(eta - self.reference), 0.0, self.end)

    def survival(self, eta: float) -> StepFunction:
        """The probability of no event of a subject with ``<x, beta>`` of ``eta``."""
        hazard = self.cumulative_hazard(eta)
        return StepFunction(self.time, np.exp(-hazard.y), 1.0, self.end)


def baseline_hazard(rows: Rows, coef: Array) -> Baseline:
    """Estimates the cumulative hazard of one stratum (Breslow 1972).

    At each time of events it rises by the sum of their weights over that of the risks of the
    subjects at risk. Without events it is 0.
    """
    sets, end = risk_sets(rows, "breslow"), float(rows.y.max())
    risk = sets.weights * np.exp(sets.x @ coef)
    rises = sets.mass / sets.over(risk)
    return Baseline(sets.at, np.cumsum(rises), float(sets.center @ coef), end)
