"""Runs an experiment on a deployed federation, even if its processes die.

The ServerApp runs as a child of the SuperLink. This process submits it, watches the run's folder,
and submits it again, from the last checkpoint, when it or the SuperLink has died.
"""

import contextlib
import json
import re
import secrets
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from engram.link.server.control import Declined, ask, reason
from engram.link.server.launch import flwr_command
from engram.runs.run import Run
from engram.runs.writer import RunWriter
from engram.settings.errors import EngramError, RunStopped
from engram.settings.experiment import Experiment
from engram.settings.logs import VERDICT, read_said
from engram.settings.settings_files import run_config_table, to_toml

_LOOK = 0.2  # seconds between looks at the run's folder
_RETRY, _LONGEST = 1.0, 30.0  # seconds until a run is submitted again
_FRUITLESS = 10  # attempts in a row without a new round, after which the run is given up
_QUIET = 50.0  # seconds without a word or a round after which it is said that one is waited for
_SAY = 30.0  # seconds after which it is said what a run waits for

_STARTED = re.compile(r"started run (\d+)")
_HEAD: Final = """\
[project]
name = "engram"
version = "{version}"

[tool.uv]
package = false

[tool.flwr.app]
publisher = "engram"

[tool.flwr.app.components]
serverapp = "{serverapp}"
clientapp = "engram.client.app:app"

"""


def run_deployed(
    experiment: Experiment,
    folder: Path,
    server: Path,
    *,
    control: str | None = None,
    patience: float = 300.0,
    on_round: Callable[[dict[str, Any]], None] = lambda row: None,
    on_trouble: Callable[[str], None] = lambda line: None,
    on_word: Callable[[str], None] = lambda line: None,
) -> None:
    """Runs or resumes the experiment on a federation's nodes.

    Args:
        experiment: The experiment.
        folder: Where the run is recorded, on the machine of the SuperLink. A run that is already
            in it is resumed.
        server: The coordinator's folder of the federation.
        control: HOST:PORT of the SuperLink's Control API.
        patience: Seconds to wait for a SuperLink that does not answer.
        on_round: Called with each new round's metrics, and first with the last one's of a run that
            is resumed.
        on_trouble: Called with a line about each failure before the next attempt.
        on_word: Called with each warning of the coordinator as it comes, and with the run's number.

    Raises:
        RunStopped: The run stopped for a reason of its own, or no progress can be made.
    """
    folder, server = folder.absolute(), server.absolute()
    wait, fruitless, heard, furthest = _RETRY, 0, time.monotonic(), _recorded(folder)
    attempt: Attempt | None = None
    with ExitStack() as stack:

        def row_came(row: dict[str, Any]) -> None:
            with contextlib.suppress(OSError):  # another process watches it, or this one does
                stack.enter_context(RunWriter(folder).watch(server))
            on_round(row)

        while not _finished(folder, experiment):
            if _held(folder):  # by a coordinator that outlived the process that watched it
                quiet = _Quiet(on_word)
                _watch(folder, row_came, partial(_goes_on_elsewhere, folder, quiet))
                continue
            if attempt is None or attempt.stop():  # else its coordinator may meet the next
                attempt = Attempt(experiment, folder, server, control, on_word)
                try:
                    attempt.follow(row_came)
                finally:
                    attempt.end(finished=_finished(folder, experiment))
                if _finished(folder, experiment):
                    return
                if attempt.verdict:
                    raise RunStopped(attempt.verdict)
                if _recorded(folder) > furthest:
                    wait, fruitless, furthest = _RETRY, 0, _recorded(folder)
                elif attempt.run_id is not None:
                    fruitless += 1
                if attempt.run_id is not None:
                    heard = time.monotonic()
                if fruitless >= _FRUITLESS:
                    raise RunStopped(f"{attempt.trouble}, {fruitless} times without a new round")
            if time.monotonic() - heard > patience:
                raise RunStopped(f"{attempt.trouble} (for {patience:g} s)")
            on_trouble(f"{attempt.trouble}; going on in {wait:.0f} s")
            time.sleep(wait)
            wait = min(_LONGEST, 2 * wait)


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


def _goes_on_elsewhere(folder: Path, quiet: _Quiet) -> bool:
    quiet.look(f"another process that runs {folder}", _SAY)
    return _held(folder)


class Attempt:
    """One submission of a run, and its outcome."""

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        server: Path,
        control: str | None,
        on_word: Callable[[str], None] = lambda line: None,
        *,
        serverapp: str = "engram.server.app:app",
    ) -> None:
        self._on_word, self._quiet = on_word, _Quiet(on_word)
        self._folder = folder
        self._server, self._control = server, control
        begun = (folder / "config.json").is_file()
        place = {"resume": str(folder), "out": ""} if begun else {"resume": "", "out": str(folder)}
        settings = experiment.to_config() | place
        # A unique name: another run may be submitted at the same time.
        self._config = server / "flwr" / f"run-{secrets.token_hex(8)}.toml"
        self._app = TemporaryDirectory(prefix="app-", dir=server / "flwr")
        write_app(Path(self._app.name), serverapp)
        words = ("run", self._app.name, "--stream", "--run-config", str(self._config))
        launch = flwr_command(server, *words, control=control)
        self._config.write_bytes(to_toml({"engram": json.dumps(settings)}))
        self.run_id: int | None = None
        self._awaited = "the SuperLink to take the run"
        self.verdict = ""  # why the coordinator itself stopped the run
        self.trouble = "the SuperLink did not take the run"
        self._said: list[str] = []
        self._process = subprocess.Popen(
            launch.argv,
            # Paths are not broken, and lines come as they are said.
            env=launch.env | {"COLUMNS": "400", "PYTHONUNBUFFERED": "1"},
            cwd=launch.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._said = [*self._said[-20:], line]
            if match := _STARTED.search(line):
                self.run_id = int(match[1])
                self._on_word(f"run {self.run_id}: its coordinator is starting")
                self._awaited = f"the run's coordinator: see `engram doctor {self._server}`"
            if (said := read_said(line)) is not None:
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

    def await_file(self, path: Path) -> None:
        """Returns when a file is there, or the run has ended without it."""
        while self._process.poll() is None and not self.verdict and not path.is_file():
            self._look()
            time.sleep(_LOOK)
        if not path.is_file():
            self._conclude()

    def follow(self, on_round: Callable[[dict[str, Any]], None]) -> None:
        """Returns when the run has ended, or the process that ran it has died."""
        alive = False

        def row_came(row: dict[str, Any]) -> None:
            self._quiet.news()
            on_round(row)

        def goes_on() -> bool:
            nonlocal alive
            self._look()
            died, alive = alive and not _held(self._folder), _held(self._folder)
            return self._process.poll() is None and not self.verdict and not died

        _watch(self._folder, row_came, goes_on)
        if self._process.poll() is None:
            self._reader.join(timeout=1)  # its last words may not be read yet
            self.trouble = "the coordinator died"
            return
        self._conclude()

    def _conclude(self) -> None:
        self._reader.join(timeout=5)
        if self.run_id is not None:
            self.trouble = "the SuperLink or the coordinator died"
        elif self._said:
            self.trouble = f"the SuperLink did not take the run: {reason(''.join(self._said))}"

    def end(self, *, finished: bool) -> None:
        """Ends all processes of this attempt."""
        self._config.unlink(missing_ok=True)
        self._app.cleanup()
        if finished:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=15)
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()
        self._over = finished or self.run_id is None or self._process.returncode == 0
        self.stop()

    def stop(self) -> bool:
        """Stops the run, so that no coordinator begins or goes on; returns whether that is sure."""
        if not self._over:
            try:
                ask(self._server, "stop", str(self.run_id), control=self._control, what="the run")
                self._over = True
            except Declined as error:  # it is over already; without a number, something else failed
                self._over = bool(error.codes)
            except RunStopped as error:
                self.trouble = str(error)
        return self._over


def _watch(
    folder: Path, on_round: Callable[[dict[str, Any]], None], goes_on: Callable[[], bool]
) -> None:
    rows = Run(folder).rows()
    reported = rows[-1]["round"] - 1 if rows else -1
    more = True
    while more:
        time.sleep(_LOOK)
        more = goes_on()
        for row in Run(folder).rows():
            if row["round"] > reported:
                on_round(row)
                reported = row["round"]


def _held(folder: Path) -> bool:
    return (folder / "config.json").is_file() and Run(folder).held


def _finished(folder: Path, experiment: Experiment) -> bool:
    with contextlib.suppress(EngramError):
        results = Run.open(folder).results
        return results is not None and results["rounds"] >= experiment.rounds
    return False


def _recorded(folder: Path) -> int:
    rows = Run(folder).rows()
    return int(rows[-1]["round"]) if rows else -1


def write_app(folder: Path, serverapp: str = "engram.server.app:app") -> None:
    """Writes Flower's app to a folder: its components, and the keys of its run config.

    The source's own ``pyproject.toml`` is for users of `flwr run .`; an installed package has none.
    """
    head = _HEAD.format(version=version("engram"), serverapp=serverapp)
    (folder / "pyproject.toml").write_text(head + run_config_table(), encoding="utf-8")
