"""Announcements of a server: which moves a node follows, and which authorities it trusts."""

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from engram.link.announcement import (
    announcement,
    least_key,
    new_address,
    new_authorities,
    proven_serial,
)
from engram.link.credentials import FederationSettings
from engram.link.server.certificates import Authority, certificate_pem, new_authority, new_key
from tests.samples import entry

OLD, NEW, NEWEST, STRANGER = (new_authority("ward") for _ in range(4))
VOUCHED = OLD.vouch(NEW)
TRUSTED = certificate_pem(OLD.certificate)


def told(*certificates, superlink="new:1", former=""):
    settings = FederationSettings("ward", superlink, 2, former)
    return announcement(settings, certificate_pem(*certificates).decode())


def names(pem):
    return x509.load_pem_x509_certificates(pem)


# --- Addresses -------------------------------------------------------------------------------


MOVES = [
    ("old:1", "old:1", "new:1"),
    ("older:1 old:1", "older:1", "new:1"),
    ("old:1", "elsewhere:1", None),  # a site's own way, as through a forwarded port
    ("old:1", "new:1", None),
    ("", "old:1", None),
]


def test_a_move_is_followed_from_a_former_address():
    for former, present, there in MOVES:
        with entry(former, present, there):
            assert new_address(told(OLD.certificate, former=former), present) == there


def test_an_address_that_is_none_is_not_followed():
    for said in ["", "x old:1", "new:0 old:1", "\n:1 old:1", "old:1 old:1", ["a", 7], None]:
        with entry(said):
            assert new_address({"moved": said}, "old:1") is None


# --- Authorities -----------------------------------------------------------------------------


def test_one_authority_and_no_move_are_not_announced():
    assert told(OLD.certificate) == {}


def test_a_successor_is_trusted_where_the_trusted_one_vouches_for_it():
    found = new_authorities(told(NEW.certificate, OLD.certificate, VOUCHED), TRUSTED)
    assert names(found) == [NEW.certificate]  # and the former one is not any more
    assert new_authorities(told(NEW.certificate, OLD.certificate, VOUCHED), found) is None


def test_a_successors_successor_is_trusted_too():
    second = NEW.vouch(NEWEST)
    offered = (NEWEST.certificate, NEW.certificate, OLD.certificate, second, VOUCHED)
    assert names(new_authorities(told(*offered), TRUSTED)) == [NEWEST.certificate]
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


def test_what_is_no_certificate_is_not_trusted():
    for said in [7, None, "", "rubbish", "\ud800", "-----BEGIN CERTIFICATE-----\n"]:
        with entry(said):
            assert new_authorities({"authorities": said}, TRUSTED) is None
            assert proven_serial(least_key({"least-key": said}), TRUSTED) == 0


def test_a_certificate_that_is_damaged_is_not_trusted():
    given = (NEW.certificate, VOUCHED, OLD.certificate)
    whole = told(*given)["authorities"]
    for at in range(0, len(whole), 7):
        torn = whole[:at] + chr(ord(whole[at]) ^ 1) + whole[at + 1 :]
        found = new_authorities({"authorities": torn}, TRUSTED)
        assert found is None or all(each in given for each in names(found))


def test_a_certificate_with_an_extension_twice_is_not_trusted():
    whole = VOUCHED.public_bytes(Encoding.DER)
    for one, other in ((b"\x55\x1d\x0e", b"\x55\x1d\x23"), (b"\x55\x1d\x23", b"\x55\x1d\x13")):
        assert {one, other} <= {whole[at : at + 3] for at in range(len(whole))}  # identifiers
        twice = x509.load_der_x509_certificate(whole.replace(one, other))
        with pytest.raises(x509.DuplicateExtension):
            len(twice.extensions)
        assert new_authorities(told(NEW.certificate, OLD.certificate, twice), TRUSTED) is None
        assert proven_serial(certificate_pem(twice), TRUSTED) == 0


# --- Keys ------------------------------------------------------------------------------------


def signed(authority, *hosts):
    return authority.sign(new_key(), hosts, 10)


NUMBERS = [
    (["localhost", "key-1.invalid", "key-2.invalid"], 2),
    (["key-10.invalid", "key-9.invalid"], 10),
    (["localhost", "10.0.0.1"], 0),
    (["key-1.invalid.org", "a.key-7.invalid", "key-.invalid"], 0),
]


def test_a_keys_number_is_proven_by_a_certificate():
    for hosts, serial in NUMBERS:
        with entry(hosts, serial):
            leaf = certificate_pem(signed(OLD, *hosts)).decode()
            settings = FederationSettings("ward", "new:1", 2)
            said = least_key(announcement(settings, TRUSTED.decode(), leaf))
            assert proven_serial(said, TRUSTED) == serial
            assert proven_serial(said, certificate_pem(NEW.certificate, OLD.certificate)) == serial
            assert proven_serial(said, certificate_pem(NEW.certificate)) == 0
            assert proven_serial(b"", TRUSTED) == 0


def test_nobody_but_the_authority_proves_a_keys_number():
    server = Authority(STRANGER.certificate, new_key())
    for odd in (signed(STRANGER, "key-9.invalid"), signed(server, "key-9.invalid"), VOUCHED):
        assert proven_serial(certificate_pem(odd), TRUSTED) == 0
    whole = certificate_pem(signed(OLD, "key-9.invalid"))
    for at in range(0, len(whole), 7):
        torn = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        assert proven_serial(torn, TRUSTED) in (0, 9)
    for said in (b"", b"rubbish", b"-----BEGIN CERTIFICATE-----\n"):
        assert proven_serial(said, TRUSTED) == 0


def test_whoever_vouches_for_the_other_one_of_two_stays():
    both = (OLD.certificate, NEW.certificate, VOUCHED, NEW.vouch(OLD))
    assert new_authorities(told(*both), TRUSTED) is None  # nobody is left to trust
    assert new_authorities(told(OLD.certificate, VOUCHED), TRUSTED) is None
    back = (OLD.certificate, NEW.certificate, VOUCHED)
    assert new_authorities(told(*back), certificate_pem(NEW.certificate)) is None
