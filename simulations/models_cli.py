"""The commands about models that leave the platform.

What loads torch is imported by the functions that use it, once all is in order.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from federation.errors import Refused
from federation.interrupts import end_at_once
from simulations.console import out as console
from simulations.options import find_run

if TYPE_CHECKING:
    from simulations.exports.leaving import Written

__all__ = ["app"]

app = typer.Typer()

_Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's folder, or its name in runs/.")]
_Folder = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="A new folder; default: NAME-model, for whom it is."),
]
_Format = Annotated[
    str,
    typer.Option("--format", metavar="FORMAT", help="safetensors, torch or onnx."),
]


@app.command()
def export(
    run: _Run,
    client: Annotated[
        str | None,
        typer.Option(metavar="CLIENT", help="Whose model: a client's number, or its name."),
    ] = None,
    common: Annotated[
        bool, typer.Option("--common", help="Instead, the model that all clients share.")
    ] = False,
    out: _Folder = None,
    format_: _Format = "safetensors",
) -> None:
    """Write a model of a run into a folder: a client's own, or the common one.

    Beside the model stands a card, which says what it is and how well it does.
    """
    if (client is None) != common:
        raise Refused("export takes --client CLIENT, or --common")
    folder = find_run(run)
    with end_at_once():
        from simulations.exports.leaving import exported_into
        from simulations.front import load_run
    _tell(exported_into(load_run(folder).learned, client, out, format_))


@app.command()
def predict(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a model.")],
    rows: Annotated[
        Path,
        typer.Argument(
            metavar="ROWS", help="A .csv or .npz file, or a folder of images or .npy files."
        ),
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="A new CSV file.")] = Path(
        "predictions.csv"
    ),
) -> None:
    """Predict rows by an exported model, into a CSV file.

    There is a line for each row: the columns that are no inputs of the model, the likeliest class
    and the probability of each, or the value.
    """
    if out.exists():
        raise Refused(f"{out} is there already: name another --out")
    with end_at_once():
        from simulations.exports.predicting import predict as predicted
    found = predicted(model, rows, out)
    columns = ", ".join(found.columns)
    console.print(f"{out}: {len(found)} rows of {columns}", markup=False, soft_wrap=True)


def _tell(written: "Written") -> None:
    folder, leaving = written
    columns = leaving.exported.columns or leaving.exported.kind.columns
    rows = "rows.csv" if columns else "rows.npz"
    console.print(
        f"{leaving.exported.what}: see {folder / 'card.md'}", markup=False, soft_wrap=True
    )
    console.print(f"next: engram predict {folder} {rows}", markup=False, soft_wrap=True)
