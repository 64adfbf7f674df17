"""Announcements of a server to its nodes: another address, a new authority, a new key.

They come over TLS, and so from who has a certificate of an authority that the node trusts. An
address alone is followed by nodes that are at a former one, and must prove itself by its
certificate like the first. A new authority is trusted if one that is trusted already vouches for it
("new with old", RFC 4210, section 4.4), and in place of that one; the least serial number of the
server's key is proven by a certificate. The server can make up neither, as the authority's key is
not on its machine.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from engram.link.addresses import parse_address
from engram.link.credentials import FederationSettings, certificate_hosts, key_serial
from engram.link.keys import UNREADABLE, is_authority, issued, same_key
from engram.settings.errors import Refused
from engram.settings.settings_files import read_settings, to_toml

Told = Mapping[str, Any]
"""Announcements of a server, from JSON that nobody has checked yet."""

LEAST: Final = "least.crt"
"""The file of a server's certificate whose key nodes accept, and none before it."""

_MOVED: Final = "moved"  # HOST:PORT, and the former ones
_AUTHORITIES: Final = "authorities"  # their certificates, PEM
_LEAST_KEY: Final = "least-key"  # the contents of LEAST
_MOST: Final = 16  # certificates


def announcement(settings: FederationSettings, authorities: str, least: str = "") -> dict[str, str]:
    """Announces a move, an authority, or a new key; empty where there is none.

    ``authorities`` are their certificates, PEM; ``least`` the contents of ``LEAST``.
    """
    moved = f"{settings.superlink} {settings.former}" if settings.former else ""
    several = authorities.count("BEGIN CERTIFICATE") > 1
    told = {_MOVED: moved, _AUTHORITIES: authorities if several else "", _LEAST_KEY: least}
    return {name: text for name, text in told.items() if text}


def new_address(told: Told, present: str) -> str | None:
    """New address of a server at ``present``; None if it has not moved."""
    addresses = str(told.get(_MOVED, "")).split()
    if present not in addresses[1:] or addresses[0] == present:
        return None
    try:
        return str(parse_address(addresses[0], "address"))
    except Refused:
        return None


def new_authorities(told: Told, trusted: bytes) -> bytes | None:
    """Returns the certificates to trust once an authority has a successor; None if none has.

    Returns:
        Certificates, PEM: those trusted or vouched for that have vouched for no other.
    """
    said = _text(told, _AUTHORITIES)
    try:
        known = x509.load_pem_x509_certificates(trusted)
        before = list(known)
        read = x509.load_pem_x509_certificates(said) if said else []
        offered = [each for each in read[:_MOST] if is_authority(each)]
        while fresh := [
            each for each in offered if each not in known and _vouched(each, offered, known)
        ]:
            known += fresh
    except UNREADABLE:
        return None
    roots = [each for each in known if issued(each, each)]
    keys, others = [root.public_key() for root in roots], [e for e in known if e not in roots]
    links = [each for each in others if any(same_key(each.public_key(), key) for key in keys)]
    found = [root for root in roots if not any(issued(each, root) for each in links)]
    if not found or found == before:
        return None
    return b"".join(each.public_bytes(Encoding.PEM) for each in found)


def least_key(told: Told) -> bytes:
    """Returns the certificate for ``proven_serial``, if the server says any; else empty."""
    return _text(told, _LEAST_KEY)


def proven_serial(said: bytes, trusted: bytes) -> int:
    """Returns the serial number of a server's key that a trusted authority has signed; else 0."""
    try:
        certificate = x509.load_pem_x509_certificate(said)
        roots = x509.load_pem_x509_certificates(trusted)
    except UNREADABLE:
        return 0
    proven = not is_authority(certificate) and any(issued(certificate, root) for root in roots)
    return key_serial(certificate_hosts(certificate)) if proven else 0


def _text(told: Told, name: str) -> bytes:
    text = told.get(name)
    return text.encode(errors="replace") if isinstance(text, str) else b""


def _vouched(
    certificate: x509.Certificate, offered: list[x509.Certificate], known: list[x509.Certificate]
) -> bool:
    """Whether a certificate is signed by a known authority, or by itself with a key that is."""
    signed = [each for each in offered if any(issued(each, authority) for authority in known)]
    return certificate in signed or (
        issued(certificate, certificate)
        and any(same_key(each.public_key(), certificate.public_key()) for each in signed)
    )


def moved_node(folder: Path, superlink: str, former: str) -> bytes:
    """Updated ``node.toml`` of a client after a move of its server.

    The ``former`` address is tried as well, as long as nothing answers at the new one.
    """
    settings = read_settings(folder / "node.toml") | {"superlink": superlink, "former": former}
    return to_toml(settings)
