"""Makes a federation's clients known to its SuperLink, by their public keys, or unknown again.

In ``clients/`` of the coordinator's folder are ``client-N.pub``, the client's key;
``client-N.node``, the number under which the SuperLink knows it; and, of every key that was taken
from the SuperLink, ``client-N.NODE_ID.unregistered``, which is what was ``client-N.pub``.
"""

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from federation.credentials import read_server
from federation.errors import Refused
from federation.files import read_file
from server.control import Declined, ask
from server.folders import replace_file

_STARTING = 30.0  # seconds that a SuperLink may take until it answers
_DIGITS = 100  # of a node's number, and more
_IN_USE = "[code: 23]"  # Flower's PUBLIC_KEY_ALREADY_IN_USE
_NOT_FOUND = "[code: 24]"  # Flower's NODE_NOT_FOUND
_GONE = re.compile(r"(client-\d+)\.(\d+)\.unregistered")


class Registration(NamedTuple):
    """What became of a client's key."""

    client: str  # the client, such as ``client-0``
    node_id: int | None  # what Flower calls it from now on; None if the key was known already


def register_clients(folder: Path, *, control: str | None = None) -> Iterator[Registration]:
    """Registers every client's key with a running SuperLink, one after the other.

    ``control`` is HOST:PORT of its Control API; by default that of ``superlink_command``.

    Yields:
        What became of each, in the order of the clients. A key that is known already stays as it
        is. One that was unregistered is not among them: it is refused for good, and its client
        needs a new one.

    Raises:
        Refused: If the folder is not in order, or of a federation in which nobody registers.
        RunStopped: If the SuperLink cannot be reached, or declines. Calling again goes on.
    """
    credentials = read_server(folder)
    if credentials.tls is None:
        raise Refused(f"{folder} is of an insecure federation: it takes clients as they come")
    if not credentials.public_keys:
        raise Refused(f"{folder / 'clients'} must have a client-N.pub for each client, has none")
    for path in credentials.public_keys:
        yield Registration(path.stem, _register(folder, path, control))


def unregister_client(folder: Path, client: str, *, control: str | None = None) -> tuple[str, int]:
    """Takes a client's key from a running SuperLink, which refuses it for good from now on.

    What is done already is not done again, so that a call that was interrupted can be repeated.

    The client is a number, or ``client-N``.

    Returns:
        The client, such as ``client-0``, and what Flower called its node.

    Raises:
        Refused: If the folder is not in order, or there is no such client in it, or it is not known
            under which number it was registered.
        RunStopped: If the SuperLink cannot be reached, or declines.
    """
    credentials = read_server(folder)
    if credentials.tls is None:
        raise Refused(f"{folder} is of an insecure federation, in which nobody is registered")
    name = f"client-{client.removeprefix('client-')}"
    clients = folder / "clients"
    public = clients / f"{name}.pub"
    if not re.fullmatch(r"client-\d+", name) or not public.is_file():
        there = ", ".join(path.stem for path in credentials.public_keys[:20]) or "none"
        raise Refused(
            f"the client must be one with a key in {clients}, {there}, got {client[:40]!r}"
        )
    number = _number(public)
    if number is None:
        raise Refused(
            f"{name} was not registered from {folder}, which lacks the number that the SuperLink "
            f"gave it, {name}.node: do it where that is"
        )
    _take(folder, name, number, control)
    try:
        public.rename(_aside(public, number))
        public.with_suffix(".node").unlink()
    except OSError as error:
        raise Refused(f"{public} cannot be set aside: {error.strerror}") from error
    return name, number


def unregistered(folder: Path) -> dict[int, str]:
    """Returns the clients whose keys were unregistered, by what Flower called their nodes."""
    found = map(_GONE.fullmatch, (path.name for path in (folder / "clients").glob("client-*")))
    return {int(match[2]): match[1] for match in found if match}


def names(folder: Path) -> dict[int, str]:
    """Returns clients that are or were registered from this folder, by what Flower calls them."""
    found = unregistered(folder)
    for path in (folder / "clients").glob("client-*.node"):
        with contextlib.suppress(OSError, ValueError):  # a client without a name is shown as such
            found[int(read_file(path, most=_DIGITS))] = path.stem
    return found


def _register(folder: Path, path: Path, control: str | None) -> int | None:
    words = ("supernode", "register", str(path), "--name", path.stem)
    try:
        answer = ask(
            folder,
            *words,
            control=control,
            what=f"{path.stem} cannot be registered",
            patience=_STARTING,
        )
    except Declined as error:
        if _IN_USE in str(error):
            return None
        raise
    before, node_id = _number(path), int(answer["node-id"])
    if before is not None and _take(folder, path.stem, before, control):  # a client has one key
        replace_file(_aside(path, before), b"")
    replace_file(path.with_suffix(".node"), str(node_id).encode())
    return node_id


def _take(folder: Path, name: str, number: int, control: str | None) -> bool:
    """Has the SuperLink forget a node; returns whether it knew it."""
    words = ("supernode", "unregister", str(number))
    try:
        ask(folder, *words, control=control, what=f"{name} cannot be unregistered")
    except Declined as error:
        if _NOT_FOUND not in str(error):
            raise
        return False
    return True


def _number(public: Path) -> int | None:
    """Returns what Flower calls the node of a key; None if it was not registered from here."""
    path = public.with_suffix(".node")
    try:
        return int(path.read_text(encoding="ascii")) if path.is_file() else None
    except ValueError as error:
        raise Refused(f"{path} must hold a node's number: remove it") from error


def _aside(public: Path, number: int) -> Path:
    return public.with_suffix(f".{number}.unregistered")
