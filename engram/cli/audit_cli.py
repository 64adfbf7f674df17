"""``engram audit``: what a run's messages and models tell about its clients' rows."""

import json
from typing import Annotated

import typer

from engram.cli.console import err, out
from engram.cli.options import Json, find_run
from engram.settings.process_starts import end_at_once

__all__ = ["app"]

app = typer.Typer()


@app.command()
def audit(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run's folder, or its name in runs/.")
    ],
    clients: Annotated[
        int, typer.Option(metavar="N", help="Messages to attack, of the smallest clients.")
    ] = 3,
    federations: Annotated[
        int, typer.Option(metavar="N", help="Federations to train on half of the rows each.")
    ] = 8,
    as_json: Json = False,
) -> None:
    """Attack a run on its own clients' rows: who could reconstruct or recognize them?

    Rows are reconstructed from messages of the first round, and recognized by models that the run's
    own settings make of random halves of the rows. The result is kept in the run's folder.
    """
    folder = find_run(run)
    with end_at_once():
        from engram.api import load_run
        from engram.attack.audit.front import audit as audited
        from engram.attack.audit.report import tables
    found = audited(load_run(folder), clients=clients, federations=federations)
    if as_json:
        out.print_json(json.dumps(found.as_json))
        return
    for table in tables(found):
        out.print(table)
    for line in found.verdict:
        out.print(line, soft_wrap=True)
    err.print(f"kept in {folder / 'audit.json'}", soft_wrap=True)
