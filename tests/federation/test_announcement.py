"""Announcements of a SuperLink: which moves a node follows, and which authorities it trusts."""

import pytest
from cryptography import x509

from federation.announcement import announcement, new_address, new_authorities
from federation.credentials import FederationSettings
from server.certificates import Authority, certificate_pem, new_authority, new_key

OLD, NEW, NEWEST, STRANGER = (new_authority("ward") for _ in range(4))
VOUCHED = OLD.vouch(NEW)
TRUSTED = certificate_pem(OLD.certificate)


def told(*certificates, superlink="new:1", former=""):
    settings = FederationSettings("ward", superlink, 2, False, former)
    return dict(announcement(settings, certificate_pem(*certificates)))


def names(pem):
    return x509.load_pem_x509_certificates(pem)


# --- Addresses -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("former", "present", "there"),
    [
        ("old:1", "old:1", "new:1"),
        ("older:1 old:1", "older:1", "new:1"),
        ("old:1", "elsewhere:1", None),  # a site's own way, as through a forwarded port
        ("old:1", "new:1", None),
        ("", "old:1", None),
    ],
)
def test_a_move_is_followed_from_a_former_address(former, present, there):
    assert new_address(told(OLD.certificate, former=former), present) == there


@pytest.mark.parametrize("said", ["", "x old:1", "new:0 old:1", "\n:1 old:1", "old:1 old:1", b"a"])
def test_an_address_that_is_none_is_not_followed(said):
    assert new_address({"engram-moved": said}, "old:1") is None


# --- Authorities -----------------------------------------------------------------------------


def test_one_authority_and_no_move_are_not_announced():
    assert told(OLD.certificate) == {}


def test_a_successor_is_trusted_where_the_trusted_one_vouches_for_it():
    found = new_authorities(told(NEW.certificate, OLD.certificate, VOUCHED), TRUSTED)
    assert names(found) == [NEW.certificate, OLD.certificate, VOUCHED]
    assert new_authorities(told(NEW.certificate, OLD.certificate, VOUCHED), found) is None


def test_a_successors_successor_is_trusted_too():
    second = NEW.vouch(NEWEST)
    offered = (NEWEST.certificate, NEW.certificate, OLD.certificate, second, VOUCHED)
    assert names(new_authorities(told(*offered), TRUSTED)) == list(offered)
    without = (NEWEST.certificate, NEW.certificate, OLD.certificate, second)
    assert new_authorities(told(*without), TRUSTED) is None


def test_nobody_else_is_trusted():
    server = Authority(STRANGER.certificate, new_key())  # has the server's key, and would be more
    leaf, forged = OLD.sign(server.key, ["localhost"], 10), server.vouch(server)
    for offered in (
        (STRANGER.certificate, OLD.certificate),
        (STRANGER.certificate, OLD.certificate, STRANGER.vouch(STRANGER)),
        (STRANGER.certificate, OLD.certificate, VOUCHED),  # of another key
        (STRANGER.certificate, STRANGER.vouch(NEW), NEW.certificate),
        (forged, leaf, OLD.certificate),  # a server's certificate makes nobody an authority
    ):
        found = new_authorities(told(*offered), TRUSTED)
        assert found is None or STRANGER.certificate not in names(found)
        assert found is None or forged not in names(found)


@pytest.mark.parametrize("said", ["text", b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\n"])
def test_what_is_no_certificate_is_not_trusted(said):
    assert new_authorities({"engram-authorities-bin": said}, TRUSTED) is None


def test_a_certificate_that_is_damaged_is_not_trusted():
    given = (NEW.certificate, VOUCHED, OLD.certificate)
    whole = told(*given)["engram-authorities-bin"]
    for at in range(0, len(whole), 7):
        torn = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        found = new_authorities({"engram-authorities-bin": torn}, TRUSTED)
        assert found is None or all(each in given for each in names(found))
