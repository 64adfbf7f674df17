"""Registers clients' public keys with a federation's SuperLink, and removes them.

In ``clients/`` of the coordinator's folder are ``client-N.pub``, the key of a member;
``client-N.node``, its node id at the SuperLink; and, for every key that is refused for good,
the renamed ``client-N.pub``: ``client-N.NODE_ID.removed`` if it was removed here, and
``client-N.NODE_ID.left`` if its site has left. A client that has no other key is no member.
``client-N.invited`` is an invitation that was not redeemed (``engram/link/server/invitations.py``).
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from engram.link.credentials import read_server
from engram.link.keys import public_key_of, public_pem
from engram.link.server.control import Declined, ask
from engram.runs.folders import changing, replace_file
from engram.settings.errors import Refused
from engram.settings.files import read_file, refusing

_STARTING = 30.0  # seconds that a SuperLink may take until it answers
_DIGITS = 100  # most bytes of a file with a node id
_LARGEST = 2**16  # bytes of a file with a key
_IN_USE = "23"  # Flower's PUBLIC_KEY_ALREADY_IN_USE
_NOT_FOUND = "24"  # Flower's NODE_NOT_FOUND
_GONE = re.compile(r"client-(\d{1,9})\.(\d+)\.(removed|left)")
_KEY = re.compile(r"client-(\d{1,9})\.pub")
_INVITED = re.compile(r"client-(\d{1,9})\.invited")


class Registration(NamedTuple):
    """The outcome of registering a client's key."""

    client: str  # the client, such as ``client-0``
    node_id: int | None  # its new Flower node id; None if the key was already registered


def register_clients(folder: Path, *, control: str | None = None) -> Iterator[Registration]:
    """Registers every member's key with a running SuperLink, one after the other.

    ``control`` is HOST:PORT of its Control API; by default that of ``superlink_command``.

    Yields:
        The outcome for each, in the order of the clients. A key that is already registered is left
        alone. Removed keys, which are refused for good, are skipped: their clients need new ones.

    Raises:
        Refused: If the folder is not in order, or belongs to an insecure federation.
        RunStopped: If the SuperLink cannot be reached, or declines. Calling again goes on.
    """
    credentials = read_server(folder)
    if credentials.tls is None:
        raise Refused(f"{folder} is of an insecure federation: it takes clients as they come")
    if not credentials.public_keys:
        raise Refused(f"{folder / 'clients'} must have a client-N.pub for each client, has none")
    members = {f"client-{number}" for number in roll(folder).members}
    for path in (path for path in credentials.public_keys if path.stem in members):
        yield Registration(path.stem, _register(folder, path, control))


def remove_client(
    folder: Path, client: str, *, control: str | None = None
) -> tuple[str, int | None]:
    """Removes a client's key from a running SuperLink, which then refuses it for good.

    An interrupted call can be repeated. ``client`` is a number or ``client-N``. Of one that is
    invited, the invitation is taken back; its number is not given again.

    Returns:
        The client, such as ``client-0``, and its Flower node id; None if it was invited.

    Raises:
        Refused: If the folder is not in order, there is no such client in it, or its node id is
            not known.
        RunStopped: If the SuperLink cannot be reached, or declines.
    """
    credentials = read_server(folder)
    if credentials.tls is None:
        raise Refused(f"{folder} is of an insecure federation, in which nobody is registered")
    name = f"client-{client.removeprefix('client-')}"
    clients = folder / "clients"
    public = clients / f"{name}.pub"
    if not re.fullmatch(r"client-\d+", name) or not public.is_file():
        invited = clients / f"{name}.invited"
        with changing(folder):
            if name[7:].isdecimal() and invited.is_file() and invited.stat().st_size:
                replace_file(invited, b"")
                return name, None
        there = ", ".join(path.stem for path in credentials.public_keys[:20]) or "none"
        raise Refused(
            f"the client must be one with a key in {clients}, {there}, got {client[:40]!r}"
        )
    number = _number(public)
    if number is None:
        raise Refused(
            f"{name} was not registered from {folder}, which has no {name}.node, the file with its "
            "node id: remove it where that file is"
        )
    _take(folder, name, number, control)
    set_aside(public, number, "removed")
    return name, number


def set_aside(public: Path, number: int, why: str) -> None:
    """Renames a client's key, which its SuperLink refuses from now on.

    Args:
        public: The file of the key.
        number: The client's Flower node id.
        why: ``removed``, or ``left``.

    Raises:
        Refused: If it cannot be renamed.
    """
    with refusing(f"{public} cannot be set aside"):
        public.rename(_aside(public, number, why))
        public.with_suffix(".node").unlink(missing_ok=True)


def note_left(folder: Path, number: int) -> None:
    """Notes that the site of a node has left, by the node's Flower node id.

    Raises:
        Refused: If it cannot be noted.
    """
    public = folder / "clients" / f"{names(folder).get(number)}.pub"
    if public.is_file() and _number(public) == number:
        set_aside(public, number, "left")


def note_replaced(public: Path) -> None:
    """Keeps a registered client's key, which is about to be replaced, as a removed one."""
    number = _number(public)
    if number is not None and public.is_file():
        replace_file(_aside(public, number, "removed"), public.read_bytes())


class Roll(NamedTuple):
    """The clients that a federation's folder lists.

    Attributes:
        members: Numbers of those that have a key.
        gone: Numbers and ends (``removed`` or ``left``) of keys that are refused for good, by
            Flower node id.
        invited: Numbers of invitations that were not redeemed.
    """

    members: frozenset[int]
    gone: dict[int, tuple[int, str]]
    invited: frozenset[int]


def roll(folder: Path) -> Roll:
    """Returns the members of a federation, and the keys that are refused for good.

    Who has such a key again, as where a former copy of the folder was brought back, is no member.
    """
    files = [path.name for path in (folder / "clients").glob("client-*")]
    keys, gone, invited = (map(each.fullmatch, files) for each in (_KEY, _GONE, _INVITED))
    ended = [match for match in gone if match]
    again = {int(match[1]) for match in ended if _is_back(folder / "clients", match)}
    return Roll(
        frozenset(int(match[1]) for match in keys if match) - again,
        {int(match[2]): (int(match[1]), match[3]) for match in ended},
        frozenset(int(match[1]) for match in invited if match),
    )


def _is_back(clients: Path, gone: re.Match[str]) -> bool:
    with contextlib.suppress(OSError):
        public = read_file(clients / f"client-{gone[1]}.pub", most=_LARGEST)
        return public == read_file(clients / gone[0], most=_LARGEST)
    return False


def known_keys(folder: Path) -> dict[bytes, str]:
    """Returns the files of keys of members, and of those refused for good, by ``public_pem``."""
    found = dict[bytes, str]()
    for path in sorted((folder / "clients").glob("client-*"), reverse=True):  # refused ones last
        if _KEY.fullmatch(path.name) or _GONE.fullmatch(path.name):
            with contextlib.suppress(OSError, Refused):  # empty, if the key was replaced
                found[public_pem(public_key_of(read_file(path, most=_LARGEST), path))] = path.name
    return found


def names(folder: Path) -> dict[int, str]:
    """Returns the clients that are or were registered from this folder, by Flower node id."""
    found = {node: f"client-{number}" for node, (number, _) in roll(folder).gone.items()}
    for path in (folder / "clients").glob("client-*.node"):
        with contextlib.suppress(OSError, ValueError):  # shown without a name
            found[int(read_file(path, most=_DIGITS))] = path.stem
    return found


def _register(folder: Path, path: Path, control: str | None) -> int | None:
    words = ("supernode", "register", str(path), "--name", path.stem)
    what = f"{path.stem} cannot be registered"
    try:
        answer = ask(folder, *words, control=control, what=what, patience=_STARTING)
    except Declined as error:
        if _IN_USE in error.codes:
            return None
        raise
    before, node_id = _number(path), int(answer["node-id"])
    if before is not None:  # a client has one key
        gone = _aside(path, before, "removed")
        if _take(folder, path.stem, before, control) and not gone.exists():
            replace_file(gone, b"")
    replace_file(path.with_suffix(".node"), str(node_id).encode())
    return node_id


def _take(folder: Path, name: str, number: int, control: str | None) -> bool:
    """Removes a node from the SuperLink; returns whether it was registered."""
    words = ("supernode", "unregister", str(number))
    try:
        ask(folder, *words, control=control, what=f"{name} cannot be removed")
    except Declined as error:
        if _NOT_FOUND not in error.codes:
            raise
        return False
    return True


def _number(public: Path) -> int | None:
    """Returns the Flower node id of a key; None if it was not registered from this folder."""
    path = public.with_suffix(".node")
    try:
        return int(path.read_text(encoding="ascii")) if path.is_file() else None
    except ValueError as error:
        raise Refused(f"{path} must hold a node's number: remove it") from error


def _aside(public: Path, number: int, why: str) -> Path:
    return public.with_suffix(f".{number}.{why}")
