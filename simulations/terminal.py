"""What a user of the command sees while it works, and when it is done."""

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from federation.algorithms import TABLES
from federation.experiment import Experiment
from federation.files import replace_file
from server.record import RunRecord
from server.tables import in_words
from simulations.console import err, out
from simulations.report import PLAN, find_runs, report_rows, report_table

__all__ = ["Execute", "Report", "Tell", "err", "out", "progress_lines", "run_all", "show_found"]

_LINES: Final = 12

Report = Callable[[dict[str, Any]], None]
Execute = Callable[[Experiment, Path, Report], None]


Tell = Callable[[int, str], None]  # how much is done, and what has been found


@contextmanager
def progress_lines(unit: str, hint: Callable[[], str]) -> Iterator[Callable[[str, int], Tell]]:
    """Shows a line of progress for each piece of work, and lets Ctrl-C wait until it can be told.

    Yields ``(title, total) -> tell``, to be called when a piece of work begins.

    Args:
        unit: What is counted.
        hint: Says how to go on, if Ctrl-C is pressed.

    Raises:
        SystemExit: It was; status 130.
    """
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit} {{task.fields[found]}}"),
        TimeRemainingColumn(compact=True),
    )
    # Shown from the first news on, so that whatever is refused before it is one line.
    progress = Progress(*columns, console=err)
    try:
        with _interrupt_between_rounds() as check:

            def begin(title: str, total: int) -> Tell:
                line = progress.add_task(title, total=total, found="")
                for old in progress.tasks[:-_LINES]:  # what is running must fit the screen
                    progress.update(old.id, visible=not old.finished)

                def tell(done: int, found: str) -> None:
                    progress.start()
                    progress.update(line, completed=done, found=found)
                    check()

                return tell

            yield begin
    except KeyboardInterrupt:
        if progress.live.is_started:
            progress.stop()
        err.print(f"engram: interrupted; {hint()}", soft_wrap=True)
        raise SystemExit(130) from None
    finally:
        if progress.live.is_started:
            progress.stop()


def run_all(work: Mapping[Path, Experiment], execute: Execute, resume: str) -> None:
    """Runs experiments, each in its folder, with a line of progress for each.

    Args:
        work: The experiments, by their folders.
        execute: Runs one of them, and calls its last argument with each round's metrics.
        resume: The command that goes on, if this one is interrupted.

    Raises:
        SystemExit: Ctrl-C was pressed; status 130.
    """

    def hint() -> str:
        begun = any((folder / "config.json").is_file() for folder in work)
        return f"go on with: {resume}" if begun else "nothing has been written"

    with progress_lines("rounds", hint) as begin:
        for folder, experiment in work.items():
            title = f"{experiment.algorithm} seed {experiment.seed}"
            tell, found = begin(title, experiment.rounds), ""

            def report(row: Mapping[str, Any], tell: Tell = tell) -> None:
                nonlocal found
                if "accuracy" in row:
                    found = f"accuracy {100 * row['accuracy']:.1f} %"
                if "sites" in row:
                    found = in_words(row)
                tell(row["round"], found)

            execute(experiment, folder, report)
            report(RunRecord.open(folder).rows()[-1])


@contextmanager
def _interrupt_between_rounds() -> Iterator[Callable[[], None]]:
    """Makes Ctrl-C, and `kill`, wait until the round is done: yields what then raises it.

    Raised inside `torch.func`, a KeyboardInterrupt comes out as an internal error of torch. A
    second Ctrl-C does not wait.
    """
    asked = False

    def ask(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            signal.default_int_handler(signum, frame)
        asked = True

    def check() -> None:
        if asked:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def show_found(folder: Path, as_json: bool) -> None:
    """Draws the plots, and prints the table and where everything is."""
    if (folder / "config.json").is_file():
        record = RunRecord.open(folder)
        if record.config["settings"]["algorithm"] in TABLES:
            from simulations.exchange_report import (  # noqa: PLC0415 - slow to import
                show_exchange,
            )

            show_exchange(record, as_json)
            return
    _show_runs(folder, as_json)


def _show_runs(folder: Path, as_json: bool) -> None:
    from simulations import plots  # noqa: PLC0415 - slow to import

    runs = find_runs(folder)
    rows = report_rows(runs)
    if rows:
        plots.plot_accuracy(runs, folder / "accuracy.png")
        if any(record.results for records in runs.values() for record in records):
            plots.plot_clients(runs, folder / "clients.png")
        if (folder / PLAN).is_file():
            replace_file(folder / "results.json", json.dumps(rows, indent=2).encode())
        out.print(report_table(rows))
    for records in runs.values():
        for record in records:
            if record.results is None:
                done, total = record.rows()[-1]["round"], record.config["settings"]["num-rounds"]
                err.print(f"{record.folder}: not finished, {done} of {total} rounds")
    for row in rows:
        total = runs[row["algorithm"]][0].config["settings"]["num-clients"]
        if row["scored"] < total:
            err.print(f"{row['algorithm']}: only {row['scored']} of {total} clients were scored")
        if 0 < row["own-clients"] < total:
            kept = f"{row['own-clients']} of {total} clients keep a model so far"
            err.print(f"{row['algorithm']}: {kept}; `own` is theirs")
        if row["left-out"]:
            err.print(f"{row['algorithm']}: {row['left-out']} times a client was left out")
        if row["epsilon"] is not None:
            most = f"epsilon {row['epsilon']:.4g} at delta {row['delta']:g}"
            err.print(f"{row['algorithm']}: privacy spent, on the client asked most often: {most}")
    files = [name for name in _SHOWN if (folder / name).is_file()]
    out.print(f"recorded in {folder}: {', '.join(files)}", soft_wrap=True)
    if as_json:
        print(json.dumps({"run": str(folder), "algorithms": rows}))


_SHOWN = ("accuracy.png", "clients.png", "results.json", "metrics.jsonl")
