"""The ServerApp that asks nodes to describe their tables, before anything trains."""

import json
import time
from logging import getLogger
from typing import Any, Final, NamedTuple

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from engram.data.tables.table_summary import DescribedTable
from engram.link.server.membership import membership_of
from engram.server.app_start import opened
from engram.server.grid import PatientGrid
from engram.server.roster import attendance_of
from engram.server.roster_query import Answers
from engram.settings.errors import RunStopped
from engram.settings.experiment import Experiment
from engram.settings.files import replace_file

SURVEY: Final = "survey.json"
"""The file with the answers."""

READER: Final = "reader"
"""The file with the public key that tables are sealed for, in hexadecimal digits."""

CHECK: Final = "check"
"""The file that asks for a check of a run, too."""

_PATIENCE: Final = 30.0  # seconds without news after which no further node is waited for
_LONGEST: Final = 600.0  # seconds that those may take that are there

_log = getLogger("flwr.engram")

app = ServerApp()


class Survey(NamedTuple):
    """Answers of a federation's nodes about their tables.

    Attributes:
        tables: The table of each client whose node describes one.
        silent: Why the others' nodes do not.
        rows: Number of training rows of each client that can take part; None if that was not asked.
        absent: Why the others cannot, likewise.
        approving: Clients whose sites approve each run before they take part in it.
    """

    tables: dict[int, DescribedTable]
    silent: dict[int, str]
    rows: dict[int, int] | None = None
    absent: dict[int, str] | None = None
    approving: tuple[int, ...] = ()

    @property
    def named(self) -> dict[str, DescribedTable]:
        """The tables by their sites' names, in the order of their clients."""
        return {site_name(client): table for client, table in sorted(self.tables.items())}

    @classmethod
    def from_json(cls, text: str, private: bytes) -> "Survey":
        """Reads what ``survey`` returned, by the private half of its reader's key."""
        found: dict[str, Any] = json.loads(text)
        approving = tuple(found.pop("approving", ()))
        given = {
            key: part and {int(client): value for client, value in part.items()}
            for key, part in found.items()
        }
        tables, silent = dict[int, DescribedTable](), given.pop("silent")
        for client, letter in given.pop("tables").items():
            try:
                tables[client] = DescribedTable.opened(bytes.fromhex(letter), private)
            except ValueError as error:
                silent[client] = f"its description cannot be read: {error}"
        return cls(tables, silent, **given, approving=approving)


def site_name(client: int) -> str:
    """Returns the name of a client's folder."""
    return f"client-{client}"


def survey(
    grid: Grid, e: Experiment, reader: bytes, *, check: bool = False, patience: float = _PATIENCE
) -> str:
    """Asks all nodes to describe their tables; returns their answers for ``Survey.from_json``.

    Args:
        grid: The nodes.
        e: The settings of a run on them.
        reader: The public key for which nodes seal them, since disks keep what passes here.
        check: Whether they are also asked which clients could take part in this run.
        patience: Seconds without news after which nodes that are off line are left out.
    """
    answers = Answers(grid, "", e.digest(), columns=reader)
    attendance = attendance_of(grid, e, training="", kind=None)
    now = time.monotonic()
    deadline, end = now + patience, now + _LONGEST
    while not answers.complete and time.monotonic() < (end if answers.silent else deadline):
        if answers.ask():
            deadline = time.monotonic() + patience
        else:
            time.sleep(0.1)
    entries, silent = answers.entries.values(), dict[int, str]()
    tables = {c: entry.table.hex() for entry in entries for c in entry.clients if entry.table}
    for client in attendance.counted:
        if client not in tables:
            # Of a node without a name, nobody knows whose it is.
            silent[client] = answers.refusal(client) or answers.in_words()[0] or "no node hosts it"
    if not check:
        return json.dumps({"tables": tables, "silent": silent})
    try:
        attendance.wait(1, everyone=True, timeout=_LONGEST)
    except RunStopped as error:
        _log.debug("too few clients: %s", error)
    absent, roster = attendance.absent(), attendance.roster()
    rows = {c: roster.examples[c] for c in attendance.counted if c not in absent}
    able = {"rows": rows, "absent": absent, "approving": list(attendance.approving)}
    return json.dumps({"tables": tables, "silent": silent} | able)


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Asks the nodes, and writes their answers to the folder that the run config names.

    Raises:
        EngramError: They cannot be asked; logged in one line before it is raised.
    """
    with opened(grid, context) as (experiment, folder):
        patient = PatientGrid(grid, least=1, membership=membership_of(grid))
        reader = bytes.fromhex((folder / READER).read_text(encoding="ascii"))
        found = survey(patient, experiment, reader, check=(folder / CHECK).exists())
        replace_file(folder / SURVEY, found.encode())
