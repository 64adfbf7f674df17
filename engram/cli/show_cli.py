"""Commands that look at records: runs, show, report, track, audit, methods."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

import engram
from engram.cli import work
from engram.cli.console import as_allowed, err, out, table_of
from engram.cli.next_command import show_found, tell_next
from engram.cli.options import Json, RunName, Runs, argument, flag, option, settings_rows
from engram.compare.comparison_folder import PLAN, runs_of
from engram.data.file_models import readable
from engram.link.console import WHOLE
from engram.runs.run_list import entries, kind_of
from engram.runs.run_places import find_run
from engram.settings.base import SharedSettings
from engram.settings.errors import Refused, need
from engram.settings.families import METHODS, unknown_method
from engram.settings.fields import key_of
from engram.settings.files import replace_file
from engram.studio.tracking.sending import TRACKERS, check_sendable, check_tracker, send
from engram.tune.space import declared_ranges

app = typer.Typer()


@app.command()
def runs(folder: Runs = Path("runs"), as_json: Json = False) -> None:
    """List the runs, comparisons and searches of a folder, the newest first."""
    found = entries(folder)
    if found:
        columns = ("name", "kind", "of", "data", "state", "score", "begun")
        out.print(table_of(columns, [one[:-1] for one in found]))
    else:
        out.print(f"There is no run in {folder}.", soft_wrap=True)
    if as_json:
        told = [dict(zip(one._fields[:-1], one[:-1], strict=True)) for one in found]
        print(json.dumps({"runs": told}))
        return
    shown = (one.name for one in found if one.kind != "study" or one.state == "finished")
    newest = next(shown, None)
    tell_next("run" if newest is None else f"show {shlex.quote(str(folder / newest))}")


@app.command()
def show(
    run: RunName,
    csv: Annotated[bool, flag("--csv", "Print the table as CSV, and nothing else.")] = False,
    latex: Annotated[
        bool, flag("--latex", "Print it for LaTeX's booktabs, and nothing else.")
    ] = False,
    per_class: Annotated[
        bool, flag("--per-class", "Predict test rows: recalls, confusions and calibration.")
    ] = False,
    file_format: Annotated[
        str | None, option("FORMAT", "Draw plots as pdf or svg, or png.", "--format")
    ] = None,
    which: Annotated[
        str, flag("--round", "Round of these tables: picked by validation, or last.")
    ] = "picked",
    width: Annotated[
        str | None, option("COLUMNS", "Columns of a paper for table and plots: one or two.")
    ] = None,
    look: Annotated[str | None, option("FILE", "A style file of matplotlib's.", "--style")] = None,
    as_json: Json = False,
) -> None:
    """Show the results of a run, comparison, search or study, and draw its plots."""
    folder = find_run(run)
    if csv + latex + as_json > 1:
        raise Refused("--csv, --latex and --json exclude each other")
    if which != "picked" and not (csv or latex or per_class):
        raise Refused("--round goes with --csv, --latex or --per-class")
    if per_class and (csv or latex):
        raise Refused("--per-class excludes --csv and --latex: --json has its counts")
    with readable(folder):
        if per_class:
            _refuse_others(folder, "a table by class")
            sheet = work.sheet_of(file_format, width, look)
            work.show_classes(folder, which, sheet, as_json)
            return
        if csv or latex:
            _refuse_others(folder, "a table")
            table = work.table_for_paper(folder, width or "one", which, as_csv=csv)
            out.print(table, soft_wrap=True, end="")
        if file_format or look or (width and not latex):
            _draw(folder, file_format, width, look)
        if csv or latex:
            return
        kind = kind_of(folder)
        if kind == "benchmark":
            work.show_benchmark(folder, as_json)
        elif kind == "search":
            work.show_tuning(work.Tuning.open(folder), folder, as_json)
        elif kind == "study":
            work.show_study(folder, as_json)
        else:
            show_found(folder, as_json)


def _draw(folder: Path, file_format: str | None, width: str | None, look: str | None) -> None:
    sheet = work.sheet_of(file_format, width, look)
    _refuse_others(folder, "plots for a paper")
    with as_allowed(folder):
        names = ", ".join(work.draw_files(folder, sheet))
        err.print(f"drawn in {folder}: {names}", soft_wrap=True)


def _refuse_others(folder: Path, wanted: str) -> None:
    if (kind := kind_of(folder)) in ("benchmark", "search", "study"):
        raise Refused(f"{folder} is a {kind}, of which there is no {wanted}: leave options out")


@app.command()
def report(
    run: RunName,
    html: Annotated[Path | None, option("FILE", "The page; default RUN/report.html.")] = None,
) -> None:
    """Write a page about a run or comparison: an HTML file with interactive figures."""
    folder = find_run(run)
    path = html or folder / "report.html"
    if path.suffix != ".html" or path.is_dir() or not path.parent.is_dir():
        raise Refused(f"--html must be the name of an .html file in a folder, got {path}")
    need("plotly", "report")
    with readable(folder):
        text = work.page(folder)
    replace_file(path, text.encode(errors="replace"))
    out.print(f"page: {path}", soft_wrap=True)


@app.command()
def track(
    run: RunName, to: Annotated[str, option("TRACKER", f"One of {', '.join(TRACKERS)}.")]
) -> None:
    """Send the record of a run, or of a comparison, to TensorBoard, MLflow or W&B.

    Rounds that the tracker has are not sent again.
    """
    folder = find_run(run)
    check_tracker(to)
    parts = {folder: ""}
    if (folder / PLAN).is_file():
        parts = dict.fromkeys(runs_of(folder), folder.name)
    for part in parts:
        check_sendable(part, to)
    for part, group in parts.items():
        rounds = send(part, to, group)
        out.print(f"{part}: {rounds} rounds sent to {to}", soft_wrap=True)


@app.command()
def audit(
    run: RunName,
    clients: Annotated[int, option("N", "Messages to attack, of the smallest clients.")] = 3,
    federations: Annotated[int, option("N", "Federations to train on half of the rows each.")] = 8,
    as_json: Json = False,
) -> None:
    """Attack a run on its own clients' rows: who could reconstruct or recognize them?

    Rows are reconstructed from messages of the first round, and recognized by models that the run's
    own settings make of random halves of the rows. The result is kept in the run's folder.
    """
    folder = find_run(run)
    found = engram.audit(engram.load_run(folder), clients=clients, federations=federations)
    if as_json:
        out.print_json(json.dumps(found.as_json))
        return
    for table in work.tables(found):
        out.print(table)
    for line in found.verdict:
        out.print(line, soft_wrap=True)
    err.print(f"kept in {folder / 'audit.json'}", soft_wrap=True)


@app.command()
def methods(
    method: Annotated[str | None, argument("[METHOD]", "Show this one.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or show one and its settings."""
    if method is None:
        _list_methods(as_json)
    elif method in METHODS:
        _show_method(method, as_json)
    else:
        raise Refused(unknown_method("METHOD", method))


def _list_methods(as_json: bool) -> None:
    rows = [{"method": n, "meaning": m.meaning, "source": m.source} for n, m in METHODS.items()]
    out.print(table_of(rows[0], [row.values() for row in rows], longest=WHOLE))
    out.print("engram methods METHOD shows a method's own settings.")
    if as_json:
        print(json.dumps({"methods": rows}))


def _show_method(name: str, as_json: bool) -> None:
    method = METHODS[name]
    settings = settings_rows(method)
    unread = [key_of(field) for field in SharedSettings.model_fields if field in method.unread]
    title = f"Its own settings (--set {name}.KEY=VALUE, or --set KEY=VALUE)"
    headings = ("setting", "default", "range", "searched", "meaning")
    table = table_of(headings, settings, title=title, longest=WHOLE)
    own = method.all_keys()
    more = {key: str(found) for key, found in declared_ranges(method).items() if key not in own}
    source = [f"Source: {method.source}"] if method.source else []
    out.print(f"{name}: {method.meaning}", *source, table, sep="\n")
    for key, found in more.items():
        out.print(f"engram tune searches {key}, too: {found}.")
    if unread:
        out.print(f"Shared settings that it does not read: {', '.join(unread)}.")
    out.print("All shared settings: engram run --help.")
    if as_json:
        about = {"method": name, "meaning": method.meaning, "source": method.source}
        rows = [
            dict(zip(headings, (f"{name}.{key}", json.loads(default), *rest), strict=True))
            for key, default, *rest in settings
        ]
        told = {"settings": rows, "searched-too": more, "not-read": unread}
        print(json.dumps(about | told))
