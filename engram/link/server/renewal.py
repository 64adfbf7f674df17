"""Renews a federation's certificate, address, authority and key.

A server that runs takes the new files by itself, and tells its nodes (``link.announcement``).
"""

import contextlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509

from engram.link.addresses import parse_address
from engram.link.announcement import LEAST, moved_node
from engram.link.credentials import (
    FederationSettings,
    ServerTls,
    certificate_hosts,
    key_host,
    key_serial,
    read_federation,
    read_node,
)
from engram.link.keys import (
    issued,
    key_pem,
    read_certificate,
    read_certificates,
    read_server_key,
    same_key,
)
from engram.link.server.certificates import (
    DAYS,
    Authority,
    all_hosts,
    certificate_pem,
    check_days,
    new_authority,
    new_key,
)
from engram.runs.folders import replace_file
from engram.settings.errors import Refused
from engram.settings.settings_files import to_toml
from engram.wire.clock import now

_MOST_FORMER: Final = 8  # addresses


def renew_server(
    folder: Path,
    hosts: Sequence[str] = (),
    days: int = DAYS,
    *,
    superlink: str | None = None,
    authority: bool = False,
    another_key: bool = False,
    at: datetime | None = None,
) -> ServerTls:
    """Makes a new certificate for the server's key; clients need nothing new.

    An interrupted call is completed by the next one; one after that ends the former authority.

    Args:
        folder: The server's folder, with the authority's key beside it.
        hosts: Further DNS names and IP addresses, besides those of the present certificate and
            those that ``init_federation`` always adds.
        days: Days for which it is valid, in 1..3650.
        superlink: HOST:PORT that clients connect to from now on; None for that of before.
        authority: Whether to begin with a new authority, for which the present one vouches.
        another_key: Whether to draw a key for the server; nodes that hear of it refuse others.
        at: When the certificates begin, with a time zone; now, if None.

    Returns:
        The certificate; it replaces the one in the server's folder.

    Raises:
        Refused: If the authority's key is missing or damaged or would expire earlier, or an
            argument is out of range.
    """
    check_days(days)
    settings, at = _federation(folder), at or now()
    moved = _moved(settings, superlink)
    files = ("ca.crt", "server.crt", "server.key", LEAST)
    root, own, private, least = (folder / name for name in files)
    called = [parse_address(each.superlink, "superlink").host for each in (moved, settings)]
    kept = [host for path in (own, least) for host in _present_hosts(path)]
    kept += [key_host(key_serial(kept) + 1)] if another_key else []
    names = all_hosts([*called, *hosts, *kept])
    signing, bundle = _authority(folder.parent, own)
    if authority:
        signing, bundle = _succeed(folder.parent, settings.federation, signing, bundle, at)
    ends = signing.certificate.not_valid_after_utc
    if at + timedelta(days=days) > ends:
        last = f"{folder.parent / 'ca.crt'} does, on {ends:%Y-%m-%d}"
        raise Refused(
            f"days must end before {last}, got {days}: give fewer, or begin a new authority with "
            "--new-authority"
        )
    # A key, lost or not, can be replaced: clients trust the authority.
    if another_key or not private.exists():
        replace_file(private, key_pem(new_key()))
    certificate = signing.sign(read_server_key(private), names, days, at)
    # The authorities' certificates as well, so that a damaged server folder is complete again.
    for path in (folder.parent / "ca.crt", root, *folder.parent.glob("client-*/ca.crt")):
        replace_file(path, certificate_pem(*bundle))
    replace_file(own, certificate_pem(certificate, *filter(_vouches, bundle)))
    if another_key:
        replace_file(least, certificate_pem(certificate))
    if moved != settings:
        replace_file(folder / "federation.toml", to_toml(moved._asdict()))
    return ServerTls(root, own, private, tuple(names), certificate.not_valid_after_utc)


def move_node(folder: Path, superlink: str) -> None:
    """Has a client connect to another address from now on.

    Raises:
        Refused: It is no client's folder, cannot be written, or the address is malformed.
    """
    node = read_node(folder)
    address = str(parse_address(superlink, "address"))
    replace_file(folder / "node.toml", moved_node(folder, address, node.superlink))


def _moved(settings: FederationSettings, superlink: str | None) -> FederationSettings:
    """Returns a federation's settings with another address; the former ones stay known."""
    if superlink is None:
        return settings
    address = str(parse_address(superlink, "address"))
    known = [*settings.former.split(), settings.superlink]
    former = [each for each in dict.fromkeys(known) if each != address][-_MOST_FORMER:]
    return settings._replace(superlink=address, former=" ".join(former))


def _succeed(
    made: Path, federation: str, old: Authority, bundle: list[x509.Certificate], at: datetime
) -> tuple[Authority, list[x509.Certificate]]:
    """Writes a new authority, for which the present one vouches, in the place of that.

    Certificates stand in the order in which gRPC tries them: a new authority's own before those of
    the same key that end earlier.
    """
    new = new_authority(federation, at)
    roots = [each for each in bundle if not _vouches(each)]
    vouching = [old.vouch(new), *filter(_vouches, bundle)]
    found = [new.certificate, *roots, *vouching]
    # The certificate first: until the key follows, the former key still finds its own.
    replace_file(made / "ca.crt", certificate_pem(*found))
    replace_file(made / "ca.key", key_pem(new.key))
    return new, found


def _authority(made: Path, server: Path) -> tuple[Authority, list[x509.Certificate]]:
    """Reads the authority that signs, and the certificates that clients are to trust.

    Former ones are among these until the authority has signed the server's, ``server``.
    """
    path, private = made / "ca.crt", made / "ca.key"
    if not private.exists():
        raise Refused(
            f"{private} is missing: renew where the federation was made, and bring server.crt and "
            "ca.crt of its server here"
        )
    bundle, key = read_certificates(path), read_server_key(private)
    own = [each for each in bundle if same_key(each.public_key(), key.public_key())]
    roots = [each for each in own if not _vouches(each)]
    if not roots:
        raise Refused(f"{path} does not belong to the key in {private}")
    with contextlib.suppress(Refused):  # the server's is lost or damaged, and about to be replaced
        if issued(read_certificate(server), roots[0]):
            return Authority(roots[0], key), [roots[0]]
    unused = bundle[: bundle.index(roots[0])]  # of a call that did not come to writing its key
    lost = [each.public_key() for each in unused]
    known = [each for each in bundle if not any(same_key(each.public_key(), k) for k in lost)]
    return Authority(roots[0], key), known


def _vouches(certificate: x509.Certificate) -> bool:
    """Whether another authority has signed an authority's certificate."""
    return not issued(certificate, certificate)


def _present_hosts(path: Path) -> Sequence[str]:
    try:
        return certificate_hosts(read_certificate(path))
    except Refused:  # lost or damaged, and about to be replaced
        return ()


def _federation(folder: Path) -> FederationSettings:
    path = folder / "federation.toml"
    if not path.is_file():
        raise Refused(f"{folder} is not a server's folder: it has no federation.toml")
    return read_federation(path)
