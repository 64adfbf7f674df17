"""Weights & Biases: a run of the project ``engram``; with WANDB_MODE=offline, in its folder."""

from collections.abc import Mapping
from typing import Any, Final

import wandb

from engram.studio.tracking.sending import About, Ending, Tracker

_PROJECT: Final = "engram"


class WeightsAndBiases(Tracker):
    """A run at Weights & Biases, in a process of its own, which has all that it was told.

    Its id is the run's key, so that a resumed run goes on, and files that were written off line
    become one run when they are synchronized.
    """

    def __init__(self, about: About, told: int) -> None:
        del told
        self._folder = about.folder
        # Else each file that is saved is told on the terminal, whatever the run's own settings say.
        wandb.setup(settings=wandb.Settings(silent=True))
        self._run = wandb.init(
            project=_PROJECT,
            id=about.key,
            name=about.name,
            group=about.group or None,
            config=dict(about.settings),
            dir=str(about.folder),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )

    def tell(self, server_round: int, values: Mapping[str, float]) -> None:
        """See ``Tracker.tell``."""
        self._run.log(dict(values), step=server_round)

    def finish(self, end: Ending) -> None:
        """See ``Tracker.finish``."""
        drawn: dict[str, Any] = {
            f"clients/{name}": wandb.Histogram(values) for name, values in end.clients.items()
        }
        self._run.summary.update({**end.results, **drawn})
        for path in end.files:
            self._run.save(str(path), base_path=str(self._folder), policy="now")

    def close(self) -> None:
        """See ``Tracker.close``."""
        self._run.finish()
