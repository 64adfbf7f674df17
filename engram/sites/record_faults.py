"""Checks of a site's records, its ledger and its log, with what its operator does about a fault."""

from logging import getLogger
from pathlib import Path

from engram.settings.errors import EngramError, Refused
from engram.sites.audit import AUDIT, Audit
from engram.sites.ledger import LEDGER, Ledger

_log = getLogger("flwr.engram")


def check_ledger(folder: Path, state: Path) -> str:
    """Describes the ledger of a client's folder, which is whole.

    Raises:
        Refused: It is not, or cannot be read.
    """
    books = Ledger(state / LEDGER, 0.0, 0.0).read()
    if books.fault:
        raise Refused(books.remedy(folder))
    return f"lines: {len(books.lines)}, none changed"


def check_log(state: Path) -> str:
    """Describes the log of a node, which is whole.

    Raises:
        Refused: It is not, or cannot be read.
    """
    log = Audit(state / AUDIT).read()
    if log.fault:
        how = f"this site's operator stops the node, and puts back {state / AUDIT} of a backup"
        raise Refused(f"{log.fault}; {how}, or the site signs no release")
    return f"lines: {len(log.lines)}, none changed"


def open_log(folder: Path, state: Path) -> Audit:
    """Returns the log of a node that begins; says faults of it and of the ledger."""
    for look in (lambda: check_ledger(folder, state), lambda: check_log(state)):
        try:
            look()
        except EngramError as error:
            _log.error("%s", error)
    return Audit(state / AUDIT)
