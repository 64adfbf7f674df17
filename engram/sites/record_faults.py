"""Faults of a node's ledger and log, each with a remedy of its site's operator."""

from collections.abc import Callable
from logging import getLogger
from pathlib import Path

from engram.settings.errors import Refused
from engram.sites.audit import AUDIT, Audit
from engram.sites.ledger import LEDGER, Ledger

_log = getLogger("flwr.engram")


def faults(folder: Path, state: Path) -> dict[str, str]:
    """Faults of the ledger and the log of a client's folder; "" for one that is whole."""
    back = f"this site's operator stops the node, and puts back {state / AUDIT} of a backup"
    looks: dict[str, Callable[[], str]] = {
        "ledger": lambda: Ledger(state / LEDGER, 0.0, 0.0).read().remedy(folder),
        "log": lambda: (fault := Audit(state / AUDIT).read().fault) and f"{fault}; {back}",
    }
    found = {}
    for about, look in looks.items():
        try:
            found[about] = look()
        except Refused as error:  # it cannot be read
            found[about] = str(error)
    return found


def open_log(folder: Path, state: Path) -> Audit:
    """Returns the log of a node that begins; logs faults of it and of the ledger."""
    for fault in filter(None, faults(folder, state).values()):
        _log.error("%s", fault)
    return Audit(state / AUDIT)
