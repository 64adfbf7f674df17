"""A run's folder: its settings and sources, and the process that holds it."""

import contextlib
import json
import time
from collections.abc import Iterator
from importlib.metadata import version
from logging import getLogger
from pathlib import Path
from typing import Any, Self

from engram.data.digests import Rows, read_rows
from engram.data.file_models import S, of_kind
from engram.runs.folder_records import Config
from engram.settings.errors import Refused, brief, few_names, one_line
from engram.settings.experiment import Experiment
from engram.settings.families import METHODS
from engram.settings.files import (
    NEW,
    is_locked,
    json_bytes,
    json_object,
    locked,
    open_file,
    read_json,
    refusing,
    replace_file,
)
from engram.settings.fingerprint import fingerprint
from engram.settings.plugins import plugins
from engram.wire.checksums import Row, checked, summed

_log = getLogger("flwr.engram")

_FORMAT = 2  # of run folders; raised when columns or checkpoints change their meaning
_PATIENCE = 2.0  # s; whoever reads ``held`` locks the run for a moment, too
_LONGEST = 2**12  # bytes of the path of a federation's folder
_CONFIG, _LOCK, _WATCHED = "config.json", "lock", "federation"


class Taken(Refused):
    """A folder in which another process runs this run, or has begun it."""


class RunFolder:
    """A run's ``folder``: its settings, its sources and its lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._intact: dict[str, tuple[bytes, Any]] = {}  # files whose bytes were found intact

    @classmethod
    def create(
        cls,
        folder: Path,
        experiment: Experiment,
        *,
        engine: str,
        training: str,
        rows: Rows | None = None,
    ) -> Self:
        """Starts a new run's folder; ``training`` is the name that clients keep memories under.

        For the other arguments see ``write_config``.

        Raises:
            Refused: If the folder is not empty, or cannot be made; or another process begins a run
                in it.
        """
        record = cls(folder)
        with refusing(f"{folder} cannot be made"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            record._refuse_used()  # before a lock is left in a folder that is none of ours
            with record.hold():
                record._refuse_used()
                record.write_config(experiment, engine=engine, training=training, rows=rows)
        return record

    def _refuse_used(self) -> None:
        """Refuses a folder that holds more than a killed process may leave."""
        if any(p.name != _LOCK and not p.name.startswith(NEW) for p in self.folder.iterdir()):
            kind = Taken if (self.folder / _CONFIG).is_file() else Refused
            raise kind(f"{self.folder} is not empty: name another folder, or resume the run in it")

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Opens the folder of an existing run.

        Raises:
            Refused: If it is not the folder of a run, or is one of another version.
        """
        if not (folder / _CONFIG).is_file():
            for inside in sorted(folder.glob(f"*/{_CONFIG}")):
                raise Refused(
                    f"{folder} is not the folder of a run, but of several, as of a comparison: "
                    f"name one of them, such as {inside.parent}"
                )
            raise Refused(f"{folder} is not the folder of a run: it has no config.json")
        if read_json(folder / _CONFIG).get("format") != _FORMAT:
            raise Refused(
                f"{folder} was written by another version of Engram, whose runs this one neither "
                "shows nor goes on with: run it again, or use that version"
            )
        return cls(folder)

    def write_config(
        self, experiment: Experiment, *, engine: str, training: str, rows: Rows | None = None
    ) -> None:
        """Writes ``config.json``: the present settings, and the engine and source that run them.

        ``rows`` are the data sets as they are now, where this machine reads them; None for those
        that are written already.
        """
        config = {
            "format": _FORMAT,
            "settings": experiment.to_config() | {"resume": ""},
            "engine": engine,
            "training": training,
            "sources": self._sources(),
            "plug-ins": [plugin.rpartition("/")[2] for plugin in plugins()],
            "versions": {name: version(name) for name in ("flwr", "torch", "numpy")},
            "metrics": {m.name: m.to_config() for m in experiment.own.metrics(experiment)},
            "damaged": self._before("damaged"),
        }
        if known := rows or read_rows(self._before("rows")):
            config["rows"] = known._asdict()
        clients = self.clients if (self.folder / _CONFIG).is_file() else 0
        if clients > experiment.num_clients:
            config["clients"] = clients
        self._write_config(config)

    def admit(self, clients: int) -> None:
        """Notes that the run has so many clients from now on; never fewer than before."""
        if clients > self.clients:
            self._write_config(self.config | {"clients": clients})

    @property
    def clients(self) -> int:
        """Number of clients that have been in the run, as far as it has come."""
        config = self.config
        return max(int(config["settings"]["num-clients"]), int(config.get("clients", 0)))

    @property
    def other_rows(self) -> str:
        """Sentence that data have changed since the run read them; "" if not, as far as is known.

        Files that are gone, or that nodes alone have, are not known.
        """
        rows = read_rows(self.config.get("rows"))
        if rows is None or rows.now().digest == rows.digest:
            return ""
        names = few_names(rows.sources)
        return f"{names} has other rows now than those that {self.folder} has learned from"

    def _sources(self) -> list[str]:
        """Returns the fingerprints of all sources that have executed the run, the present last."""
        before = self._before("sources")
        if before and before[-1] != fingerprint():
            _log.warning(
                "%s was begun by source %s and goes on with %s, whose numbers may differ",
                self.folder,
                before[-1],
                fingerprint(),
            )
        return before if before[-1:] == [fingerprint()] else [*before, fingerprint()]

    def _before(self, key: str) -> Any:
        there = (self.folder / _CONFIG).is_file()
        return self.config.get(key, []) if there else []

    def _write_config(self, config: Row) -> None:
        self._write(_CONFIG, json.dumps(summed(config), indent=2))

    @property
    def config(self) -> dict[str, Any]:
        """The contents of ``config.json``.

        Raises:
            Refused: If they are damaged, or of an unknown method.
        """
        config, _ = self._contents(_CONFIG, Config, "settings are changed by --set, not here")
        method = config["settings"]["method"]
        if method not in METHODS:
            raise Refused(
                f"{self.folder} is a run of {brief(method)}, which is no method known here: name "
                "the plug-in that has it, engram --plugin NAME"
            )
        return config

    def _contents(self, name: str, kind: type[S], remedy: str) -> tuple[Row, S]:
        """Reads a file's contents, and their model, which are checked where its bytes have changed.

        Raises:
            Refused: If they are damaged; ``remedy`` says what to do.
        """
        path = self.folder / name
        data = json_bytes(path)
        intact = name in self._intact and data == self._intact[name][0]
        contents = checked(json.loads(data) if intact else json_object(data, path), intact=intact)
        if contents is None:
            raise Refused(f"{path} is damaged: its checksum is missing or wrong; {remedy}")
        if not intact:
            self._intact[name] = data, of_kind(kind, contents, path)
        return contents, self._intact[name][1]

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Locks the run, so that no other process runs it at the same time.

        Raises:
            Taken: If another process runs it.
        """
        end = time.monotonic() + _PATIENCE
        with contextlib.ExitStack() as stack:
            while True:
                with contextlib.suppress(BlockingIOError):
                    stack.enter_context(locked(self.folder / _LOCK))
                    break
                if time.monotonic() >= end:
                    raise Taken(f"{self.folder} is being run by another process at this moment")
                time.sleep(0.02)
            yield

    @property
    def held(self) -> bool:
        """Whether a living process runs this run."""
        return is_locked(self.folder / _LOCK)

    @contextlib.contextmanager
    def watch(self, server: Path) -> Iterator[None]:
        """Marks the run as waiting to be resumed on the federation of the folder ``server``.

        Raises:
            BlockingIOError: If another process watches it.
        """
        with locked(self.folder / _WATCHED):
            (self.folder / _WATCHED).write_text(str(server), encoding="utf-8")
            yield

    @property
    def federation(self) -> str:
        """The folder of the federation that it ran on last; "" if on none, or if unknown."""
        with contextlib.suppress(OSError), open_file(self.folder / _WATCHED, links=False) as file:
            return one_line(file.read(_LONGEST).decode(errors="replace"), longest=_LONGEST)
        return ""

    @property
    def state(self) -> str:
        """State of an unfinished run: ``running``, ``waiting`` to be resumed, or ``stopped``."""
        if self.held:
            return "running"
        return "waiting" if is_locked(self.folder / _WATCHED) else "stopped"

    def _write(self, name: str, text: str) -> None:
        replace_file(self.folder / name, text.encode())
