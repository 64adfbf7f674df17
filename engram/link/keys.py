"""Reads keys and certificates from disk, and refuses unsafe ones."""

import contextlib
import hashlib
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from engram.settings.errors import Refused
from engram.settings.files import read_file

_AGAIN = "take it again from the folder that engram init-federation made"
_LARGEST = 2**20  # bytes
_CURVES = (ec.SECP256R1, ec.SECP384R1)  # of gRPC's TLS
_Extension = TypeVar("_Extension", bound=x509.ExtensionType)

# What cryptography raises for keys and certificates that it cannot read.
UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)


def read_node_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Reads the private key with which a client authenticates itself, in OpenSSH format.

    Raises:
        Refused: If it is missing, readable by others, or not such a key.
    """
    data = _read_secret(path)
    with _readable(path, "OpenSSH private key without a passphrase"):
        key = load_ssh_private_key(data, password=None)
    if not (isinstance(key, ec.EllipticCurvePrivateKey) and isinstance(key.curve, _CURVES)):
        raise Refused(f"{path} must hold a key on the curve P-256 or P-384: {_AGAIN}")
    return key


def read_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """Reads a client's public key, one line in OpenSSH format.

    Raises:
        Refused: If it is missing or not such a key.
    """
    return public_key_of(_read(path), path)


def public_key_of(data: bytes, path: Path) -> ec.EllipticCurvePublicKey:
    """Returns a client's public key from the contents of a file; raises as ``read_public_key``."""
    with _readable(path, "OpenSSH public key"):
        key = load_ssh_public_key(data)
    if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, _CURVES)):
        raise Refused(f"{path} must hold a key on the curve P-256 or P-384: {_AGAIN}")
    return key


def read_server_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Reads the private key of the server's or the authority's certificate, in PEM format.

    Raises:
        Refused: If it is missing, readable by others, or not such a key.
    """
    data = _read_secret(path)
    with _readable(path, "PEM private key without a passphrase"):
        key = load_pem_private_key(data, password=None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Refused(f"{path} must hold an elliptic-curve key: {_AGAIN}")
    return key


def read_certificate(path: Path) -> x509.Certificate:
    """Reads a PEM certificate, the first of a file.

    Raises:
        Refused: If it is missing or not a certificate.
    """
    return read_certificates(path)[0]


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Reads PEM certificates, at least one.

    Raises:
        Refused: If the file is missing, or does not hold certificates.
    """
    data = _read(path)
    with _readable(path, "PEM certificate"):
        return x509.load_pem_x509_certificates(data)


def is_authority(certificate: x509.Certificate) -> bool:
    """Whether a certificate is an authority's, and not a server's."""
    basic = extension(certificate, x509.BasicConstraints)
    return basic is not None and basic.ca


def extension(certificate: x509.Certificate, kind: type[_Extension]) -> _Extension | None:
    """Returns an extension of a certificate; None without it, or where none can be read."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, *UNREADABLE):
        return None


def issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    """Whether an authority has signed a certificate; whether either is valid now is not asked."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, *UNREADABLE):
        return False
    return True


def same_key(one: PublicKeyTypes, other: PublicKeyTypes) -> bool:
    """Whether two public keys are equal."""
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    return one.public_bytes(*form) == other.public_bytes(*form)


def fingerprint(shown: PublicKeyTypes | bytes) -> str:
    """Returns the SHA-256 of a public key, or of that in a certificate, PEM, in hexadecimal."""
    key = x509.load_pem_x509_certificate(shown).public_key() if isinstance(shown, bytes) else shown
    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    return hashlib.sha256(key.public_bytes(*form)).hexdigest()


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Serializes a private key, as TLS libraries read it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def authority_fingerprint(certificate: x509.Certificate) -> str:
    """Returns a certificate's fingerprint, as ``openssl x509 -fingerprint -sha256`` has it."""
    return f"SHA256 {certificate.fingerprint(hashes.SHA256()).hex(':').upper()}"


@contextlib.contextmanager
def _readable(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except UNREADABLE as error:
        raise Refused(f"{path} holds no {what}: {_AGAIN}") from error


def _read_secret(path: Path) -> bytes:
    data = _read(path)
    mode = path.stat().st_mode & 0o777
    if mode & 0o077:
        raise Refused(
            f"{path} may be read by others, its mode is {mode:04o}: chmod 600 "
            f"{shlex.quote(str(path))}"
        )
    return data


def _read(path: Path) -> bytes:
    try:
        return read_file(path, most=_LARGEST)
    except FileNotFoundError as error:
        raise Refused(f"{path} is missing: {_AGAIN}") from error
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
