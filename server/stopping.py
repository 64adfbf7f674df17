"""Stops a run of a federation after its current round, by a note in the server's folder.

The note is ``stop-RUN``, by the run's number. Its coordinator looks for it between rounds, and
while it waits for clients.
"""

from pathlib import Path

from engram.link.credentials import read_server
from engram.link.run import status
from engram.runs.folders import replace_file
from engram.settings.errors import Refused, one_line


def stop_run(folder: Path, run: str | None = None) -> str:
    """Asks the coordinator of a run to end it after its current round.

    ``run`` is the run's number; None for the only one that goes on.

    Returns:
        The run's number.

    Raises:
        Refused: No run goes on, or another one than ``run``, or several if it is None; or the
            folder is not in order.
        RunStopped: The server does not answer.
    """
    folder = read_server(folder).folder
    going = status(folder).runs
    for note in folder.glob("stop-*"):  # of runs that ended before they saw it
        if note.name.removeprefix("stop-") not in going:
            note.unlink(missing_ok=True)
    there = ", ".join(going) or "none"
    if run is None and len(going) != 1:
        raise Refused(f"RUN must be one of the runs that go on: {there}")
    if run is not None and run not in going:
        raise Refused(f"RUN must be one of the runs that go on, {there}, got {one_line(run)!r}")
    chosen = run or going[0]
    replace_file(folder / f"stop-{chosen}", b"")
    return chosen
