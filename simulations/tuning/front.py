"""``engram.tune``: what `engram tune` does, on data in memory."""

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from engram.checks import must
from engram.metrics import Metric
from engram.process import own_modes
from federation.errors import Refused, told_with
from federation.experiment import lists_settings
from federation.settings.fields import Scalar
from simulations.arguments import arguments
from simulations.console import in_text
from simulations.given import settings_of_several
from simulations.options import new_folder
from simulations.several import TRAINING_NETWORKS, check_trained, named_methods
from simulations.tuning.command import Tuning, new_tuning, run_tuning
from simulations.tuning.record import Trial, read_trials
from simulations.tuning.results import draw_trials, table_of, trial_rows
from simulations.tuning.search import Search

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from federation.data.datasets import Data
    from federation.settings.given import Given


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
        plan, trials, metric = self._found(method)
        return in_text(table_of(method, trials, plan.space, metric))

    def table(self, method: str) -> "pd.DataFrame":
        """Returns a row for each trial of a method: its settings, state and score."""
        import pandas as pd  # noqa: PLC0415 - slow to import

        _, trials, _ = self._found(method)
        return pd.DataFrame(trial_rows(trials)).set_index("trial")

    @own_modes()
    def plot(self, method: str) -> "Figure":
        """Draws the score of every trial of a method against each setting that was searched."""
        plan, trials, metric = self._found(method)
        return draw_trials(method, trials, plan.space, metric)

    def _found(self, method: str) -> tuple[Search, list[Trial], Metric]:
        """Returns a method's search, its trials, and the metric of their scores."""
        if method not in list(self.best):
            raise Refused(must("method", method, f"one of {', '.join(self.best)}"))
        plan = Tuning.open(self.folder).searches()[method]
        return plan, read_trials(self.folder / method), plan.metric


@lists_settings
@own_modes()
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
        check_trained("tune", chosen)
        if not chosen:
            raise Refused(must("methods", methods, TRAINING_NETWORKS))
        fixed = settings_of_several(data, chosen, settings)
        found = new_tuning(fixed, given.search, given.trials, given.seeds, given.minutes)
        for plan in found.searches().values():
            known = 'declared, where it is searched by: engram.metric(better="lower"), or "higher"'
            if not plan.metric.declared:
                raise Refused(must(f"better of metric {plan.metric.name}", None, known))
        return found

    tuning = told_with(wrong, searches)
    shown = progress and threading.current_thread() is threading.main_thread()
    processes = 1 if ray is None else None
    with new_folder(given.out, "tune") as folder:
        hint = f"engram tune --resume {folder}"
        try:
            best = run_tuning(tuning, folder, hint, processes=processes, ray=ray, progress=shown)
        except SystemExit as error:
            raise KeyboardInterrupt from error
    return Tuned(folder, best)
