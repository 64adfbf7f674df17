"""Shows the results of commands, and the command that comes next."""

import shlex
from pathlib import Path
from sysconfig import get_path

from engram.cli import work
from engram.cli.cli import LOOKING
from engram.cli.console import out
from engram.compare.comparison_folder import PLAN, read_plan, runs_of
from engram.runs.run import Run
from engram.settings.plugins import plugins, project_plugins
from engram.studio.pages.reproduce_command import lacks


def show_found(folder: Path, as_json: bool) -> None:
    """Draws the plots, and prints the tables and files of a run or comparison."""
    work.show_runs(folder, as_json)
    if not as_json and (command := _after(folder)):
        tell_next(command)


def tell_next(command: str) -> None:
    """Prints the next command, with the plug-ins that it would lack."""
    looks = command.split(maxsplit=1)[0] in LOOKING
    in_project = set(project_plugins().split(",")) - {""}
    named = {_as_given(plugin) for plugin in plugins()}
    lacking = in_project | named if looks else named - in_project
    own = "".join(f"--plugin {shlex.quote(name)} " for name in sorted(lacking))
    out.print(f"next: engram {own}{command}", soft_wrap=True)


def _as_given(plugin: str) -> str:
    folder, _, name = plugin.rpartition("/")
    return name if folder in {str(Path.cwd()), get_path("purelib")} else plugin


def _after(folder: Path) -> str:
    """Returns the next command; "" where it needs rows or functions that Python gave."""
    place = shlex.quote(str(folder))
    if (folder / PLAN).is_file():
        runs = read_plan(folder)["runs"]
        if len(runs_of(folder, "results.json")) == len(runs):
            return f"report {place}"
        planned = [{"settings": run, "plug-ins": plugins()} for run in runs.values()]
        begun = [Run.open(run).config for run in runs_of(folder)]
        return "" if any(map(lacks, begun or planned)) else f"compare --resume {place}"
    record = Run.open(folder)
    if record.results is None:
        return "" if lacks(record.config) else f"run --resume {place}"
    exported = "clients" in record.results and not record.on_nodes
    first = shlex.quote(record.names.get(0, "0"))
    usable = exported and not lacks(record.config)
    return f"export {place} --client {first}" if usable else f"report {place}"
