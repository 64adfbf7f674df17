"""``engram reproduce universal-stream``."""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from simulations.options import Json, Out, make_folder, new_folder
from simulations.terminal import Tell, progress_lines
from simulations.terminal import out as console

if TYPE_CHECKING:  # as below
    from simulations.reproduce.universal_stream import Array

__all__ = ["universal_stream"]

_RUNS = 11  # of a grid, as it begins


def universal_stream(
    path: Annotated[
        Path, typer.Argument(metavar="TABLE", help="An .npz file: x and y, in the order of time.")
    ],
    rounds: Annotated[
        int | None,
        typer.Option(metavar="T", max=10**8, help="Default: as many as each client has rows."),
    ] = None,
    out: Out = None,
    as_json: Json = False,
) -> None:
    """Federated online learning: what servers lose while clients' rows come in.

    20 clients hold a block of the rows each, and meet one a round. The server has
    one gradient of a linear model from them: for the universal ensemble, or for
    FedAvg's, FedAdam's or FedYogi's step, with its default size and the best one.
    simulations/presets/online.toml is the same federation, for engram run.
    """
    # Inside, since torch and Flower's strategies take seconds, which no other command should wait
    # for.
    from simulations.reproduce import universal_stream as streams  # noqa: PLC0415 - see above
    from simulations.reproduce import universal_stream_report as report  # noqa: PLC0415 - likewise
    from simulations.reproduce.report import record  # noqa: PLC0415 - likewise
    from simulations.reproduce.server_steps import STEPS  # noqa: PLC0415 - likewise

    folder = new_folder(out, f"universal-stream-{path.stem}")
    e, data = streams.read_stream(f"npz:{path}", rounds)
    stream = streams.stream_of(e, data)
    fixed = [streams.best_fixed(stream, radius) for radius in (float("inf"), e.server_radius)]
    best, best_in_ball = (stream.losses(model[None]) for model in fixed)
    found: list[streams.Course] = []
    with progress_lines("runs", lambda: "nothing has been written") as new_line:
        for name, step in STEPS.items():
            total = len(streams.SHARES) if name == "universal" else _RUNS
            tell = _teller(new_line(step.title, total), total, best)
            found += streams.courses(name, e, data, stream, tell)
    rows = report.summary(found, best, best_in_ball)
    console.print(f"{path}: {e.num_rounds} rounds of {e.num_clients} rows", soft_wrap=True)
    console.print(report.CAPTION, report.table(rows), sep="\n")
    make_folder(folder)
    record(rows, report.draw_figures(found, best), folder, as_json)


def _teller(line: Tell, total: int, best: "Array") -> Callable[["Array"], None]:
    """Returns what counts runs, and shows the regret of each; a grid may grow beyond its total."""
    counted = count(1)
    return lambda losses: line(min(next(counted), total), f"regret {(losses - best).sum():.1f}")
