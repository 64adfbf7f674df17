"""A federation's certificate: whom it names, and what it stands."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from engram.link.keys import read_certificate
from tests.link.server.federations import FED, make
from tests.samples import entry

# --- The certificate -------------------------------------------------------------------------


def test_names_and_ip_addresses_are_told_apart():
    make(hosts=["B.example.org", "10.1.2.3", "2001:db8::0:1", "10.1.2.3"], superlink="10.0.0.1:1")
    certificate = read_certificate(FED / "server/server.crt")
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["b.example.org", "localhost"]
    ips = [str(ip) for ip in names.get_values_for_type(x509.IPAddress)]
    assert ips == ["10.0.0.1", "10.1.2.3", "2001:db8::1", "127.0.0.1", "::1"]


def test_what_the_certificate_is_for():
    make()
    certificate = read_certificate(FED / "server/server.crt")
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.SERVER_AUTH]
    left = certificate.not_valid_after_utc - datetime.now(UTC)
    assert timedelta(days=30) - timedelta(minutes=1) < left <= timedelta(days=30)


def shake_hands(host, root):
    """Runs a TLS handshake in memory, as strict as Python's own clients will be from 3.13 on."""
    at_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    at_server.load_cert_chain(FED / "server/server.crt", FED / "server/server.key")
    at_client = ssl.create_default_context(cafile=root)
    at_client.verify_flags |= ssl.VERIFY_X509_STRICT
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = at_client.wrap_bio(down, up, server_hostname=host)
    server = at_server.wrap_bio(up, down, server_side=True)
    waiting = [client, server]
    for _ in range(10):
        for side in list(waiting):
            try:
                side.do_handshake()
                waiting.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not waiting


def test_tls_by_every_name():
    make()
    for host in ["a.example.org", "localhost", "127.0.0.1", "::1"]:
        with entry(host):
            shake_hands(host, FED / "client-0/ca.crt")


def test_no_tls_by_another_name_or_with_another_authority():
    make()
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands("c.example.org", FED / "client-0/ca.crt")
    make("other/fed")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands("localhost", Path("other/fed/client-0/ca.crt"))
