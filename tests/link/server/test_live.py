"""Who is let in, as the files of a federation are at each connection; and what is announced."""

import asyncio
import contextlib
import json
import os
import shutil
from pathlib import Path

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from engram.link.announcement import new_address, new_authorities
from engram.link.credentials import read_node
from engram.link.key_tls import _leaf, anchor, fingerprint, node_credentials
from engram.link.keys import key_pem, read_certificate, read_node_key, read_public_key
from engram.link.server import live_files
from engram.link.server.certificates import certificate_pem, new_authority, new_key
from engram.link.server.identity import add_client, new_client_key
from engram.link.server.live_files import Live, Roll, announcements, server_credentials
from engram.link.server.registration import remove_client
from engram.link.server.renewal import renew_server
from engram.settings.errors import Refused
from tests.link.server.federations import FED, make
from tests.samples import entry

SERVER = FED / "server"


@pytest.fixture(autouse=True)
def _fed():
    make()


@contextlib.asynccontextmanager
async def serving():
    """A server that answers, to a call with some credentials, whose it is by its roll."""
    roll = Roll(SERVER)

    async def who(_, context):
        key = fingerprint(context.auth_context()["x509_pem_cert"][0])
        return json.dumps([key, roll.name(key), roll.ended(key)]).encode()

    async def ask(credentials):
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            return json.loads(await channel.unary_unary("/t/Who")(b"", timeout=20))

    server = grpc.aio.server()
    calls = {"Who": grpc.unary_unary_rpc_method_handler(who)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", calls),))
    port = server.add_secure_port("127.0.0.1:0", server_credentials(SERVER))
    await server.start()
    try:
        yield ask
    finally:
        await server.stop(0)


def own(client, root="fed/ca.crt"):
    """The credentials of a client's node."""
    return node_credentials(read_node(FED / f"client-{client}"), Path(root).read_bytes())


def shown(key, certificate):
    return grpc.ssl_channel_credentials((FED / "ca.crt").read_bytes(), key_pem(key), certificate)


def key_of(client, folder=FED):
    return read_node_key(folder / f"client-{client}/client.key")


def seen(client, name, end=""):
    """Returns the words of a server to a client's node."""
    return [fingerprint(read_public_key(FED / f"client-{client}/client.pub")), name, end]


async def refused(asked):
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await asked
    assert caught.value.code() == grpc.StatusCode.UNAVAILABLE


# --- Whose a connection is -------------------------------------------------------------------


def test_a_node_is_known_by_its_key():
    key = ec.generate_private_key(ec.SECP384R1())  # a site's own may be longer
    form = Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    (FED / "client-1/client.key").write_bytes(key.private_bytes(*form))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    for path in (FED / "client-1/client.pub", SERVER / "clients/client-1.pub"):
        path.write_bytes(public)

    async def go():
        async with serving() as ask:
            for client in (0, 1, 0):
                assert await ask(own(client)) == seen(client, f"client-{client}")

    asyncio.run(go())


def test_a_stranger_is_refused_in_the_handshake():
    make("other/fed")
    stranger, (zero, one) = new_key(), map(key_of, (0, 1))
    server = (SERVER / name for name in ("server.key", "server.crt"))
    authority = new_authority("fed")
    other = key_of(0, Path("other/fed"))

    async def go():
        async with serving() as ask:
            root = (FED / "ca.crt").read_bytes()
            for what, credentials in {
                "no certificate": grpc.ssl_channel_credentials(root),
                "a key that nobody knows": shown(stranger, _leaf("client-0", stranger)),
                "a name that nobody has": shown(stranger, _leaf("client-7", stranger)),
                "another member's name": shown(one, _leaf("client-0", one)),
                "a member's certificate, without its key": shown(stranger, _leaf("client-0", zero)),
                "another federation's": shown(other, _leaf("client-0", other)),
                "an anchor of its own making": shown(one, anchor("client-0", one.public_key())),
                "the server's": grpc.ssl_channel_credentials(
                    root, *(p.read_bytes() for p in server)
                ),
                "of a forged authority": shown(
                    stranger, certificate_pem(authority.sign(stranger, ["localhost"], 9))
                ),
            }.items():
                with entry(what):
                    await refused(ask(credentials))
            assert await ask(own(0)) == seen(0, "client-0")

    asyncio.run(go())


def test_a_member_lends_its_name_to_no_other_key():
    async def go():
        friend, key = new_key(), key_of(1)
        signed = lent(friend, key)
        async with serving() as ask:
            assert await ask(shown(friend, signed)) == [fingerprint(friend.public_key()), None, ""]

    asyncio.run(go())


def lent(friend, key):
    """A certificate of another key, signed by client-1's, as an honest node makes none."""
    begun = x509.load_pem_x509_certificate(_leaf("client-1", key))
    made = x509.CertificateBuilder(extensions=[*begun.extensions])
    made = made.subject_name(begun.subject).issuer_name(begun.issuer).serial_number(7)
    made = made.not_valid_before(begun.not_valid_before_utc).public_key(friend.public_key())
    made = made.not_valid_after(begun.not_valid_after_utc)
    return certificate_pem(made.sign(key, begun.signature_hash_algorithm))


def test_no_clock_makes_a_nodes_certificate_invalid():
    for made in (_leaf("client-0", key_of(0)), anchor("client-0", key_of(0).public_key())):
        certificate = x509.load_pem_x509_certificate(made)
        assert certificate.not_valid_before_utc.year == 1970
        assert certificate.not_valid_after_utc.year == 9999


def test_whoever_comes_goes_and_comes_again_while_a_server_runs():
    async def go():
        async with serving() as ask:
            assert await ask(own(0)) == seen(0, "client-0")
            add_client(FED)
            assert await ask(own(2)) == seen(2, "client-2")
            remove_client(SERVER, "2")
            assert await ask(own(2)) == seen(2, None, "removed")
            Roll(SERVER).leave("client-1")
            assert await ask(own(1)) == seen(1, None, "left")
            before = shutil.copytree(FED / "client-0", "before")
            new_client_key(FED, 0)
            assert await ask(own(0)) == seen(0, "client-0")
            old = node_credentials(read_node(Path(before)), (FED / "ca.crt").read_bytes())
            assert (await ask(old))[1:] == [None, "removed"]
            shutil.copy("before/client.pub", SERVER / "clients/client-9.pub")  # is no way back
            assert (await ask(old))[1:] == [None, "removed"]
            shutil.rmtree(SERVER / "clients")
            await refused(ask(own(0)))

    asyncio.run(go())


def test_the_roll_is_what_the_files_are():
    roll, keys = Roll(SERVER), [seen(client, "")[0] for client in (0, 1)]
    assert [roll.name(key) for key in (*keys, "0" * 64)] == ["client-0", "client-1", None]
    assert roll.names() == {"client-0", "client-1"}
    (SERVER / "clients/client-0.pub").write_text("rubbish")
    for end in ("removed", "left"):  # as former releases called them, by Flower's numbers
        shutil.copy(FED / "client-1/client.pub", SERVER / f"clients/client-1.17.{end}")
        (SERVER / "clients/client-1.pub").unlink(missing_ok=True)
        assert (roll.names(), [roll.ended(key) for key in keys]) == (frozenset(), ["", end])
        (SERVER / f"clients/client-1.17.{end}").unlink()
    assert (roll.name(keys[1]), roll.ended(keys[1])) == (None, "")


def test_whoever_leaves_twice_has_left():
    roll = Roll(SERVER)
    for _ in range(2):
        roll.leave("client-1")
        assert roll.names() == {"client-0"}
    (SERVER / "clients/client-0.pub").unlink()
    roll.leave("client-0")  # it is no member
    assert [path.name.partition(".")[2][-4:] for path in (SERVER / "clients").iterdir()] == ["left"]


# --- Files that change -----------------------------------------------------------------------


def test_a_renewed_certificate_is_shown_to_whoever_comes_next():
    shutil.copy(FED / "ca.crt", "former.crt")

    async def go():
        async with serving() as ask:
            for more in ({}, {"superlink": "127.0.0.1:9092"}, {"authority": True}):
                renew_server(SERVER, **more)
                for root in ("former.crt", "fed/ca.crt"):
                    assert await ask(own(0, root)) == seen(0, "client-0")
            renew_server(SERVER)
            assert await ask(own(0)) == seen(0, "client-0")
            await refused(ask(own(0, "former.crt")))

    asyncio.run(go())


def test_what_cannot_be_read_changes_nothing(warnings_of_engram):
    make("other/fed")
    own_files = [SERVER / name for name in ("server.crt", "server.key")]

    async def go():
        async with serving() as ask:
            shutil.copy("other/fed/server/server.crt", own_files[0])
            assert await ask(own(0)) == seen(0, "client-0")
            own_files[0].unlink()
            assert await ask(own(1)) == seen(1, "client-1")
            assert "what was read before is used on" in warnings_of_engram.text
            renew_server(SERVER, another_key=True)
            assert await ask(own(1)) == seen(1, "client-1")

    asyncio.run(go())
    shutil.copy("other/fed/server/server.crt", own_files[0])
    with pytest.raises(Refused, match=r"server\.crt does not belong to the key in"):
        server_credentials(SERVER)


def test_contents_are_the_same_object_until_they_change(monkeypatch):
    monkeypatch.setattr(live_files, "_LOOK", 0.0)
    path = Path("folder/file")
    path.parent.mkdir()
    path.write_text("one")
    contents = Live([path.parent], lambda: [path.read_text()])
    one = contents.get()
    assert contents.get() is one
    path.touch()
    assert contents.get() is one
    path.write_text("two")  # which the folder's own time does not tell
    os.utime(path, ns=(10**18, 10**18))
    assert contents.get() == ["two"]
    path.write_text("six")
    os.utime(path, ns=(10**18, 10**18 + 1))
    assert contents.get() == ["six"]


def test_moves_and_authorities_are_announced():
    shutil.copy(FED / "ca.crt", "former.crt")
    told = announcements(SERVER)
    assert told() == {}
    renew_server(SERVER, superlink="c.example.org:9092", authority=True, another_key=True)
    said = json.loads(json.dumps(told()))
    assert new_address(said, "a.example.org:9092") == "c.example.org:9092"
    trusted = new_authorities(said, Path("former.crt").read_bytes())
    assert trusted == certificate_pem(read_certificate(SERVER / "ca.crt"))
    assert said["least-key"] == (SERVER / "least.crt").read_text()
    assert told() is told()
