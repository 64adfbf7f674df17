"""Invitations, by which a site makes its own key: the private half never leaves its machine.

The server's operator makes an invitation: the next client's number, the server's address, the
authority's certificate, a one-time word and an end. The site makes its folder from it, and a
request with the public half of its key and a proof of the word, which the operator admits; until
then the client is counted nowhere. Who changes an invitation on its way could name another
authority: so both sides see the fingerprints of authority and key, and read them out.
"""

import base64
import hashlib
import hmac
import secrets
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from cryptography import x509

from engram.link.addresses import parse_address
from engram.link.credentials import read_server
from engram.link.keys import (
    authority_fingerprint,
    fingerprint,
    is_authority,
    public_key_of,
    read_certificate,
)
from engram.link.server.certificates import certificate_pem, node_key_files
from engram.link.server.identity import MOST_CLIENTS, sign_registry
from engram.link.server.registration import roll
from engram.runs.folders import changing, make_folder, replace_file
from engram.settings.errors import Refused, brief
from engram.settings.files import parse_toml, read_file
from engram.settings.settings_files import to_toml
from engram.wire.clock import now

_Kinds = dict[str, type]

_LARGEST = 2**16  # bytes of an invitation or a request
_LASTS: Final = timedelta(days=14)
_INVITATION: _Kinds = {"federation": str, "superlink": str, "client": int, "until": str}
_INVITATION |= {"word": str, "ca": str}
_REQUEST: _Kinds = {"federation": str, "client": int, "key": str, "proof": str}


def invite(folder: Path) -> tuple[bytes, str]:
    """Invites the next client of a federation, and takes its number.

    Returns:
        The invitation, and the authority's fingerprint.

    Raises:
        Refused: The server's folder is not in order, or cannot be written.
    """
    folder = folder / "server" if (folder / "server").is_dir() else folder
    with changing(folder):
        found, taken = read_server(folder), roll(folder)
        settings = found.settings
        number = 1 + max({settings.clients - 1, *taken.members, *taken.invited})
        root = read_certificate(found.tls.root_certificate)
        invitation = {
            "federation": settings.federation,
            "superlink": settings.superlink,
            "client": number,
            "until": f"{now() + _LASTS:%Y-%m-%d}",
            "word": secrets.token_hex(16),
            "ca": certificate_pem(root).decode(),
        }
        (folder / "clients").mkdir(mode=0o700, exist_ok=True)
        replace_file(_file(folder, number), to_toml(invitation))
    return to_toml(invitation), authority_fingerprint(root)


def join(invitation: Path, folder: Path) -> tuple[str, str]:
    """Makes a client's folder, with a key of its own and the request to be admitted.

    Returns:
        The fingerprints of its key and of the authority.

    Raises:
        Refused: The file is no invitation or has ended, or the folder is in use or cannot be made.
    """
    what = "an invitation, as `engram init-federation FOLDER --invite` prints it"
    given = _read(invitation, _INVITATION, what)
    parse_address(given["superlink"], f"superlink in {invitation}")
    federation, number = given["federation"], given["client"]
    _check_end(given, invitation)
    try:
        (root,) = x509.load_pem_x509_certificates(given["ca"].encode())
    except ValueError as error:
        raise Refused(f"{invitation} must hold the authority's certificate") from error
    if not is_authority(root):
        raise Refused(f"{invitation} must hold the authority's certificate, got another one")
    private, public = node_key_files(f"{federation}/client-{number}")
    node = {key: given[key] for key in ("federation", "superlink")}
    node |= {"partition-id": number, "num-partitions": number + 1}
    request = {"federation": federation, "client": number, "key": public.decode()}
    request["proof"] = _proof(given["word"], request["key"])
    files = {"node.toml": to_toml(node), "client.key": private, "client.pub": public}
    files |= {"ca.crt": certificate_pem(root), "request": to_toml(request)}
    make_folder(folder, files)
    return fingerprint_of(public), authority_fingerprint(root)


def admit(folder: Path, request: Path) -> tuple[str, str]:
    """Makes a site that was invited a member, by the public key in its request.

    Returns:
        The client, such as ``client-3``, and the fingerprint of its key.

    Raises:
        Refused: The file is no request by an open invitation from here, its key is known already,
            or the folder is not in order.
    """
    what = "a request, as `engram init-federation FOLDER --join` makes it"
    given = _read(request, _REQUEST, what)
    number, key = given["client"], given["key"].encode()
    name, public = f"client-{number}", fingerprint(public_key_of(key, request))
    with changing(folder):
        settings = read_server(folder).settings
        if given["federation"] != settings.federation:
            named = brief(given["federation"])
            raise Refused(f"{request} must be of {settings.federation}, got one of {named}")
        listed = roll(folder).keys.get(public)
        holder = listed.file if listed else ""
        if holder != f"{name}.pub":  # else, the call before this one was interrupted
            invited = _opened(folder, number)
            proof = _proof(invited["word"], given["key"]) if invited else ""
            if not invited or not hmac.compare_digest(proof.encode(), given["proof"].encode()):
                raise Refused(
                    f"{request} must prove the word of an open invitation of {name} from {folder}: "
                    "invite the site anew"
                )
            _check_end(invited, request)
            if holder or (folder / "clients" / f"{name}.pub").exists():
                held = f"got that of {holder}" if holder else f"but {name} has one already"
                raise Refused(f"{request} must have a new key, {held}: invite the site anew")
            replace_file(folder / "clients" / f"{name}.pub", key)
        taken = settings._replace(clients=max(settings.clients, number + 1))
        replace_file(folder / "federation.toml", to_toml(taken._asdict()))
        sign_registry(folder)
        _file(folder, number).unlink(missing_ok=True)
    return name, fingerprint_of(key)


def invitations(folder: Path) -> dict[int, str]:
    """Returns the last days of invitations that were not redeemed or taken back, by client."""
    found = {number: _opened(folder, number) for number in sorted(roll(folder).invited)}
    return {number: each["until"] for number, each in found.items() if each}


def fingerprint_of(public: bytes) -> str:
    """Returns the fingerprint of a public key in OpenSSH format, as ``ssh-keygen -l`` has it."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _proof(word: str, key: str) -> str:
    return hmac.new(word.encode(), key.encode(), "sha256").hexdigest()


def _check_end(given: dict[str, Any], file: Path) -> None:
    if given["until"] < f"{now():%Y-%m-%d}":
        ended = f"{file} is of an invitation that ended after {brief(given['until'])}"
        raise Refused(f"{ended}: the server's operator invites the site anew")


def _file(folder: Path, number: int) -> Path:
    return folder / "clients" / f"client-{number}.invited"


def _opened(folder: Path, number: int) -> dict[str, Any]:
    """Returns an invitation as it was made; empty if there is none, or it was taken back."""
    path = _file(folder, number)
    there = path.is_file() and path.stat().st_size
    return _read(path, _INVITATION, "an invitation") if there else {}


def _read(path: Path, kinds: _Kinds, what: str) -> dict[str, Any]:
    try:
        found = parse_toml(read_file(path, most=_LARGEST))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:  # no TOML, or no text
        raise Refused(f"{path} must be {what}") from error
    if found.keys() != kinds.keys() or any(
        type(found[key]) is not kind for key, kind in kinds.items()
    ):
        raise Refused(f"{path} must be {what}, with {', '.join(kinds)}")
    if not 0 <= found["client"] < MOST_CLIENTS:
        raise Refused(f"client in {path} must lie in 0..{MOST_CLIENTS - 1}, got another number")
    return found
