"""``engram report``: a page about a run or a comparison, for people who have no Engram."""

from pathlib import Path
from typing import Annotated

import typer

from engram.cli.console import out
from engram.cli.optional_packages import need
from engram.cli.options import find_run
from engram.data.file_models import readable
from engram.settings.errors import Refused
from engram.settings.files import replace_file
from engram.settings.process_starts import end_at_once

__all__ = ["app"]

app = typer.Typer()


@app.command()
def report(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run or comparison: its folder, or its name.")
    ],
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The page; default RUN/report.html.")
    ] = None,
) -> None:
    """Write a page about a run or comparison: an HTML file with interactive figures."""
    folder = find_run(run)
    path = html or folder / "report.html"
    if path.suffix != ".html" or path.is_dir() or not path.parent.is_dir():
        raise Refused(f"--html must be the name of an .html file in a folder, got {path}")
    need("plotly", "report")
    with end_at_once():
        from engram.studio.pages.page import page
    with readable(folder):
        text = page(folder)
    replace_file(path, text.encode(errors="replace"))
    out.print(f"page: {path}", soft_wrap=True)
