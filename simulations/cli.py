"""The `engram` command."""

import json
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import click
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from typer.core import TyperCommand

from client.trainer import Engine
from federation.algorithms import ALGORITHMS
from federation.data.federated import federated_data, model_for
from federation.errors import Refused
from federation.experiment import Experiment, read_defaults, read_settings
from server.record import RunRecord
from simulations.engine import simulate
from simulations.report import PLAN, find_runs, read_plan, report_rows, report_table

__all__ = ["app"]

app = typer.Typer(
    help="Personalized federated learning: every client gets its own model, and remembers it.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
_out = Console(highlight=False)
_err = Console(stderr=True, highlight=False)


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
        _out.print(table)


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
    as_json: _Json = False,
) -> None:
    """Run one experiment in this process."""
    overrides = _overrides(config, sets)
    _refuse_keys(overrides, {"resume": "--resume RUN", "out": "--out DIR"})
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
    _simulate({folder: experiment}, chosen, f"engram run --resume {folder}")
    _finish(folder, as_json)


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
    for experiment in plan.values():  # refuses what cannot be, before anything is written
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
    _simulate(work, chosen, f"engram compare --resume {folder}")
    _finish(folder, as_json)


@app.command()
def show(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's folder, or its name in runs/.")
    ],
    as_json: _Json = False,
) -> None:
    """Show what a run, or a comparison, has found so far, and draw its plots again."""
    _finish(_find(run), as_json)


@app.command(cls=_WithSettings)
def data(
    sets: _Set = None,
    config: _Config = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="The picture.")] = None,
    as_json: _Json = False,
) -> None:
    """Show which client holds which rows: a table, and a picture."""
    from simulations import plots  # noqa: PLC0415

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
    _out.print(table)
    _out.print(f"picture: {path}", soft_wrap=True)
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


# --- What a user sees ----------------------------------------------------------------------


def _simulate(work: Mapping[Path, Experiment], engine: Engine, resume: str) -> None:
    """Runs experiments, each in its folder, with a line of progress for each."""
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds {task.fields[found]:<30}"),
        TimeRemainingColumn(compact=True),
    )
    # Shown from the first round on, so that whatever is refused before it is one line.
    progress = Progress(*columns, console=_err)
    try:
        with _interrupt_between_rounds() as check:
            for folder, experiment in work.items():
                line = progress.add_task(
                    f"{experiment.algorithm} seed {experiment.seed}",
                    total=experiment.num_rounds,
                    found="",
                )

                def report(row: Mapping[str, Any], line: TaskID = line) -> None:
                    progress.start()
                    if "accuracy" in row:
                        found = f"accuracy {100 * row['accuracy']:.1f} %"
                        progress.update(line, found=found)
                    progress.update(line, completed=row["round"])
                    check()

                simulate(experiment, folder, engine=engine, on_round=report)
                report(RunRecord.open(folder).rows()[-1])
    except KeyboardInterrupt:
        begun = any((folder / "config.json").is_file() for folder in work)
        hint = f"go on with: {resume}" if begun else "nothing has been written"
        progress.console.print(f"engram: interrupted; {hint}", soft_wrap=True)
        raise SystemExit(130) from None
    finally:
        if progress.live.is_started:
            progress.stop()


@contextmanager
def _interrupt_between_rounds() -> Iterator[Callable[[], None]]:
    """Makes Ctrl-C wait until the round is done: yields the function that then raises it.

    Raised inside `torch.func`, a KeyboardInterrupt comes out as an internal error of torch. A
    second Ctrl-C does not wait.
    """
    asked = False

    def ask(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            signal.default_int_handler(signum, frame)
        asked = True

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def _finish(folder: Path, as_json: bool) -> None:
    """Draws the plots, and prints the table and where everything is."""
    from simulations import plots  # noqa: PLC0415 - slow to import

    runs = find_runs(folder)
    rows = report_rows(runs)
    if rows:
        plots.plot_accuracy(runs, folder / "accuracy.png")
        if any(record.results for records in runs.values() for record in records):
            plots.plot_clients(runs, folder / "clients.png")
        if (folder / PLAN).is_file():
            (folder / "results.json").write_text(json.dumps(rows, indent=2))
        _out.print(report_table(rows))
    for records in runs.values():
        for record in records:
            if record.results is None:
                done, total = record.rows()[-1]["round"], record.config["settings"]["num-rounds"]
                _err.print(f"{record.folder}: not finished, {done} of {total} rounds")
    for row in rows:
        total = runs[row["algorithm"]][0].config["settings"]["num-clients"]
        if row["scored"] < total:
            _err.print(f"{row['algorithm']}: only {row['scored']} of {total} clients were scored")
        if 0 < row["own-clients"] < total:
            kept = f"{row['own-clients']} of {total} clients keep a model so far"
            _err.print(f"{row['algorithm']}: {kept}; `own` is theirs")
        if row["left-out"]:
            _err.print(f"{row['algorithm']}: {row['left-out']} times a client was left out")
    files = [name for name in _SHOWN if (folder / name).is_file()]
    _out.print(f"recorded in {folder}: {', '.join(files)}", soft_wrap=True)
    if as_json:
        print(json.dumps({"run": str(folder), "algorithms": rows}))


_SHOWN = ("accuracy.png", "clients.png", "results.json", "metrics.jsonl")
