"""A federation's certificate is renewed, its server moves, and its authority has a successor."""

import shutil
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from engram.link.credentials import read_node, read_server
from engram.link.keys import is_authority, issued, read_certificate, read_certificates, same_key
from engram.link.server import renewal
from engram.link.server.identity import add_client
from engram.link.server.renewal import renew_server
from engram.settings.errors import Refused
from tests.link.server.federations import FED, make
from tests.link.test_certificates import shake_hands
from tests.samples import entry


@pytest.fixture(autouse=True)
def _fed():
    make()


# --- A new certificate -----------------------------------------------------------------------


def test_renew():
    before = read_certificate(FED / "server/server.crt")
    key = (FED / "server/server.key").read_bytes()
    tls = renew_server(FED / "server", ["c.example.org", "10.9.9.9"], 90)
    assert (FED / "server/server.key").read_bytes() == key
    after = read_certificate(FED / "server/server.crt")
    assert after.serial_number != before.serial_number
    assert same_key(before.public_key(), after.public_key())
    server = read_server(FED / "server", at=datetime.now(UTC) + timedelta(days=89))
    named = {"a.example.org", "b.example.org", "c.example.org", "10.9.9.9"}
    assert set(server.tls.hosts) == set(tls.hosts) == named | {"localhost", "127.0.0.1", "::1"}
    assert server.tls.expires == tls.expires
    shake_hands("c.example.org", FED / "client-0/ca.crt")


def test_renew_makes_a_damaged_folder_whole():
    make("other/fed")
    for name in ("ca.crt", "server.crt"):
        shutil.copy(Path("other/fed/server") / name, FED / "server")
    (FED / "server/server.key").unlink()
    renew_server(FED / "server", [], 30)
    read_server(FED / "server")
    (FED / "server/server.crt").write_text("rubbish")
    renew_server(FED / "server", [], 30)
    assert "a.example.org" in read_server(FED / "server").tls.hosts


def test_renew_needs_the_authority():
    shutil.copytree(FED, "copy")
    (Path("copy") / "ca.key").unlink()
    with pytest.raises(Refused, match=r"copy/ca\.key is missing: renew where"):
        renew_server(Path("copy/server"), [], 30)
    make("other/fed")
    shutil.copy("other/fed/ca.key", FED)
    with pytest.raises(Refused, match=r"fed/ca\.crt does not belong to the key in fed/ca\.key"):
        renew_server(FED / "server", [], 30)
    (FED / "ca.key").chmod(0o640)
    with pytest.raises(Refused, match=r"chmod 600 fed/ca\.key"):
        renew_server(FED / "server", [], 30)


def test_renew_no_longer_than_the_authority(monkeypatch):
    monkeypatch.setattr("engram.link.server.certificates._AUTHORITY_DAYS", 100)
    shutil.rmtree(FED)
    make(days=10)
    with pytest.raises(Refused, match=r"days must end before fed/ca\.crt does, on .*, got 101"):
        renew_server(FED / "server", [], 101)
    renew_server(FED / "server", [], 99)


def test_renew_refuses_and_changes_nothing():
    before, days_in = (FED / "server/server.crt").read_bytes(), "days must be in"
    for hosts, days, says in ((["?"], 30, "host must name"), ([], 0, days_in), ([], 3651, days_in)):
        with entry(hosts, days), pytest.raises(Refused, match=says):
            renew_server(FED / "server", hosts, days)
        assert (FED / "server/server.crt").read_bytes() == before


# --- Another address -------------------------------------------------------------------------


def test_a_move_keeps_what_was_and_says_where_it_is():
    renew_server(FED / "server", superlink="10.0.0.7:9443")
    server = read_server(FED / "server")
    assert server.settings.superlink == "10.0.0.7:9443"
    assert server.settings.former == "a.example.org:9092"
    assert {"10.0.0.7", "a.example.org", "b.example.org"} <= set(server.tls.hosts)
    renew_server(FED / "server", superlink="a.example.org:9092")
    assert read_server(FED / "server").settings.former == "10.0.0.7:9443"
    for number in range(1, 11):
        renew_server(FED / "server", superlink=f"10.0.1.{number}:9092")
    former = read_server(FED / "server").settings.former.split()
    assert former == [f"10.0.1.{number}:9092" for number in range(2, 10)]
    assert read_node(add_client(FED)).superlink == "10.0.1.10:9092"
    assert read_server(FED / "server").settings.former.split() == former


# --- Another authority -----------------------------------------------------------------------


def roots(path):
    return [(each, issued(each, each)) for each in read_certificates(path)]


def test_the_former_authority_vouches_for_the_new_one():
    old = read_certificate(FED / "ca.crt")
    renew_server(FED / "server", authority=True)
    (new, one), (former, two), (vouching, three) = roots(FED / "ca.crt")
    assert (one, two, three) == (True, True, False)
    assert former == old
    assert issued(vouching, old)
    assert same_key(vouching.public_key(), new.public_key())
    assert not same_key(new.public_key(), old.public_key())
    assert vouching.not_valid_after_utc == old.not_valid_after_utc
    assert all(map(is_authority, (new, vouching)))
    leaf, *others = read_certificates(FED / "server/server.crt")
    assert issued(leaf, new)
    assert not issued(leaf, old)
    assert others == [vouching]
    everywhere = {(FED / f"{place}/ca.crt").read_bytes() for place in ("server", "client-0", ".")}
    assert len(everywhere) == 1
    read_server(FED / "server")


def test_who_trusts_the_former_authority_alone_trusts_the_new_certificate():
    shutil.copy(FED / "ca.crt", "former.crt")
    renew_server(FED / "server", authority=True)
    shake_hands("localhost", Path("former.crt"))
    shake_hands("localhost", FED / "client-0/ca.crt")


@pytest.mark.parametrize("more", [{}, {"superlink": "c.example.org:9092"}, {"another_key": True}])
def test_the_former_authority_ends_with_the_next_renewal(more):
    shutil.copy(FED / "ca.crt", "former.crt")
    renew_server(FED / "server", authority=True)
    new = read_certificate(FED / "ca.crt")
    renew_server(FED / "server", **more)
    for place in (".", "server", "client-0", "client-1"):
        assert read_certificates(FED / place / "ca.crt") == [new]
    assert len(read_certificates(FED / "server/server.crt")) == 1
    read_server(FED / "server")
    shake_hands("localhost", FED / "client-0/ca.crt")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands("localhost", Path("former.crt"))


def test_an_authority_that_is_about_to_end_is_succeeded():
    monday = datetime.now(UTC) + timedelta(days=3640)
    with pytest.raises(Refused, match="begin a new authority with --new-authority"):
        renew_server(FED / "server", days=20, at=monday)
    renew_server(FED / "server", days=20, at=monday, authority=True)
    read_server(FED / "server", at=monday + timedelta(days=19))


@pytest.mark.parametrize("written", range(5))
def test_an_interrupted_succession_is_completed_by_the_next_call(written):
    shutil.copy(FED / "ca.crt", "former.crt")
    done, replace = [], renewal.replace_file

    def torn(path, data):
        if len(done) == written:
            raise Refused("the disk is full")
        done.append(path)
        replace(path, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(renewal, "replace_file", torn)
        with pytest.raises(Refused, match="full"):
            renew_server(FED / "server", authority=True)
    shake_hands("localhost", FED / "client-0/ca.crt")  # what runs goes on meanwhile
    renew_server(FED / "server", authority=written < 2)
    assert len(read_certificates(FED / "ca.crt")) == 3
    shake_hands("localhost", Path("former.crt"))
    shake_hands("localhost", FED / "client-1/ca.crt")


def test_the_authority_before_the_former_one_has_ended():
    for name in ("first.crt", "second.crt"):
        shutil.copy(FED / "ca.crt", name)
        renew_server(FED / "server", authority=True)
    assert len(read_certificates(FED / "ca.crt")) == 3
    shake_hands("localhost", Path("second.crt"))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands("localhost", Path("first.crt"))


# --- Another key -----------------------------------------------------------------------------


def hosts():
    return set(read_server(FED / "server").tls.hosts)


def test_a_new_key_is_named_in_every_certificate_from_then_on():
    keys, names = [(FED / "server/server.key").read_bytes()], hosts()
    for serial in (1, 2, 3):
        renew_server(FED / "server", another_key=True)
        keys.append((FED / "server/server.key").read_bytes())
        names.add(f"key-{serial}.invalid")
        assert hosts() == names
        least = (FED / "server/least.crt").read_bytes()
        assert least == (FED / "server/server.crt").read_bytes()
        for more in ({}, {"superlink": f"c{serial}.example.org:9092"}, {"authority": True}):
            renew_server(FED / "server", **more)
            names |= {more[key].partition(":")[0] for key in more if key == "superlink"}
            assert hosts() == names
        (FED / "server/server.crt").unlink()  # lost
        renew_server(FED / "server", ["b.example.org", *names - {f"key-{serial}.invalid"}])
        assert hosts() == names
        assert (FED / "server/least.crt").read_bytes() == least
        assert (FED / "server/server.key").read_bytes() == keys[-1]
    assert len({*keys}) == 4
