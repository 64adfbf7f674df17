"""Cells of time in which networks predict survival, and targets in them."""

from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from engram.data.lazy import Place
from engram.settings.model_and_evaluation import ModelSettings


class TimeCells(NamedTuple):
    """Cells of equal width.

    Attributes:
        horizon: The end of the last one; 0: there are none, and times stay as they are.
        size: How many there are; 1 without a horizon.
    """

    horizon: float = 0.0
    size: int = 1

    @classmethod
    def of(cls, settings: ModelSettings) -> Self:
        """Returns the cells that settings declare."""
        return cls(settings.horizon, settings.time_cells if settings.horizon else 1)

    @property
    def names(self) -> tuple[str, ...]:
        """The ends of the cells, as words."""
        ends = np.arange(1, self.size + 1) * (self.horizon / self.size)
        return tuple(f"{end:g}" for end in ends) if self.horizon else ()

    def targets(self, place: Place, y: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns times, in cells, with 1 for an event and 0 for a loss, shape (n, 2).

        Who has an event after the horizon is lost there.

        Raises:
            DataError: If y are not times and events.
        """
        if y.ndim != 2 or y.shape[1] != 2 or y.dtype.kind not in "buif":
            got = f"{y.dtype} of shape {y.shape}"
            raise place.fault("a time, and 1 for an event or 0 for none, in each row", got)
        time, event = y.astype(np.float64).T
        if (strange := ~(np.isfinite(time) & (time >= 0))).any():
            raise place.fault("times of at least 0", place.first(time, strange))
        if (strange := ~np.isin(event, (0, 1))).any():
            raise place.fault("1 for an event or 0 for none", place.first(event, strange))
        if self.horizon:
            event = event * (time <= self.horizon)
            time = np.minimum(time / self.horizon, 1.0) * self.size
        return np.column_stack([time, event]).astype(np.float32)
