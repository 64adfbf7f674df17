"""The roll of a federation's members: files in ``clients/`` of the server's folder.

``client-N.pub`` is the public key of a member. A key that is refused for good has been renamed, to
``client-N.FINGERPRINT.removed`` if it was removed here, and to ``client-N.FINGERPRINT.left`` if its
site has left; releases that served Flower's nodes wrote a number in place of the fingerprint. A
client that has no other key is no member. ``client-N.invited`` is an invitation that was not
redeemed (``engram/link/server/invitations.py``). A server that runs reads them as they change.
"""

import contextlib
import re
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec

from engram.link.credentials import read_federation
from engram.link.keys import fingerprint, public_key_of
from engram.runs.folders import changing, replace_file
from engram.settings.errors import Refused, few_names
from engram.settings.files import read_file, refusing, sync

_LARGEST = 2**16  # bytes of a file with a key
_KEY = re.compile(r"client-(\d{1,9})\.pub")
_GONE = re.compile(r"client-(\d{1,9})\.[0-9a-f]+\.(removed|left)")
_INVITED = re.compile(r"client-(\d{1,9})\.invited")


class ListedKey(NamedTuple):
    """A client's public key, and whether it is refused for good.

    Attributes:
        file: The name of its file.
        client: The client's number.
        end: ``removed``, or ``left``; empty if it is a member's.
        key: The key.
    """

    file: str
    client: int
    end: str
    key: ec.EllipticCurvePublicKey


class Clients(NamedTuple):
    """The clients that a federation's folder lists.

    Attributes:
        keys: Their keys, by fingerprint.
        invited: Numbers of invitations that were not redeemed.
    """

    keys: dict[str, ListedKey]
    invited: frozenset[int]

    @property
    def members(self) -> frozenset[int]:
        """Numbers of the clients that have a key."""
        return frozenset(each.client for each in self.keys.values() if not each.end)

    @property
    def gone(self) -> frozenset[int]:
        """Numbers of the clients that were removed or have left, and have no other key."""
        return frozenset(each.client for each in self.keys.values()) - self.members


def roll(folder: Path) -> Clients:
    """Reads the roll of a federation.

    A key that was refused for good stays so wherever it comes again, as where a former copy of the
    folder was brought back. What holds no key is nobody's.
    """
    files = sorted((folder / "clients").glob("client-*"))
    keys = dict[str, ListedKey]()
    for kind in (_KEY, _GONE):  # refused ones last
        for path in files:
            if match := kind.fullmatch(path.name):
                # Any other error must not make a member nobody.
                with contextlib.suppress(FileNotFoundError, IsADirectoryError, Refused):
                    key = public_key_of(read_file(path, most=_LARGEST), path)
                    end = match[2] if kind is _GONE else ""
                    keys[fingerprint(key)] = ListedKey(path.name, int(match[1]), end, key)
    invited = (match for path in files if (match := _INVITED.fullmatch(path.name)))
    return Clients(keys, frozenset(int(match[1]) for match in invited))


def remove_client(folder: Path, client: str) -> tuple[str, bool]:
    """Removes a client from a federation; its key is refused from now on, and for good.

    Of one that is invited, the invitation is taken back; its number is not given again.
    ``client`` is a number, or ``client-N``. A server may run with the folder.

    Returns:
        The client, such as ``client-0``, and whether it was a member.

    Raises:
        Refused: If there is no such client in the folder, or it cannot be written.
    """
    read_federation(folder / "federation.toml")
    name = f"client-{client.removeprefix('client-')}"
    with changing(folder):
        if set_aside(folder, name, "removed"):
            return name, True
        invited = folder / "clients" / f"{name}.invited"
        if _INVITED.fullmatch(invited.name) and invited.is_file() and invited.stat().st_size:
            replace_file(invited, b"")
            return name, False
    there = few_names(f"client-{number}" for number in sorted(roll(folder).members)) or "none"
    raise Refused(
        f"the client must be one with a key in {folder / 'clients'}, {there}, got {client[:40]!r}"
    )


def set_aside(folder: Path, name: str, end: str) -> bool:
    """Renames a member's key, which is refused from now on.

    ``end`` is ``removed`` or ``left``.

    Returns:
        Whether it was a member.

    Raises:
        Refused: If it cannot be renamed.
    """
    clients = folder / "clients"
    for print_, each in roll(folder).keys.items():
        if not each.end and each.file == f"{name}.pub":
            with refusing(f"{clients / each.file} cannot be set aside"):
                (clients / each.file).rename(clients / f"{name}.{print_[:32]}.{end}")
                sync(clients)
            return True
    return False
