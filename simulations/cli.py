"""The `engram` command."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from client.cli import app as client_commands
from client.trainer import Engine
from federation.algorithms import ALGORITHMS, TABLES
from federation.data.federated import federated_data, model_for
from federation.data.tables import table_data
from federation.errors import Refused
from federation.experiment import Experiment, read_defaults
from server.cli import app as server_commands
from server.launch import CONTROL
from server.record import RunRecord
from simulations.deployed_cli import app as deployed_commands
from simulations.deployed_cli import run_on
from simulations.engine import simulate
from simulations.options import (
    Config,
    Json,
    Out,
    Resume,
    Set,
    WithSettings,
    data_name,
    find_run,
    make_folder,
    new_folder,
    overrides_of,
    refuse_keys,
)
from simulations.report import PLAN, read_plan
from simulations.studies.command import app as reproduce_commands
from simulations.terminal import Execute, Report, run_all, show_found
from simulations.terminal import out as console

__all__ = ["app"]

app = typer.Typer(
    help="Personalized federated learning: every client gets its own model, and remembers it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.add_typer(client_commands)
app.add_typer(server_commands)
app.add_typer(deployed_commands)
app.add_typer(reproduce_commands)

_Engine = Annotated[
    str | None,
    typer.Option(
        metavar="ENGINE",
        help="vectorized (the default), or sequential (to find a failing client).",
    ),
]


@app.command(cls=WithSettings)
def run(
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
    if federation is not None:
        if engine is not None:
            raise Refused("--engine and --federation exclude each other: nodes train as they can")
        run_on(overrides, federation, control, out, resume, as_json)
        return
    if resume is None:
        experiment = Experiment.from_config(read_defaults() | overrides)
        folder = new_folder(out, f"{experiment.algorithm}-{data_name(experiment)}")
        chosen = _engine(engine or "vectorized")
    else:
        if out is not None:
            raise Refused("--out and --resume exclude each other: a run stays in its folder")
        folder = find_run(resume)
        saved = RunRecord.open(folder).config
        settings = saved["settings"] | overrides | {"resume": str(folder)}
        experiment = Experiment.from_config(settings)
        # A run of Flower's is refused further on, in words of its own.
        chosen = _engine(engine or saved["engine"].replace("flower", "vectorized"))
    run_all({folder: experiment}, _simulate(chosen), f"engram run --resume {folder}")
    show_found(folder, as_json)


def _simulate(engine: Engine) -> Execute:
    def execute(experiment: Experiment, folder: Path, report: Report) -> None:
        simulate(experiment, folder, engine=engine, on_round=report)

    return execute


@app.command(cls=WithSettings)
def compare(
    algorithms: Annotated[
        list[str] | None, typer.Argument(metavar="[ALGORITHM]...", help="Default: all of them.")
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
    """Run algorithms side by side, on the same data, over several seeds.

    A setting for one algorithm only is given as --set ALGORITHM.KEY=VALUE.
    """
    tables = [name for name in algorithms or () if name in TABLES]
    if tables:
        raise Refused(f"compare takes algorithms that train networks, got {', '.join(tables)}")
    if resume is None:
        chosen = _engine(engine or "vectorized")
        plan = _plan(algorithms or list(ALGORITHMS), seeds or 3, overrides_of(config, sets))
        folder = new_folder(out, f"compare-{data_name(next(iter(plan.values())))}")
    else:
        if algorithms or seeds or sets or config or out or engine:
            raise Refused("--resume goes on with a comparison as it was begun: give nothing else")
        folder = find_run(resume)
        chosen, plan = _resumed_plan(folder)
    # Refuses what cannot be, before anything is written; all algorithms share their data.
    for experiment in {e.model_copy(update={"algorithm": "fedavg"}) for e in plan.values()}:
        held = federated_data(experiment)
        model_for(experiment, held.input_shape, held.num_classes)
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


@app.command(cls=WithSettings)
def data(
    sets: Set = None,
    config: Config = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The picture.")] = None,
    as_json: Json = False,
) -> None:
    """Show which client holds which rows: a table, and a picture."""
    from simulations import plots  # noqa: PLC0415 - slow to import

    experiment = Experiment.from_config(read_defaults() | overrides_of(config, sets))
    if experiment.algorithm in TABLES:
        if out is not None:
            raise Refused(f"there is no picture of the tables of {experiment.algorithm}")
        _show_tables(experiment, as_json)
        return
    held = federated_data(experiment)
    path = out or Path("runs") / f"data-{data_name(experiment)}-{experiment.partition}.png"
    if path.suffix != ".png":
        raise Refused(f"--out must be the name of a .png file, got {path}")
    train, test = plots.class_counts(held)
    make_folder(path.parent)
    plots.plot_data(held, path)
    table = Table(title=f"{experiment.dataset}, {experiment.partition}", title_justify="left")
    for heading in ("client", "training rows", "test rows", "training rows of class"):
        table.add_column(heading, justify="left" if "class" in heading else "right")
    for client, counts in enumerate(train):
        classes = ", ".join(f"{label}: {n}" for label, n in enumerate(counts) if n)
        table.add_row(str(client), str(counts.sum()), str(test[client].sum()), classes)
    console.print(table)
    console.print(f"picture: {path}", soft_wrap=True)
    if as_json:
        found = {"train": train.tolist(), "test": test.tolist(), "picture": str(path)}
        print(json.dumps(found))


def _show_tables(experiment: Experiment, as_json: bool) -> None:
    if experiment.algorithm == "meta-ban" and not experiment.dataset.startswith("csv:"):
        raise Refused(
            "engram data shows rows that clients hold: one of meta-ban has none before its turns, "
            f"unless dataset is csv:PATH, got {experiment.dataset!r}"
        )
    held = table_data(experiment)
    columns = ", ".join(held.columns)
    table = Table(title=f"{experiment.dataset}: {columns}", title_justify="left")
    for heading in ("client", experiment.task_column, "training rows", "held out"):
        table.add_column(heading, justify="right")
    sizes = [
        [0 if rows is None else len(rows.y) for rows in part] for part in (held.train, held.test)
    ]
    for client, (name, train, test) in enumerate(zip(held.names, *sizes, strict=True)):
        table.add_row(str(client), name, str(train), str(test))
    console.print(table)
    if as_json:
        print(json.dumps({"train": sizes[0], "test": sizes[1], "columns": held.columns}))


def _plan(
    algorithms: Sequence[str], seeds: int, overrides: Mapping[str, Any]
) -> dict[str, Experiment]:
    """Returns the experiments of a comparison, by the names of their folders."""
    one_run = {"resume": "--resume RUN", "out": "--out DIR", "algorithm": "its arguments"}
    refuse_keys(overrides, one_run)
    own = {key: key.partition(".")[::2] for key in overrides if "." in key}
    for key, (algorithm, setting) in own.items():
        if algorithm not in algorithms:
            raise Refused(f"{key} is for an algorithm that does not take part: {algorithm}")
        refuse_keys({setting: None}, one_run | {"seed": "--set seed=N, for all of them"})
    common = {key: value for key, value in overrides.items() if key not in own}
    plan = {}
    for algorithm in algorithms:
        special = {key: overrides[full] for full, (name, key) in own.items() if name == algorithm}
        base = read_defaults() | common | special | {"algorithm": algorithm}
        first = Experiment.from_config(base)
        for seed in range(first.seed, first.seed + seeds):
            plan[f"{algorithm}-seed{seed}"] = first.model_copy(update={"seed": seed})
    return plan


def _resumed_plan(folder: Path) -> tuple[Engine, dict[str, Experiment]]:
    plan = read_plan(folder)
    runs = {name: Experiment.from_config(settings) for name, settings in plan["runs"].items()}
    return _engine(plan["engine"]), runs


def _engine(name: str) -> Engine:
    engines: dict[str, Engine] = {"vectorized": "vectorized", "sequential": "sequential"}
    if name not in engines:
        raise Refused(f"--engine must be {' or '.join(engines)}, got {name!r}")
    return engines[name]
