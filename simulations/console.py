"""The command's consoles: results go to standard output, remarks to standard error."""

from io import StringIO

from rich.console import Console
from rich.table import Table

from federation.console import WHOLE, console

out = console()
err = console(stderr=True)


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
