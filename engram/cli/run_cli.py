"""Commands that run experiments, and that show data: run, compare, data."""

import json
import shlex
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from engram.arguments import (
    arguments,
    in_project,
    overrides_of,
    read_experiment,
    refuse_beside_resume,
    refuse_keys,
)
from engram.cli import options, work
from engram.cli.console import out as console
from engram.cli.console import table_of
from engram.cli.deployed_cli import run_on
from engram.cli.next_command import show_found, tell_next
from engram.cli.options import argument, flag, option
from engram.cli.progress import Execute, Report, Start, run_all
from engram.cli.schema_cli import check_on
from engram.compare.comparison_folder import contestants, read_plan
from engram.compare.settings_for_methods import settings_of_each
from engram.link.console import WHOLE
from engram.runs.run_places import begun, data_name, find_run, make_folder
from engram.settings.errors import Names, Refused, RunStopped, told_with
from engram.settings.experiment import Experiment
from engram.simulations.ray_connect import join
from engram.studio.tracking.sending import check_tracker, follow

if TYPE_CHECKING:
    from engram.cohort.trainer.trainer import Engine

app = typer.Typer()

_Engine = Annotated[
    str | None,
    option("ENGINE", "vectorized (the default), or sequential (to find a failing client)."),
]


@app.command(cls=options.WithSettings)
def run(
    method: Annotated[str | None, argument("[METHOD]", "What to run: see engram methods.")] = None,
    sets: options.Set = None,
    config: options.Config = None,
    schema: options.SchemaFile = None,
    yes: options.Yes = False,
    out: options.Out = None,
    resume: options.Resume = None,
    start_from: Annotated[
        str | None,
        option("RUN", "Start from the last models of a run, as trained there.", "--from"),
    ] = None,
    engine: _Engine = None,
    federation: Annotated[
        Path | None,
        option(
            "SERVER_FOLDER",
            "Run on the nodes of a deployed federation, and go on with the run in --out.",
        ),
    ] = None,
    check: Annotated[
        bool, flag("--check", "With --federation: say who can take part, and train nothing.")
    ] = False,
    ray: options.OnRay = None,
    metrics_port: options.Port = 0,
    track: options.Track = None,
    as_json: options.Json = False,
) -> None:
    """Run one experiment, in this process or on a deployed federation."""
    overrides = overrides_of(config, sets, schema, yes)
    places = {"resume": "--resume RUN", "out": "--out DIR", "start-from": "--from RUN"}
    refuse_keys(overrides, places)
    if start_from is not None:
        overrides["start-from"] = str(find_run(start_from).absolute())
    if method is not None and (named := overrides.setdefault("method", method)) != method:
        raise Refused(f"METHOD must be {named}, as --config or --set says, got {method}")
    if federation is not None:
        for option, value, why in (
            ("--engine", engine, "nodes train as they can"),
            ("--ray", ray, "nodes train their clients"),
            ("--track", track, "see engram track"),
        ):
            if value is not None:
                raise Refused(f"{option} and --federation exclude each other: {why}")
        if check:
            if resume is not None or out is not None:
                raise Refused("--check excludes --out and --resume: it writes nothing")
            check_on(overrides, federation)
            return
        run_on(overrides, federation, out, resume, as_json, metrics_port)
        return
    if check:
        raise Refused("--check needs --federation SERVER_FOLDER, whose sites it asks")
    if metrics_port:
        raise Refused("--metrics-port is for --federation: a run in this process serves nothing")
    if resume is not None and out is not None:
        raise Refused("--out and --resume exclude each other: a run stays in its folder")
    given, wrong = arguments("--", engine=engine, out=out)
    if resume is None:
        experiment = told_with(wrong, lambda: read_experiment(in_project(overrides)))
        folder = options.folder_of_command(
            given.out, f"{experiment.method}-{data_name(experiment)}"
        )
        chosen = given.engine or "vectorized"
    else:
        folder = find_run(resume)
        settings, before = begun(folder, overrides.get("method"))
        experiment = told_with(wrong, lambda: read_experiment(settings | overrides))
        chosen = given.engine or before
    again = f"engram run --resume {folder}{_again(ray)}"
    run_all({folder: experiment}, in_this_process(chosen, track, ray=ray), again)
    show_found(folder, as_json)


def in_this_process(
    engine: "Engine", tracker: str | None, group: str = "", ray: str | None = None
) -> Execute:
    """Returns a function that runs an experiment in this process, or on workers of a Ray cluster.

    Rounds are sent to the tracker, in the group of their comparison.
    """
    if tracker is not None:
        check_tracker(tracker)
    cluster = None if ray is None else partial(work.Cluster, ray)
    simulate = partial(work.simulate, engine=engine, cluster=cluster)

    def execute(experiment: Experiment, folder: Path, report: Report, start: Start) -> None:
        if tracker is None:
            simulate(experiment, folder, on_round=report, on_start=start)
            return

        def both(row: dict[str, Any]) -> None:
            tell(row)
            report(row)

        with follow(folder, tracker, group) as tell:
            simulate(experiment, folder, on_round=both, on_start=start)

    return execute


def _again(ray: str | None) -> str:
    return "" if ray is None else f" --ray {shlex.quote(ray)}"


@app.command(epilog=options.SEE_SETTINGS)
def compare(
    methods: options.Methods = None,
    seeds: options.Seeds = None,
    sets: options.Set = None,
    config: options.Config = None,
    schema: options.SchemaFile = None,
    yes: options.Yes = False,
    out: options.Out = None,
    resume: options.Resume = None,
    engine: _Engine = None,
    tuned: Annotated[
        bool, flag("--tuned", "Tune each method first, on other seeds, as engram tune.")
    ] = False,
    trials: Annotated[
        str | None, option("N", "Settings that --tuned tries of each; default 32.")
    ] = None,
    processes: options.Processes = None,
    references: options.Referring = None,
    ray: options.OnRay = None,
    track: options.Track = None,
    as_json: options.Json = False,
) -> None:
    """Run methods and baselines side by side, over several seeds.

    --set METHOD.KEY=VALUE is for one method alone; --set KEY=VALUE for all that have KEY.
    """
    whom = contestants(methods or ())
    given, wrong = arguments(
        "--",
        engine=engine,
        seeds=seeds or 5,
        trials=trials or 32,
        processes=processes,
        references=references or "constant,linear,pooled",
        out=out,
    )
    if resume is None:
        if trials and not tuned:
            raise Refused("--trials is for --tuned: without it nothing is tried")
        if processes and not tuned:
            raise Refused("--processes is for --tuned: runs are compared one after the other")
        each = told_with(
            wrong, lambda: settings_of_each(whom, overrides_of(config, sets, schema, yes))
        )
        first = read_experiment(next(iter(each.values())))
        folder = options.folder_of_command(given.out, f"compare-{data_name(first)}")
    else:
        others = (methods, seeds, sets, config, schema, yes, out, engine, tuned, trials, references)
        refuse_beside_resume("comparison", others)
        folder = told_with(wrong, lambda: find_run(resume))
    if track is not None:
        check_tracker(track)
    go_on = work.go_on  # takes seconds, and may be interrupted before there is a cluster to leave
    if ray is not None:
        join(ray)
    if resume is None:
        chosen, tries = given.engine or "vectorized", (given.trials, None) if tuned else None
        work.begin_comparison(folder, chosen, each, given.seeds, tries, given.references)
    in_place = partial(in_this_process, tracker=track, group=folder.name, ray=ray)
    again = f"engram compare --resume {shlex.quote(str(folder))}{_again(ray)}"
    stopped = go_on(folder, in_place, again, given.processes)
    show_found(folder, as_json)
    if stopped:
        of_all = len(read_plan(folder)["runs"])
        raise RunStopped(f"{len(stopped)} of {of_all} runs stopped: {'; '.join(stopped)}")


@app.command(epilog=options.SEE_SETTINGS)
def data(
    sets: options.Set = None,
    config: options.Config = None,
    schema: options.SchemaFile = None,
    yes: options.Yes = False,
    out: Annotated[Path | None, option("FILE", "The picture.")] = None,
    as_json: options.Json = False,
) -> None:
    """Show each client's rows, and the costs of a round."""
    experiment = read_experiment(in_project(overrides_of(config, sets, schema, yes)))
    if not experiment.own.trains_network:
        if out is not None:
            raise Refused(f"there is no picture of the tables of {experiment.method}")
        _show_tables(experiment, as_json)
        return
    path = out or Path("runs") / f"data-{data_name(experiment)}-{experiment.partition}.png"
    if path.suffix != ".png":
        raise Refused(f"--out must be the name of a .png file, got {path}")
    held = work.federated_data(experiment)
    by_class, counts = work.has_classes(held), work.row_counts(held)
    train = counts["training"]
    make_folder(path.parent)
    work.plot_data(held, path)
    named, called = ["task"] if held.names else [], held.kind.class_names
    columns, rows = ["client", *named, *(f"{part} rows" for part in counts)], []
    for client, own in enumerate(train):
        name = [held.names.get(client, "")] if named else []
        sizes = (str(part[client].sum()) for part in counts.values())
        rows.append([str(client), *name, *sizes])
        if by_class:
            rows[-1].append(", ".join(f"{called[k]}: {n}" for k, n in enumerate(own) if n))
    title, classes = f"{experiment.dataset}, {experiment.partition}", ["training rows of class"]
    columns, right = columns + classes * by_class, columns
    console.print(table_of(columns, rows, title=title, right=right, longest=WHOLE))
    console.print(f"picture: {path}", soft_wrap=True)
    try:
        costs = work.forecast(experiment, held.kind, held.example)
    except Refused as error:  # of a run, for which these rows may still be looked at
        costs = f"engram run refuses them so far: {error}"
    console.print(costs, soft_wrap=True)
    if as_json:
        found = {part: of_part.tolist() for part, of_part in counts.items()}
        of_classes = {"classes": list(held.classes)} if held.classes else {}
        names = _names(held.names, len(train))
        print(json.dumps({**found, "picture": str(path), **of_classes, **names}))
    else:
        given = {"--config": config or (), "--set": sets or ()}
        words = [
            f"{option} {shlex.quote(str(one))}" for option, each in given.items() for one in each
        ]
        tell_next(" ".join(["run", *words]))


def _show_tables(experiment: Experiment, as_json: bool) -> None:
    if not experiment.own.holds_rows(experiment):
        raise Refused(
            f"engram data shows rows that clients hold: one of {experiment.method} has none before "
            f"its turns, unless dataset is csv:PATH, got {experiment.dataset!r}"
        )
    held = work.table_data(experiment)
    title = f"{experiment.dataset}: {', '.join(held.columns)}"
    columns = ("client", experiment.task_column, "training rows", "held out")
    sizes = [
        [0 if rows is None else len(rows.y) for rows in part] for part in (held.train, held.test)
    ]
    rows = [
        [str(client), held.names.get(client, ""), str(train), str(test)]
        for client, (train, test) in enumerate(zip(*sizes, strict=True))
    ]
    console.print(table_of(columns, rows, title=title, right=columns))
    if as_json:
        found = {"train": sizes[0], "test": sizes[1], "columns": held.columns}
        print(json.dumps({**found, **_names(held.names, len(sizes[0]))}))


def _names(names: Names, num_clients: int) -> dict[str, list[str]]:
    everyone = [names.get(client, str(client)) for client in range(num_clients)]
    return {"names": everyone} if names else {}
