"""``engram runs``: lists what a folder of runs holds."""

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from engram.cli.console import out
from engram.cli.options import Json
from engram.cli.progress import tell_next
from engram.runs.run_list import entries
from engram.settings.errors import one_line

__all__ = ["app"]

app = typer.Typer()


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Default runs.")] = Path(
        "runs"
    ),
    as_json: Json = False,
) -> None:
    """List the runs, comparisons and searches of a folder, the newest first."""
    found = entries(folder)
    table = Table("name", "kind", "of", "data", "state", "score", "begun")
    for one in found:
        table.add_row(*map(one_line, one))
    if found:
        out.print(table)
    else:
        out.print(f"There is no run in {folder}.", soft_wrap=True)
    shown = [
        f"show {shlex.quote(str(folder / one.name))}"
        for one in found
        if one.kind != "study" or one.state == "finished"
    ]
    if not as_json:
        tell_next([*shown, "run"][0])
    if as_json:
        print(json.dumps({"runs": [one._asdict() for one in found]}))
