"""Starts comparisons in a folder, and resumes them."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from engram.arguments import REFERENCES, arguments
from engram.cli import work
from engram.cli.progress import Execute, check_all, run_all
from engram.client.hosts import Engine, Opening, host_of
from engram.client.memory import RamStore
from engram.compare.comparison_folder import PLAN, TUNING, planned, read_plan
from engram.compare.references import write_references
from engram.data.source import Source
from engram.runs.run import Run, is_run
from engram.runs.run_places import make_folder
from engram.settings.data import DataSettings
from engram.settings.errors import Refused
from engram.settings.experiment import Experiment
from engram.settings.files import replace_file


def begin_comparison(
    folder: Path,
    engine: Engine,
    each: Mapping[str, Mapping[str, Any]],
    seeds: int,
    tuned: tuple[int, int | None] | None = None,
    references: Sequence[str] = tuple(REFERENCES),
    *,
    progress: bool = False,
    begun: bool = False,
) -> None:
    """Checks the runs of a comparison, and writes their plan into its folder.

    Each method has as many runs as ``seeds``, from the setting ``seed`` upwards. ``tuned`` is how
    many settings are tried of each first, and on how many other seeds: by default as many. Of one
    that has ``begun``, these must be the arguments that it was begun by.

    Raises:
        Refused: Settings or data are impossible, or others than before. Nothing is written.
    """
    plan, tuning = planned(each, seeds), None
    runs = {name: experiment.to_config() for name, experiment in plan.items()}
    written = json.dumps({"engine": engine, "references": [*references], "runs": runs}, indent=2)
    if begun:
        searched = work.Tuning.open(folder / TUNING) if (folder / TUNING).is_dir() else None
        before = None if searched is None else (searched.trials, len(searched.seeds))
        asked = None if tuned is None else (tuned[0], tuned[1] or seeds)
        if before != asked or read_plan(folder) != json.loads(written):
            raise Refused(f"{folder} goes on by the call that began it: some arguments are others")
        return
    keys, firsts = ("seed", *DataSettings.all_keys()), dict[str, str]()
    for name, own in runs.items():  # each method is checked once, and each seed's rows
        firsts.setdefault(str(own["method"]), name)
        firsts.setdefault(str([own.get(key) for key in keys]), name)
    names = dict.fromkeys(firsts.values())
    openings = [Opening(plan[name], RamStore(), engine=engine) for name in names]
    check_all("runs", [partial(host_of, opening) for opening in openings], progress)
    if tuned is not None:
        trials, of_each = tuned[0], tuned[1] or seeds
        tuning = work.new_tuning(each, [], trials, of_each, after=seeds, progress=progress)
    make_folder(folder)
    replace_file(folder / PLAN, written.encode())
    if tuning is not None:
        tuning.save(folder / TUNING)


def go_on(
    folder: Path,
    execute: Callable[[Engine], Execute],
    again: str = "",
    processes: int | None = None,
    *,
    source: Source | None = None,
    progress: bool = True,
) -> list[str]:
    """Runs the rest of a comparison; returns the runs that stopped, with reasons.

    Args:
        folder: The comparison's.
        execute: Returns the function that runs an experiment by an engine.
        again: The command that resumes it; by default the comparison's.
        processes: Methods that are tuned at once; None for one on each core.
        source: Rows that were given in memory, which its record lacks.
        progress: Whether to show it.

    Raises:
        Refused: The folder is not a comparison's, or it is damaged.
        SystemExit: Ctrl-C was pressed; status 130.
    """
    again = again or f"engram compare --resume {shlex.quote(str(folder))}"
    engine, plan = _recorded(folder, rows := {} if source is None else {"dataset": source})
    if (place := folder / TUNING).is_dir():
        tuning = work.Tuning.open(place)
        tuning = tuning._replace(
            fixed={name: {**own, **rows} for name, own in tuning.fixed.items()}
        )
        best = work.run_tuning(tuning, place, again, processes=processes, progress=progress)
        plan = work.with_best(plan, best)
    runs = {}
    for name, experiment in plan.items():
        part = folder / name
        if begun := is_run(part):
            Run.open(part).check_rows()
        runs[part] = experiment.model_copy(update={"resume": str(part) if begun else ""})
    stopped = run_all(runs, execute(engine), again, shown=progress)
    references = read_plan(folder)["references"]
    write_references(folder, plan.values(), references, again, shown=progress)
    return stopped


def _recorded(folder: Path, rows: Mapping[str, Source]) -> tuple[Engine, dict[str, Experiment]]:
    plan = read_plan(folder)
    runs = {name: Experiment.from_config(own | rows) for name, own in plan["runs"].items()}
    given, wrong = arguments(f"{folder / PLAN} is damaged: ", engine=plan["engine"] or "")
    if wrong or given.engine is None:
        raise Refused(*wrong)
    return given.engine, runs
