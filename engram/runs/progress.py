"""Keeps ``progress.json`` for those who watch a run: each node's traffic and time so far.

The file also says which nodes are awaited at this moment. A run that resumes does not need it.
"""

import contextlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from engram.data.file_models import read_stored
from engram.runs.folder_records import Progress
from engram.settings.errors import Refused
from engram.settings.files import NEW

_EVERY: Final = 0.5  # least seconds between two writes while replies come in
_ZEROS: Final[dict[str, float]] = {
    "bytes-sent": 0,
    "bytes-received": 0,
    "seconds-training": 0.0,
    "seconds-transfer": 0.0,
    "replies": 0,
    "late": 0,
}


class RunProgress:
    """Counts each node's traffic and time since the run began, and notes which are awaited.

    Args:
        path: The file that is kept up to date. If it exists, because the run was resumed, counts
            go on from it. None to keep no file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._nodes: dict[str, dict[str, Any]] = {}
        self._now: dict[str, Any] = {"kind": "", "since": 0.0, "waiting": [], "answered": []}
        self._written = 0.0
        if path is not None and path.is_file():
            with contextlib.suppress(Refused):
                self._nodes = read_stored(path, Progress)["nodes"]

    def begin(self, kind: str, asked: Mapping[int, Sequence[int]]) -> None:
        """Notes the messages' type of an exchange, and the clients that each node is asked for."""
        for node, clients in asked.items():
            own = self._of(node)
            own["clients"] = sorted({*own["clients"], *clients})
        self._now = {"kind": kind, "since": time.time(), "waiting": list(asked), "answered": []}
        self._write()

    def sent(self, node: int, size: int) -> None:
        """Adds the bytes of a message to a node."""
        self._of(node)["bytes-sent"] += size

    def received(self, node: int, size: int) -> None:
        """Adds the bytes of a node's reply."""
        self._of(node)["bytes-received"] += size

    def answered(self, node: int, seconds: float, training: float) -> None:
        """Adds a node's usable reply.

        It came so many ``seconds`` after the exchange began, in some of which the node was at work.
        """
        own = self._of(node)
        own["seconds-training"] += training
        own["seconds-transfer"] += seconds - training
        own["replies"] += 1
        if node in self._now["waiting"]:
            self._now["waiting"].remove(node)
            self._now["answered"].append(node)
        if time.monotonic() - self._written > _EVERY:
            self._write()

    def end(self, late: Iterable[int]) -> None:
        """Notes the end of an exchange, and which nodes did not answer in time."""
        for node in late:
            self._of(node)["late"] += 1
        self._now |= {"kind": "", "since": time.time(), "waiting": []}
        self._write()

    def _of(self, node: int) -> dict[str, Any]:
        return self._nodes.setdefault(str(node), {"clients": [], **_ZEROS})

    def _write(self) -> None:
        if self._path is None:
            return
        self._written = time.monotonic()
        new = self._path.with_name(f"{NEW}{self._path.name}")
        with contextlib.suppress(OSError):  # the run goes on without anybody watching
            new.touch(0o600)
            new.write_text(json.dumps({**self._now, "nodes": self._nodes}), encoding="utf-8")
            new.replace(self._path)
