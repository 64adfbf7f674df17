"""``engram reproduce``: the papers' experiments, tuned, run, and set beside what is published."""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from federation.errors import Refused
from federation.files import replace_file
from simulations.options import Json, Out, find_run, make_folder, new_folder
from simulations.reproduce import sinewave_report
from simulations.reproduce.methods import METHODS
from simulations.reproduce.plan import Case, Plan, read_plan, write_plan
from simulations.reproduce.sinewave import ALPHA, Sinewave
from simulations.reproduce.workers import carry_out
from simulations.terminal import out as console
from simulations.terminal import progress_lines

__all__ = ["app"]

app = typer.Typer(
    name="reproduce",
    help="Run a paper's experiment, and set the results beside those that it published.",
    no_args_is_help=True,
)

# Of eta: that of Sec. 6.1, and three smaller ones, since with exact Hessians (and where there is a
# memory, whose authors' code multiplies by beta) all of its values may diverge.
GRID = (0.1, 0.05, 0.01, 0.005, 0.001, 0.0005, 0.0002, 0.0001)

_Methods = Annotated[
    list[str] | None,
    typer.Argument(metavar="[METHOD]...", help=f"Of {', '.join(METHODS)}. Default: the paper's."),
]
_Seeds = Annotated[int | None, typer.Option(min=1, help="Runs of each method.")]
_Hessian = Annotated[
    str | None,
    typer.Option(metavar="HOW", help="exact (the default), first-order, finite-difference."),
]
_Tasks = Annotated[
    int | None,
    typer.Option("--tasks-per-step", metavar="B", help="Tasks in an iteration; default 3."),
]
_Tune = Annotated[
    bool,
    typer.Option("--tune", help="Choose eta and beta on the paper's grid, by the training tasks."),
]
_AsPublished = Annotated[
    bool,
    typer.Option("--published", help="The authors' eta and beta, and first-order gradients."),
]
_Processes = Annotated[
    int | None,
    typer.Option(min=1, help="Sweeps that run beside each other; default: one for each core."),
]
_MemoryDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Keep memories in files there, if they do not fit."),
]
_Resume = Annotated[
    str | None,
    typer.Option(metavar="RUN", help="Go on with one: its folder, or name in runs/."),
]


@app.command()
def sinewave(
    methods: _Methods = None,
    batch_sizes: Annotated[
        list[int] | None,
        typer.Option("--batch-size", "-k", metavar="K", help="May be repeated; default 1 and 3."),
    ] = None,
    iterations: Annotated[
        int | None, typer.Option(help="Of MAML; others see as many rows; default 40000.")
    ] = None,
    seeds: _Seeds = None,
    tasks_per_step: _Tasks = None,
    hessian: _Hessian = None,
    tune: _Tune = False,
    published: _AsPublished = False,
    processes: _Processes = None,
    memory_dir: _MemoryDir = None,
    out: Out = None,
    resume: _Resume = None,
    as_json: Json = False,
) -> None:
    """Sinewave regression: Table 3 and Figures 1 and 2 of the MOML paper (Sec. 6.1)."""
    if tune and published:
        raise Refused("--tune and --published exclude each other")
    if published and hessian not in (None, "first-order"):
        raise Refused(f"--published is first-order, got --hessian {hessian}")
    given = (methods, batch_sizes, iterations, seeds, tasks_per_step, hessian, tune, published, out)
    plan, folder = _plan(
        resume,
        given,
        lambda: Plan(
            experiment="sinewave",
            dataset="",
            data_dir="",
            methods=_known(methods or sinewave_report.TABLE_3, sinewave_report.PUBLISHED_STEPS[1]),
            batch_sizes=tuple(batch_sizes or (1, 3)),
            iterations=40_000 if iterations is None else iterations,
            seeds=tuple(range(seeds or 5)),
            tasks_per_step=3 if tasks_per_step is None else tasks_per_step,
            hessian=hessian or ("first-order" if published else "exact"),
            steps="tuned" if tune else "published" if published else "recorded",
        ),
        lambda: new_folder(out, "sinewave"),
    )
    case = Case(
        make=Sinewave,
        alpha=ALPHA,
        grid=GRID,
        steps={
            "published": sinewave_report.PUBLISHED_STEPS,
            "recorded": sinewave_report.RECORDED_STEPS,
        },
    )
    done = _carry_out(plan, case, folder, processes, memory_dir)
    rows = sinewave_report.summary(done)
    _show(
        rows,
        sinewave_report.CAPTION,
        sinewave_report.table(rows),
        sinewave_report.draw_figures(done, folder),
        folder,
        as_json,
    )


def _known(methods: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Returns methods that an experiment has."""
    for method in methods:
        if method not in known:
            raise Refused(f"method must be one of {', '.join(known)}, got {method!r}")
    return tuple(methods)


def _plan(
    resume: str | None,
    given: Sequence[object],
    make: Callable[[], Plan],
    folder: Callable[[], Path],
) -> tuple[Plan, Path]:
    """Returns what is to be done, and where: anew, or as it was begun."""
    if resume is None:
        return make(), folder()
    if any(given):
        raise Refused("--resume goes on with a reproduction as it was begun: give nothing else")
    found = find_run(resume)
    return read_plan(found), found


def _carry_out(
    plan: Plan, case: Case, folder: Path, processes: int | None, memory_dir: Path | None
) -> list[dict[str, Any]]:
    """Does what is left, with a line of progress for each sweep."""

    def hint() -> str:
        begun = f"go on with: engram reproduce {plan.experiment} --resume {folder}"
        return begun if folder.exists() else "nothing has been written"

    def begin() -> None:
        if not folder.exists() or not any(folder.iterdir()):
            make_folder(folder)
            write_plan(folder, plan)

    lines: dict[str, Callable[[int, str], None]] = {}
    with progress_lines("iterations", hint) as new_line:

        def tell(name: str, done: int, total: int) -> None:
            if name not in lines:
                lines[name] = new_line(name, total)
            lines[name](done, "")

        return carry_out(
            plan,
            case,
            folder,
            processes=processes or os.cpu_count() or 1,
            begin=begin,
            tell=tell,
            memory_dir=memory_dir,
        )


def _show(
    rows: Sequence[Mapping[str, Any]],
    caption: str,
    found: Table,
    figures: Sequence[str],
    folder: Path,
    as_json: bool,
) -> None:
    """Prints the table, and where everything is."""
    plain = [{key: _plain(value) for key, value in row.items()} for row in rows]
    text = json.dumps({"run": str(folder), "rows": plain})
    replace_file(folder / "results.json", text.encode())
    console.print(caption, found, sep="\n")
    console.print(f"recorded in {folder}: {', '.join([*figures, 'results.json'])}", soft_wrap=True)
    if as_json:
        print(text)


def _plain(value: Any) -> Any:
    """Returns what JSON has a word for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
