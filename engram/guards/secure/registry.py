"""The registry: the public keys of a federation's members, as its authority has signed them.

By it a site tells the others from the server, in secure aggregation. The authority's key is not on
the server's machine, so that the server can carry a registry to sites, and make up no member.
"""

import base64
import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from engram.link.keys import public_key_of
from engram.settings.errors import Refused

REGISTRY: Final = "registry"
"""The file's name, in the server's folder and in a client's."""

_LINE: Final = re.compile(r"client-(\d{1,9}) (\S+ \S+)")
_SIGNATURE: Final = "signature "
_ALGORITHM: Final = ec.ECDSA(hashes.SHA256())


def signed_registry(keys: Mapping[int, bytes], authority: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns the registry of clients' public keys, in OpenSSH format, signed by their authority.

    ``keys`` are contents of the files ``client-N.pub``, by N.
    """
    lines = (f"client-{n} {b' '.join(keys[n].split()[:2]).decode()}\n" for n in sorted(keys))
    body = "".join(lines)
    signature = authority.sign(_words(body), _ALGORITHM)
    return f"{body}{_SIGNATURE}{base64.b64encode(signature).decode()}\n".encode()


def keys_in(data: bytes, path: Path) -> dict[int, ec.EllipticCurvePublicKey]:
    """Returns the keys in a registry, by client; its signature may be missing.

    Raises:
        Refused: It is no registry; the error names ``path``, its file.
    """
    lines = _body(data).splitlines()
    found = [_LINE.fullmatch(line) for line in lines]
    keys = {int(each[1]): public_key_of(each[2].encode(), path) for each in found if each}
    if not keys or len(keys) < len(lines):
        raise Refused(f"{path} must have a line for each client: client-N, and its public key")
    return keys


def is_signed(data: bytes, authorities: Iterable[x509.Certificate]) -> bool:
    """Whether one of the authorities has signed a registry."""
    last = data.decode(errors="replace").rpartition(f"\n{_SIGNATURE}")[2]
    for authority in authorities:
        key = authority.public_key()
        with suppress(InvalidSignature, ValueError):
            if isinstance(key, ec.EllipticCurvePublicKey):
                key.verify(base64.b64decode(last), _words(_body(data)), _ALGORITHM)
                return True
    return False


def fingerprint(data: bytes) -> str:
    """Returns the digest of a registry's keys, as `ssh-keygen -l` writes one; any signature's."""
    digest = hashlib.sha256(_body(data).encode()).digest()
    return f"SHA256:{base64.b64encode(digest).decode().rstrip('=')}"


def _body(data: bytes) -> str:
    text = data.decode(errors="replace")
    body, separator, _ = text.rpartition(f"\n{_SIGNATURE}")
    return f"{body}\n" if separator else text


def _words(body: str) -> bytes:
    return b"engram registry\n" + body.encode()
