"""``engram.tune``: searches for settings, from Python."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from engram.arguments import arguments
from engram.cli.console import in_text
from engram.cli.progress import interruptible, shows
from engram.compare.settings_for_methods import TRAINING_NETWORKS, check_trained, named_methods
from engram.core.checks import must
from engram.core.process_modes import own_modes
from engram.data.readers.in_memory import Data
from engram.python_arguments import settings_of_several
from engram.runs.run_places import new_folder
from engram.settings.errors import Refused, told_with
from engram.settings.experiment import lists_settings
from engram.settings.fields import Scalar
from engram.tune.command import new_tuning, run_tuning
from engram.tune.folder import Tuning
from engram.tune.record import Trial, read_trials
from engram.tune.results import draw_trials, table_of, trial_rows
from engram.tune.search import Search


class Tuned:
    """The results of a search.

    Attributes:
        folder: Where it is recorded.
        best: By method, the settings with the best score on validation rows, by key.
    """

    def __init__(self, folder: Path, best: Mapping[str, Mapping[str, Scalar]]) -> None:
        self.folder = folder
        self.best = best

    def __repr__(self) -> str:
        return f"Tuned({str(self.folder)!r}: {', '.join(self.best)})"

    def __str__(self) -> str:
        """Returns a line about it, and each method's table of the best trials."""
        return "\n".join([repr(self), *map(self._shown, self.best)])

    def _shown(self, method: str) -> str:
        return in_text(table_of(method, *self._found(method)))

    def table(self, method: str) -> pd.DataFrame:
        """Returns a row for each trial of a method: its settings, state and score."""
        return pd.DataFrame(trial_rows(self._found(method)[0])).set_index("trial")

    @own_modes()
    def plot(self, method: str) -> Figure:
        """Draws the score of every trial of a method against each setting that was searched."""
        return draw_trials(method, *self._found(method))

    def _found(self, method: str) -> tuple[list[Trial], Search]:
        if method not in list(self.best):
            raise Refused(must("method", method, f"one of {', '.join(self.best)}"))
        return read_trials(self.folder / method), Tuning.open(self.folder).searches()[method]


@lists_settings
@own_modes()
def tune(
    data: Data | None = None,
    *,
    methods: Sequence[str] | Mapping[str, Mapping[str, Any]],
    trials: int = 32,
    seeds: int = 3,
    minutes: float | None = None,
    search: Sequence[str] = (),
    out: str | Path | None = None,
    progress: bool = True,
    ray: str | None = None,
    **settings: Any,
) -> Tuned:
    """Finds settings of methods that train networks, on rows held out for validation.

    Args:
        data: As for ``engram.simulate``.
        methods: Their names, or one; or each one's own settings by its name.
        trials: Settings to try, of each method.
        seeds: Runs of each, from the setting ``seed`` upwards.
        minutes: Minutes after which each method's search stops; None for no bound.
        search: Where to search in place of the ranges that settings declare, and further settings:
            ``"eta=0.01..1:log"``, ``"batch-size=5,10,20"``; one, or a list of them.
        out: Folder of the search; by default a new one in ``runs/``.
        progress: Whether to show progress.
        ray: Address of a Ray cluster that searches, one method on each core: ``HOST:PORT``,
            ``"auto"`` or ``"local"``; by default this process does, one after the other.
        **settings: Fixed settings; each is applied to every method that has it.

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

    shown = shows(progress)

    def searches() -> Tuning:
        chosen = named_methods(methods)
        check_trained("tune", chosen)
        if not chosen:
            raise Refused(must("methods", methods, TRAINING_NETWORKS))
        fixed = settings_of_several(data, chosen, settings, methods)
        of_each = given.trials, given.seeds, given.minutes
        return new_tuning(fixed, given.search, *of_each, progress=shown and not wrong)

    processes = 1 if ray is None else None
    with interruptible():
        tuning = told_with(wrong, searches)
        with new_folder(given.out, "tune") as folder:
            hint = "" if tuning.first.source.in_memory else f"engram tune --resume {folder}"
            best = run_tuning(tuning, folder, hint, processes=processes, ray=ray, progress=shown)
    return Tuned(folder, best)
