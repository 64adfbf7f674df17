"""Where the command prints: what was asked for, and what there is to say about it."""

from rich.console import Console

out = Console(highlight=False)
err = Console(stderr=True, highlight=False)
