"""The nodes of a federation, for `engram status`."""

from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from engram.link.credentials import read_server
from engram.link.run import status
from engram.link.server.registration import roll


class Member(NamedTuple):
    """A member of a federation, a client that was one, or one that is invited."""

    name: str  # such as ``client-0``
    # ``invited``, ``registered`` (not on line since the server began), ``online``, ``offline``, or
    # ``unregistered`` (its key is refused for good).
    status: str
    since: str = ""  # when it got this status, in UTC, or until when it is invited; "" if unknown
    at: str = ""  # what its node is at work on


def members(folder: Path, *, patience: float = 0.0) -> list[Member]:
    """Asks a federation's server for its members' nodes.

    ``patience`` is how many seconds to wait for a server that is still starting.

    Raises:
        Refused: If the folder is not in order.
        RunStopped: If the server does not answer.
    """
    folder = read_server(folder).folder
    there = status(folder, patience=patience).members
    found = {number: Member(f"client-{number}", "unregistered") for number in roll(folder).gone}
    for name, member in there.items():
        known = "online" if member.there else "offline" if member.since else "registered"
        since = f"{datetime.fromtimestamp(member.since, UTC):%F %T}" if member.since else ""
        # One that was removed may be a member for the server, until it looks again.
        found.setdefault(int(name.removeprefix("client-")), Member(name, known, since, member.at))
    return [member for _, member in sorted(found.items())]
