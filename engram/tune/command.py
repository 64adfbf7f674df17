"""Runs searches as a command does: progress, files, tables."""

import json
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engram.cli.console import out, tell_files
from engram.cli.next_command import tell_next
from engram.cli.progress import check_all, progress_lines
from engram.compare.comparison_folder import PLAN, SEARCHED
from engram.settings.experiment import Experiment
from engram.settings.fields import Scalar
from engram.tune.folder import Tuning, without_score
from engram.tune.proposals import optuna_module
from engram.tune.record import read_trials
from engram.tune.results import BEST, table_of


def new_tuning(
    fixed: Mapping[str, Mapping[str, Any]],
    search: Sequence[str],
    trials: int,
    seeds: int,
    minutes: float | None = None,
    *,
    after: int = 0,
    progress: bool = False,
) -> Tuning:
    """Returns a search that is possible, on seeds from the setting ``seed`` plus ``after`` on.

    Raises:
        Refused: As ``Tuning.check`` says; or Optuna is not installed.
    """
    found = Tuning(fixed, list(search), trials, [], minutes)
    first = found.first.seed + after
    found = found._replace(seeds=list(range(first, first + seeds)))
    optuna_module()
    plans = found.searches().values()
    check_all("searches", [partial(found.check, plan) for plan in plans], progress)
    return found


def run_tuning(
    tuning: Tuning,
    folder: Path,
    resume: str,
    *,
    processes: int | None = 1,
    ray: str | None = None,
    progress: bool = True,
    as_json: bool = False,
) -> dict[str, dict[str, Scalar]]:
    """Runs the searches with progress and tables; returns the best settings.

    ``resume`` is the command that resumes them, after an interruption; "" if there is none.

    Raises:
        Refused: As ``Tuning.run`` says.
        RunStopped: As it says.
        SystemExit: Ctrl-C was pressed; status 130.
    """
    optuna_module()

    def hint() -> str:
        if not (folder / SEARCHED).is_file():
            return "nothing has been written"
        if not resume:
            return "it cannot go on: its data were given in memory"
        return f"go on with: {resume}"

    with progress_lines("rounds", hint, shown=progress) as begin:
        best = tuning.run(folder, begin, processes, ray)
    if progress:
        show_tuning(tuning, folder, as_json)
    return best


def with_best(
    plan: Mapping[str, Experiment], best: Mapping[str, Mapping[str, Scalar]]
) -> dict[str, Experiment]:
    """Returns experiments, by name, with the best settings of their methods."""
    found = {}
    for name, e in plan.items():
        own = e.own.all_keys()
        named = {f"{e.method}.{k}" if k in own else k: v for k, v in best[e.method].items()}
        found[name] = Experiment.from_config(e.to_config() | named)
    return found


def show_tuning(tuning: Tuning, folder: Path, as_json: bool = False) -> None:
    """Prints the tables and the files of searches."""
    found, left = {}, False
    for name, plan in tuning.searches().items():
        trials = read_trials(folder / name)
        left = left or not tuning.decided(trials)
        if best := plan.best_of(trials):
            out.print(table_of(name, trials, plan))
            found[name] = best.settings
        elif tuning.decided(trials):
            out.print(f"{name}: {without_score(trials)}", soft_wrap=True)
    tell_files(folder, [SEARCHED, BEST, *(f"{name}/" for name in tuning.fixed)])
    if as_json:
        print(json.dumps({"run": str(folder), "best": found}))
    elif tuning.first.source.in_memory or (folder.parent / PLAN).is_file():
        return  # no command has the data; or a comparison goes on by itself
    elif (folder / BEST).exists():
        tell_next(_with_best(folder, list(found)))
    elif left:
        tell_next(f"tune --resume {shlex.quote(str(folder))}")


def _with_best(folder: Path, methods: Sequence[str]) -> str:
    several = len(methods) > 1
    file = folder / BEST if several else folder / methods[0] / BEST
    names = " ".join(["compare" if several else "run", *methods])
    return f"{names} --config {shlex.quote(str(file))}"
