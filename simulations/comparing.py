"""Comparisons of methods in this process: begun in a folder, and gone on with from what it has."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from federation.data.dealing import federated_data
from federation.data.federated import model_for
from federation.errors import Refused
from federation.experiment import Experiment
from server.record import RunRecord
from simulations.arguments import arguments
from simulations.comparison import PLAN, REFERENCES, TUNING, planned, read_plan, record_plan
from simulations.references import write_references
from simulations.terminal import Execute, run_all
from simulations.tuning.command import Tuning, new_tuning, run_tuning, with_best

if TYPE_CHECKING:
    from client.hosts import Engine


def begin_comparison(
    folder: Path,
    engine: "Engine",
    each: Mapping[str, Mapping[str, Any]],
    seeds: int,
    trials: int | None = None,
    references: Sequence[str] = tuple(REFERENCES),
) -> None:
    """Writes what a comparison consists of into its folder, once all of it can be run.

    Args:
        folder: The comparison's.
        engine: The engine of its runs.
        each: Each method's settings.
        seeds: Runs of each, from the setting ``seed`` upwards.
        trials: Settings that are tried of each method first, on other seeds; None to tune nothing.
        references: As for ``write_references``.

    Raises:
        Refused: Settings or data are impossible. Nothing is written.
    """
    plan = planned(each, seeds)
    for experiment in plan.values():
        held = federated_data(experiment)
        model_for(experiment, held.kind, held.example)
    tuning = None if trials is None else new_tuning(each, [], trials, seeds, after=seeds)
    record_plan(folder, engine, plan, references)
    if tuning is not None:
        tuning.save(folder / TUNING)


def go_on(
    folder: Path,
    execute: Callable[["Engine"], Execute],
    again: str = "",
    processes: int | None = None,
) -> list[str]:
    """Tunes, runs and scores what is left of a comparison; returns which runs stopped, and why.

    Args:
        folder: The comparison's.
        execute: Returns what runs an experiment by an engine.
        again: The command that goes on after an interruption; by default that of the comparison.
        processes: Methods that are tuned at once; None for one on each core.

    Raises:
        Refused: The folder is not a comparison's, or it is damaged.
        SystemExit: Ctrl-C was pressed; status 130.
    """
    again = again or f"engram compare --resume {shlex.quote(str(folder))}"
    engine, plan = _recorded(folder)
    if (place := folder / TUNING).is_dir():
        best = run_tuning(Tuning.open(place), place, again, processes=processes)
        plan = with_best(plan, best)
    work = {}
    for name, experiment in plan.items():
        part = folder / name
        if begun := (part / "config.json").is_file():
            RunRecord.open(part).check_rows()
        work[part] = experiment.model_copy(update={"resume": str(part) if begun else ""})
    stopped = run_all(work, execute(engine), again)
    write_references(folder, plan.values(), read_plan(folder)["references"], again)
    return stopped


def _recorded(folder: Path) -> tuple["Engine", dict[str, Experiment]]:
    plan = read_plan(folder)
    runs = {name: Experiment.from_config(settings) for name, settings in plan["runs"].items()}
    given, wrong = arguments(f"{folder / PLAN} is damaged: ", engine=plan["engine"] or "")
    if wrong or given.engine is None:
        raise Refused(*wrong)
    return given.engine, runs
