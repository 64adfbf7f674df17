"""Invitations, by which a site makes its own key: the private half never leaves its machine.

The server's operator makes an invitation: the next client's number, the SuperLink's address, the
authority's certificate, and a one-time word. The site makes its folder from it, and a request with
the public half of its key, and with a proof of the word. The operator admits it; until then the
client is counted nowhere. Who reads an invitation on its way could redeem it first, and who
changes it could name another authority: so both sides see the fingerprints of the authority and of
the key, and read them out to each other.
"""

import base64
import hashlib
import hmac
import secrets
import tomllib
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from federation.addresses import parse_address
from federation.clock import now, read_stamp, stamp
from federation.credentials import read_server
from federation.errors import Refused, brief
from federation.files import read_file
from federation.keys import (
    authority_fingerprint,
    is_authority,
    public_key_of,
    public_pem,
    read_certificate,
)
from federation.settings.files import to_toml
from server.certificates import certificate_pem, node_key_files
from server.folders import changing, make_folder, replace_file
from server.identity import MOST_CLIENTS, is_name
from server.registration import known_keys, roll
from server.registry import sign_registry

_LARGEST = 2**16  # bytes of an invitation or a request
_LASTS: Final = timedelta(days=14)  # an invitation
_OPEN = {"word": str, "until": str}
_INVITATION = {"federation": str, "superlink": str, "client": int, **_OPEN, "ca": str}
_REQUEST = {"federation": str, "client": int, "key": str, "proof": str}


def invite(folder: Path) -> tuple[bytes, str]:
    """Invites the next client of a federation.

    Args:
        folder: The federation's folder, or the server's in it.

    Returns:
        The invitation, and lines for the operator, with the authority's fingerprint.

    Raises:
        Refused: The server's folder is not in order, cannot be written, or is of an insecure
            federation.
    """
    folder = folder / "server" if (folder / "server").is_dir() else folder
    with changing(folder):
        found, taken = read_server(folder), roll(folder)
        settings = found.settings
        if found.tls is None:
            raise Refused(f"{folder} is of an insecure federation: add a client by --add-client")
        number = 1 + max({settings.clients - 1, *taken.members, *taken.invited})
        secret = {"word": secrets.token_hex(16), "until": stamp(now() + _LASTS)}
        (folder / "clients").mkdir(mode=0o700, exist_ok=True)
        replace_file(_file(folder, number), to_toml(secret))
    root = read_certificate(found.tls.root_certificate)
    given = {"federation": settings.federation, "superlink": settings.superlink, "client": number}
    return to_toml(given | secret | {"ca": certificate_pem(root).decode()}), (
        f"client-{number} is invited until {secret['until']}\n"
        f"read out to the site that the authority is {authority_fingerprint(root)}"
    )


def join(invitation: Path, folder: Path) -> tuple[str, str]:
    """Makes a client's folder, with a key of its own and the request to be admitted.

    Args:
        invitation: The file with the invitation.
        folder: A new or empty folder.

    Returns:
        The fingerprints of its key and of the authority.

    Raises:
        Refused: The file is no invitation, or one that has ended, or the folder is in use or
            cannot be made.
    """
    given = _read(
        invitation,
        _INVITATION,
        "an invitation, as `engram init-federation FOLDER --invite` prints it",
    )
    parse_address(given["superlink"], f"superlink in {invitation}")
    federation, number = given["federation"], given["client"]
    if not is_name(federation) or not 0 <= number < MOST_CLIENTS:
        called = brief(f"{federation}/client-{number}")
        raise Refused(f"{invitation} must be for a client of a federation, got {called}")
    _check_open(given, f"{invitation} is an invitation that")
    try:
        (root,) = x509.load_pem_x509_certificates(given["ca"].encode())
    except ValueError as error:
        raise Refused(f"{invitation} must hold the authority's certificate") from error
    if not is_authority(root):
        raise Refused(f"{invitation} must hold the authority's certificate, got another one")
    private, public = node_key_files(f"{federation}/client-{number}")
    node = {
        "federation": federation,
        "superlink": given["superlink"],
        "partition-id": number,
        "num-partitions": number + 1,
        "insecure": False,
    }
    request = {"federation": federation, "client": number, "key": public.decode()}
    request["proof"] = _proof(given["word"], request["key"])
    files = {"node.toml": to_toml(node), "client.key": private, "client.pub": public}
    files |= {"ca.crt": certificate_pem(root), "request": to_toml(request)}
    make_folder(folder, files)
    return fingerprint_of(public), authority_fingerprint(root)


def admit(folder: Path, request: Path) -> tuple[str, str]:
    """Makes a site that was invited a member, by the public key in its request.

    Args:
        folder: The server's folder.
        request: The file with the request.

    Returns:
        The client, such as ``client-3``, and the fingerprint of its key.

    Raises:
        Refused: The file is no request by an open invitation of this federation, its key is that
            of another member or is refused for good, or the folder is not in order.
    """
    given = _read(
        request, _REQUEST, "a request, as `engram init-federation FOLDER --join` makes it"
    )
    number, key = given["client"], given["key"].encode()
    name, public = f"client-{number}", public_pem(public_key_of(key, request))
    with changing(folder):
        settings = read_server(folder).settings
        if given["federation"] != settings.federation:
            named = brief(given["federation"])
            raise Refused(f"{request} must be of {settings.federation}, got one of {named}")
        holder = known_keys(folder).get(public)
        if holder != f"{name}.pub":  # else, the call before this one was interrupted
            _check(folder, given, request)
            if holder is not None:
                raise Refused(
                    f"{request} must have a new key, got that of {holder} in {folder}/clients: the "
                    "site makes another one, by --join in a new folder"
                )
            replace_file(folder / "clients" / f"{name}.pub", key)
        taken = settings._replace(clients=max(settings.clients, number + 1))
        replace_file(folder / "federation.toml", to_toml(taken._asdict()))
        sign_registry(folder)
        _file(folder, number).unlink(missing_ok=True)
    return name, fingerprint_of(key)


def invitations(folder: Path) -> dict[int, str]:
    """Returns when invitations end that were neither redeemed nor taken back, by client."""
    found = {number: _opened(folder, number) for number in sorted(roll(folder).invited)}
    return {number: each["until"] for number, each in found.items() if each}


def take_back(folder: Path, client: str) -> str:
    """Takes back an invitation; its number is not given again.

    Args:
        folder: The server's folder.
        client: The client, such as ``client-3`` or ``3``.

    Returns:
        The client, such as ``client-3``; "" if it has no open invitation.

    Raises:
        Refused: The invitation cannot be written.
    """
    digits = client.removeprefix("client-")
    with changing(folder):
        if not digits.isdecimal() or int(digits) not in invitations(folder):
            return ""
        replace_file(_file(folder, int(digits)), b"")
    return f"client-{int(digits)}"


def fingerprint_of(public: bytes) -> str:
    """Returns the fingerprint of a public key in OpenSSH format, as ``ssh-keygen -l`` has it."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _check(folder: Path, given: dict[str, Any], request: Path) -> None:
    """Refuses a request that was not made from an invitation which is open now."""
    name, again = f"client-{given['client']}", "invite the site anew"
    found = _opened(folder, given["client"])
    if not found:
        raise Refused(
            f"{request} must be by an open invitation, and {folder} has none of {name}: {again}"
        )
    _check_open(found, f"{request} is by an invitation that")
    proof = _proof(found["word"], given["key"])
    if not hmac.compare_digest(proof.encode(), given["proof"].encode()):
        raise Refused(f"{request} must prove the word of {name}'s invitation: {again}")


def _check_open(given: dict[str, Any], what: str) -> None:
    try:
        ends = read_stamp(given["until"])
    except ValueError as error:
        raise Refused(f"{what} must end at a time, got {brief(given['until'])}") from error
    if ends < now():
        raise Refused(f"{what} ended on {stamp(ends)}: the server's operator makes a new one")


def _proof(word: str, key: str) -> str:
    return hmac.new(word.encode(), key.encode(), "sha256").hexdigest()


def _file(folder: Path, number: int) -> Path:
    """Returns the file of an open invitation, which is empty once that is taken back."""
    return folder / "clients" / f"client-{number}.invited"


def _opened(folder: Path, number: int) -> dict[str, Any]:
    path = _file(folder, number)
    there = path.is_file() and path.stat().st_size
    return _read(path, _OPEN, "an invitation's word and end") if there else {}


def _read(path: Path, kinds: dict[str, type], what: str) -> dict[str, Any]:
    try:
        found = tomllib.loads(read_file(path, most=_LARGEST).decode())
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # no TOML, or no text
        raise Refused(f"{path} must be {what}") from error
    if found.keys() != kinds.keys() or any(
        type(found[key]) is not kind for key, kind in kinds.items()
    ):
        raise Refused(f"{path} must be {what}, with {', '.join(kinds)}")
    return found
