"""Runs an experiment on a deployed federation, even if its processes die.

The run is a child of this process, which connects to the server on the same machine. This process
watches the run's folder, and starts the run again, from the last checkpoint, when it has died.
"""

import contextlib
import hashlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final

from engram.link.run import status
from engram.runs.run import CONFIG, Run
from engram.runs.writer import RunWriter, Taken
from engram.settings.errors import EngramError, Refused, RunStopped, one_line
from engram.settings.experiment import Experiment
from engram.settings.files import is_locked, locked, refusing
from engram.settings.logs import VERDICT, read_said

RUN: Final = "engram.server.app:run_on_nodes"
"""The work of a coordinator that runs an experiment."""

# -P: nothing is imported from the working directory
_COORDINATOR = (sys.executable, "-P", "-m", "engram.simulations.coordinator")
_LOOK = 0.2  # seconds between looks at the run's folder
_RETRY, _LONGEST = 1.0, 30.0  # seconds until a run is started again
_FRUITLESS = 10  # attempts in a row without a new round, after which the run is given up
_QUIET = 50.0  # seconds without a word or a round after which it is said that one is waited for
_SAY = 30.0  # seconds after which it is said what a run waits for
_STARTING = 10.0  # seconds that a server may take until it answers
_ENDS = 10.0  # seconds that a coordinator may take to end


def run_number(folder: Path) -> int:
    """Returns the number of the run in a folder; it keeps it when it is resumed."""
    return int(hashlib.sha256(str(folder.absolute()).encode()).hexdigest()[:15], 16)


def _lock(server: Path, folder: Path) -> Path:
    return server / f"run-{run_number(folder)}.lock"


@contextlib.contextmanager
def run_alone(server: Path, folder: Path) -> Iterator[None]:
    """Keeps other coordinators of a run from its server.

    Raises:
        Taken: There is another one.
    """
    path = _lock(server, folder)
    with refusing(f"{server} cannot be written into"):
        try:
            with locked(path):
                yield
                path.unlink(missing_ok=True)
        except (BlockingIOError, FileNotFoundError) as error:
            taken = f"{folder} is being run by another process at this moment"
            raise Taken(taken) from error


def run_deployed(
    experiment: Experiment,
    folder: Path,
    server: Path,
    *,
    patience: float = 300.0,
    on_round: Callable[[dict[str, Any]], None] = lambda row: None,
    on_trouble: Callable[[str], None] = lambda line: None,
    on_word: Callable[[str], None] = lambda line: None,
) -> None:
    """Runs or resumes the experiment on a federation's nodes.

    Args:
        experiment: The experiment.
        folder: Where the run is recorded. A run that is already in it is resumed.
        server: The coordinator's folder of the federation.
        patience: Seconds to wait for a server that does not answer.
        on_round: Called with each new round's metrics, and first with the last one's of a run that
            is resumed.
        on_trouble: Called with a line about each failure before the next attempt.
        on_word: Called with each warning of the coordinator as it comes, and with the run's number.

    Raises:
        Refused: The server does not answer.
        RunStopped: The run stopped for a reason of its own, or no progress can be made.
    """
    folder, server = folder.absolute(), server.absolute()
    wait, fruitless, furthest = _RETRY, 0, _recorded(folder)
    before = _results(folder)

    def finished() -> bool:
        return _finished(folder, experiment, before)

    with ExitStack() as stack:

        def row_came(row: dict[str, Any]) -> None:
            with contextlib.suppress(OSError):  # another process watches it, or this one does
                stack.enter_context(RunWriter(folder).watch(server))
            on_round(row)

        while not finished():
            if _held(server, folder):  # by a coordinator that another process watches
                quiet = _Quiet(on_word)
                _watch(folder, row_came, partial(_goes_on_elsewhere, server, folder, quiet))
                continue
            await_server(server, on_word, patience)
            attempt = Attempt(experiment, folder, server, on_word)
            try:
                attempt.follow(row_came, folder)
            finally:
                attempt.end(finished=finished())
            if attempt.verdict or finished():  # it may go on later
                (server / f"stop-{run_number(folder)}").unlink(missing_ok=True)
            if finished():
                return
            if attempt.verdict:
                raise RunStopped(attempt.verdict)
            fruitless += 1
            if _recorded(folder) > furthest:
                wait, fruitless, furthest = _RETRY, 0, _recorded(folder)
            if fruitless >= _FRUITLESS:
                raise RunStopped(f"{attempt.trouble}, {fruitless} times without a new round")
            on_trouble(f"{attempt.trouble}; going on in {wait:.0f} s")
            time.sleep(wait)
            wait = min(_LONGEST, 2 * wait)


def await_server(server: Path, on_word: Callable[[str], None], patience: float = _STARTING) -> None:
    """Waits for a server's answer; says so if that takes long.

    Raises:
        Refused: It does not answer.
    """
    soon = min(_STARTING, patience)
    try:
        status(server, patience=soon)
    except Refused as error:
        if soon == patience:
            raise
        on_word(f"waiting for the server: {error}")
        status(server, patience=patience - soon)


class _Quiet:
    """Silence of a run, in which the awaited thing is said once."""

    def __init__(self, on_word: Callable[[str], None]) -> None:
        self._on_word = on_word
        self.news()

    def news(self) -> None:
        self._since, self._told = time.monotonic(), ""

    def look(self, awaited: str, seconds: float) -> None:
        """Reports ``awaited`` once, if nothing was new for so many seconds."""
        if awaited != self._told and time.monotonic() - self._since > seconds:
            self._told = awaited
            self._on_word(f"waiting for {awaited}")


def _goes_on_elsewhere(server: Path, folder: Path, quiet: _Quiet) -> bool:
    quiet.look(f"another process that runs {folder}", _SAY)
    return _held(server, folder)


class Attempt:
    """One coordinator of a run, or of a question to nodes, and its outcome.

    Attributes:
        verdict: Why the coordinator itself has stopped; "" if it has not.
        trouble: How it ended, if neither with a verdict nor with all of its work.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        server: Path,
        on_word: Callable[[str], None] = lambda line: None,
        *,
        work: str = RUN,
    ) -> None:
        self._on_word, self._quiet = on_word, _Quiet(on_word)
        self._server = server
        self._awaited = "the run's coordinator"
        self.verdict = self.trouble = self._last = ""
        self._process = subprocess.Popen(
            [*_COORDINATOR, str(server), str(folder), work],
            env=os.environ | {"PYTHONUNBUFFERED": "1"},  # lines come as they are said
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches only us
        )
        on_word(f"run {run_number(folder)}: its coordinator is starting")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError), self._process.stdin as settings:
            json.dump(experiment.to_config(), settings)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = read_said(line)
            if line.strip():  # after its last words, or those of Python, nothing more may come
                last = line.strip() if said is None else said.message if said.is_warning else ""
                self._last = last and f": {one_line(last)}"
            if said is not None:
                self._awaited = ""  # from now on the coordinator says whom it waits for
                self._quiet.news()
            if said is None or not said.is_warning:
                continue
            if said.message.startswith(VERDICT):
                self.verdict = said.message.removeprefix(VERDICT)
            else:
                self._on_word(said.message)

    def _look(self) -> None:
        if self._awaited:
            self._quiet.look(self._awaited, _SAY)
        else:
            usual = "a round, which may take so long: else see"
            self._quiet.look(f"{usual} `engram doctor {self._server}`", _QUIET)

    def _goes_on(self) -> bool:
        self._look()
        return self._process.poll() is None and not self.verdict

    def await_end(self) -> None:
        """Returns when it has ended."""
        while self._goes_on():
            time.sleep(_LOOK)

    def follow(self, on_round: Callable[[dict[str, Any]], None], folder: Path) -> None:
        """Returns when the run has ended, or its process has died."""

        def row_came(row: dict[str, Any]) -> None:
            self._quiet.news()
            on_round(row)

        _watch(folder, row_came, self._goes_on)

    def end(self, *, finished: bool) -> None:
        """Ends the process, at once if it is not to finish by itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            if finished or self.verdict:
                self._process.wait(_ENDS)
        self._process.terminate()
        try:
            self._process.wait(_ENDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(timeout=5)
        self.trouble = f"the coordinator died{self._last}"


def _watch(
    folder: Path, on_round: Callable[[dict[str, Any]], None], goes_on: Callable[[], bool]
) -> None:
    run = Run(folder)  # one, which reads a file again only when it has changed
    reported, more = _recorded(folder) - 1, True
    while more:
        time.sleep(_LOOK)
        more = goes_on()
        for row in run.rows():
            if row["round"] > reported:
                on_round(row)
                reported = row["round"]


def _held(server: Path, folder: Path) -> bool:
    return is_locked(_lock(server, folder)) or ((folder / CONFIG).is_file() and Run(folder).held)


def _results(folder: Path) -> dict[str, Any] | None:
    with contextlib.suppress(EngramError):
        return Run.open(folder).results
    return None


def _finished(folder: Path, experiment: Experiment, before: dict[str, Any] | None) -> bool:
    """Whether a run has had its rounds, or has ended early since it had the results ``before``."""
    found = _results(folder)
    ended = found is not None and "over" in found and found != before
    return ended or (found is not None and found["rounds"] >= experiment.rounds)


def _recorded(folder: Path) -> int:
    return int(Run(folder).last_row.get("round", -1))
