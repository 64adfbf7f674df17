"""The `engram` command."""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import click
import typer
from rich.table import Table
from typer.core import TyperCommand

from client.cli import app as client_commands
from client.trainer import Engine
from federation.algorithms import ALGORITHMS
from federation.credentials import read_server
from federation.data.federated import federated_data, model_for
from federation.errors import Refused
from federation.experiment import Experiment, read_defaults
from federation.settings import read_settings
from server.cli import app as server_commands
from server.launch import CONTROL
from server.record import RunRecord
from simulations.deployed import run_deployed
from simulations.engine import simulate
from simulations.report import PLAN, read_plan
from simulations.terminal import Execute, Report, err, run_all, show_found
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


class _WithSettings(TyperCommand):
    """A command whose help ends with every setting, its default, and what it means."""

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help(ctx, formatter)
        table = Table(
            title="Settings (--set key=value, or a line `key = value` of a --config file)",
            title_justify="left",
        )
        for heading in ("setting", "default", "meaning"):
            table.add_column(heading, no_wrap=heading != "meaning")
        defaults = read_defaults()
        for field in Experiment.model_fields.values():
            key = str(field.alias)
            table.add_row(key, json.dumps(defaults[key]), field.description)
        console.print(table)


_Set = Annotated[
    list[str] | None,
    typer.Option("--set", "-s", metavar="KEY=VALUE", help="Override a setting; may be repeated."),
]
_Config = Annotated[
    list[Path] | None,
    typer.Option("--config", "-c", metavar="FILE", help="Read settings from a TOML file."),
]
_Out = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Folder of the results; default runs/NAME.")
]
_Resume = Annotated[
    str | None, typer.Option(metavar="RUN", help="Go on with a run: its folder, or name in runs/.")
]
_Engine = Annotated[
    str | None,
    typer.Option(
        metavar="ENGINE",
        help="vectorized (the default), or sequential (to find a failing client).",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="End standard output with one line of JSON.")]


@app.command(cls=_WithSettings)
def run(
    sets: _Set = None,
    config: _Config = None,
    out: _Out = None,
    resume: _Resume = None,
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
    as_json: _Json = False,
) -> None:
    """Run one experiment, in this process or on a deployed federation."""
    overrides = _overrides(config, sets)
    _refuse_keys(overrides, {"resume": "--resume RUN", "out": "--out DIR"})
    if federation is not None:
        if engine is not None:
            raise Refused("--engine and --federation exclude each other: nodes train as they can")
        _run_deployed(overrides, federation, control, out, resume, as_json)
        return
    if resume is None:
        experiment = Experiment.from_config(read_defaults() | overrides)
        folder = _new_folder(out, f"{experiment.algorithm}-{_data(experiment)}")
        chosen = _engine(engine or "vectorized")
    else:
        if out is not None:
            raise Refused("--out and --resume exclude each other: a run stays in its folder")
        folder = _find(resume)
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


def _run_deployed(
    overrides: Mapping[str, Any],
    federation: Path,
    control: str | None,
    out: Path | None,
    resume: str | None,
    as_json: bool,
) -> None:
    clients = read_server(federation).settings.clients
    base: dict[str, Any] = {**read_defaults(), "num-clients": clients}
    base["clients-per-round"] = min(clients, base["clients-per-round"])
    if resume is not None:
        folder = _find(resume)
    else:
        experiment = Experiment.from_config({**base, **overrides})
        folder = out or _new_folder(None, f"{experiment.algorithm}-{_data(experiment)}")
    if (folder / "config.json").is_file():
        saved = RunRecord.open(folder).config["settings"]
        experiment = Experiment.from_config(saved | overrides | {"resume": str(folder)})
        RunRecord.open(folder).check_resumable(experiment, engine="flower")

    def execute(experiment: Experiment, folder: Path, report: Report) -> None:
        run_deployed(
            experiment,
            folder,
            federation,
            control=control,
            on_round=report,
            on_trouble=lambda line: err.print(f"engram: {line}", soft_wrap=True),
        )

    again = f"engram run --federation {federation} --out {folder}"
    run_all({folder: experiment}, execute, again)
    show_found(folder, as_json)


@app.command(cls=_WithSettings)
def compare(
    algorithms: Annotated[
        list[str] | None, typer.Argument(metavar="[ALGORITHM]...", help="Default: all of them.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Runs of each, from `seed` upwards; default 3.")
    ] = None,
    sets: _Set = None,
    config: _Config = None,
    out: _Out = None,
    resume: _Resume = None,
    engine: _Engine = None,
    as_json: _Json = False,
) -> None:
    """Run algorithms side by side, on the same data, over several seeds.

    A setting for one algorithm only is given as --set ALGORITHM.KEY=VALUE.
    """
    if resume is None:
        chosen = _engine(engine or "vectorized")
        plan = _plan(algorithms or list(ALGORITHMS), seeds or 3, _overrides(config, sets))
        folder = _new_folder(out, f"compare-{_data(next(iter(plan.values())))}")
    else:
        if algorithms or seeds or sets or config or out or engine:
            raise Refused("--resume goes on with a comparison as it was begun: give nothing else")
        folder = _find(resume)
        chosen, plan = _resumed_plan(folder)
    # Refuses what cannot be, before anything is written; all algorithms share their data.
    for experiment in {e.model_copy(update={"algorithm": "fedavg"}) for e in plan.values()}:
        held = federated_data(experiment)
        model_for(experiment, held.input_shape, held.num_classes)
    if resume is None:
        _make(folder)
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
    as_json: _Json = False,
) -> None:
    """Show what a run, or a comparison, has found so far, and draw its plots again."""
    show_found(_find(run), as_json)


@app.command(cls=_WithSettings)
def data(
    sets: _Set = None,
    config: _Config = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The picture.")] = None,
    as_json: _Json = False,
) -> None:
    """Show which client holds which rows: a table, and a picture."""
    from simulations import plots  # noqa: PLC0415 - slow to import

    experiment = Experiment.from_config(read_defaults() | _overrides(config, sets))
    held = federated_data(experiment)
    path = out or Path("runs") / f"data-{_data(experiment)}-{experiment.partition}.png"
    if path.suffix != ".png":
        raise Refused(f"--out must be the name of a .png file, got {path}")
    train, test = plots.class_counts(held)
    _make(path.parent)
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


# --- Settings ------------------------------------------------------------------------------


def _overrides(config: Sequence[Path] | None, sets: Sequence[str] | None) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    for path in config or ():
        overrides |= read_settings(path)
    for text in sets or ():
        key, equals, value = text.partition("=")
        if not (key.strip() and equals):
            raise Refused(f"--set needs KEY=VALUE, got {text!r}")
        overrides[key.strip()] = value.strip().strip("\"'")
    return overrides


def _refuse_keys(overrides: Mapping[str, Any], instead: Mapping[str, str]) -> None:
    for key in overrides.keys() & instead.keys():
        raise Refused(f"{key} is no setting of this command: use {instead[key]}")


def _plan(
    algorithms: Sequence[str], seeds: int, overrides: Mapping[str, Any]
) -> dict[str, Experiment]:
    """Returns the experiments of a comparison, by the names of their folders."""
    one_run = {"resume": "--resume RUN", "out": "--out DIR", "algorithm": "its arguments"}
    _refuse_keys(overrides, one_run)
    own = {key: key.partition(".")[::2] for key in overrides if "." in key}
    for key, (algorithm, setting) in own.items():
        if algorithm not in algorithms:
            raise Refused(f"{key} is for an algorithm that does not take part: {algorithm}")
        _refuse_keys({setting: None}, one_run | {"seed": "--set seed=N, for all of them"})
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


# --- Folders -------------------------------------------------------------------------------


def _data(experiment: Experiment) -> str:
    kind, _, path = experiment.dataset.partition(":")
    return Path(path).stem if path else kind


def _new_folder(named: Path | None, default: str) -> Path:
    if named is not None:
        if named.exists() and (not named.is_dir() or any(named.iterdir())):
            raise Refused(f"{named} is there already: name another --out, or --resume it")
        return named
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
    names = (f"{default}-{stamp}{suffix}" for suffix in ("", *(f"-{n}" for n in range(2, 100))))
    return next(path for name in names if not (path := Path("runs") / name).exists())


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"{folder} cannot be made: {error.strerror}") from error


def _find(run: str) -> Path:
    for folder in (Path(run), Path("runs") / run):
        if folder.is_dir():
            return folder
    raise Refused(f"no run {run!r}: it is neither a folder nor a name in runs/")
