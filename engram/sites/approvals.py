"""Requests for a site's approval, its answers, and the count of its node's answers since.

Each request is a file in the node's state, named for the digest of its terms, which are all that
the site is shown. The node writes it when a server asks first, and ``engram approve`` writes the
site's answer into it, which is of these terms, whatever is asked for under the same name meanwhile.
A file beside it counts what the node gives since (``engram.sites.terms``).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from logging import getLogger
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter, ValidationError

from engram.settings.errors import EngramError, Refused, one_line
from engram.settings.files import read_json, refusing, replace_file

_log = getLogger("flwr.engram")

APPROVALS: Final = "approvals"  # the folder of requests in a node's state

Answer = Literal["", "approved", "refused"]

_WAITING: Final = 100  # requests without an answer; a server could ask for any number
_LARGEST: Final = 2**20  # bytes of a request


class Awaited(EngramError):
    """A site has yet to answer."""

    def __init__(self, request: "Request", why: str = "") -> None:
        told = f"waits for its site's approval{why and f', since {why}'}"
        super().__init__(f"{told}: there, engram approve CLIENT_FOLDER {request.terms}")


@dataclass(frozen=True)
class Request:
    """A training that a server has asked for."""

    training: str  # its name, as in ``engram memory list``
    terms: str  # digest of everything that was asked for, by which the site answers
    run: int
    method: str
    rounds: int  # number of its rounds
    answers: Mapping[str, int]  # number of answers that its rounds take, by what they are of
    every: int  # most rounds that a restarted coordinator asks for again
    # Its settings, where they are not the defaults.
    settings: Mapping[str, Any] = field(default_factory=dict)
    plugins: tuple[str, ...] = ()  # the plug-ins that the node has loaded
    privacy: str = ""  # its privacy in words; empty if it has none
    asked: str = ""  # when it was first asked for, in ISO format
    answer: Answer = ""  # the site's answer; empty while there is none


@dataclass(frozen=True)
class Tally:
    """Answers of one kind that an approval was used for."""

    new: int = 0  # answers of rounds that were not asked for before
    again: int = 0  # all others
    run: int = 0  # number of the run that asked last
    number: int = -1  # the last round that it asked for
    parts: int = 0  # messages of that round
    before: int = -1  # the furthest round before the last restart
    content: str = ""  # digest of the last message


@dataclass(frozen=True)
class Given:
    """All that a node has answered under an approval."""

    tallies: Mapping[str, Tally] = field(default_factory=dict)  # its answers, by what they are of
    beyond: str = ""  # what it was asked for that the approval does not cover; empty if nothing


_REQUEST: Final = TypeAdapter(Request)
_GIVEN: Final = TypeAdapter(Given)


def requests(folder: Path) -> list[Request]:
    """Returns the requests in a folder, the oldest first; damaged ones are left out."""
    found = (_read(path, _REQUEST) for path in folder.glob("*.json"))
    return sorted((one for one in found if one is not None), key=lambda one: one.asked)


def waiting(folder: Path) -> list[Request]:
    """Returns the requests without an answer, or with messages beyond their approval."""
    return [one for one in requests(folder) if not one.answer or given(folder, one).beyond]


def require(folder: Path, request: Request, at: datetime) -> None:
    """Returns if the site has approved a request; one that is new is written into the folder.

    Raises:
        Awaited: The site has not answered.
        Refused: It has refused; or the request cannot be written.
    """
    known = _read(folder / f"{request.terms}.json", _REQUEST)
    if known is None:
        _begin(folder, replace(request, asked=at.isoformat()))
    elif known.answer == "refused":
        raise Refused(f"this site has refused training {request.training}")
    elif known.answer == "approved":
        return
    raise Awaited(request)


def answer(folder: Path, name: str, given: Answer) -> list[Request]:
    """Writes the site's answer to a request, and returns the requests answered.

    They are named by the digest of their terms; to refuse, also by a training's name or a run's
    number, which may stand for several.

    Raises:
        Refused: There is no such request, or the answer cannot be written.
    """
    names = ("terms",) if given == "approved" else ("terms", "training", "run")
    named = [one for one in requests(folder) if name in [str(vars(one)[key]) for key in names]]
    if not named:
        raise Refused(
            f"no request has the digest {one_line(name)}: without one, engram approve lists them"
        )
    for one in named:
        write(folder, replace(one, answer=given))
        (folder / f"{one.terms}.given").unlink(missing_ok=True)
    return named


def given(folder: Path, request: Request) -> Given:
    """Returns the count of a node's answers since its site's last answer to a request."""
    path = folder / f"{request.terms}.given"
    if not path.exists():
        return Given()
    return _read(path, _GIVEN) or Given(beyond="its count of answers is damaged")


def _begin(folder: Path, request: Request) -> None:
    unanswered = [one for one in requests(folder) if not one.answer]
    for one in unanswered[: max(0, len(unanswered) + 1 - _WAITING)]:  # the oldest ones
        (folder / f"{one.terms}.json").unlink(missing_ok=True)
    write(folder, request)
    told = "run %d (%s) waits for this site's approval: engram approve CLIENT_FOLDER %s"
    _log.warning(told, request.run, request.method, request.terms)


def _read(path: Path, kind: TypeAdapter[Any]) -> Any:
    try:
        return kind.validate_python(read_json(path, most=_LARGEST))
    except (Refused, ValidationError):  # then it is asked again
        return None


def write(folder: Path, request: Request, given: Given | None = None) -> None:
    """Writes a request, or the count of answers under it, on the disk.

    Raises:
        Refused: It cannot be written.
    """
    path = folder / f"{request.terms}.{'json' if given is None else 'given'}"
    with refusing(f"{path} cannot be written"):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, json.dumps(asdict(given or request)).encode())
