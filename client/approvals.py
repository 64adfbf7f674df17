"""Trainings that a site was asked to approve, and its answers.

Each is a file in the node's state. The node writes it when a server asks first, and ``engram
approve`` writes the site's answer into it. An answer is about the terms that were shown: a server
that asks for others under the same name has to wait again.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from logging import getLogger
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from federation.errors import EngramError, Refused, one_line
from federation.files import read_json, replace_file

__all__ = ["APPROVALS", "Answer", "Awaited", "Request", "answer", "requests", "require"]

_log = getLogger("flwr.engram")

APPROVALS: Final = "approvals"
"""The folder of requests in a node's state."""

Answer = Literal["", "approved", "refused"]

_WAITING: Final = 100  # requests without an answer; a server could ask for any number
_LONGEST: Final = timedelta(days=7)  # that a request waits
_LARGEST: Final = 2**20  # bytes of a request


class Awaited(EngramError):
    """A site has yet to answer."""


@dataclass(frozen=True)
class Request:
    """A training that a server has asked for.

    Attributes:
        training: Its name, as in ``engram memory list``.
        terms: Digest of everything that was asked for.
        run: The run's number.
        method: Its method.
        rounds: Number of its rounds.
        settings: Its settings, where they are not the defaults.
        plugins: The plug-ins that the node has loaded.
        privacy: Its privacy in words; empty if it has none.
        asked: When it was first asked for, in ISO format.
        answer: The site's answer; empty while there is none.
    """

    training: str
    terms: str
    run: int
    method: str
    rounds: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()
    privacy: str = ""
    asked: str = ""
    answer: Answer = ""


_REQUEST: Final = TypeAdapter(Request)


def requests(folder: Path) -> list[Request]:
    """Returns the requests in a folder, the oldest first; damaged ones are left out."""
    found = (_read(path) for path in folder.glob("*.json"))
    return sorted((one for one in found if one is not None), key=lambda one: one.asked)


def require(folder: Path, request: Request, at: datetime) -> None:
    """Returns if the site has approved a request; one that is new is written into the folder.

    Args:
        folder: The folder of requests, made if it is missing.
        request: The request, without time and answer.
        at: The time.

    Raises:
        Awaited: The site has not answered.
        Refused: It has refused; or there are too many requests, or they cannot be written.
    """
    known = _read(folder / f"{request.training}.json")
    if known is None or known.terms != request.terms:
        _begin(folder, replace(request, asked=at.isoformat(timespec="seconds")), at)
    elif known.answer == "refused":
        raise Refused(f"this site has refused training {request.training}")
    elif known.answer == "approved":
        return
    raise Awaited(
        f"waits for its site's approval: there, engram approve CLIENT_FOLDER {request.training}"
    )


def answer(folder: Path, name: str, given: Answer) -> Request:
    """Writes the site's answer to a request.

    Args:
        folder: The folder of requests.
        name: The training's name, or the run's number.
        given: The answer.

    Raises:
        Refused: There is no such request, or the answer cannot be written.
    """
    named = [one for one in requests(folder) if name in (one.training, str(one.run))]
    if not named:
        raise Refused(
            f"no training that was asked for is called {one_line(name)}: without a name, "
            "engram approve lists them"
        )
    answered = replace(named[-1], answer=given)
    _write(folder, answered)
    return answered


def _begin(folder: Path, request: Request, at: datetime) -> None:
    waiting = [one for one in requests(folder) if not one.answer]
    old = [one for one in waiting if at - datetime.fromisoformat(one.asked) > _LONGEST]
    for one in old:
        (folder / f"{one.training}.json").unlink(missing_ok=True)
    if len(waiting) - len(old) >= _WAITING:
        raise Refused(f"this site has {_WAITING} requests without an answer: it answers them first")
    _write(folder, request)
    _log.warning(
        "run %d (%s) waits for this site's approval: engram approve CLIENT_FOLDER %s",
        request.run,
        request.method,
        request.training,
    )


def _read(path: Path) -> Request | None:
    try:
        return _REQUEST.validate_python(read_json(path, most=_LARGEST))
    except (Refused, ValidationError):  # then it is asked again
        return None


def _write(folder: Path, request: Request) -> None:
    path = folder / f"{request.training}.json"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, json.dumps(asdict(request)).encode())
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from error
