"""TLS of nodes by the keys that they have anyway: nothing is signed for a site, or brought back.

A server makes a trust anchor of each client's public key, a certificate of an authority of the
client's own. A node makes a certificate for each connection, signed with its private key. Whoever
connects is known by the key in it, of which TLS has seen a signature. Neither certificate ends, and
neither begins in our time, so that a server refuses no node whose clock is wrong.
"""

from datetime import UTC, datetime
from typing import Final

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from engram.link.credentials import NodeCredentials
from engram.link.keys import fingerprint, key_pem, read_node_key

__all__ = ["anchor", "fingerprint", "node_credentials"]

_BEGINS: Final = datetime(1970, 1, 1, tzinfo=UTC)
_ENDS: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # never, by RFC 5280, 4.1.2.5


def anchor(name: str, key: ec.EllipticCurvePublicKey) -> bytes:
    """Returns a client's trust anchor, PEM.

    A throw-away key signs it: that of a trust anchor itself is not asked for (RFC 5280, 6.1).
    """
    made = _begin(name, issuer=name, key=key)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    return _signed(made, ec.generate_private_key(ec.SECP256R1()))


def node_credentials(node: NodeCredentials, roots: bytes) -> grpc.ChannelCredentials:
    """Returns a node's credentials for a connection, with a new certificate of its key.

    ``roots`` are certificates of the authorities that may have signed the server's, PEM.
    """
    key = read_node_key(node.private_key)
    return grpc.ssl_channel_credentials(roots, key_pem(key), _leaf(node.name, key))


def _leaf(name: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    """Returns a node's certificate, PEM; its subject differs from its issuer, as none is a root."""
    public = key.public_key()
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(public)
    made = _begin(f"{name} node", issuer=name, key=public).add_extension(usage, critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    return _signed(made.add_extension(issuer, critical=False), key)


def _begin(subject: str, *, issuer: str, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(_name(subject))
        .issuer_name(_name(issuer))
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_BEGINS)
        .not_valid_after(_ENDS)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _signed(made: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey) -> bytes:
    return made.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
