"""Makes keys and certificates, as the bytes of their files."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple

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

from engram.link.addresses import LOOPBACK, as_ip, check_host
from engram.settings.errors import Refused
from engram.wire.clock import now

DAYS: Final = 397
"""Days that a server's certificate lasts: a year, with a month to renew it in.

A stolen key serves no longer than its certificate, and renewing is one command.
"""

# An authority is replaced without visiting clients, but only those that connect while the former
# one is still valid learn of it: so it is seldom.
_AUTHORITY_DAYS = 3650
# So that a client whose clock is a little slow accepts a certificate that was just made.
_LEEWAY = timedelta(hours=1)


class Authority(NamedTuple):
    """A federation's own certificate authority."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def sign(
        self,
        key: ec.EllipticCurvePrivateKey,
        hosts: Sequence[str],
        days: int,
        at: datetime | None = None,
    ) -> x509.Certificate:
        """Returns a certificate for a server's names and addresses.

        Args:
            key: The server's.
            hosts: DNS names and IP addresses.
            days: Days for which it is valid.
            at: When it begins; now, if None.
        """
        names = [_general_name(host) for host in hosts]
        begins = at or now()
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        return (
            _begin(_subject("server"), key.public_key(), begins, begins + timedelta(days=days))
            .issuer_name(self.certificate.subject)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(usage, critical=False)
            .add_extension(self._issuer, critical=False)
            .sign(self.key, hashes.SHA256())
        )

    def vouch(self, successor: "Authority") -> x509.Certificate:
        """Returns the next authority's certificate, signed by this one ("new with old").

        Who trusts this authority can thereby trust the next one, as RFC 4210, section 4.4, has it.
        It ends with the earlier of the two.
        """
        own, other = self.certificate, successor.certificate
        begins = other.not_valid_before_utc + _LEEWAY
        ends = min(own.not_valid_after_utc, other.not_valid_after_utc)
        made = _begin(other.subject, successor.key.public_key(), begins, ends)
        made = _authorized(made.issuer_name(own.subject)).add_extension(self._issuer, False)
        return made.sign(self.key, hashes.SHA256())

    @property
    def _issuer(self) -> x509.AuthorityKeyIdentifier:
        return x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())


def new_authority(federation: str, at: datetime | None = None) -> Authority:
    """Makes an authority, named after a federation, that can sign server certificates only.

    Its certificate begins at ``at``; now, if None.
    """
    key, begins = new_key(), at or now()
    name = _subject(f"{federation} authority")
    made = _begin(name, key.public_key(), begins, begins + timedelta(days=_AUTHORITY_DAYS))
    return Authority(_authorized(made.issuer_name(name)).sign(key, hashes.SHA256()), key)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Draws a certificate's key, on the curve that every TLS library supports."""
    return ec.generate_private_key(ec.SECP256R1())


def certificate_pem(*certificates: x509.Certificate) -> bytes:
    """Serializes certificates, one after the other."""
    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)


def node_key_files(owner: str) -> tuple[bytes, bytes]:
    """Draws a client's key; returns its private and its public file.

    Both are in OpenSSH format. ``owner`` becomes the comment of the public file.
    """
    key = new_key()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private, public + f" {owner}\n".encode()


def check_days(days: int) -> None:
    """Checks for how many days a certificate is to be valid.

    Raises:
        Refused: They do not lie in 1..3650.
    """
    if not 1 <= days <= 3650:
        raise Refused(f"days must be in 1..3650, got {days}")


def all_hosts(hosts: Sequence[str]) -> list[str]:
    """Returns a certificate's hosts without duplicates: those given, and the loopback ones.

    Raises:
        Refused: One of them is no host that clients can connect to.
    """
    checked = [check_host(host, "host") for host in hosts]
    for host in checked:
        ip = as_ip(host)
        if ip is not None and ip.is_unspecified:
            raise Refused(f"host must be one that clients can connect to, got {host}")
    return list(dict.fromkeys([*checked, *LOOPBACK]))


def _begin(
    name: x509.Name, public: ec.EllipticCurvePublicKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins - _LEEWAY)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _authorized(made: x509.CertificateBuilder) -> x509.CertificateBuilder:
    return made.add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    ).add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)


def _subject(name: str) -> x509.Name:
    names = {NameOID.ORGANIZATION_NAME: "Engram", NameOID.COMMON_NAME: name}
    return x509.Name([x509.NameAttribute(*each) for each in names.items()])


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
