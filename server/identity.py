"""Makes the folders of a deployed federation, which identify its server and its clients.

    FEDERATION/
      ca.crt ca.key       its own certificate authority; the key stays with its maker
      server/             for the coordinator's machine: federation.toml, ca.crt, server.crt,
                          server.key, and in clients/ every client's public key
      client-0/           for that client's machine: node.toml, ca.crt, client.key, client.pub
      client-1/ ...

An insecure federation has no certificates. Only the owner may enter the folders and read the keys.
``federation/credentials.py`` reads them.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from federation.addresses import LOOPBACK, as_ip, check_host, parse_address
from federation.credentials import FederationSettings, ServerTls, certificate_hosts, read_federation
from federation.errors import Refused, brief
from federation.keys import read_certificate, read_public_key, read_server_key, same_key
from federation.settings.fields import Scalar
from federation.settings.files import read_settings
from server.certificates import (
    Authority,
    certificate_pem,
    key_pem,
    new_authority,
    new_key,
    node_key_files,
)
from server.folders import make_folder, replace_file

NodeSettings = dict[str, Scalar]

_MOST_CLIENTS = 10**6  # as num-clients


def init_federation(
    folder: Path,
    *,
    clients: int,
    hosts: Sequence[str],
    superlink: str,
    days: int,
    insecure: bool = False,
) -> None:
    """Makes a federation's folder: all of it, or, when anything fails, nothing.

    Args:
        folder: A new or empty folder; its name becomes the federation's.
        clients: Number of clients, at least 1.
        hosts: DNS names and IP addresses by which clients and users reach the server, besides
            the one in ``superlink``, ``localhost``, ``127.0.0.1`` and ``::1``.
        superlink: HOST:PORT that clients connect to.
        days: Days for which the server's certificate is valid, in 1..3650.
        insecure: Make no certificates: connections are neither encrypted nor authenticated.
            Clients get keys all the same.

    Raises:
        Refused: If the folder is in use or cannot be made, or an argument is out of its range.
    """
    name = _federation_name(folder)
    if clients < 1:
        raise Refused(f"clients must be at least 1, got {clients}")
    if clients > _MOST_CLIENTS:
        raise Refused(f"clients must be at most {_MOST_CLIENTS}, got {brief(clients)}")
    _check_days(days)
    address = parse_address(superlink, "superlink")
    names = _all_hosts([address.host, *hosts])
    common: NodeSettings = {"federation": name, "superlink": str(address)}
    files = {} if insecure else _server(name, names, days)
    files["server/federation.toml"] = _toml(common | {"clients": clients, "insecure": insecure})
    for number in range(clients):
        own = _client(common, number, clients, files.get("ca.crt"))
        files |= {f"client-{number}/{path}": data for path, data in own.items()}
        files[f"server/clients/client-{number}.pub"] = own["client.pub"]
    make_folder(folder, files)


def add_client(folder: Path) -> Path:
    """Adds the next client to a federation; returns its new folder.

    The number of clients is updated in the other clients' ``node.toml`` that are still here; those
    on other machines must be replaced. An interrupted call is completed by the next one.

    Raises:
        Refused: If it is not a federation's folder, or cannot be written.
    """
    settings = _federation(folder)
    number = settings.clients
    common: NodeSettings = {"federation": settings.federation, "superlink": settings.superlink}
    root = None if settings.insecure else _read(folder / "ca.crt")
    new = folder / f"client-{number}"
    if not new.exists():
        make_folder(new, _client(common, number, number + 1, root))
    read_public_key(new / "client.pub")
    public = _read(new / "client.pub")
    replace_file(folder / "server" / "clients" / f"client-{number}.pub", public)
    for other in range(number):
        node = folder / f"client-{other}" / "node.toml"
        if node.exists():
            replace_file(node, _toml(read_settings(node) | {"num-partitions": number + 1}))
    content = _toml(common | {"clients": number + 1, "insecure": settings.insecure})
    replace_file(folder / "server" / "federation.toml", content)
    return new


def new_client_key(folder: Path, number: int) -> Path:
    """Gives a client a new key, in place of one that was lost or unregistered.

    Returns:
        Its folder, in which all files of the client's identity are new.

    Raises:
        Refused: If there is no such client, or the folder is not a federation's or cannot be
            written.
    """
    settings = _federation(folder)
    if not 0 <= number < settings.clients:
        raise Refused(f"the client must be one of 0..{settings.clients - 1}, got {number}")
    common: NodeSettings = {"federation": settings.federation, "superlink": settings.superlink}
    root = None if settings.insecure else _read(folder / "ca.crt")
    own, files = folder / f"client-{number}", _client(common, number, settings.clients, root)
    if own.exists():
        for path, data in files.items():
            replace_file(own / path, data)
    else:
        make_folder(own, files)
    public = folder / "server" / "clients" / f"client-{number}.pub"
    replace_file(public, files["client.pub"])
    return own


def renew_server(folder: Path, hosts: Sequence[str], days: int) -> ServerTls:
    """Makes a new certificate for the server's key; clients need nothing new.

    Args:
        folder: The federation's folder, with the authority's key in it.
        hosts: Further DNS names and IP addresses, besides those of the present certificate and
            those that ``init_federation`` always adds.
        days: Days for which it is valid, in 1..3650.

    Returns:
        The certificate; it replaces the one in the server's folder.

    Raises:
        Refused: If the federation has no certificates, its authority's key is missing or damaged or
            would expire earlier, or an argument is out of range.
    """
    _check_days(days)
    settings = _federation(folder)
    if settings.insecure:
        raise Refused(f"{folder} is an insecure federation: it has no certificate to renew")
    root, own, private = (
        folder / "server" / name for name in ("ca.crt", "server.crt", "server.key")
    )
    called = parse_address(settings.superlink, "superlink").host
    names = _all_hosts([called, *hosts, *_present_hosts(own)])
    authority = _authority(folder, days)
    if not private.exists():  # a lost key can be replaced: clients trust the authority
        replace_file(private, key_pem(new_key()))
    certificate = authority.sign(read_server_key(private), names, days)
    # The authority's certificate as well, so that a damaged server folder is complete again.
    replace_file(root, certificate_pem(authority.certificate))
    replace_file(own, certificate_pem(certificate))
    return ServerTls(root, own, private, tuple(names), certificate.not_valid_after_utc)


# --- Contents ------------------------------------------------------------------------------


def _server(name: str, hosts: Sequence[str], days: int) -> dict[str, bytes]:
    """Returns the certificates and keys of a federation's authority and server."""
    authority, key = new_authority(name), new_key()
    root = certificate_pem(authority.certificate)
    return {
        "ca.crt": root,
        "ca.key": key_pem(authority.key),
        "server/ca.crt": root,
        "server/server.crt": certificate_pem(authority.sign(key, hosts, days)),
        "server/server.key": key_pem(key),
    }


def _client(
    common: NodeSettings, number: int, clients: int, root: bytes | None
) -> dict[str, bytes]:
    """Returns the files of a client's folder; ``root`` is None in an insecure federation."""
    private, public = node_key_files(f"{common['federation']}/client-{number}")
    own = {"partition-id": number, "num-partitions": clients, "insecure": root is None}
    files = {"node.toml": _toml(common | own), "client.key": private, "client.pub": public}
    return files if root is None else files | {"ca.crt": root}


def _toml(settings: Mapping[str, Scalar]) -> bytes:
    # JSON scalars are TOML scalars as long as texts are plain, as names and addresses are.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items()).encode()


# --- Checks --------------------------------------------------------------------------------


def _federation_name(folder: Path) -> str:
    name = folder.resolve().name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", name) or name == "default":
        raise Refused(
            "the folder's name, which becomes the federation's, must be up to 40 letters, digits, "
            f"- and _, and not 'default', got {name!r}"
        )
    return name


def _check_days(days: int) -> None:
    if not 1 <= days <= 3650:
        raise Refused(f"days must be in 1..3650, got {days}")


def _all_hosts(hosts: Sequence[str]) -> list[str]:
    """Returns a certificate's hosts without duplicates: those given, and the loopback ones."""
    checked = [check_host(host, "host") for host in hosts]
    for host in checked:
        ip = as_ip(host)
        if ip is not None and ip.is_unspecified:
            raise Refused(f"host must be one that clients can connect to, got {host}")
    return list(dict.fromkeys([*checked, *LOOPBACK]))


def _present_hosts(path: Path) -> Sequence[str]:
    try:
        return certificate_hosts(read_certificate(path))
    except Refused:  # lost or damaged, and about to be replaced
        return ()


def _federation(folder: Path) -> FederationSettings:
    path = folder / "server" / "federation.toml"
    if not path.is_file():
        raise Refused(f"{folder} is not a federation's folder: it has no server/federation.toml")
    return read_federation(path)


def _authority(folder: Path, days: int) -> Authority:
    """Reads a federation's authority, which must outlive what it is to sign."""
    path, private = folder / "ca.crt", folder / "ca.key"
    if not private.exists():
        raise Refused(f"{private} is missing: renew where the federation was made")
    certificate, key = read_certificate(path), read_server_key(private)
    if not same_key(certificate.public_key(), key.public_key()):
        raise Refused(f"{path} does not belong to the key in {private}")
    ends = certificate.not_valid_after_utc
    if datetime.now(UTC) + timedelta(days=days) > ends:
        raise Refused(f"days must end before {path} does, on {ends:%Y-%m-%d}, got {days}")
    return Authority(certificate, key)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
