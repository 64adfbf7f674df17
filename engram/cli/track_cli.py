"""``engram track``: sends what runs have recorded to an experiment tracker."""

from pathlib import Path
from typing import Annotated

import typer

from engram.cli.console import out
from engram.cli.options import find_run
from engram.compare.comparison_folder import PLAN, runs_of
from engram.studio.tracking.sending import TRACKERS, check_sendable, check_tracker, send

__all__ = ["app"]

app = typer.Typer()


@app.command()
def track(
    run: Annotated[
        str, typer.Argument(metavar="RUN", help="A run or comparison: its folder, or its name.")
    ],
    to: Annotated[str, typer.Option(metavar="TRACKER", help=f"One of {', '.join(TRACKERS)}.")],
) -> None:
    """Send what a run, or a comparison, has recorded to TensorBoard, MLflow or W&B.

    Rounds that the tracker has are not sent again.
    """
    folder = find_run(run)
    check_tracker(to)
    parts = _begun(folder)
    for part in parts:
        check_sendable(part, to)
    for part, group in parts.items():
        rounds = send(part, to, group)
        out.print(f"{part}: {rounds} rounds sent to {to}", soft_wrap=True)


def _begun(folder: Path) -> dict[Path, str]:
    """Returns the folders of runs that have begun, each with the name of its comparison."""
    if not (folder / PLAN).is_file():
        return {folder: ""}
    return dict.fromkeys(runs_of(folder), folder.name)
