"""The command's consoles: results go to standard output, remarks to standard error."""

from rich.console import Console

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
