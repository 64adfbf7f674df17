"""The protocol of studies, and how one is run: its folder, plan, progress and results."""

import dataclasses
import importlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol, cast

from pydantic import TypeAdapter, ValidationError
from rich.table import Table

from engram.cli.console import as_allowed, err
from engram.cli.console import out as console
from engram.cli.progress import progress_lines
from engram.compare.comparison_folder import STUDY, read_study
from engram.runs.run_places import find_run, new_folder
from engram.settings.errors import Refused, one_line, say
from engram.settings.fields import wrong_values
from engram.settings.files import read_json, replace_file
from engram.simulations.job_pool import Pool, Row
from engram.studies.settings import StudySettings

_FORMAT: Final = 2  # of the rows of jobs; raised when they change their meaning


class Study(NamedTuple):
    """One of a paper's experiments."""

    name: str  # the name of its command
    settings: type[StudySettings]  # the class of its settings
    # The module that implements ``Body``. It is imported when the study is run, since torch and
    # others take seconds.
    module: str
    unit: str  # what the progress of a job counts
    whole: bool = False  # whether it is run in one go: without jobs, so it cannot be resumed


class Report(NamedTuple):
    """The results that a study shows and records."""

    shown: Sequence[str | Table]  # texts and tables for standard output
    results: Mapping[str, Any]  # for ``results.json``; infinity and NaN become null
    files: Mapping[str, bytes]  # other files' contents, by name
    notes: Sequence[str] = ()  # lines for standard error


class Body(Protocol):
    """The functions of a study's module."""

    def work(self, settings: Any, pool: Pool) -> Any:
        """Runs the jobs that follow from the settings, by ``Pool.run``."""

    def report(self, settings: Any, found: Any) -> Report:
        """Makes tables and plots of the results of ``work``."""


def run_study(
    study: Study,
    given: Mapping[str, Any],
    *,
    out: Path | None = None,
    resume: str | None = None,
    as_json: bool = False,
    processes: int | None = None,
    ray: str | None = None,
) -> None:
    """Starts or resumes a study; prints and records its results.

    ``given`` are the settings that differ from the defaults; the rest are the options of commands.

    Raises:
        Refused: The settings are impossible, or there is nothing to resume.
        SystemExit: Ctrl-C was pressed; status 130.
    """
    with ExitStack() as stack:
        if resume is None:
            settings = study.settings(**given)
            folder = stack.enter_context(new_folder(out, study.name + settings.detail))
        else:
            if given or out is not None:
                raise Refused("--resume goes on with a reproduction as begun: give nothing else")
            folder = find_run(resume)
            settings = read_plan(folder, study)
        report = _work(study, settings, folder, resume is not None, processes, ray)
        _show(report, folder, as_json)


def _work(
    study: Study,
    settings: StudySettings,
    folder: Path,
    begun: bool,
    processes: int | None,
    ray: str | None,
) -> Report:
    body = cast("Body", importlib.import_module(study.module))

    def hint() -> str:
        command = f"go on with: engram reproduce {study.name} --resume {folder}"
        return command if begun else "nothing has been written"

    def begin() -> None:
        nonlocal begun
        if not begun:
            write_plan(folder, study.name, settings)
            begun = True

    with progress_lines(study.unit, hint) as new_line:
        pool = Pool(folder, begin=begin, new_line=new_line, processes=processes, ray=ray)
        found = body.work(settings, pool)
    return body.report(settings, found)


def _show(report: Report, folder: Path, as_json: bool) -> None:
    for part in report.shown:
        console.print(part, soft_wrap=isinstance(part, str))
    for line in report.notes:
        err.print(line, soft_wrap=True)
    text = json.dumps(_plain({"run": str(folder), **report.results}), allow_nan=False)
    with as_allowed(folder):
        for name, data in {**report.files, "results.json": text.encode()}.items():
            replace_file(folder / name, data)
    names = ", ".join([*report.files, "results.json"])
    console.print(f"recorded in {folder}: {names}", soft_wrap=True)
    if as_json:
        say(text)


def _plain(found: Any) -> Any:
    if isinstance(found, Mapping):
        return {key: _plain(value) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_plain(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def write_plan(folder: Path, name: str, settings: StudySettings) -> None:
    """Writes a study's settings into its new folder.

    Raises:
        Refused: If the folder is another run's.
    """
    plan: Row = {"experiment": name, "format": _FORMAT}
    for each in dataclasses.fields(settings):
        value = getattr(settings, each.name)
        plan[each.name] = str(value.absolute()) if isinstance(value, Path) else value
    try:
        with (folder / STUDY).open("x", encoding="utf-8") as file:
            json.dump(plan, file, indent=2)
    except FileExistsError as error:
        raise Refused(f"{folder} is another run's: name another --out") from error


def read_plan(folder: Path, study: Study) -> StudySettings:
    """Returns the settings in a study's folder.

    Raises:
        Refused: If the folder has no plan, or one that is damaged or another study's.
    """
    path = folder / STUDY
    if not path.is_file():
        raise Refused(f"{folder} is not the folder of a reproduction: it has no {STUDY}")
    name, given = read_study(folder), read_json(path)
    if name != study.name:
        raise Refused(f"{folder} is one of engram reproduce {one_line(name)}, not {study.name}")
    given.pop("experiment")
    known = {each.name for each in dataclasses.fields(study.settings)}
    if given.pop("format", 1) != _FORMAT or not given.keys() <= known:
        other = "another version of Engram, with other settings or rows"
        raise Refused(f"{folder} was begun by {other}")
    try:
        return TypeAdapter(study.settings).validate_python(given)
    except ValidationError as error:
        raise Refused(f"{path} is damaged: {wrong_values(error)[0].text}") from error
