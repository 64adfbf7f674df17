"""Identity: who is a member, and who is not (any more)."""

from pathlib import Path

import pytest
from cryptography import x509

from tests.link.wire.identity import (
    Authority,
    Members,
    add_client,
    fingerprint,
    new_federation,
    request,
)


@pytest.fixture
def fed(tmp_path: Path) -> Path:
    """Returns a federation of two."""
    new_federation(tmp_path / "fed", ["127.0.0.1", "fl.example.org"], 2)
    return tmp_path / "fed"


def test_members_are_known_by_their_keys(fed: Path) -> None:
    found = Members(fed / "server").names()
    own = {
        fingerprint((fed / name / "node.crt").read_bytes()): name
        for name in ("client-0", "client-1")
    }
    assert found == own
    assert (fed / "client-0" / "node.key").stat().st_mode & 0o077 == 0


def test_a_site_makes_its_key_itself(fed: Path, tmp_path: Path) -> None:
    asked = request(tmp_path / "north", "client-2")
    certificate = Authority.read(fed).sign_node(asked, "client-2")
    Members(fed / "server").add("client-2", certificate)
    assert Members(fed / "server").names()[fingerprint(certificate)] == "client-2"


def test_a_request_must_be_signed_with_its_key(fed: Path, tmp_path: Path) -> None:
    one, other = (x509.load_pem_x509_csr(request(tmp_path / n, n)) for n in ("a", "b"))
    from cryptography.hazmat.primitives.serialization import Encoding

    der = one.public_bytes(Encoding.DER).replace(one.signature[-16:], other.signature[-16:])
    forged = x509.load_der_x509_csr(der).public_bytes(Encoding.PEM)
    with pytest.raises(ValueError, match="signed with its own key"):
        Authority.read(fed).sign_node(forged, "client-2")


def test_who_was_removed_needs_a_new_key(fed: Path) -> None:
    members, certificate = Members(fed / "server"), (fed / "client-1" / "node.crt").read_bytes()
    members.remove("client-1")
    assert set(members.names().values()) == {"client-0"}
    with pytest.raises(ValueError, match="new key"):
        members.add("client-1", certificate)
    add_client(fed, "client-1")
    assert set(members.names().values()) == {"client-0", "client-1"}


@pytest.mark.parametrize("name", ["", "../x", "Client", "a" * 65, "a/b", "a.b"])
def test_impossible_names_are_refused(fed: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="of a node like"):
        Authority.read(fed).sign_node(request(tmp_path / "x", "x"), name)


def test_a_member_has_one_key(fed: Path, tmp_path: Path) -> None:
    other = Authority.read(fed).sign_node(request(tmp_path / "x", "client-0"), "client-0")
    with pytest.raises(ValueError, match="another key"):
        Members(fed / "server").add("client-0", other)
    with pytest.raises(ValueError, match="must be of client-7"):
        Members(fed / "server").add("client-7", other)


def test_a_file_that_is_no_certificate_makes_nobody_a_member(fed: Path) -> None:
    (fed / "server" / "members" / "client-2.crt").write_text("?")
    assert set(Members(fed / "server").names().values()) == {"client-0", "client-1"}
