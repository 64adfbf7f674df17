"""`engram doctor`: a folder in order, and each fault with what to do about it."""

import json
import os
import time
from collections import namedtuple
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import torch

from engram.client.disk_memory import DiskStore
from engram.link.credentials import read_node
from engram.link.node.errands import Greeting, leave
from engram.link.node.node import only_one
from engram.link.node.refusals import KeyRefused, Unreachable
from engram.link.server.invitations import invite
from engram.server.status import Member
from engram.settings.errors import RunStopped
from engram.sites import doctor
from engram.sites.audit import Audit
from engram.sites.doctor import look_over
from engram.sites.ledger import Ledger
from tests.link.node.hubs import Hub
from tests.link.server.federations import make
from tests.link.wire.processes import until

SERVER, CLIENT = Path("fed/server"), Path("fed/client-1")
STATE = CLIENT / "state"


@pytest.fixture(autouse=True)
def _fed(tmp_path, monkeypatch):
    """A federation whose server answers, knows both clients, and has the same time."""
    make(days=90)
    there = [Member("client-0", "online"), Member("client-1", "offline")]
    monkeypatch.setattr(doctor, "members", lambda folder: there)
    monkeypatch.setattr(doctor, "greet", lambda known: Greeting(True, timedelta(seconds=1)))


def found(folder, **options):
    return {each.about: each for each in look_over(folder, **options)}


def wrong(folder, **options):
    """The one thing that is not in order, and the reason."""
    ((about, finding),) = [pair for pair in found(folder, **options).items() if not pair[1].ok]
    return about, finding.text


def test_a_new_federation_is_in_order(engram):
    status, out, err = engram("doctor", SERVER)
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert [line.split()[1] for line in lines] == [*("keys", "disk", "clock", "superlink")]
    assert "online: client-0; offline: client-1" in out
    assert all(each.ok for each in found(CLIENT).values())


def test_who_is_invited_or_has_gone_lacks_no_key(engram):
    clients = SERVER / "clients"
    (clients / "client-1.pub").rename(clients / "client-1.abcd.removed")
    invite(Path("fed"))
    text = found(SERVER)["keys"].text
    assert text.startswith("of 1 clients; ")
    (clients / "client-0.pub").unlink()
    assert wrong(SERVER)[1].endswith("/clients lacks the .pub of client-0: bring it here")


def test_what_is_wrong_is_counted_in_the_end_and_is_json(engram):
    os.chmod(CLIENT / "client.key", 0o644)
    status, out, err = engram("doctor", CLIENT, "--json")
    assert (status, err) == (1, "engram: 2 of 8 are not in order: keys, superlink\n")
    first = json.loads(out)[0]
    assert (first["about"], first["ok"]) == ("keys", False)
    assert "chmod 600" in first["text"]


def test_a_folder_of_neither_is_refused(engram):
    status, out, err = engram("doctor", "fed")
    assert (status, out) == (2, "")
    assert "neither federation.toml nor node.toml" in err


def at(days):
    return datetime.now(UTC) + timedelta(days=days)


def keys(folder, days):
    """Findings on a folder's keys and certificates, so many days from now."""
    return next(iter(look_over(Path(folder), at=at(days))))


def test_certificates_are_told_of_a_month_before_they_end_and_when_they_have():
    make("long", days=397)
    assert keys("long/server", 366).ok
    soon, ended = keys("long/server", 368), keys("long/server", 398)
    assert not soon.ok
    assert soon.text.endswith(f"server.crt expires on {at(397):%Y-%m-%d}: engram renew long/server")
    assert not ended.ok
    assert "server.crt expired on" in ended.text
    assert ended.text.endswith("or engram renew long/server")


def test_an_authority_is_told_of_a_month_before_it_ends_and_when_it_has():
    make("long", days=3650)
    assert keys("long/client-0", 3619).ok
    text = keys("long/server", 3621).text
    assert (
        f"the authority's, expires on {at(3650):%Y-%m-%d}: engram renew long/server --new-" in text
    )
    assert "server.crt expires on" in text
    soon, ended = keys("long/client-0", 3621), keys("long/client-0", 3651)
    assert not soon.ok
    assert "on the server, engram renew SERVER_FOLDER --new-authority" in soon.text
    assert not ended.ok
    assert "bring the federation's ca.crt of today" in ended.text


def test_a_superlink_out_of_reach_is_told_of(monkeypatch):
    for error, says in [
        (Unreachable("it is silent"), "it is silent: start it, or open the way to it"),
        (KeyRefused("it refuses."), "it refuses. On the server: engram register"),
    ]:

        def fail(known, error=error):
            raise error

        monkeypatch.setattr(doctor, "greet", fail)
        assert wrong(CLIENT) == ("superlink", says)

    def silent(folder):
        raise RunStopped("no server answers: start it")

    monkeypatch.setattr(doctor, "members", silent)
    assert wrong(SERVER) == ("superlink", "no server answers: start it")


def test_a_server_that_runs_says_whether_the_client_s_node_is_connected(tmp_path, monkeypatch):
    monkeypatch.undo()
    hub = Hub(tmp_path / "hub")
    hub.start()
    try:
        assert found(hub.server)["superlink"].text == "registered: client-0"
        with hub.node() as node, hub.run() as run:
            until(lambda: run.members()["client-0"].there)
            text = found(node.folder)["superlink"].text
            assert text.startswith(f"{hub.address} knows this client; its node is connected; the ")
            assert "the clocks differ by" in text
            assert found(hub.server)["superlink"].text == "online: client-0"
        assert "its node is not connected" in found(node.folder)["superlink"].text
        leave(read_node(node.folder))
        assert "refuses this client's key for good" in wrong(node.folder)[1]
    finally:
        hub.stop()


def test_a_damaged_memory_log_or_ledger_is_named():
    store = DiskStore(STATE / "memory" / "0123456789abcdef")
    for client in (1, 3):
        store.save(client, {"w": torch.ones(3)}, server_round=2, durable=0)
    store.save_serving(3, {"w": torch.ones(3)}, server_round=2)
    assert found(CLIENT)["memories"].text == "3, all as they were written"
    (serving,) = store.serving(3).values()
    whole = serving.read_bytes()
    serving.write_bytes(whole[:-1])
    assert "client-3/serves-2.memory" in wrong(CLIENT)[1]
    serving.write_bytes(whole)
    path = store.versions(3)[2]
    path.write_bytes(path.read_bytes()[:-1])
    about, text = wrong(CLIENT)
    assert about == "memories"
    assert "client-3/round-2.memory" in text
    path.unlink()
    (STATE / "ledger").mkdir(parents=True)
    Ledger(STATE / "ledger", 9.0, 1e-5).spend("a" * 64, 0.1, {"kind": "train"})
    for number in range(3):
        Audit(STATE / "log").append({"kind": "train", "round": number}, trained=True)
    assert all(each.ok for each in found(CLIENT).values())
    ledger, log = STATE / "ledger" / "ledger.jsonl", STATE / "log" / "log.jsonl"
    whole = log.read_text()
    log.write_text(whole.replace('"round": 0', '"round": 7'))
    about, text = wrong(CLIENT)
    assert about == "log"
    assert text.startswith("line 1 of the log is not what was written")
    assert f"this site's operator stops the node, and puts back {STATE}/log of a backup" in text
    log.write_text(whole)
    ledger.write_text(ledger.read_text().replace('"total": 0.1', '"total": 0.0'))
    text = wrong(CLIENT)[1]
    assert text.startswith("line 1 of the ledger is not what was written; engram ledger fed/client")


def test_a_full_disk_and_a_clock_that_went_back_are_found(monkeypatch):
    usage = namedtuple("usage", "total used free")
    with monkeypatch.context() as patch:
        patch.setattr(doctor.shutil, "disk_usage", lambda path: usage(9, 9, 2**28))
        about, text = wrong(CLIENT)
    assert (about, text) == ("disk", "0.2 GiB are free in fed/client-1: make room, 1 GiB at least")
    ahead = time.time() + 9000
    os.utime(SERVER / "federation.toml", (ahead, ahead))
    about, text = wrong(SERVER)
    assert about == "clock"
    assert text.startswith("files here were written 2 hours from now: set the clock")


def test_a_node_that_hears_nothing_is_found():
    with only_one(STATE):
        (STATE / "alive").touch()
        assert found(CLIENT)["node"].text == "it runs, and hears of its server"
        os.utime(STATE / "alive", (time.time() - 90, time.time() - 90))
        assert wrong(CLIENT)[0] == "node"
    assert found(CLIENT)["node"].text == "none is running: engram node fed/client-1"
