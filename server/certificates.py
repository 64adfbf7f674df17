"""Makes keys and certificates, as the bytes of their files."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from federation.addresses import as_ip

# An authority cannot be replaced without visiting every client: it outlives all that it signs.
_AUTHORITY_DAYS = 2 * 3650
# So that a client whose clock is a little slow accepts a certificate that was just made.
_LEEWAY = timedelta(hours=1)


class Authority(NamedTuple):
    """A federation's own certificate authority."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def sign(
        self, key: ec.EllipticCurvePrivateKey, hosts: Sequence[str], days: int
    ) -> x509.Certificate:
        """Returns a certificate for a server's names and addresses, valid for ``days`` days."""
        names = [_general_name(host) for host in hosts]
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        return (
            _begin("server", key, days)
            .issuer_name(self.certificate.subject)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(usage, critical=False)
            .add_extension(issuer, critical=False)
            .sign(self.key, hashes.SHA256())
        )


def new_authority(federation: str) -> Authority:
    """Makes an authority, named after a federation, that can sign server certificates only."""
    key = new_key()
    name = f"{federation} authority"
    certificate = (
        _begin(name, key, _AUTHORITY_DAYS)
        .issuer_name(_subject(name))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Draws a certificate's key, on the curve that every TLS library supports."""
    return ec.generate_private_key(ec.SECP256R1())


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Serializes a certificate's private key."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Serializes a certificate."""
    return certificate.public_bytes(Encoding.PEM)


def node_key_files(owner: str) -> tuple[bytes, bytes]:
    """Draws a client's key; returns its private and its public file.

    Both are in OpenSSH format, the only one that ``flower-supernode`` and ``flwr supernode
    register`` read. ``owner`` becomes the comment of the public file.
    """
    key = ec.generate_private_key(ec.SECP256R1())  # the fastest: every call is signed
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private, public + f" {owner}\n".encode()


def _begin(name: str, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now, public = datetime.now(UTC), key.public_key()
    return (
        x509.CertificateBuilder()
        .subject_name(_subject(name))
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _LEEWAY)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _subject(name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, "Engram"),
            x509.NameAttribute(NameOID.COMMON_NAME, name),
        ]
    )


def _general_name(host: str) -> x509.GeneralName:
    ip = as_ip(host)
    return x509.DNSName(host) if ip is None else x509.IPAddress(ip)


def _usage(
    *, digital_signature: bool = False, key_cert_sign: bool = False, crl_sign: bool = False
) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=crl_sign,
        encipher_only=False,
        decipher_only=False,
    )
