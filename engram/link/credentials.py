"""Reads and checks the credentials on one machine of a deployed federation before it starts.

The folders are made by ``engram/link/server/identity.py``, which lists their contents.
"""

import re
import shlex
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509

from engram.link.addresses import parse_address
from engram.link.keys import (
    extension,
    is_authority,
    issued,
    read_certificate,
    read_certificates,
    read_node_key,
    read_public_key,
    read_server_key,
    same_key,
)
from engram.settings.errors import Refused
from engram.settings.settings_files import read_settings
from engram.wire.clock import now, outside

_FOLDERS = {"node.toml": "a federation's client-N", "federation.toml": "a federation's server"}


class NodeCredentials(NamedTuple):
    """Files and addresses of a client, for taking part. All paths are absolute."""

    federation: str  # the federation's name
    superlink: str  # HOST:PORT that the client connects to
    partition_id: int  # its number among the federation's clients
    num_partitions: int  # how many clients the federation has
    private_key: Path  # the file of its private key
    public_key: Path  # the file of the public half, by which the server knows it
    root_certificate: Path  # the file of the authorities' certificates
    former: str = ""  # HOST:PORT that the client connected to before the server has moved

    @property
    def name(self) -> str:
        """The client, such as ``client-3``."""
        return f"client-{self.partition_id}"

    @property
    def left(self) -> Path:
        """The file that notes that the site has left: a copy of the key that it gave up."""
        return self.public_key.with_name("left")

    @property
    def has_left(self) -> bool:
        """Whether the site has given up its key."""
        return self.left.is_file() and self.left.read_bytes() == self.public_key.read_bytes()


class FederationSettings(NamedTuple):
    """Contents of ``federation.toml``."""

    federation: str  # the federation's name
    superlink: str  # HOST:PORT that clients connect to
    clients: int  # the members' numbers lie below; none is given twice
    former: str = ""  # each HOST:PORT that clients connected to before, with spaces between


class ServerTls(NamedTuple):
    """A server's certificate, its key and its authority. All paths are absolute."""

    root_certificate: Path  # the file of the authorities' certificates
    certificate: Path  # the file of the server's certificate, and of those that vouch for it
    private_key: Path  # the file of its private key
    hosts: tuple[str, ...]  # the DNS names and IP addresses that the certificate is for
    expires: datetime  # when the certificate expires


class ServerCredentials(NamedTuple):
    """Files and addresses of the coordinator, for serving. All paths are absolute."""

    folder: Path  # the coordinator's folder
    settings: FederationSettings  # what ``federation.toml`` says
    tls: ServerTls  # the certificate
    # The files of the clients' public keys, in the order of the clients.
    public_keys: tuple[Path, ...]


def read_node(folder: Path, *, at: datetime | None = None) -> NodeCredentials:
    """Reads and checks a client's folder.

    Certificates are judged by the time ``at``, with a time zone; now, if None.

    Raises:
        Refused: One line that says what is wrong with it, and what helps.
    """
    _check_folder(folder)
    path = folder / "node.toml"
    kinds = {"federation": str, "superlink": str, "partition-id": int, "num-partitions": int}
    settings = _settings(path, kinds)
    own, among = settings["partition-id"], settings["num-partitions"]
    if not 0 <= own < among:
        raise Refused(
            f"partition-id in {path} must lie in 0..{among - 1}, below num-partitions, got {own}"
        )
    private, public = folder / "client.key", folder / "client.pub"
    if not same_key(read_node_key(private).public_key(), read_public_key(public)):
        raise Refused(
            f"{public} is not the public half of {private}: bring both from one client's folder"
        )
    root = folder / "ca.crt"
    _check_authorities(root, at or now(), "bring the federation's ca.crt of today")
    return NodeCredentials(
        settings["federation"],
        settings["superlink"],
        own,
        among,
        private.absolute(),
        public.absolute(),
        root.absolute(),
        settings["former"],
    )


def read_server(folder: Path, *, at: datetime | None = None) -> ServerCredentials:
    """Reads and checks the coordinator's folder.

    Certificates are judged by the time ``at``, with a time zone; now, if None.

    Raises:
        Refused: One line that says what is wrong with it, and what helps.
    """
    _check_folder(folder)
    settings = read_federation(folder / "federation.toml")
    public = sorted((folder / "clients").glob("client-*.pub"), key=_number)
    for file in public:
        read_public_key(file)
    tls = _read_tls(folder, at or now())
    host = parse_address(settings.superlink, "superlink").host
    if host not in tls.hosts:
        raise Refused(
            f"{folder / 'server.crt'} is for {', '.join(tls.hosts) or 'no host'}, but clients "
            f"connect to {host}: {renewal(folder)} --host {host}"
        )
    folder = folder.absolute()
    keys = tuple(path.absolute() for path in public)
    return ServerCredentials(folder, settings, tls, keys)


def read_federation(path: Path) -> FederationSettings:
    """Reads ``federation.toml``.

    Raises:
        Refused: If it is missing or malformed, or a value is impossible.
    """
    kinds = {"federation": str, "superlink": str, "clients": int}
    settings = _settings(path, kinds)
    if settings["clients"] < 0:
        raise Refused(f"clients in {path} must be at least 0, got {settings['clients']}")
    return FederationSettings(**{key: settings[key] for key in (*kinds, "former")})


def renewal(folder: Path) -> str:
    """Returns the command that renews the certificate in a server's folder."""
    there = (folder.parent / "ca.key").exists()
    return f"engram renew {shlex.quote(str(folder)) if there else 'SERVER_FOLDER'}"


def certificate_hosts(certificate: x509.Certificate) -> tuple[str, ...]:
    """Returns the DNS names, in lower case, and the IP addresses of a server certificate."""
    names = extension(certificate, x509.SubjectAlternativeName)
    if names is None:
        return ()
    found = [name.lower() for name in names.get_values_for_type(x509.DNSName)]
    return (*found, *(str(ip) for ip in names.get_values_for_type(x509.IPAddress)))


def key_host(serial: int) -> str:
    """Host name in certificates of a server's key of this serial number, and of later keys."""
    return f"key-{serial}.invalid"


def key_serial(hosts: Iterable[str]) -> int:
    """Returns the serial number of a server's key, by its certificate's hosts; 0 at first."""
    found = (re.fullmatch(r"key-(\d{1,9})\.invalid", host) for host in hosts)
    return max((int(match[1]) for match in found if match), default=0)


# --- Checks --------------------------------------------------------------------------------


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise Refused(f"{folder} is not there: engram init-federation makes such folders")


def _settings(path: Path, kinds: Mapping[str, type]) -> dict[str, Any]:
    if not path.exists():
        raise Refused(
            f"{path.parent} has no {path.name}: name a folder that engram init-federation made, "
            f"{_FOLDERS[path.name]}"
        )
    settings = {"former": "", **read_settings(path)}
    if settings.get("insecure"):
        raise Refused(
            f"{path.parent} is of an insecure federation, and none is served any more: make a new "
            "one with engram init-federation, and bring each site its folder"
        )
    for key, kind in {**kinds, "former": str}.items():
        if key not in settings:
            raise Refused(f"{path} lacks {key}")
        if type(settings[key]) is not kind:
            name = {str: "text in quotes", int: "a whole number"}[kind]
            raise Refused(f"{key} in {path} must be {name}, got {settings[key]!r}")
    parse_address(settings["superlink"], f"superlink in {path}")
    for address in settings["former"].split():
        parse_address(address, f"former in {path}")
    return settings


def _check_authorities(path: Path, at: datetime, remedy: str) -> list[x509.Certificate]:
    """Reads the certificates of a federation's authorities, of which one must be valid."""
    found = read_certificates(path)
    if not all(map(is_authority, found)):
        raise Refused(f"{path} is not an authority's certificate: bring the federation's ca.crt")
    if all(outside(each, at, remedy) for each in found):
        _check_time(path, max(found, key=lambda each: each.not_valid_after_utc), at, remedy)
    return found


def _read_tls(folder: Path, at: datetime) -> ServerTls:
    """Checks a server's certificate against its authorities, the clock, and its key."""
    root, own, private = (folder / name for name in ("ca.crt", "server.crt", "server.key"))
    authorities = _check_authorities(root, at, f"{renewal(folder)} --new-authority")
    certificate = read_certificate(own)
    key = read_server_key(private)
    _check_time(own, certificate, at, renewal(folder))
    if not any(issued(certificate, authority) for authority in authorities):
        raise Refused(f"{own} was not signed by the authority of {root}: {renewal(folder)}")
    if not same_key(certificate.public_key(), key.public_key()):
        raise Refused(f"{own} does not belong to the key in {private}: {renewal(folder)}")
    hosts, expires = certificate_hosts(certificate), certificate.not_valid_after_utc
    return ServerTls(root.absolute(), own.absolute(), private.absolute(), hosts, expires)


def _check_time(path: Path, certificate: x509.Certificate, at: datetime, remedy: str) -> None:
    fault = outside(certificate, at, remedy)
    if fault is not None:
        raise Refused(f"{path} {fault}")


def _number(path: Path) -> tuple[int, str]:
    digits = path.stem.removeprefix("client-")
    return (int(digits) if digits.isdecimal() else 0, path.name)
