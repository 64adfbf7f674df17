"""Commands about models that leave the platform: export, adapt, predict, evaluate."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import engram
from engram.cli import work
from engram.cli.console import out as console
from engram.cli.console import table_of
from engram.cli.deployed_cli import for_server
from engram.cli.options import Format, Json, RunName, argument, flag, option
from engram.runs.run_places import find_run
from engram.settings.errors import Refused, say

if TYPE_CHECKING:
    from engram.home.exporting import Written
    from engram.sites.evaluate_at_sites import Visited

app = typer.Typer()

_Folder = Annotated[
    Path | None, option("DIR", "A new folder; default: NAME-model, for whom it is.")
]
_Picked = Annotated[
    bool, flag("--picked", "Of the round that validation rows pick, not of the last.")
]


@app.command()
def export(
    run: RunName,
    client: Annotated[
        str | None, option("CLIENT", "A client's name, or its number if it has none.")
    ] = None,
    common: Annotated[bool, flag("--common", "Instead, the model that all clients share.")] = False,
    tuned: Annotated[
        bool, flag("--tuned", "Fine-tuned on the client's rows, where it is not served so.")
    ] = False,
    picked: _Picked = False,
    out: _Folder = None,
    format_: Format = "safetensors",
) -> None:
    """Write a model of a run into a folder: a client's own, or the common one.

    Beside the model stands a card, which says what it is and how well it does.
    """
    if (client is None) != common:
        raise Refused("export takes --client CLIENT, or --common")
    folder = find_run(run)
    found = engram.Run(folder, picked=picked)
    found = found.tuned if tuned else found
    _tell(work.exported_into(found.learned, client, out, format_))


@app.command()
def adapt(
    run: RunName,
    data: Annotated[
        str, option("ROWS", "A .csv, .xlsx or .npz file, or a folder of images or .npy files.")
    ],
    picked: _Picked = False,
    out: _Folder = None,
    format_: Format = "safetensors",
) -> None:
    """Make a model for a client that never took part, from a few of its rows.

    It is made by the method's own adaptation, as for the clients of `unseen-clients`. What it
    reaches on these rows, by cross-validation, is compared with a model of these rows alone, and
    with the common one.
    """
    folder = find_run(run)
    found = engram.Run(folder, picked=picked)
    _tell(work.adapted_into(found.learned, data, out, format_))


@app.command()
def predict(
    model: Annotated[Path, argument("MODEL", "The folder of a model.")],
    rows: Annotated[
        Path, argument("ROWS", "A .csv, .xlsx or .npz file, or a folder of images or .npy files.")
    ],
    out: Annotated[Path, option("FILE", "A new CSV file.")] = Path("predictions.csv"),
    interval: Annotated[
        float | None, option("LEVEL", "Probability of intervals of values; default: 0.9.")
    ] = None,
    deadline: Annotated[
        float, option("SECONDS", "For an ONNX file to load, and for 1024 rows.", min=1, max=1e6)
    ] = 60,
    memory: Annotated[float, option("GIB", "Memory that an ONNX file may take.", min=0.1)] = 4,
    strict: Annotated[
        bool, flag("--strict", "End with status 3 if rows are marked: see above.")
    ] = False,
) -> None:
    """Predict rows by an exported model, into a CSV file.

    There is a line for each row: the columns that are no inputs of the model, as they are written;
    the likeliest class and the probability of each, or the value and, where the model has
    intervals, their ends. Rows with missing values, or values far from those that the model has
    learned from, are marked: the columns `imputed` and `outside` name these inputs.
    """
    if out.exists():
        raise Refused(f"{out} is there already: name another --out")
    found = work.predict(model, rows, out, interval, work.Limits(deadline, memory))
    columns = ", ".join(found.table.columns)
    console.print(f"{out}: {len(found.table)} rows of {columns}", soft_wrap=True)
    _note(found.notes)
    if strict and found.is_strange:
        raise SystemExit(3)


@app.command()
def evaluate(
    models: Annotated[list[Path], argument("MODEL...", "Folders of exported models.")],
    federation: Annotated[Path, option("SERVER_FOLDER", "The folder `server` of a federation.")],
    as_json: Json = False,
) -> None:
    """Score exported models at all sites of a federation, on their own test rows.

    A model goes to the sites as parameters and a description, without its ranges, intervals and
    medians; no code goes with it. Sites tell scores and numbers of rows.
    """
    experiment = for_server({}, federation)
    folders = [str(path.absolute()) for path in models]
    for folder in folders:
        work.given_model(folder)  # refused here, before anybody is asked
    asking, question = "engram.sites.evaluate_at_sites:ask", {"folders": folders}
    text = work.answer_of_nodes(asking, question, experiment, federation)
    found = [work.Visited(**each) for each in json.loads(text)]
    if as_json:
        print(json.dumps([each._asdict() for each in found]))
    else:
        _show(found)
    if not any(each.rows for each in found):
        raise Refused("no site has scored a model: the lines above say why")


def _tell(written: "Written") -> None:
    folder, package = written
    about, columns = package.exported, ("rows", "metric", "value", "95 % interval")
    if package.scores:
        console.print(table_of(columns, package.scores, right=columns[1:]))
    _note(package.notes)
    rows = "rows.csv" if about.kind.schema else "rows.npz"
    console.print(f"{about.what}: see {folder / 'card.md'}", soft_wrap=True)
    console.print(f"next: engram predict {shlex.quote(str(folder))} {rows}", soft_wrap=True)


def _note(notes: Sequence[str]) -> None:
    for note in notes:
        console.print(f"note: {note}", soft_wrap=True)


def _show(found: "Sequence[Visited]") -> None:
    models = dict.fromkeys(each.model for each in found)
    sites = sorted({each.client for each in found if each.rows})
    rows = []
    for model in models:
        there = {each.client: each for each in found if each.model == model and each.rows}
        metric = next((next(iter(each.scores), "") for each in there.values()), "")
        shown = [_cell(there[site], metric) if site in there else "-" for site in sites]
        rows.append([Path(model).name, metric, *shown])
    columns = [f"client-{site}" for site in sites]
    if sites:
        console.print(table_of(["model", "metric", *columns], rows, right=columns))
    if any(each.rows and not each.held_out for each in found):
        console.print("*: rows that the site drew; the model may have learned from some")
    for each in found:
        if not each.rows:
            say(f"{Path(each.model).name} at client-{each.client}: {each.why}")


def _cell(scored: "Visited", metric: str) -> str:
    value = scored.scores.get(metric)
    figure = "-" if value is None else f"{value:.4g}"
    return f"{figure} ({scored.rows} rows{'' if scored.held_out else '*'})"
