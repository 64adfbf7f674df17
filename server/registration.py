"""Makes a federation's clients known to its SuperLink, by their public keys."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from federation.credentials import read_server
from federation.errors import Refused
from federation.files import read_file
from server.control import Declined, ask
from server.folders import replace_file

__all__ = ["Registration", "names", "register_clients"]

_STARTING = 30.0  # seconds that a SuperLink may take until it answers
_DIGITS = 100  # of a node's number, and more
_IN_USE = "[code: 23]"  # Flower's PUBLIC_KEY_ALREADY_IN_USE


class Registration(NamedTuple):
    """What became of a client's key.

    Attributes:
        client: The client, such as ``client-0``.
        node_id: What Flower calls it from now on; None if the key was known already.
    """

    client: str
    node_id: int | None


def register_clients(folder: Path, *, control: str | None = None) -> Iterator[Registration]:
    """Registers every client's key with a running SuperLink, one after the other.

    Args:
        folder: The coordinator's folder.
        control: HOST:PORT of the SuperLink's Control API; by default that of
            ``superlink_command``.

    Yields:
        What became of each, in the order of the clients. A key that is known already stays as it
        is: one that was unregistered is refused for good, and its client needs a new one.

    Raises:
        Refused: The folder is not in order, or of a federation in which nobody registers.
        RunStopped: The SuperLink cannot be reached, or declines. Calling again goes on.
    """
    credentials = read_server(folder)
    if credentials.tls is None:
        raise Refused(f"{folder} is of an insecure federation: it takes clients as they come")
    if not credentials.public_keys:
        raise Refused(f"{folder / 'clients'} must have a client-N.pub for each client, has none")
    for path in credentials.public_keys:
        yield Registration(path.stem, _register(folder, path, control))


def names(folder: Path) -> dict[int, str]:
    """Returns the clients that were registered from this folder, by what Flower calls them."""
    found = {}
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
    node_id = int(answer["node-id"])
    replace_file(path.with_suffix(".node"), str(node_id).encode())
    return node_id
