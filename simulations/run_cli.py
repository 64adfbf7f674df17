"""The commands that run experiments in this process, and that show runs and data.

What loads torch or matplotlib is imported by the functions that use it, once all is in order.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from federation.addresses import CONTROL
from federation.errors import Refused
from federation.experiment import Experiment
from federation.interrupts import end_at_once
from federation.methods import METHODS, family
from federation.methods.local import LocalMethod
from federation.names import Names
from server.record import RunRecord
from simulations.comparison import PLAN, read_plan
from simulations.console import out as console
from simulations.options import (
    SEE_SETTINGS,
    Config,
    Json,
    Out,
    Resume,
    Set,
    WithSettings,
    data_name,
    find_run,
    in_project,
    make_folder,
    new_folder,
    overrides_of,
    read_experiment,
    refuse_keys,
)
from simulations.terminal import Execute, Report, run_all, show_found

if TYPE_CHECKING:
    from client.training.trainer import Engine

__all__ = ["app"]

app = typer.Typer()

_Engine = Annotated[
    str | None,
    typer.Option(
        metavar="ENGINE",
        help="vectorized (the default), or sequential (to find a failing client).",
    ),
]


@app.command(cls=WithSettings)
def run(
    method: Annotated[
        str | None, typer.Argument(metavar="[METHOD]", help="What to run: see engram methods.")
    ] = None,
    sets: Set = None,
    config: Config = None,
    out: Out = None,
    resume: Resume = None,
    engine: _Engine = None,
    federation: Annotated[
        Path | None,
        typer.Option(
            metavar="SERVER_FOLDER",
            help="Run on the nodes of a deployed federation, and go on with the run in --out.",
        ),
    ] = None,
    control: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help=f"Its SuperLink's Control API; default {CONTROL}."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run one experiment, in this process or on a deployed federation."""
    overrides = overrides_of(config, sets)
    refuse_keys(overrides, {"resume": "--resume RUN", "out": "--out DIR"})
    if method is not None:
        refuse_keys(overrides, {"method": "its argument"})
        overrides["method"] = method
    if federation is not None:
        if engine is not None:
            raise Refused("--engine and --federation exclude each other: nodes train as they can")
        from simulations.deployed_cli import run_on

        run_on(overrides, federation, control, out, resume, as_json)
        return
    if resume is None:
        experiment = read_experiment(in_project(overrides))
        folder = new_folder(out, f"{experiment.method}-{data_name(experiment)}")
        chosen = _engine(engine or "vectorized")
    else:
        if out is not None:
            raise Refused("--out and --resume exclude each other: a run stays in its folder")
        folder = find_run(resume)
        saved = RunRecord.open(folder).config
        settings = saved["settings"] | overrides | {"resume": str(folder)}
        experiment = read_experiment(settings)
        # A run of Flower's is refused further on, in words of its own.
        chosen = _engine(engine or saved["engine"].replace("flower", "vectorized"))
    run_all({folder: experiment}, _simulate(chosen), f"engram run --resume {folder}")
    show_found(folder, as_json)


def _simulate(engine: "Engine") -> Execute:
    with end_at_once():
        from simulations.engine import simulate

    def execute(experiment: Experiment, folder: Path, report: Report) -> None:
        simulate(experiment, folder, engine=engine, on_round=report)

    return execute


@app.command(epilog=SEE_SETTINGS)
def compare(
    methods: Annotated[
        list[str] | None,
        typer.Argument(metavar="[METHOD]...", help="Default: all that train networks."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, max=1000, help="Runs of each, from `seed` upwards; default 3."),
    ] = None,
    sets: Set = None,
    config: Config = None,
    out: Out = None,
    resume: Resume = None,
    engine: _Engine = None,
    as_json: Json = False,
) -> None:
    """Run methods side by side, on the same data, over several seeds.

    --set METHOD.KEY=VALUE is for one method alone; --set KEY=VALUE for all that have KEY.
    """
    trained = family(LocalMethod.plug_in)
    others = [name for name in methods or () if name in METHODS and name not in trained]
    if others:
        raise Refused(f"compare takes methods that train networks, got {', '.join(others)}")
    if resume is None:
        chosen = _engine(engine or "vectorized")
        plan = _plan(methods or trained, seeds or 3, overrides_of(config, sets))
        folder = new_folder(out, f"compare-{data_name(next(iter(plan.values())))}")
    else:
        if methods or seeds or sets or config or out or engine:
            raise Refused("--resume goes on with a comparison as it was begun: give nothing else")
        folder = find_run(resume)
        chosen, plan = _resumed_plan(folder)
    with end_at_once():
        from federation.data.federated import federated_data, model_for
    # What cannot be run is refused before anything is written.
    for experiment in plan.values():
        held = federated_data(experiment)
        model_for(experiment, held.kind)
    if resume is None:
        make_folder(folder)
        settings = {name: experiment.to_config() for name, experiment in plan.items()}
        (folder / PLAN).write_text(json.dumps({"engine": chosen, "runs": settings}, indent=2))
    work = {}
    for name, experiment in plan.items():
        part = folder / name
        begun = (part / "config.json").is_file()
        work[part] = experiment.model_copy(update={"resume": str(part) if begun else ""})
    run_all(work, _simulate(chosen), f"engram compare --resume {folder}")
    show_found(folder, as_json)


@app.command()
def show(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's folder, or its name in runs/.")
    ],
    as_json: Json = False,
) -> None:
    """Show what a run, or a comparison, has found so far, and draw its plots again."""
    show_found(find_run(run), as_json)


@app.command(epilog=SEE_SETTINGS)
def data(
    sets: Set = None,
    config: Config = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The picture.")] = None,
    as_json: Json = False,
) -> None:
    """Show which client holds which rows: a table, and a picture."""
    experiment = read_experiment(in_project(overrides_of(config, sets)))
    if not isinstance(experiment.own, LocalMethod):
        if out is not None:
            raise Refused(f"there is no picture of the tables of {experiment.method}")
        _show_tables(experiment, as_json)
        return
    path = out or Path("runs") / f"data-{data_name(experiment)}-{experiment.partition}.png"
    if path.suffix != ".png":
        raise Refused(f"--out must be the name of a .png file, got {path}")
    with end_at_once():
        from federation.data.federated import federated_data
        from simulations import plots
    held = federated_data(experiment)
    train, test = plots.class_counts(held)
    make_folder(path.parent)
    plots.plot_data(held, path)
    table = Table(title=f"{experiment.dataset}, {experiment.partition}", title_justify="left")
    named = ["task"] if held.names else []
    for heading in ("client", *named, "training rows", "test rows", "training rows of class"):
        table.add_column(heading, justify="left" if "class" in heading else "right")
    for client, counts in enumerate(train):
        classes = ", ".join(f"{label}: {n}" for label, n in enumerate(counts) if n)
        name = [escape(held.names.get(client, ""))] if named else []
        table.add_row(str(client), *name, str(counts.sum()), str(test[client].sum()), classes)
    console.print(table)
    console.print(f"picture: {path}", soft_wrap=True)
    if as_json:
        found = {"train": train.tolist(), "test": test.tolist(), "picture": str(path)}
        print(json.dumps({**found, **_names(held.names, len(train))}))


def _show_tables(experiment: Experiment, as_json: bool) -> None:
    if not experiment.own.holds_rows(experiment):
        raise Refused(
            f"engram data shows rows that clients hold: one of {experiment.method} has none before "
            f"its turns, unless dataset is csv:PATH, got {experiment.dataset!r}"
        )
    with end_at_once():
        from federation.data.tables import table_data
    held = table_data(experiment)
    columns = ", ".join(held.columns)
    table = Table(title=f"{experiment.dataset}: {columns}", title_justify="left")
    for heading in ("client", experiment.task_column, "training rows", "held out"):
        table.add_column(heading, justify="right")
    sizes = [
        [0 if rows is None else len(rows.y) for rows in part] for part in (held.train, held.test)
    ]
    for client, (train, test) in enumerate(zip(*sizes, strict=True)):
        name = escape(held.names.get(client, ""))
        table.add_row(str(client), name, str(train), str(test))
    console.print(table)
    if as_json:
        found = {"train": sizes[0], "test": sizes[1], "columns": held.columns}
        print(json.dumps({**found, **_names(held.names, len(sizes[0]))}))


def _names(names: Names, num_clients: int) -> dict[str, list[str]]:
    """Returns what JSON says of clients' names: nothing, where they have none."""
    everyone = [names.get(client, str(client)) for client in range(num_clients)]
    return {"names": everyone} if names else {}


def _plan(
    methods: Sequence[str], seeds: int, overrides: Mapping[str, Any]
) -> dict[str, Experiment]:
    """Returns the experiments of a comparison, by the names of their folders."""
    one_run = {"resume": "--resume RUN", "out": "--out DIR", "method": "its arguments"}
    refuse_keys({key.rpartition(".")[2]: None for key in overrides}, one_run)
    refuse_keys(overrides, {f"{name}.seed": "--set seed=N, for all of them" for name in methods})
    plan = {}
    for name in methods:
        own = {"method": name, **_of_one(name, methods, overrides)}
        first = read_experiment(in_project(own))
        for seed in range(first.seed, first.seed + seeds):
            plan[f"{name}-seed{seed}"] = first.model_copy(update={"seed": seed})
    return plan


def _of_one(name: str, methods: Sequence[str], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of one of several methods: those for all, and those for it alone.

    Raises:
        Refused: A setting is for a method that does not take part.
    """
    found: dict[str, Any] = {}
    own = {other: METHODS[other].all_keys() for other in methods if other in METHODS}
    for full, value in overrides.items():
        owner, dot, key = full.rpartition(".")
        if dot and owner not in methods:
            raise Refused(f"{full} is for a method that does not take part: {owner}")
        if not dot and name in own and key not in own[name] and any(key in o for o in own.values()):
            continue  # other methods have it
        if not dot or owner == name:
            found[key] = value
    return found


def _resumed_plan(folder: Path) -> tuple["Engine", dict[str, Experiment]]:
    plan = read_plan(folder)
    runs = {name: Experiment.from_config(settings) for name, settings in plan["runs"].items()}
    return _engine(plan["engine"]), runs


def _engine(name: str) -> "Engine":
    engines: dict[str, Engine] = {"vectorized": "vectorized", "sequential": "sequential"}
    if name not in engines:
        raise Refused(f"--engine must be {' or '.join(engines)}, got {name!r}")
    return engines[name]
