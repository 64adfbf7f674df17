"""Consoles of commands, which show texts of records, replies, files and users as they are.

A text may have come from anywhere. It is no markup, and whatever is in it that is not printable is
escaped: so it neither moves the cursor, nor changes colors, nor writes to the clipboard.
"""

from collections.abc import Iterator

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

from federation.errors import printable

__all__ = ["console"]


def console(*, stderr: bool = False) -> Console:
    """Returns a console for standard output, or standard error."""
    made = Console(stderr=stderr, highlight=False, markup=False, emoji=False)
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
        for segment in console.render(self._inner, options):
            plain = segment.control or segment.text.replace("\n", "").isprintable()
            yield segment if plain else Segment(_lines(segment.text), segment.style)


def _lines(text: str) -> str:
    return "\n".join(map(printable, text.split("\n")))
