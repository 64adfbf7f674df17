"""``engram show``: results on a terminal, as tables for others, and as figures for a paper."""

from pathlib import Path
from typing import Annotated

import typer

from engram.cli.console import err, out
from engram.cli.options import Json, as_allowed, find_run
from engram.cli.progress import show_found
from engram.compare.comparison_folder import BENCHMARK, SEARCHED, STUDY, find_runs, trains_network
from engram.data.file_models import readable
from engram.settings.errors import Refused
from engram.settings.process_starts import end_at_once

__all__ = ["app"]

app = typer.Typer()


@app.command()
def show(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's folder, or its name in runs/.")
    ],
    csv: Annotated[
        bool, typer.Option("--csv", help="Print the table as CSV, and nothing else.")
    ] = False,
    latex: Annotated[
        bool, typer.Option("--latex", help="Print it for LaTeX's booktabs, and nothing else.")
    ] = False,
    file_format: Annotated[
        str | None,
        typer.Option("--format", metavar="FORMAT", help="Draw plots as pdf or svg, or png."),
    ] = None,
    which: Annotated[
        str,
        typer.Option("--round", help="Round of --csv and --latex: picked by validation, or last."),
    ] = "picked",
    width: Annotated[
        str | None,
        typer.Option(metavar="COLUMNS", help="Columns of a paper for table and plots: one or two."),
    ] = None,
    look: Annotated[
        str | None, typer.Option("--style", metavar="FILE", help="A style file of matplotlib's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Show what a run, comparison, search or study has found, and draw its plots."""
    folder = find_run(run)
    if csv + latex + as_json > 1:
        raise Refused("--csv, --latex and --json exclude each other")
    if which != "picked" and not (csv or latex):
        raise Refused("--round goes with --csv or --latex")
    with readable(folder):
        if csv or latex:
            out.print(_table(folder, width or "one", which, as_csv=csv), soft_wrap=True, end="")
        if file_format or look or (width and not latex):
            _draw(folder, file_format, width, look)
        if csv or latex:
            return
        if (folder / BENCHMARK).is_file():
            from engram.cli.benchmark_cli import show_benchmark

            show_benchmark(folder, as_json)
        elif (folder / SEARCHED).is_file():
            with end_at_once():
                from engram.tune.command import show_tuning
                from engram.tune.folder import Tuning
            show_tuning(Tuning.open(folder), folder, as_json)
        elif (folder / STUDY).is_file():
            with end_at_once():
                from engram.studies.command import show_study
            show_study(folder, as_json)
        else:
            show_found(folder, as_json)


def _table(folder: Path, width: str, which: str, *, as_csv: bool) -> str:
    with end_at_once():
        from engram.compare.paper_tables import latex, summary
        from engram.compare.report_rows import shown_rounds
        from engram.runs.results import metrics_of, results_of
    _refuse_others(folder, "a table")
    runs = shown_rounds(find_runs(folder), which)
    if not runs:
        raise Refused(f"{folder} has no table yet: no run of it has been evaluated")
    if not all(map(trains_network, next(iter(runs.values())))):
        raise Refused(f"{folder} is of a method without a network: --json has what it found")
    found = results_of(folder, runs, metrics_of(runs))
    return str(summary(found).to_csv()) if as_csv else latex(found, width)


def _draw(folder: Path, file_format: str | None, width: str | None, look: str | None) -> None:
    with end_at_once():
        from engram.simulations.figure_files import draw_files, sheet_of
    sheet = sheet_of(file_format, width, look)
    _refuse_others(folder, "plots for a paper")
    with as_allowed(folder):
        names = ", ".join(draw_files(folder, sheet))
        err.print(f"drawn in {folder}: {names}", soft_wrap=True)


def _refuse_others(folder: Path, wanted: str) -> None:
    for name, kind in ((BENCHMARK, "benchmark"), (SEARCHED, "search"), (STUDY, "study")):
        if (folder / name).is_file():
            raise Refused(f"{folder} is a {kind}, of which there is no {wanted}: leave options out")
