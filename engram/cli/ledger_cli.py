"""`engram ledger`: what a node's data have spent of their privacy, answer by answer."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.table import Table

from engram.cli.site_cli import state_of
from engram.link.console import console
from engram.settings.errors import Refused, RunStopped, one_line, say
from engram.sites.accepted import in_force
from engram.sites.audit import AUDIT, Audit
from engram.sites.ledger import LEDGER, OTHERS, Books, Ledger
from engram.sites.policy import Policy

app = typer.Typer()

_TRAINED: Final = {"train": "trained", "evaluate": "scored"}


@app.command()
def ledger(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A client's folder, `client-N`.")
    ],
    accept: Annotated[
        bool, typer.Option("--accept", help="Begin a damaged ledger anew, with what is known.")
    ] = False,
    others: Annotated[
        bool,
        typer.Option("--others", help="The next data are of other people: they get an account."),
    ] = False,
    state: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="The node's --state; by default FOLDER/state."),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The node's --policy.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead.")] = False,
) -> None:
    """Show what a node's answers have spent of its site's privacy budget.

    The budget is `epsilon`, with `delta`, in the site's policy.
    """
    where = state_of(folder, state)
    rules, _ = in_force(policy or folder, where)
    book = Ledger(where / LEDGER, rules.epsilon, rules.delta)
    if accept and others:
        raise Refused("--accept and --others must be given one after the other, got both")
    if accept:
        _accept(book)
    elif others:
        book.declare_others()
        say("the next data that this node has not served yet get an account of their own")
    else:
        _show(book, folder, rules, as_json=as_json)


def _accept(book: Ledger) -> None:
    aside = book.accept()
    if aside is None:
        say("the ledger is whole, and stays as it is")
        return
    why = f"it was damaged, and its site has accepted what is known of it: see {aside.name}"
    Audit(book.folder.parent / AUDIT).append({"kind": "ledger", "why": why}, trained=False)
    was = f"damaged ledger is kept as {aside}" if aside.suffix != ".jsonl" else "ledger was gone"
    say(f"the {was}; a new one has what is known of it:")
    for text in book.in_words(book.read()):
        say(text)


def _show(book: Ledger, folder: Path, rules: Policy, *, as_json: bool) -> None:
    books = book.read()
    if as_json:
        spent = {str(account): epsilon for account, epsilon in book.spent(books).items()}
        found = {"epsilon": rules.epsilon, "delta": rules.delta, "accounts": spent}
        print(json.dumps(found | {"lines": books.lines, "fault": books.fault}))
    else:
        out = console()
        if books.lines:
            out.print(_table(books))
        for text in book.in_words(books):
            out.print(text, soft_wrap=True)
    if books.fault:
        command = f"engram ledger {shlex.quote(str(folder))} --accept"
        raise RunStopped(f"{books.fault}; {command} begins it anew, with what is known")


def _table(books: Books) -> Table:
    table = Table()
    numbers = ("run", "round", "rows", "noise", "epsilon")
    for heading in ("time (UTC)", "run", "method", "round", "answer", "rows", "noise", "epsilon"):
        table.add_column(heading, justify="right" if heading in numbers else "left")
    for line in filter(None, books.lines):
        table.add_row(*_cells(line))
    return table


def _cells(line: Mapping[str, Any]) -> list[str]:
    kind = str(line.get("kind"))
    answer = f"{_TRAINED.get(kind, kind)} {line.get('clients', '')}".strip()
    if kind == OTHERS:
        answer = "the next new data are of others"
    time = str(line.get("time"))[:16].replace("T", " ")
    known = [line.get(key) for key in ("rows", "noise-multiplier", "epsilon")]
    return [
        time,
        *(one_line(str(line.get(key, ""))) for key in ("run", "method", "round")),
        one_line(answer),
        *("" if value is None else f"{value:.4g}" for value in known),
    ]
