"""The log of a federation's processes: a line an event, for people or for programs.

A line has the time (UTC), the level, who says it, and what::

    2026-11-26T01:48:40.123Z WARNING [engram] client-1 (node 7) is busy: at work for run 3

With ``ENGRAM_LOG=json`` it is an object with ``time``, ``level``, ``logger`` and ``message``, and
with what the event has besides, such as a round's numbers.
"""

import json
import logging
import os
import re
import sys
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

VARIABLE: Final = "ENGRAM_LOG"
"""Environment variable; ``json`` for lines of JSON. Processes hand it to those that they start."""

VERDICT: Final = "engram: "
"""Beginning of the error by which a coordinator says why it ends its run."""

_FLOWERS: Final = "flwr"
_OURS: Final = f"{_FLOWERS}.engram"
_LINE: Final = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z ([A-Z]+) \[([\w.]+)\] (.*)")


class Said(NamedTuple):
    """A line of a log: its level, its logger, and its message."""

    level: str
    logger: str
    message: str

    @property
    def is_warning(self) -> bool:
        """Whether it is a warning or an error of ours."""
        return self.logger == "engram" and self.level in ("WARNING", "ERROR", "CRITICAL")


class Lines(logging.Formatter):
    """Formats records as lines; ``fields`` of a record go into JSON only."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns a record's line, and below it the traceback, if it has one."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": "engram" if record.name == _OURS else record.name,
            "message": " ".join(record.getMessage().split()),
        }
        trace = self.formatException(record.exc_info) if record.exc_info else ""
        if os.environ.get(VARIABLE) == "json":
            more = getattr(record, "fields", {}) | ({"traceback": trace} if trace else {})
            return json.dumps(told | more, ensure_ascii=False)
        line = "{time} {level} [{logger}] {message}".format(**told)
        return f"{line}\n{trace}" if trace else line


def begin_log(*, as_json: bool = False) -> None:
    """Has Flower's log, if it is loaded, and ours written as lines from now on, from INFO upwards.

    Lines of JSON are written by the processes that this one starts, too.
    """
    if as_json:
        os.environ[VARIABLE] = "json"
    ours = logging.getLogger(_OURS)
    ours.handlers, ours.propagate = [], True
    ours.setLevel(logging.INFO)
    lines = logging.StreamHandler()
    lines.setFormatter(Lines())
    lines.setLevel(logging.INFO)
    logging.getLogger(_FLOWERS).handlers = [lines]


def log_plainly() -> None:
    """Keeps color codes out of Flower's log where no terminal shows it."""
    if sys.stderr is None or not sys.stderr.isatty():
        for handler in logging.getLogger(_FLOWERS).handlers:
            vars(handler)["colored"] = False  # an attribute of Flower's


def read_said(line: str) -> Said | None:
    """Reads a line that ``Lines`` wrote; None for any other."""
    if match := _LINE.fullmatch(line.rstrip()):
        return Said(*match.groups())
    try:
        told = json.loads(line)
        return Said(*(str(told[key]) for key in ("level", "logger", "message")))
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
