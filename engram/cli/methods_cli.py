"""``engram methods``: lists the methods, and shows the settings of each."""

import json
from typing import Annotated

import typer
from rich.table import Table

from engram.cli.console import out
from engram.cli.options import Json, settings_rows
from engram.settings.base import SharedSettings
from engram.settings.errors import Refused
from engram.settings.families import METHODS, unknown_method
from engram.settings.fields import key_of
from engram.tune.space import declared_ranges

__all__ = ["app"]

app = typer.Typer()


@app.command()
def methods(
    method: Annotated[str | None, typer.Argument(metavar="[METHOD]", help="Show this one.")] = None,
    as_json: Json = False,
) -> None:
    """List the methods, or show one and its settings."""
    if method is None:
        _list(as_json)
    elif method in METHODS:
        _show(method, as_json)
    else:
        raise Refused(unknown_method("METHOD", method))


def _list(as_json: bool) -> None:
    table = Table("method", "meaning", "source")
    for name, method in METHODS.items():
        table.add_row(name, method.meaning, method.source)
    out.print(table)
    out.print("engram methods METHOD shows a method's own settings.")
    if as_json:
        rows = [{"method": n, "meaning": m.meaning, "source": m.source} for n, m in METHODS.items()]
        print(json.dumps({"methods": rows}))


def _show(name: str, as_json: bool) -> None:
    method = METHODS[name]
    settings = settings_rows(method)
    unread = [key_of(field) for field in SharedSettings.model_fields if field in method.unread]
    title = f"Its own settings (--set {name}.KEY=VALUE, or --set KEY=VALUE)"
    headings = ("setting", "default", "range", "searched", "meaning")
    table = Table(*headings, title=title, title_justify="left")
    for row in settings:
        table.add_row(*row)
    own = method.all_keys()
    more = {key: str(found) for key, found in declared_ranges(method).items() if key not in own}
    source = [f"Source: {method.source}"] if method.source else []
    out.print(f"{name}: {method.meaning}", *source, table, sep="\n")
    for key, found in more.items():
        out.print(f"engram tune searches {key}, too: {found}.")
    if unread:
        out.print(f"Shared settings that it does not read: {', '.join(unread)}.")
    out.print("All shared settings: engram run --help.")
    if as_json:
        about = {"method": name, "meaning": method.meaning, "source": method.source}
        rows = [
            {
                "setting": f"{name}.{key}",
                "default": json.loads(default),
                "range": within,
                "searched": searched,
                "meaning": meaning,
            }
            for key, default, within, searched, meaning in settings
        ]
        told = {"settings": rows, "searched-too": more, "not-read": unread}
        print(json.dumps(about | told))
