"""TensorBoard: event files in the folder ``tensorboard`` of a run."""

from collections.abc import Mapping

import numpy as np
from torch.utils.tensorboard import SummaryWriter

from engram.studio.tracking.sending import About, Ending, Tracker


class TensorBoard(Tracker):
    """A run's event files.

    What an interrupted process wrote after the last round that it recorded as told is purged: its
    readers see each round once.
    """

    def __init__(self, about: About, told: int) -> None:
        self._settings = about.settings
        self._writer = SummaryWriter(str(about.folder / "tensorboard"), purge_step=told + 1)

    def tell(self, server_round: int, values: Mapping[str, float]) -> None:
        """See ``Tracker.tell``."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, server_round)

    def flush(self) -> None:
        """See ``Tracker.flush``."""
        self._writer.flush()

    def finish(self, end: Ending) -> None:
        """Adds clients' histograms and the settings; results are the last round's."""
        for name, values in end.clients.items():
            self._writer.add_histogram(f"clients/{name}", np.asarray(values), end.server_round)
        lines = [f"| {key} | {value} |" for key, value in self._settings.items()]
        self._writer.add_text("settings", "\n".join(["| setting | value |", "|---|---|", *lines]))

    def close(self) -> None:
        """See ``Tracker.close``."""
        self._writer.close()
