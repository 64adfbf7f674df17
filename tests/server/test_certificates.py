"""A federation's certificate: whom it names, what it stands, and how it is renewed."""

import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from cryptography.x509.verification import PolicyBuilder, Store

from federation.credentials import read_server
from federation.errors import Refused
from federation.keys import read_certificate, same_key
from server.identity import renew_server
from tests.server.federations import FED, make

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


@pytest.mark.parametrize("host", ["a.example.org", "b.example.org", "localhost"])
def test_the_certificate_stands_a_strict_check(host):
    make()
    authority = read_certificate(FED / "ca.crt")
    verifier = PolicyBuilder().store(Store([authority])).build_server_verifier(x509.DNSName(host))
    assert verifier.verify(read_certificate(FED / "server/server.crt"), [])[1:] == [authority]


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


@pytest.mark.parametrize("host", ["a.example.org", "localhost", "127.0.0.1", "::1"])
def test_tls_by_every_name(host):
    make()
    shake_hands(host, FED / "client-0/ca.crt")


def test_no_tls_by_another_name_or_with_another_authority():
    make()
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake_hands("c.example.org", FED / "client-0/ca.crt")
    make("other/fed")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands("localhost", Path("other/fed/client-0/ca.crt"))


# --- A new certificate -----------------------------------------------------------------------


def test_renew():
    make()
    before = read_certificate(FED / "server/server.crt")
    key = (FED / "server/server.key").read_bytes()
    tls = renew_server(FED, ["c.example.org", "10.9.9.9"], 90)
    assert (FED / "server/server.key").read_bytes() == key
    after = read_certificate(FED / "server/server.crt")
    assert after.serial_number != before.serial_number
    assert same_key(before.public_key(), after.public_key())
    server = read_server(FED / "server", at=datetime.now(UTC) + timedelta(days=89))
    assert (
        set(server.tls.hosts)
        == set(tls.hosts)
        == {
            *("a.example.org", "b.example.org", "c.example.org", "10.9.9.9"),
            *("localhost", "127.0.0.1", "::1"),
        }
    )
    assert server.tls.expires == tls.expires
    shake_hands("c.example.org", FED / "client-0/ca.crt")


def test_renew_makes_a_damaged_folder_whole():
    make()
    make("other/fed")
    for name in ("ca.crt", "server.crt"):
        shutil.copy(Path("other/fed/server") / name, FED / "server")
    (FED / "server/server.key").unlink()
    renew_server(FED, [], 30)
    read_server(FED / "server")
    (FED / "server/server.crt").write_text("rubbish")
    renew_server(FED, [], 30)
    assert "a.example.org" in read_server(FED / "server").tls.hosts


def test_renew_needs_the_authority():
    make()
    shutil.copytree(FED, "copy")
    (Path("copy") / "ca.key").unlink()
    with pytest.raises(Refused, match=r"copy/ca\.key is missing: renew where"):
        renew_server(Path("copy"), [], 30)
    make("other/fed")
    shutil.copy("other/fed/ca.key", FED)
    with pytest.raises(Refused, match=r"fed/ca\.crt does not belong to the key in fed/ca\.key"):
        renew_server(FED, [], 30)
    (FED / "ca.key").chmod(0o640)
    with pytest.raises(Refused, match=r"chmod 600 fed/ca\.key"):
        renew_server(FED, [], 30)


def test_renew_no_longer_than_the_authority(monkeypatch):
    monkeypatch.setattr("server.certificates._AUTHORITY_DAYS", 100)
    make(days=10)
    with pytest.raises(Refused, match=r"days must end before fed/ca\.crt does, on .*, got 101"):
        renew_server(FED, [], 101)
    renew_server(FED, [], 99)


@pytest.mark.parametrize(
    ("hosts", "days", "says"),
    [(["?"], 30, "host must name"), ([], 0, "days must be in"), ([], 3651, "days must be in")],
)
def test_renew_refuses_and_changes_nothing(hosts, days, says):
    make()
    before = (FED / "server/server.crt").read_bytes()
    with pytest.raises(Refused, match=says):
        renew_server(FED, hosts, days)
    assert (FED / "server/server.crt").read_bytes() == before


def test_an_insecure_federation_has_nothing_to_renew():
    make(insecure=True)
    with pytest.raises(Refused, match="it has no certificate to renew"):
        renew_server(FED, [], 30)
