"""``engram.tune``: what `engram tune` does, on data in memory."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from engram.checks import must
from federation.errors import Refused, told_with
from federation.experiment import Experiment, lists_settings
from federation.settings.fields import Scalar
from simulations.arguments import arguments
from simulations.given import settings_of_several
from simulations.options import new_folder
from simulations.several import named_methods, trained_methods
from simulations.tuning.command import Tuning, new_tuning, run_tuning
from simulations.tuning.record import read_trials
from simulations.tuning.results import draw_trials, trial_rows
from simulations.tuning.search import metric_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from federation.data.datasets import Data
    from federation.settings.given import Given

__all__ = ["Tuned", "tune"]


class Tuned:
    """What a search found.

    Attributes:
        folder: Where it is recorded.
        best: By method, the settings with the best score on validation rows, by key.
    """

    def __init__(self, folder: Path, best: Mapping[str, Mapping[str, Scalar]]) -> None:
        self.folder = folder
        self.best = best

    def __repr__(self) -> str:
        return f"Tuned({str(self.folder)!r}: {', '.join(self.best)})"

    def table(self, method: str) -> "pd.DataFrame":
        """Returns a row for each trial of a method: its settings, state and score."""
        import pandas as pd  # noqa: PLC0415 - slow to import

        self._check(method)
        return pd.DataFrame(trial_rows(read_trials(self.folder / method))).set_index("trial")

    def plot(self, method: str) -> "Figure":
        """Draws the score of every trial of a method against each setting that was searched."""
        self._check(method)
        plan = Tuning.open(self.folder).searches()[method]
        metric = metric_of(Experiment.from_config(dict(plan.fixed)))
        return draw_trials(method, read_trials(self.folder / method), plan.space, metric)

    def _check(self, method: object) -> None:
        if method not in list(self.best):
            raise Refused(must("method", method, f"one of {', '.join(self.best)}"))


@lists_settings
def tune(
    data: "Data | None" = None,
    *,
    methods: Sequence[str],
    trials: int = 32,
    seeds: int = 3,
    minutes: float | None = None,
    search: Sequence[str] = (),
    out: str | Path | None = None,
    progress: bool = True,
    ray: str | None = None,
    **settings: "Unpack[Given]",
) -> Tuned:
    """Finds settings of methods that train networks, on rows held out for validation.

    Args:
        data: As for ``engram.simulate``.
        methods: Their names, or one.
        trials: Settings to try, of each method.
        seeds: Runs of each, from the setting ``seed`` upwards.
        minutes: After which each method's search stops; None for no bound.
        search: Where to search in place of the ranges that settings declare, and further settings:
            ``"eta=0.01..1:log"``, ``"batch-size=5,10,20"``; one, or a list of them.
        out: Folder of the search; by default a new one in ``runs/``.
        progress: Whether to show it.
        ray: Address of a Ray cluster that searches, one method on each core: ``HOST:PORT``,
            ``"auto"`` or ``"local"``; by default this process does, one after the other.
        **settings: Settings that all trials have, each for all methods that have it.

    Raises:
        Refused: Settings or data are impossible, nothing is to be searched, no trial was scored, or
            no cluster answers or can see the folder.
    """
    given, wrong = arguments(
        trials=trials,
        seeds=seeds,
        minutes=minutes,
        search=search,
        out=out,
        progress=progress,
        ray=ray,
    )

    def searches() -> Tuning:
        chosen = named_methods(methods)
        trained = trained_methods("tune", chosen)
        if not chosen:
            raise Refused(must("methods", methods, f"some of {', '.join(trained)}"))
        fixed = settings_of_several(data, chosen, settings)
        return new_tuning(fixed, given.search, given.trials, given.seeds, given.minutes)

    tuning = told_with(wrong, searches)
    folder = new_folder(given.out, "tune")
    hint = f"engram tune --resume {folder}"
    shown = progress and threading.current_thread() is threading.main_thread()
    try:
        processes = 1 if ray is None else None
        best = run_tuning(tuning, folder, hint, processes=processes, ray=ray, progress=shown)
        return Tuned(folder, best)
    except SystemExit as error:
        raise KeyboardInterrupt from error
