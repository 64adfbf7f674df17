"""A site's registry, by which it knows the other parties' keys.

The first one comes with a round, by way of the server, signed by the federation's authority; from
then on it is the site's own, which no server changes: whoever made up a member later is found out.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from engram.guards.secure.registry import REGISTRY, fingerprint, is_signed, keys_in
from engram.link.keys import read_certificates, same_key
from engram.settings.errors import Refused, few_names
from engram.settings.files import read_file, replace_file

_LARGEST: Final = 2**26  # bytes
_log = logging.getLogger("flwr.engram")


def own_registry(folder: Path) -> bytes:
    """Returns the registry in a client's folder; empty if there is none.

    Raises:
        Refused: It cannot be read.
    """
    try:
        return read_file(folder / REGISTRY, most=_LARGEST)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise Refused(f"{folder / REGISTRY} cannot be read: {error.strerror}") from error


def registered(folder: Path, party: int) -> ec.EllipticCurvePublicKey:
    """Returns the key that a site knows a party by.

    Raises:
        Refused: It has none.
    """
    key, data = registered_keys(folder).get(party), own_registry(folder)
    if key is None:
        named = f"its registry, {fingerprint(data)}" if data else "a registry"
        raise Refused(f"this site has no key of client-{party} in {named}")
    return key


def registered_keys(folder: Path) -> Mapping[int, ec.EllipticCurvePublicKey]:
    """Returns the keys that a site knows, by client."""
    data = own_registry(folder)
    return keys_in(data, folder / REGISTRY) if data else {}


def learn(folder: Path, data: bytes) -> None:
    """Takes the registry that a server sends, if a site has none; it must fit the one that it has.

    ``data`` is empty if the server has none.

    Raises:
        Refused: The site has none, and the authority has not signed this one; or it has a member's
            key otherwise than the site's, or that of another member. Nothing is written then.
    """
    path, sent = folder / REGISTRY, Path("the server's registry")
    known = own_registry(folder)
    if not known:
        roots = folder / "ca.crt"
        if not (roots.is_file() and is_signed(data, read_certificates(roots))):
            got = "one that is not" if data else "none"
            raise Refused(
                f"a registry of keys signed by this federation's authority must come first, got "
                f"{got}: where the authority's key is, engram renew SERVER_FOLDER signs it"
            )
        number = len(keys_in(data, sent))
        try:
            replace_file(path, data)
        except OSError as error:
            words = f"{path.name} of this site cannot be written: {error.strerror}"
            raise Refused(words) from error
        told = "engram status FOLDER shows it, which must be alike at all sites"
        _log.info("this site's registry has keys of %d, %s: %s", number, fingerprint(data), told)
    elif data:
        ours, theirs = keys_in(known, path), keys_in(data, sent)
        new = [n for n, key in theirs.items() if n not in ours or not same_key(key, ours[n])]
        if new:
            raise Refused(
                f"the server's registry, {fingerprint(data)}, has other keys than this site's, "
                f"{fingerprint(known)}, of {few_names([f'client-{n}' for n in sorted(new)])}: the "
                f"site compares it with other sites', and takes it by removing its file {path.name}"
            )
