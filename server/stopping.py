"""Stops a run of a federation after its current round, by a note in the coordinator's folder.

`flwr stop` ends a coordinator in the midst of a round, and whoever watches the run starts it again.
The note is ``flwr/stop-RUN``, by Flower's number of the run. Its coordinator looks for it between
rounds, and while it waits for clients.
"""

from pathlib import Path

from engram.link.credentials import read_server
from engram.link.server.control import ask
from engram.runs.folders import replace_file
from engram.settings.errors import Refused, one_line


def stop_run(folder: Path, run: str | None = None, *, control: str | None = None) -> str:
    """Asks the coordinator of a run to end it after its current round.

    ``run`` is Flower's number of the run; None for the only one that goes on.

    Returns:
        The run's number.

    Raises:
        Refused: No run goes on, or another one than ``run``, or several if it is None; or the
            folder is not in order.
        RunStopped: The SuperLink cannot be reached, or declines.
    """
    home = read_server(folder).folder / "flwr"
    runs = ask(folder, "list", control=control, what="the runs")["runs"]
    going = [str(r["run-id"]) for r in runs if not str(r["status"]).startswith("finished")]
    for note in home.glob("stop-*"):  # of runs that ended before they saw it
        if note.name.removeprefix("stop-") not in going:
            note.unlink(missing_ok=True)
    there = ", ".join(going) or "none"
    if run is None and len(going) != 1:
        raise Refused(f"RUN must be one of the runs that go on: {there}")
    if run is not None and run not in going:
        raise Refused(f"RUN must be one of the runs that go on, {there}, got {one_line(run)!r}")
    chosen = run or going[0]
    replace_file(home / f"stop-{chosen}", b"")
    return chosen
