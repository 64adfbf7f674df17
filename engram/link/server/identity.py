"""Makes the folders of a deployed federation, which identify its server and its clients.

    FEDERATION/
      ca.crt ca.key       its own certificate authority; the key stays with its maker
      server/             for the coordinator's machine: federation.toml, ca.crt, server.crt,
                          server.key, in clients/ every client's public key, and these in
                          registry, as the authority has signed them
      client-0/           for that client's machine: node.toml, ca.crt, client.key, client.pub
      client-1/ ...

Once there is a new authority (``engram/link/server/renewal.py``), ca.crt has its certificate, and
until the next renewal the former one's, and that by which the former vouches for the new; least.crt
is the certificate of a new key of the server. Only the owner may enter the folders and read the
keys.
``engram/link/credentials.py`` reads them.
"""

import re
from collections.abc import Sequence
from pathlib import Path

from engram.guards.secure.registry import REGISTRY, fingerprint, signed_registry
from engram.link.addresses import parse_address
from engram.link.credentials import FederationSettings, read_federation
from engram.link.keys import key_pem, read_public_key, read_server_key
from engram.link.server.certificates import (
    Authority,
    all_hosts,
    certificate_pem,
    check_days,
    new_authority,
    new_key,
    node_key_files,
)
from engram.link.server.registration import roll, set_aside
from engram.runs.folders import changing, make_folder, replace_file
from engram.settings.errors import Refused, brief
from engram.settings.fields import Scalar
from engram.settings.files import refusing
from engram.settings.settings_files import read_settings, to_toml

NodeSettings = dict[str, Scalar]

MOST_CLIENTS = 10**6  # as num-clients


def init_federation(
    folder: Path, *, clients: int, hosts: Sequence[str], superlink: str, days: int
) -> None:
    """Makes a federation's folder: all of it, or, when anything fails, nothing.

    Args:
        folder: A new or empty folder; its name becomes the federation's.
        clients: Number of clients; 0 if all are to be invited.
        hosts: DNS names and IP addresses by which clients and users reach the server, besides
            the one in ``superlink``, ``localhost``, ``127.0.0.1`` and ``::1``.
        superlink: HOST:PORT that clients connect to.
        days: Days for which the server's certificate is valid, in 1..3650.

    Raises:
        Refused: If the folder is in use or cannot be made, or an argument is out of its range.
    """
    name = _federation_name(folder)
    if clients < 0:
        raise Refused(f"clients must be at least 0, got {clients}")
    if clients > MOST_CLIENTS:
        raise Refused(f"clients must be at most {MOST_CLIENTS}, got {brief(clients)}")
    check_days(days)
    address = parse_address(superlink, "superlink")
    names = all_hosts([address.host, *hosts])
    common: NodeSettings = {"federation": name, "superlink": str(address)}
    authority, keys = new_authority(name), dict[int, bytes]()
    files = _server(authority, names, days)
    files["server/federation.toml"] = to_toml(common | {"clients": clients})
    for number in range(clients):
        own = _client(common, number, clients, files["ca.crt"])
        files |= {f"client-{number}/{path}": data for path, data in own.items()}
        files[f"server/clients/client-{number}.pub"] = keys[number] = own["client.pub"]
    if keys:
        files[f"server/{REGISTRY}"] = signed_registry(keys, authority.key)
    make_folder(folder, files)


def add_client(folder: Path) -> Path:
    """Adds the next client to a federation; returns its new folder.

    The number of clients is updated in the other clients' ``node.toml`` that are still here; those
    on other machines must be replaced. An interrupted call is completed by the next one.

    Raises:
        Refused: If it is not a federation's folder, or cannot be written.
    """
    with changing(folder / "server"):
        settings = _federation(folder)
        number = 1 + max({settings.clients - 1, *roll(folder / "server").invited})
        common: NodeSettings = {"federation": settings.federation, "superlink": settings.superlink}
        root = _read(folder / "ca.crt")
        new = folder / f"client-{number}"
        if not new.exists():
            make_folder(new, _client(common, number, number + 1, root))
        read_public_key(new / "client.pub")
        public = _read(new / "client.pub")
        (folder / "server" / "clients").mkdir(mode=0o700, exist_ok=True)
        replace_file(folder / "server" / "clients" / f"client-{number}.pub", public)
        for other in range(number):
            node = folder / f"client-{other}" / "node.toml"
            if node.exists():
                replace_file(node, to_toml(read_settings(node) | {"num-partitions": number + 1}))
        content = to_toml(settings._replace(clients=number + 1)._asdict())
        replace_file(folder / "server" / "federation.toml", content)
        sign_registry(folder / "server")
    return new


def new_client_key(folder: Path, number: int) -> Path:
    """Gives a client a new key, in place of one that was lost or removed.

    Returns:
        Its folder, in which all files of the client's identity are new.

    Raises:
        Refused: If there is no such client, or the folder is not a federation's or cannot be
            written.
    """
    with changing(folder / "server"):
        settings = _federation(folder)
        if not 0 <= number < settings.clients or number in roll(folder / "server").invited:
            wanted = f"one of 0..{settings.clients - 1}, and not invited"
            raise Refused(f"the client must be {wanted}, got {number}")
        common: NodeSettings = {"federation": settings.federation, "superlink": settings.superlink}
        own, root = folder / f"client-{number}", _read(folder / "ca.crt")
        files = _client(common, number, settings.clients, root)
        if own.exists():
            for path, data in files.items():
                replace_file(own / path, data)
        else:
            make_folder(own, files)
        set_aside(folder / "server", own.name, "removed")
        replace_file(folder / "server" / "clients" / f"{own.name}.pub", files["client.pub"])
        sign_registry(folder / "server")
    return own


# --- Contents ------------------------------------------------------------------------------


def _server(authority: Authority, hosts: Sequence[str], days: int) -> dict[str, bytes]:
    key = new_key()
    root = certificate_pem(authority.certificate)
    return {
        "ca.crt": root,
        "ca.key": key_pem(authority.key),
        "server/ca.crt": root,
        "server/server.crt": certificate_pem(authority.sign(key, hosts, days)),
        "server/server.key": key_pem(key),
    }


def _client(common: NodeSettings, number: int, clients: int, root: bytes) -> dict[str, bytes]:
    """Returns the files of a client's folder."""
    private, public = node_key_files(f"{common['federation']}/client-{number}")
    settings = to_toml(common | {"partition-id": number, "num-partitions": clients})
    return {"node.toml": settings, "client.key": private, "client.pub": public, "ca.crt": root}


# --- Checks --------------------------------------------------------------------------------


def _federation_name(folder: Path) -> str:
    name = folder.resolve().name
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", name) or name == "default":
        raise Refused(
            "the folder's name, which becomes the federation's, must be up to 40 letters, digits, "
            f"- and _, and not 'default', got {name!r}"
        )
    return name


def _federation(folder: Path) -> FederationSettings:
    path = folder / "server" / "federation.toml"
    if not path.is_file():
        raise Refused(f"{folder} is not a federation's folder: it has no server/federation.toml")
    return read_federation(path)


def _read(path: Path) -> bytes:
    with refusing(f"{path} cannot be read"):
        return path.read_bytes()


def sign_registry(folder: Path) -> str:
    """Writes the registry of the keys in the server's folder; sites take it from the server.

    Returns:
        The registry's fingerprint; "" where the authority's key is not beside the folder: then
        nothing is written.

    Raises:
        Refused: The folder or the key is not in order, or the registry cannot be written.
    """
    private = folder.parent / "ca.key"
    if not private.is_file():
        return ""
    public = {path.stem.removeprefix("client-"): path for path in folder.glob("clients/*.pub")}
    try:
        keys = {int(number): path.read_bytes() for number, path in public.items()}
    except (OSError, ValueError) as error:
        raise Refused(
            f"{folder / 'clients'} must have keys, client-N.pub, alone: {error}"
        ) from error
    data = signed_registry(keys, read_server_key(private))
    replace_file(folder / REGISTRY, data)
    return fingerprint(data)
