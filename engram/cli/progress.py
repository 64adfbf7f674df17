"""Shows the progress of commands, and their results."""

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from engram.cli import work
from engram.cli.console import err
from engram.runs.run import Run, is_run
from engram.settings.errors import RunStopped
from engram.settings.experiment import Experiment

_LINES: Final = 12  # latest pieces of work that are always shown
_QUIET: Final = 60.0  # seconds after which a file or a pipe is told that work goes on
_MINUTES: Final = 100  # seconds from which on minutes are told

Row = Mapping[str, Any]
Report = Callable[[dict[str, Any]], None]
Start = Callable[[str], None]
Execute = Callable[[Experiment, Path, Report, Start], None]


Tell = Callable[[int, str], None]  # called with how much is done, and a result or ""


@contextmanager
def progress_lines(
    unit: str, hint: Callable[[], str], *, at_once: bool = False, shown: bool = True
) -> Iterator[Callable[[str, int], Tell]]:
    """Shows the progress of each piece of work, and delays Ctrl-C until the next progress report.

    A terminal has a progress bar for each piece. A file, a pipe or a container's log gets a new
    line for each result, and when a piece is done; in between, at most one a minute. Both estimate
    the time left of the piece.

    Yields ``(title, total) -> tell``, to be called when a piece of work begins. ``hint`` returns
    the way to resume, which is printed after Ctrl-C. Unless ``shown``, nothing is delayed either.

    Raises:
        SystemExit: Ctrl-C was pressed; status 130.
    """
    if not shown:
        yield lambda title, total: lambda done, found: None
        return
    columns = (
        TextColumn("{task.description:<20}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit} {{task.fields[found]}}"),
        TimeRemainingColumn(compact=True),
    )
    # Shown from the first progress on, so that an earlier refusal is the only line.
    progress = Progress(*columns, console=err)
    try:
        with _interrupt_between_rounds(at_once) as check:

            def begin(title: str, total: int) -> Tell:
                show = _bar(progress, title, total) if err.is_terminal else _log(unit, title, total)

                def tell(done: int, found: str) -> None:
                    show(done, found)
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


def _bar(progress: Progress, title: str, total: int) -> Tell:
    line = progress.add_task(title, total=total, found="")
    for old in progress.tasks[:-_LINES]:  # all running ones must fit the screen
        progress.update(old.id, visible=not old.finished)

    def show(done: int, found: str) -> None:
        progress.start()
        progress.update(line, completed=done)
        if found:
            progress.update(line, found=found)

    return show


def _log(unit: str, title: str, total: int) -> Tell:
    start = last = time.monotonic()
    first = shown = -1

    def show(done: int, found: str) -> None:
        nonlocal first, last, shown
        now = time.monotonic()
        first = done if first < 0 else first  # a resumed piece begins later
        if done != shown and (found or done in (0, total) or now >= last + _QUIET):
            last, shown, took = now, done, now - start
            words = [f"{title}: {done} of {total} {unit}", f"{took:.1f} s", found]
            if first < done < total:
                left = took * (total - done) / (done - first)
                clock = f"{left:.0f} s" if left < _MINUTES else f"{left / 60:.0f} min"
                words.append(f"about {clock} left")
            err.print(", ".join(filter(None, words)), soft_wrap=True)

    return show


def shows(progress: bool) -> bool:
    """Whether to show progress: in the main thread alone, which gets Ctrl-C."""
    return progress and threading.current_thread() is threading.main_thread()


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes a command's end by Ctrl-C a ``KeyboardInterrupt``, for callers in Python."""
    try:
        yield
    except SystemExit:
        raise KeyboardInterrupt from None


def check_all(what: str, checks: Sequence[Callable[[], object]], progress: bool) -> None:
    """Makes checks before anything is written, and may show how many are made, from 0 on."""
    with progress_lines(what, lambda: "nothing has been written", shown=progress) as begin:
        tell = begin("checking settings", len(checks))
        for number, check in enumerate(checks):
            tell(number, "")
            check()
        tell(len(checks), "")


def run_all(
    experiments: Mapping[Path, Experiment],
    execute: Execute,
    resume: str,
    *,
    at_once: bool = False,
    shown: bool = True,
) -> list[str]:
    """Runs experiments, each in its folder, and shows their progress.

    Of several, one that stops, such as by divergence, does not keep the others from running.

    Args:
        experiments: By their folders.
        execute: Runs one of them, and calls its last arguments with each round's metrics, and
            with a client's costs before the first round, if it knows them.
        resume: The command that resumes the work after an interruption.
        at_once: Do not delay interruptions to the end of a round, if other processes run it.
        shown: As for ``progress_lines``.

    Returns:
        Those of several that have stopped, and why.

    Raises:
        RunStopped: The only one has stopped.
        SystemExit: Ctrl-C was pressed; status 130.
    """
    stopped, strategies, told = [], work.STRATEGIES, set[str]()

    def hint() -> str:
        begun = any(is_run(folder) for folder in experiments)
        return f"go on with: {resume}" if begun else "nothing has been written"

    def start(costs: str) -> None:
        if shown and costs not in told:  # seeds of a method have the same
            told.add(costs)
            err.print(costs, soft_wrap=True)

    with progress_lines("rounds", hint, at_once=at_once, shown=shown) as begin:
        for number, (folder, experiment) in enumerate(experiments.items(), 1):
            which = f" ({number} of {len(experiments)})" * (len(experiments) > 1)
            title = f"{experiment.method} seed {experiment.seed}{which}"
            tell = begin(title, experiment.rounds)
            in_words = strategies[experiment.own.plug_in].in_words
            report = partial(_tell, tell, experiment, in_words)
            try:
                execute(experiment, folder, report, start)
            except RunStopped as error:
                if len(experiments) == 1:
                    raise
                stopped.append(f"{experiment.method} with seed {experiment.seed}: {error}")
            else:
                report(Run.open(folder).last_row)
    return stopped


def _tell(tell: Tell, e: Experiment, in_words: Callable[[Row], str], row: Row) -> None:
    due = err.is_terminal or row["round"] == e.rounds or row["round"] % e.eval_every == 0
    tell(row["round"], in_words(row) if due else "")


@contextmanager
def _interrupt_between_rounds(at_once: bool) -> Iterator[Callable[[], None]]:
    """Delays Ctrl-C and `kill` to the end of a round: yields a function that then raises them.

    A KeyboardInterrupt raised inside `torch.func` becomes an internal error of torch. A second
    Ctrl-C is not delayed.
    With ``at_once`` the first is not, either.
    """
    asked = False

    def ask(signum: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked or at_once:
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
