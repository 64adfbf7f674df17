"""Invitations, by which a site makes its own key: the private half never leaves its machine.

The server's operator makes an invitation, which has the next client's number, the SuperLink's
address and the authority's certificate. The site makes its folder from it, and a request with the
public half of its key, which the operator admits. Neither is secret; both sides see the key's
fingerprint, and can compare it.
"""

import base64
import hashlib
from pathlib import Path
from typing import Any

from cryptography import x509

from federation.addresses import parse_address
from federation.credentials import read_server
from federation.errors import Refused, brief
from federation.files import parse_toml, read_file
from federation.keys import public_key_of
from federation.settings.files import to_toml
from server.certificates import node_key_files
from server.folders import make_folder, replace_file
from server.registry import sign_registry

_LARGEST = 2**16  # bytes of an invitation or a request
_INVITATION = {"federation": str, "superlink": str, "client": int, "insecure": bool, "ca": str}
_REQUEST = {"federation": str, "client": int, "key": str}


def invite(folder: Path) -> bytes:
    """Returns an invitation for the next client of a federation, whose number is then taken.

    Args:
        folder: The federation's folder, or the server's in it.

    Raises:
        Refused: The server's folder is not in order, or cannot be written.
    """
    found = read_server(folder / "server" if (folder / "server").is_dir() else folder)
    settings, number = found.settings, found.settings.clients
    invitation = {
        "federation": settings.federation,
        "superlink": settings.superlink,
        "client": number,
        "insecure": settings.insecure,
        "ca": found.tls.root_certificate.read_text() if found.tls else "",
    }
    taken = settings._replace(clients=number + 1)._asdict()
    replace_file(found.folder / "federation.toml", to_toml(taken))
    return to_toml(invitation)


def join(invitation: Path, folder: Path) -> str:
    """Makes a client's folder, with a key of its own and the request to be admitted.

    Args:
        invitation: The file with the invitation.
        folder: A new or empty folder.

    Returns:
        The fingerprint of its key.

    Raises:
        Refused: The file is no invitation, or the folder is in use or cannot be made.
    """
    given = _read(
        invitation,
        _INVITATION,
        "an invitation, as `engram init-federation FOLDER --invite` prints it",
    )
    parse_address(given["superlink"], f"superlink in {invitation}")
    federation, number = given["federation"], given["client"]
    private, public = node_key_files(f"{federation}/client-{number}")
    node = {
        "federation": federation,
        "superlink": given["superlink"],
        "partition-id": number,
        "num-partitions": number + 1,
        "insecure": given["insecure"],
    }
    request = {"federation": federation, "client": number, "key": public.decode()}
    files = {"node.toml": to_toml(node), "client.key": private, "client.pub": public}
    if not given["insecure"]:
        try:
            x509.load_pem_x509_certificates(given["ca"].encode())
        except ValueError as error:
            raise Refused(f"{invitation} must hold the authority's certificate") from error
        files["ca.crt"] = given["ca"].encode()
    make_folder(folder, files | {"request": to_toml(request)})
    return fingerprint_of(public)


def admit(folder: Path, request: Path) -> tuple[str, str]:
    """Makes a site that was invited a member, by the public key in its request.

    Args:
        folder: The server's folder.
        request: The file with the request.

    Returns:
        The client, such as ``client-3``, and the fingerprint of its key.

    Raises:
        Refused: The file is no request of a site that was invited here, the client has another key,
            or the folder is not in order.
    """
    given = _read(
        request, _REQUEST, "a request, as `engram init-federation FOLDER --join` makes it"
    )
    settings = read_server(folder).settings
    if given["federation"] != settings.federation:
        named = brief(given["federation"])
        raise Refused(f"{request} must be of {settings.federation}, got one of {named}")
    if not 0 <= given["client"] < settings.clients:
        raise Refused(f"client {given['client']} of {request} was not invited from {folder}")
    key, name = given["key"].encode(), f"client-{given['client']}"
    public_key_of(key, request)
    public = folder / "clients" / f"{name}.pub"
    if public.is_file() and fingerprint_of(public.read_bytes()) != fingerprint_of(key):
        raise Refused(
            f"{name} has another key already, {fingerprint_of(public.read_bytes())}: remove it "
            f"first, or invite the site of {request} anew"
        )
    replace_file(public, key)
    sign_registry(folder)
    return name, fingerprint_of(key)


def fingerprint_of(public: bytes) -> str:
    """Returns the fingerprint of a public key in OpenSSH format, as ``ssh-keygen -l`` has it."""
    digest = hashlib.sha256(base64.b64decode(public.split()[1])).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _read(path: Path, kinds: dict[str, type], what: str) -> dict[str, Any]:
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
    return found
