"""Real processes: who joins late, who claims another's client, and who is taken out of a run."""

import contextlib
import json
import threading

import pytest

from engram.link.server.registration import remove_client
from engram.runs.run import Run
from engram.server.status import members
from engram.settings.errors import RunStopped
from engram.settings.settings_files import read_settings
from engram.simulations.deployed import run_deployed
from engram.simulations.loopback import LoopbackFederation
from tests.link.wire.processes import PATIENCE
from tests.processes.support import wait_for
from tests.processes.test_federation import CLIENTS, settings

pytestmark = pytest.mark.processes

FEW = {"min-clients": 1, "timeout": 15.0}
LONG = FEW | {"num-rounds": 1000, "eval-every": 1000, "checkpoint-every": 20}


def rows_of(folder):
    return Run(folder).rows()


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Three nodes; the last test takes some of them out."""
    with LoopbackFederation(tmp_path_factory.mktemp("three") / "fed", clients=CLIENTS) as shared:
        yield shared


def test_a_run_without_nodes_says_what_helps(tmp_path, federation):
    for name in federation.names[1:]:
        federation.kill(name)
    given = settings(**FEW | {"num-rounds": 1, "timeout": 2.0})
    with pytest.raises(RunStopped) as caught:
        run_deployed(given, tmp_path / "run", federation.server)
    assert str(caught.value) == (
        "0 of 3 clients can take part, but 1 are needed; clients [0, 1, 2]: no node hosts it; "
        "0 of the federation's 3 nodes are on line; start the missing nodes, or lower min-clients"
    )
    for name in federation.names[1:]:
        federation.start(name)

    def on_line():
        found = members(federation.server)
        return [member.status for member in found] == ["online"] * CLIENTS

    wait_for(on_line, "all nodes on line")


def test_clients_join_late_lie_about_their_number_and_are_removed(tmp_path, federation):
    folder = tmp_path / "run"
    federation.kill("client-1")
    federation.kill("client-0")
    path = federation.server.parent / "client-0" / "node.toml"
    claims = read_settings(path) | {"num-partitions": 1}  # all of them
    path.write_text("".join(f"{k} = {json.dumps(v)}\n" for k, v in claims.items()))
    federation.start("client-0")

    enough = threading.Event()

    def go_on(row):
        if enough.is_set():
            raise KeyboardInterrupt

    def go():
        with contextlib.suppress(KeyboardInterrupt):
            run_deployed(settings(**LONG), folder, federation.server, on_round=go_on)

    def reaches(what, condition):
        wait_for(lambda: any(condition(row) for row in rows_of(folder)), what)
        return rows_of(folder)[-1]["round"]

    thread = threading.Thread(target=go)
    thread.start()
    reaches("a round of both", lambda row: row.get("cohort") == [0, 2])
    federation.start("client-1")
    reaches("a round with all", lambda row: row.get("cohort") == [0, 1, 2])
    remove_client(federation.server, "client-2")
    last = reaches("a round that says it", lambda row: row["members"] == [0, 1])
    reaches("rounds without it", lambda row: row["round"] == last + 3)
    listed = {m.name: m.status for m in members(federation.server)}
    assert federation.processes["client-2"].wait(PATIENCE) == 2  # it is told, and ends
    refused = federation.log("client-2").read_text()
    enough.set()
    thread.join(PATIENCE)
    rows = rows_of(folder)[1:]
    first = next(row for row in rows if 0 in row["cohort"])
    assert first["cohort"] == [0, 2]  # its node hosts what it is registered as, and no more
    assert first["absent"] == {"1": "no node hosts it"}
    there = [2 in row["members"] for row in rows]
    assert there == sorted(there, reverse=True)  # once it was out, it was out for good
    assert all(2 in row["members"] or 2 not in row["cohort"] for row in rows)
    assert rows[-1]["absent"] == {}  # nobody misses it
    assert all(row["ms"] < 10_000 for row in rows[:-2])  # nobody waited for who came or went
    assert listed["client-2"] == "unregistered"
    assert "key for good, as client-2 was removed from the federation" in refused
