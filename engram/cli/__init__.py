"""The `engram` command, one file per group of subcommands."""

import logging


def _tells(record: logging.LogRecord) -> bool:
    """Drops matplotlib's remarks on a missing cache folder, without which it works."""
    said = record.getMessage()
    return not (
        said.startswith(("mkdir -p failed", "Matplotlib created a temp", "Matplotlib is building"))
        or said.endswith("is not a writable directory")
    )


for _name in ("matplotlib", "matplotlib.font_manager"):
    logging.getLogger(_name).addFilter(_tells)
