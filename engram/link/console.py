"""Consoles of commands, which show texts of records, replies, files and users as they are.

A text may have come from anywhere. It is no markup, and whatever is in it that is not printable is
escaped: so it neither moves the cursor, nor changes colors, nor writes to the clipboard. A table
never loses a digit: one that is wider than the terminal is shown in blocks of columns, each with
the first one; a file or a pipe, which has no width, gets whole lines.
"""

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from typing import Final

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.measure import Measurement
from rich.segment import Segment
from rich.table import Column, Table

from engram.settings.errors import printable

WHOLE: Final = 10_000
"""Columns of a file, a pipe or a text, in which every table has room."""


def console(*, stderr: bool = False) -> Console:
    """Returns a console for standard output, or standard error."""
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = WHOLE
    made.push_render_hook(_Escaping())
    return made


class _Escaping(RenderHook):
    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Escaped(each) for each in renderables]


class _Escaped:
    """Text for a terminal, with unprintable characters escaped."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        inner = self._inner
        for part in _blocks(inner, console, options) if isinstance(inner, Table) else [inner]:
            for segment in console.render(part, options):
                plain = segment.control or segment.text.replace("\n", "").isprintable()
                yield segment if plain else Segment(_lines(segment.text), segment.style)


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))


def _blocks(table: Table, console: Console, options: ConsoleOptions) -> list[Table]:
    """Returns a table as tables of some of its columns, each as wide as is shown at most."""
    room = options.update(width=WHOLE)

    def fits(columns: Sequence[Column]) -> bool:
        wide = Measurement.get(console, room, _with(table, columns)).minimum
        return wide <= options.max_width

    columns = [replace(column, min_width=_needed(column)) for column in table.columns]
    if fits(columns):
        return [table]
    first, *rest = columns
    groups = [[first]]
    for column in rest:
        if len(groups[-1]) > 1 and not fits([*groups[-1], column]):
            groups.append([first])
        groups[-1].append(column)
    parts = [_with(table, group if fits(group) else map(_folded, group)) for group in groups]
    for part in parts[1:]:
        part.title = None
    return parts


def _needed(column: Column) -> int | None:
    """Width of a column without line breaks in cells; 0 if it may have some."""
    return max(cell_len(str(cell)) for cell in (column.header, *column.cells, "")) * column.no_wrap


def _folded(column: Column) -> Column:
    return replace(column, no_wrap=False, overflow="fold", min_width=None)


def _with(table: Table, columns: Iterator[Column] | Sequence[Column]) -> Table:
    part = copy(table)
    part.columns = [replace(column, _index=number) for number, column in enumerate(columns)]
    return part
