"""What the board's pages say, and who may look at them."""

import json
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from dash import Dash
from flask import Flask

from engram.link.addresses import Address
from engram.runs.progress import RunProgress
from engram.runs.run import PROGRESS, Run
from engram.runs.writer import RunWriter
from engram.settings.errors import Refused
from engram.studio.app import board
from engram.studio.clients import client_rows, one_client
from engram.studio.comparing import comparing
from engram.studio.data_page import holdings
from engram.studio.listing import chosen_runs, listing
from engram.studio.one_run import absences, node_rows, one_run, progress
from engram.studio.pages.reproduce_command import repeating
from engram.studio.run_index import RunIndex, differing
from engram.studio.search_page import trials
from engram.studio.serving import guard, server_of
from engram.studio.widgets import linked
from engram.wire.roster import Roster
from tests.epsilons import epsilon
from tests.samples import entry
from tests.support import small

TOKEN = "a token of some length"


def said(parts):
    """Returns all that components hold, as one text."""
    return json.dumps([part.to_plotly_json() for part in parts], default=plain)


def plain(value):
    return value.to_plotly_json() if hasattr(value, "to_plotly_json") else str(value)


def grid_of(parts, name):
    """Returns the rows of a grid."""
    (found,) = [part for part in parts if getattr(part, "id", "") == f"grid-{name}"]
    return found.rowData


@pytest.fixture
def going(tmp_path):
    """A run on nodes that has not finished."""
    record = RunWriter.create(tmp_path / "going", small(), engine="flower", training="a")
    names = {"0": "park", "1": "hill"}
    record.append({"round": 0, "names": names})
    record.append({"round": 1, "cohort": [0, 1], "absent": {}})
    for number in (2, 3):
        record.append({"round": number, "cohort": [0, 1], "absent": {"1": "no reply"}})
    record.append({"round": 4, "cohort": [0], "absent": {"1": "off line"}})
    return record


def test_the_first_page_lists_runs_of_comparisons_and_what_tells_them_apart(folder):
    parts = listing(RunIndex(folder), {})
    names = [row["id"] for row in grid_of(parts, "runs")]
    assert {"alone", "both/ditto-seed1", "both/fedavg-seed0", "tables"} <= set(names)
    row = next(row for row in grid_of(parts, "runs") if row["id"] == "alone")
    assert (row["method"], row["ditto.eta"], row["state"]) == ("ditto", 0.3, "finished")
    assert {row["kind"] for row in grid_of(parts, "groups")} == {"comparison", "search"}
    found = differing([{"seed": 0, "a": 1, "b": 2}, {"seed": 1, "a": 1, "b": 3}, {"seed": 2}])
    assert found == ["b"]


def test_runs_are_read_again_only_when_they_have_changed(folder, tmp_path, monkeypatch):
    shutil.copytree(folder / "alone", tmp_path / "alone")
    index, reads = RunIndex(tmp_path), []
    opened = Run.open.__func__
    monkeypatch.setattr(
        Run, "open", classmethod(lambda cls, path: reads.append(path) or opened(cls, path))
    )
    index.everything()
    before = len(reads)
    assert before > 0
    index.everything()
    assert len(reads) == before
    (tmp_path / "alone" / "results.json").unlink()
    (one,) = index.everything()
    assert len(reads) > before
    assert one.state.startswith("stopped")


def test_gains_are_differences_of_the_same_clients_scores(folder):
    index = RunIndex(folder)
    runs = index.around("both/ditto-seed1")
    record = index.record("both/ditto-seed1")
    rows = client_rows("both/ditto-seed1", record, runs, record.metrics[0])
    mine, base = (index.record(f"both/{method}-seed1").results for method in ("ditto", "local"))
    mine, base = (found.get("selected", found)["clients"] for found in (mine, base))
    expected = 100 * (np.array(mine["accuracy"]) - np.array(base["accuracy"]))
    assert [row["gain over local"] for row in rows] == pytest.approx(expected, abs=1e-3)
    assert [row["accuracy"] for row in rows] == pytest.approx(
        100 * np.array(mine["accuracy"]), abs=1e-3
    )


def test_each_page_says_what_it_is_for(folder):
    for page, query, told in [
        (one_run, {"name": ["alone"]}, ["communication round", "ditto.eta", "6 clients"]),
        (one_run, {"name": ["both/ditto-seed0"], "metric": ["loss"]}, ["its comparison, both"]),
        (one_run, {"name": ["tables"]}, ["Results"]),
        (comparing, {"name": ["both"]}, ["fedavg + fine-tuning", "gain over local"]),
        (comparing, {"run": ["alone", "both/ditto-seed0"]}, ["ditto ", "eta=0.3"]),
        (comparing, {"run": ["tables"]}, ["Not of methods that train networks: tables"]),
        (
            one_client,
            {"name": ["both/ditto-seed0"], "client": ["1"]},
            ["<b>hill</b>", "as it is served"],
        ),
        (holdings, {"name": ["alone"]}, ["6 clients hold", "class 9"]),
        (holdings, {"name": ["both/ditto-seed0"]}, ["The rows are with the clients"]),
        (trials, {"name": ["search"]}, ["eta", "validation", "fedavg"]),
    ]:
        with entry(page, query, told):
            text = said(page(RunIndex(folder), query))
            for words in told:
                assert words in text


def test_a_clients_page_tells_methods_apart_and_begins_after_round_0(folder):
    parts = one_client(RunIndex(folder), {"name": ["both/ditto-seed0"], "client": ["1"]})
    (figure,) = [each.figure for each in parts if getattr(each, "id", "") == "figure-history"]
    lines = {t.name: t for t in figure.data if t.name in ("local", "fedavg", "as it is served")}
    assert len({line.line.color for line in lines.values()}) == len(lines) == 3
    assert {min(line.x) for line in lines.values()} == {2}


def test_pages_of_what_is_not_there_are_refused(folder):
    index = RunIndex(folder)
    with pytest.raises(Refused, match="there is no nothing in"):
        one_run(index, {"name": ["nothing"]})
    with pytest.raises(Refused, match="there is no"):
        one_run(index, {"name": ["../"]})
    with pytest.raises(Refused, match=r"client must be in 0\.\.2, got 7"):
        one_client(index, {"name": ["both/ditto-seed0"], "client": ["7"]})
    with pytest.raises(Refused, match="must be a folder of runs"):
        RunIndex(folder / "none")


def test_clients_of_other_data_are_not_compared(folder):
    index = RunIndex(folder)
    runs = index.runs(["both/local-seed0", "alone"])
    record = index.record("alone")
    rows = client_rows("alone", record, runs, record.metrics[0])
    assert "gain over local" not in rows[0]
    assert "gain over its global model" in rows[0]


def test_a_run_whose_metrics_are_gone_is_told_and_not_a_crash(folder, tmp_path):
    shutil.copytree(folder / "alone", tmp_path / "alone")
    (tmp_path / "alone" / "metrics.jsonl").unlink()
    index = RunIndex(tmp_path)
    assert "has not been evaluated" in said(one_run(index, {"name": ["alone"]}))
    assert "In the end" in said(one_client(index, {"name": ["alone"], "client": ["0"]}))


def test_a_clients_page_says_what_its_rows_have_spent(tmp_path):
    """A row is in each of six releases: two rounds of three steps, which sum all 16 rows."""
    private = {"privacy": "example", "clip": 0.5, "noise_multiplier": 8.0, "batch_size": 16}
    e = small(method="fedavg", local_steps=3, **private)
    record = RunWriter.create(tmp_path / "rows", e, engine="flower", training="a")
    for number in (1, 2):
        spent = {"epsilon": epsilon(8.0, 3 * number, e.delta), "training-rows": {"0": 16}}
        record.append({"round": number, "cohort": [0], **spent, "absent": {}})
    page = said(one_client(RunIndex(tmp_path), {"name": ["rows"], "client": ["0"]}))
    assert f"epsilon {epsilon(8.0, 6, e.delta):.3g} at delta 1e-05" in page


def test_a_run_that_is_named_a_thousand_times_is_read_once(folder, monkeypatch):
    looks = []
    stamp = RunIndex.stamp
    monkeypatch.setattr(
        RunIndex, "stamp", lambda self, name: looks.append(name) or stamp(self, name)
    )
    page = board(RunIndex(folder), None).callback_map["..page.children...stamp.data.."]["callback"]
    page = page.__wrapped__
    monkeypatch.setattr("engram.studio.app.ctx", SimpleNamespace(triggered_id="address"))
    for key in ("run", "name"):
        looks.clear()
        once, _ = page("/compare", f"?{key}=both", None, None)
        few = len(looks)
        many, _ = page("/compare", "?" + "&".join([f"{key}=both"] * 1000), None, None)
        assert (len(looks), repr(many)) == (2 * few, repr(once))


def test_chosen_rows_are_compared_and_links_keep_their_text():
    assert chosen_runs([]) == ("/", "off")
    assert chosen_runs([{"id": "a b"}, {"id": "c"}]) == ("/compare?run=a+b&run=c", "")
    assert linked("a](b)", "/run?name=x(1)") == r"[a\]\(b\)](/run?name=x%281%29)"


# --- Nodes -----------------------------------------------------------------------------------


def test_a_run_on_nodes_says_whom_it_waits_for(going):
    kept = RunProgress(going.folder / PROGRESS)
    kept.begin("train", {11: [0], 12: [1]})
    kept._written = float("-inf")
    kept.answered(11, 2.0, 1.5)
    assert "it has stopped" in said([progress(going)])
    assert {row["now"] for row in node_rows(going)} == {""}  # nobody asks them
    with going.hold():
        text = said([progress(going)])
        rows = {row["node"]: row for row in node_rows(going)}
    assert "4 of " in text
    assert "now it trains: 1 of 2 nodes have answered" in text
    assert (rows["11"]["clients"], rows["11"]["now"]) == ("park", "has answered")
    assert (rows["12"]["clients"], rows["12"]["now"]) == ("hill", "at work")
    assert (rows["12"]["asked"], rows["12"]["took part"]) == (3, 1)
    assert rows["12"]["why not"] == "no reply (2); off line (1)"


def test_a_run_that_is_watched_waits_and_its_federation_is_known_afterwards(going):
    def state():
        ((row,), parts) = (grid_of(listing(index, {}), "runs"), one_run(index, {"name": ["going"]}))
        return row["state"], said(parts)

    index = RunIndex(going.folder.parent)
    assert state()[0] == "stopped, 4 rounds are done"
    assert "engram run local-moml --federation SERVER_FOLDER" in said(
        [part for part in one_run(index, {"name": ["going"]}) if part._type == "Pre"]
    )
    with going.watch(Path("/fed/the server")):
        listed, page = state()
        assert listed == "waiting, 4 rounds are done"
        assert "it waits to be started again" in page
        with pytest.raises(BlockingIOError), going.watch(Path("/other")):
            raise AssertionError
        with going.hold():
            assert state()[0] == "running, 4 rounds are done"
    listed, page = state()
    assert listed == "stopped, 4 rounds are done"
    again = f"it has stopped: engram run --federation '/fed/the server' --out {going.folder}"
    assert again in page
    assert "engram run local-moml" in page
    assert "--federation '/fed/the server'" in page


def test_a_run_on_a_federation_of_its_own_is_repeated_with_a_new_one(tmp_path):
    e = small(method="ditto", num_clients=4, clients_per_round=2)
    record = RunWriter.create(tmp_path / "run", e, engine="flower", training="a")
    with record.watch(tmp_path / "federation" / "server"):
        pass
    command = repeating(record.folder, record.config)
    assert command.startswith("engram federation --clients 4 --set method=ditto ")


def test_a_run_on_clients_own_data_says_so_and_not_the_default(going, tmp_path):
    roster = Roster([1, 2], [5, 5], own_data=2).to_row()
    record = RunWriter.create(tmp_path / "own", small(), engine="flower", training="a")
    record.append({"round": 0, **roster})
    page, index = said(one_run(RunIndex(tmp_path), {"name": ["own"]})), RunIndex(tmp_path)
    assert "own data of 2 clients" in page
    assert "The rows are with the clients" in said(holdings(index, {"name": ["own"]}))
    rows = {row["id"]: row for row in grid_of(listing(index, {}), "runs")}
    assert (rows["own"]["data"], rows["going"]["data"]) == ("own data of 2 clients", "digits")


def test_a_page_that_is_being_computed_is_not_asked_for_again(folder):
    every = board(RunIndex(folder), None)._callback_list
    (show,) = [each for each in every if "stamp.data" in each["output"]]
    running = {"running": {"tick.disabled": True}, "runningOff": {"tick.disabled": False}}
    assert show["running"] == running


def test_rounds_without_a_client_are_told_as_spells_the_latest_first(going):
    (going.folder / PROGRESS).write_text("{")  # damaged, which is no error
    assert node_rows(going) == []
    assert absences(going) == [
        {"client": "hill", "because": "off line", "from round": 4, "to round": 4},
        {"client": "hill", "because": "no reply", "from round": 2, "to round": 3},
    ]


def test_looking_changes_nothing(folder, going):
    def files(of):
        return {p: (p.stat().st_mtime_ns, p.stat().st_size) for p in of.rglob("*")}

    before = files(folder), files(going.folder)
    index = RunIndex(folder)
    listing(index, {})
    comparing(index, {"name": ["both"]})
    listing(RunIndex(going.folder.parent), {})
    assert (files(folder), files(going.folder)) == before


# --- Who may look ----------------------------------------------------------------------------


@pytest.fixture
def app():
    found = Flask("board")
    found.route("/")(lambda: "the board")
    return found


def test_another_sites_name_for_this_machine_is_refused(app):
    guard(app, Address("127.0.0.1", 8765), None)
    client = app.test_client()
    assert client.get("/", headers={"Host": "localhost:8765"}).status_code == 200
    assert client.get("/", headers={"Host": "[::1]:8765"}).status_code == 200
    assert client.get("/", headers={"Host": "evil.example:8765"}).status_code == 403


def test_a_token_is_asked_for_once_and_kept_in_a_cookie(app):
    guard(app, Address("0.0.0.0", 8765), TOKEN)
    client = app.test_client()
    assert client.get("/").status_code == 403
    assert client.get("/?token=wrong").status_code == 403
    answer = client.get("/", query_string={"token": TOKEN}, base_url="https://x")
    assert answer.status_code == 302
    cookie = answer.headers["Set-Cookie"]
    assert all(word in cookie for word in ("HttpOnly", "Secure", "SameSite=Lax"))
    assert client.get("/", base_url="https://x").text == "the board"
    asked = {"name": "a b", "token": TOKEN}
    answer = app.test_client().get("/run", query_string=asked, base_url="https://x")
    assert answer.headers["Location"] == "/run?name=a+b"


def test_nothing_is_loaded_from_other_machines(folder):
    dash = board(RunIndex(folder), None)
    assert isinstance(dash, Dash)
    guard(dash.server, Address("127.0.0.1", 8765), None)
    answer = dash.server.test_client().get("/", base_url="http://localhost:8765")
    assert answer.headers["Content-Security-Policy"].startswith("default-src 'self';")
    assert "https://" not in answer.text.replace("http://www.w3.org", "")


def test_other_machines_need_tls(app, tmp_path):
    away = Address("0.0.0.0", 8765)
    with pytest.raises(Refused, match="can be reached from other machines"):
        server_of(app, away, None, TOKEN)
    (tmp_path / "cert").write_text("none")
    with pytest.raises(Refused, match="are no certificate and its key"):
        server_of(app, away, (tmp_path / "cert", tmp_path / "cert"), TOKEN)


def test_what_the_command_refuses(engram, tmp_path):
    for words, told in [
        (["{none}"], "FOLDER must be a folder of runs"),
        (["--listen", "0.0.0.0:0"], "--listen must be HOST:PORT with a port in 1..65535"),
        (["--key", "x"], "--certificate and --key must be given together"),
        (["--token-file", "{none}"], "cannot be read"),
        (["--federation", "{none}"], "is not there: engram init-federation makes such folders"),
    ]:
        with entry(told):
            given = [word.replace("{none}", str(tmp_path / "none")) for word in words]
            folder = [] if given[0].startswith(str(tmp_path)) else [str(tmp_path)]
            status, _, err = engram("board", *folder, *given)
            assert status == 2
            assert told in err
            assert len(err.strip().splitlines()) == 1

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, _, err = engram("board", tmp_path, "--listen", f"127.0.0.1:{port}")
    assert status == 2
    assert f"port {port} is taken" in err
    (tmp_path / "token").write_text("short")
    status, _, err = engram("board", tmp_path, "--token-file", tmp_path / "token")
    assert "at least 16 characters, got 5" in err
