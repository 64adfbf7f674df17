"""The command's consoles: results go to standard output, remarks to standard error."""

import errno
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.padding import PaddingDimensions
from rich.table import Table

from engram.link.console import WHOLE, console
from engram.settings.errors import one_line

if TYPE_CHECKING:
    import pandas as pd

out = console()
err = console(stderr=True)


def tell_files(folder: Path, names: Iterable[str]) -> None:
    """Prints the files of a folder, of those that it may have."""
    files = ", ".join(name for name in names if (folder / name).exists())
    out.print(f"recorded in {folder}: {files}", soft_wrap=True)


@contextmanager
def as_allowed(folder: Path) -> Iterator[None]:
    """Runs a block that draws anew; says in one line where the folder may not be written into."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise
        line = f"engram: nothing is drawn anew in {folder}: {error.strerror}"
        err.print(line, markup=False, soft_wrap=True)


def table_of(
    headings: Iterable[str],
    rows: Iterable[Iterable[str]],
    *,
    title: str | None = None,
    right: Collection[str] = (),
    longest: int = 300,
) -> Table:
    """Returns a table of texts, each on one line, and cut in its middle if it is longer."""
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="right" if heading in right else "left")
    for cells in rows:
        table.add_row(*(one_line(cell, longest=longest) for cell in cells))
    return table


def new_table(
    left: Sequence[str],
    right: Sequence[str],
    *,
    title: str | None = None,
    padding: PaddingDimensions = (0, 0, 0, 1),
    edge: bool = True,
) -> Table:
    """Returns an empty table with left-aligned and then right-aligned columns."""
    found = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=padding)
    found.show_edge = found.pad_edge = edge
    for heading in left:
        found.add_column(heading, no_wrap=True)
    for heading in right:
        found.add_column(heading, justify="right", no_wrap=True)
    return found


def plus_minus(value: float | None, error: float | None, digits: int = 2) -> str:
    """Formats a number with its error, if it has one; returns ``-`` for None."""
    if value is None:
        return "-"
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def in_html(lines: Iterable[str], table: "pd.DataFrame") -> str:
    """Returns paragraphs and a table, as notebooks show them."""
    words = "".join(f"<p>{escape(line)}</p>" for line in lines)
    return words + str(table.to_html(float_format="{:.4g}".format, max_rows=20))


def in_text(table: Table) -> str:
    """Returns a table as plain lines."""
    text = Console(
        file=StringIO(),
        width=WHOLE,
        color_system=None,
        force_jupyter=False,
        markup=False,
        emoji=False,
    )
    with text.capture() as captured:
        text.print(table)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())
