"""Sends a run's record to a tracker: while it goes on, or later; no round twice, no run twice.

What has been sent is noted in ``tracked.json`` in the run's folder, by tracker.
"""

import json
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cached_property
from importlib import import_module
from logging import getLogger
from pathlib import Path
from typing import Any, Final, NamedTuple

from engram.compare.reports.base import pictures_of
from engram.data.file_models import Stored, read_stored
from engram.runs.run import Run
from engram.scoring.score_columns import UNSEEN
from engram.settings.errors import Refused, need, one_line
from engram.settings.files import read_file, replace_file

_log = getLogger("flwr.engram")

_SENT: Final = "tracked.json"
_TRACKERS_OWN: Final = ("tensorboard", "wandb")  # folders in a run's that trackers write to
_LARGEST: Final = 2**24  # bytes of a picture
_NOT_SCORES: Final = frozenset({"ids", "names", "queries"})  # columns of clients that are none

Row = Mapping[str, Any]


TRACKERS: Final = {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "WeightsAndBiases"}
"""By its name, which is that of its package, of its extra and of its module here: its class."""


class About(NamedTuple):
    """A run, as a tracker knows it.

    Attributes:
        key: A name that no other run has, and that a resumed run keeps.
        name: The name of its folder.
        group: The folder of its comparison; "" if it is none of one.
        folder: Its folder.
        settings: Its settings by key.
    """

    key: str
    name: str
    group: str
    folder: Path
    settings: Mapping[str, Any]


class Ending(NamedTuple):
    """Findings of a finished run.

    Attributes:
        server_round: The last round.
        results: Numbers by name.
        clients: Each client's value, by metric: for a histogram.
        files: Files to be kept with the run.
    """

    server_round: int
    results: Mapping[str, float]
    clients: Mapping[str, Sequence[float]]
    files: Sequence[Path]


class Tracker:
    """One run at a tracker. It is made of an ``About``, and of the last round that it was told.

    Attributes:
        known: The last round that it has, as far as the tracker itself can tell; -1 for none.
    """

    known = -1

    @abstractmethod
    def tell(self, server_round: int, values: Mapping[str, float]) -> None:
        """Adds a round's numbers."""

    def flush(self) -> None:
        """Hands over numbers that are still held back."""

    @abstractmethod
    def finish(self, end: Ending) -> None:
        """Adds the results, after the last round."""

    def close(self) -> None:
        """Ends it; another process may go on."""


def check_tracker(kind: str) -> None:
    """Refuses a tracker that is not known, or not installed."""
    if kind not in TRACKERS:
        raise Refused(f"a tracker must be one of {', '.join(TRACKERS)}, got {kind!r}")
    need(kind, kind)


def check_sendable(folder: Path, kind: str) -> None:
    """Refuses a run that is not there, or of which something that is sent is damaged."""
    record = Run.open(folder)
    _Sending(record, kind, "")
    _ = record.results, record.rows()


def send(folder: Path, kind: str, group: str = "") -> int:
    """Sends the rounds of a run that a tracker lacks, and returns their number.

    Raises:
        Refused: There is no such run, it is damaged, or the tracker cannot be used.
    """
    check_sendable(folder, kind)
    record = Run.open(folder)
    try:
        with closing(_Sending(record, kind, group)) as sending:
            return sum(sending.row(row) for row in record.rows())
    except Refused:
        raise
    except Exception as error:  # of any kind: they are the tracker's own
        raise Refused(f"{kind} has not taken {folder}: {one_line(str(error))}") from error


@contextmanager
def follow(folder: Path, kind: str, group: str = "") -> Iterator[Callable[[Row], None]]:
    """Sends rounds to a tracker as they are recorded.

    Where the tracker fails, the run goes on, and is warned of once.

    Yields:
        A function of each round's metrics; the folder need not exist before the first round.
    """
    sending: _Sending | None = None
    failed = False

    def safely(act: Callable[[], object]) -> None:
        nonlocal failed
        if failed:
            return
        try:
            act()
        except Exception as error:  # of any kind: no tracker ends a run
            failed = True
            rest = f"engram track {folder} --to {kind} sends the rest"
            _log.warning("%s is told nothing more: %s; %s", kind, one_line(str(error)), rest)

    def begin(row: Row) -> None:
        nonlocal sending
        if sending is None:
            sending = _Sending(record := Run.open(folder), kind, group)
            for earlier in record.rows()[:-1]:
                sending.row(earlier)
        sending.row(row)

    try:
        yield lambda row: safely(lambda: begin(row))
    finally:
        if sending is not None:
            safely(sending.close)


class _Told(Stored):
    round: int
    finished: bool


class _Sent(Stored):
    """``tracked.json``: the last round that each tracker was told."""

    __pydantic_extra__: dict[str, _Told]


class _Sending:
    """A run's way to a tracker, which is asked for once there is something to tell."""

    def __init__(self, record: Run, kind: str, group: str) -> None:
        self._record, self._kind = record, kind
        self._path = record.folder / _SENT
        folder, key = record.folder, record.config["training"]
        self._about = About(key, folder.name, group, folder.absolute(), record.settings)
        for name in _TRACKERS_OWN:
            if (folder / name).is_symlink():
                raise Refused(f"{folder / name} is a link, which is not followed: remove it")
        sent = self._sent().get(kind, {})
        self._finished = bool(sent.get("finished", False))
        self._told: int = sent.get("round", -1)
        # A round that is scored is worth a request of its own; without a metric, each round is.
        self._main = next((metric.name for metric in record.metrics), "round")

    @cached_property
    def _tracker(self) -> Tracker:
        module = import_module(f"{__package__}.{self._kind}")
        tracker: Tracker = getattr(module, TRACKERS[self._kind])(self._about, self._told)
        self._told = max(self._told, tracker.known)
        return tracker

    def row(self, row: Row) -> bool:
        """Tells a round that has not been told; returns whether it was one."""
        if row["round"] <= self._told:
            return False
        tracker = self._tracker
        if row["round"] <= self._told:  # which it knows better
            return False
        tracker.tell(row["round"], _numbers(row))
        self._told, self._finished = row["round"], False
        if self._main in row:
            tracker.flush()
            self._note()
        return True

    def close(self) -> None:
        """Tells the results, if there are any, and ends."""
        results = self._record.results
        if results is not None and not self._finished:
            clients = _by_client(results)
            self._tracker.finish(Ending(self._told, _numbers(results), clients, self._files()))
            self._finished = True
        if "_tracker" in vars(self):
            self._tracker.close()
            self._note()

    def _files(self) -> list[Path]:
        folder = self._record.folder
        names = ("config.json", "results.json", "metrics.jsonl")
        pictures = [folder / name for name in pictures_of(self._record)]
        return [folder / name for name in names] + [*filter(_is_picture, pictures)]

    def _sent(self) -> dict[str, Any]:
        return read_stored(self._path, _Sent) if self._path.is_file() else {}

    def _note(self) -> None:
        sent = self._sent() | {self._kind: {"round": self._told, "finished": self._finished}}
        replace_file(self._path, json.dumps(sent).encode())


def _is_picture(path: Path) -> bool:
    try:
        return read_file(path, most=_LARGEST, links=False).startswith(b"\x89PNG\r\n")
    except OSError:
        return False


def _numbers(row: Row) -> dict[str, float]:
    return {
        name: float(value)
        for name, value in row.items()
        if name != "round" and isinstance(value, int | float) and math.isfinite(value)
    }


def _by_client(results: Row) -> dict[str, list[float]]:
    columns, never = results.get("clients", {}), set(results.get("unseen", ()))
    found: dict[str, list[float]] = {}
    for name, values in columns.items():
        if name not in _NOT_SCORES:
            ids = columns.get("ids", range(len(values)))
            for mark in ("", UNSEEN):
                own = (v for i, v in zip(ids, values, strict=True) if (i in never) == bool(mark))
                found[mark + name] = [
                    float(v) for v in own if isinstance(v, int | float) and math.isfinite(v)
                ]
    return {name: values for name, values in found.items() if values}
