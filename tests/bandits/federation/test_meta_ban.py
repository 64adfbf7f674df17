"""Meta-Ban between sites makes the choices that it makes with all users in one place."""

import json
import re

import numpy as np
import pandas as pd
import pytest
import torch

from engram.bandits.federation.strategy import MetaBanTurns
from engram.bandits.policy import ROUND, generator
from engram.client.disk_memory import DiskStore
from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.data.source import data
from engram.runs.run import Run
from engram.server.run import run as run_on
from engram.settings.errors import DataError, Refused
from engram.simulations.engine import simulate
from engram.simulations.grid import InProcessGrid
from tests.bandits.federation.turns import (
    COUNT,
    DISCREET,
    T,
    in_one_place,
    killed_at,
    rows_of,
    run,
    settings,
)
from tests.samples import entry
from tests.server.members import ScriptedFederation

COSINE = {"dataset": "cosine-groups", "gamma": 0.1, "nu": 2.0, "alpha": 0.3, "user_steps": 1}


@pytest.mark.parametrize(("special", "nodes"), [({}, 1), (COSINE, 4), (COSINE, COUNT)])
def test_the_choices_are_those_of_one_place(tmp_path, special, nodes):
    found, store = run(tmp_path / "run", nodes=nodes, **special)
    environment, played, last = in_one_place(**special)
    rows = rows_of(tmp_path / "run")
    assert [row["arm"] for row in rows] == played.arms[0].tolist()
    assert [row["served"] for row in rows] == [environment.round(t).user for t in range(T)]
    assert max(row["groups"] for row in rows) > 1
    # A client tells of eight turns at a time, and a node in the end of as many as are left.
    regrets = np.diff(played.regrets[0], prepend=0)
    lost = np.zeros(COUNT)
    for client in range(COUNT):
        own = np.flatnonzero([row["served"] == client for row in rows])
        lost[client] = regrets[own[: len(own) // DISCREET * DISCREET]].sum()
    np.testing.assert_allclose(found["clients"]["regret"], lost, rtol=1e-9, atol=1e-12)
    if nodes == 1:
        assert found["told"] == T
        assert found["regret"] == pytest.approx(played.regrets[0, -1])
        assert found["reward"] == pytest.approx(played.rewards.sum())
    # What the clients remember is what their users are: before the last round, whoever is served.
    stack = last.state.site.thetas[0].read()[0]
    for place, client in enumerate(last.came[0]):
        if client != rows[-1]["served"]:
            kept = store.load(client, before=T + 1)["theta.0"][0]
            torch.testing.assert_close(kept, stack[place], rtol=1e-9, atol=1e-12)


def test_the_regret_curve_is_that_of_one_place_where_every_turn_is_told(tmp_path):
    run(tmp_path / "run", report_every=1)
    _, played, _ = in_one_place(report_every=1)
    rows = rows_of(tmp_path / "run")
    assert [row["told"] for row in rows] == list(range(1, T + 1))
    np.testing.assert_allclose([row["regret"] for row in rows], played.regrets[0], rtol=1e-9)


@pytest.mark.parametrize("groups", [0, 2])
def test_classes_of_data_sets_are_clients(tmp_path, groups):
    special = {"dataset": "digits,permuted-digits", "num_clients": 20, "user_groups": groups}
    special |= {"num_rounds": 12}
    run(tmp_path / "run", nodes=5, **special)
    _, played, _ = in_one_place(**special)
    rows = rows_of(tmp_path / "run")
    assert [row["arm"] for row in rows] == played.arms[0].tolist()
    assert len(rows[0]["schema"]["columns"]) == 73


def test_what_is_recorded(tmp_path):
    found, _ = run(tmp_path / "run")
    record = Run.open(tmp_path / "run")
    assert record.results == json.loads(json.dumps(found))
    rows = record.rows()
    assert [row["round"] for row in rows] == list(range(1, T + 1))
    assert (found["turns"], found["rounds"], found["sites"], found["left-out"]) == (T, T, COUNT, {})
    (metric,) = record.metrics
    assert (metric.name, metric.better) == ("regret", "lower")
    assert rows[6]["told"] == 0
    assert all(row["told"] + row["untold"] == row["round"] for row in rows)
    assert found["told"] + found["untold"] == T
    assert 0 < rows[-1]["told"] <= found["told"] <= T
    assert rows[-1]["told"] == sum(found["clients"]["turns"])
    assert rows[-1]["regret"] == pytest.approx(sum(found["clients"]["regret"]))
    assert record.load_checkpoint().state["chosen"] == T


def test_turns_that_are_not_reported_are_counted_and_those_of_several_clients_shown(
    tmp_path, engram
):
    few, _ = run(tmp_path / "few", num_rounds=6)
    words = "6 sites, regret 0 in 0 turns, 6 are not reported yet (see report-every)"
    assert MetaBanTurns.in_words(few) == words
    found, _ = run(tmp_path / "run", nodes=1)
    together = T - sum(found["clients"]["turns"])
    lost = found["regret"] - sum(found["clients"]["regret"])
    assert (together > 0, found["untold"]) == (True, 0)
    assert f"6 sites, regret {found['regret']:.4g} in {T} turns" == MetaBanTurns.in_words(found)
    (row,) = re.findall("together +(.*)", engram("show", tmp_path / "run")[1])
    assert row.split()[::2] == [f"{together:.0f}", f"{lost:.4g}"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The results of a run at a stretch, and its rows."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    found, _ = run(folder, checkpoint_every=4)
    return found, rows_of(folder)


@pytest.mark.parametrize("kind", ["ram", "disk", "living"])
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path, whole, kind):
    """So does one whose sites live on, and know more than its last checkpoint."""
    e = settings(checkpoint_every=4)
    store = RamStore() if kind == "ram" else DiskStore(tmp_path / "memory")
    host = host_of(Opening(e, store))

    def go(host, store, **special):
        g = InProcessGrid(host, [range(n, COUNT, 2) for n in range(2)])
        ram = store if kind == "ram" else None
        now = settings(checkpoint_every=4, **special)
        return run_on(g, now, tmp_path / "run", engine="vectorized", memories=ram)

    with killed_at(20):  # three turns after the checkpoint of the sixteenth
        go(host, store)
    store = RamStore() if kind == "ram" else store
    host = host if kind == "living" else host_of(Opening(e, store))
    again = go(host, store, resume=str(tmp_path / "run"))
    found, rows = whole
    assert again["clients"] == found["clients"]
    assert [row["arm"] for row in rows_of(tmp_path / "run")] == [row["arm"] for row in rows]


# --- Members -------------------------------------------------------------------------------------


@data
def members_offers(client):
    """Returns a client's offers, and what they pay."""
    x = np.random.default_rng([3, client]).uniform(size=(30, 2))
    return x, x[:, client % 2]


TURNS = 24
COMES, LEAVES = 8, 16  # rounds: client 3 from the first on, client 1 to the one before the second


def test_who_joins_between_turns_is_served_and_who_leaves_is_expected_no_more(tmp_path):
    there = {n: {0, 1, 2} | ({3} if n >= COMES else set()) for n in range(TURNS + 1)}
    there = {n: each - ({1} if n >= LEAVES else set()) for n, each in there.items()}
    script = {n: (each, each) for n, each in there.items()}
    e = settings(num_clients=3, num_rounds=TURNS, timeout=5.0)
    grid = ScriptedFederation(e, tmp_path, script, rows="members-offers")
    found = run_on(grid, e, tmp_path / "run", engine="flower")
    rows = rows_of(tmp_path / "run")
    for row in rows:
        members = sorted(there[row["round"]])
        drawn = generator(e.seed, row["round"] - 1, ROUND).integers(len(members))
        assert (row["served"], row["members"]) == (members[drawn], members)
        assert (row["absent"], row["left-out"], row["sites"]) == ({}, 0, len(members))
        assert "arm" in row
    served = [row["served"] for row in rows]
    assert 3 in served[COMES - 1 :]
    assert 1 in served[: LEAVES - 1]
    # What the client that came has learned, its node remembers.
    (place,) = (tmp_path / "node-4" / "memory").iterdir()
    last = max(row["round"] for row in rows if row["served"] == 3)
    assert DiskStore(place).newest(3, before=TURNS + 1) == last
    assert found["turns"] == TURNS
    # One process that is given the same participation, and reads the same rows, plays alike.
    known = {"dataset": "members-offers", "participation": str(tmp_path / "run")}
    simulate(settings(num_clients=4, num_rounds=TURNS, **known), tmp_path / "again")
    same = ("served", "arm", "sites", "cohort", "absent", "members")
    assert [[row[key] for key in same] for row in rows_of(tmp_path / "again")] == [
        [row[key] for key in same] for row in rows
    ]


# --- Tables and settings -------------------------------------------------------------------------


def table(path, **columns):
    rng = np.random.default_rng(0)
    who = np.repeat(["a", "b", "c"], 50)
    x = rng.uniform(size=(150, 2))
    frame = pd.DataFrame({"task": who, "x0": x[:, 0], "x1": x[:, 1], "y": x[:, 0]} | columns)
    frame.to_csv(path, index=False)
    return f"csv:{path}"


def test_clients_choose_between_rows_of_their_tables(tmp_path):
    special = {"dataset": table(tmp_path / "t.csv"), "num_clients": 3, "arms": 4}
    special |= {"num_rounds": 150, "hidden": "10", "replay_batch": 16, "replay_rows": 100}
    found, _ = run(tmp_path / "run", nodes=1, **special)
    assert found["told"] > 150 - DISCREET
    # The best of four has 0.8 on average, and one at random 0.5.
    assert found["regret"] < 0.5 * 0.3 * 150


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"y": 2.0}, "y must be in .0, 1. in every row"),
        ({"y": np.nan}, "y is missing in row 2: a row needs one"),
        ({"x1": np.append(np.linspace(0, 1, 149), np.nan)}, "its rows have NaN or infinity"),
        ({"x1": [1.0, 60.0] * 75}, "must have a length of at most 2, got 60: scale the columns"),
    ],
)
def test_tables_that_cannot_be_played(tmp_path, columns, message):
    dataset = table(tmp_path / "t.csv", **columns)
    with pytest.raises(DataError, match=message):
        run(tmp_path / "run", dataset=dataset, num_clients=3)
    assert not (tmp_path / "run").exists()


def test_settings_that_cannot_be(tmp_path):
    for special, error, message in [
        ({"dataset": "digits"}, DataError, "num-clients must be the number of clients in digits"),
        ({"dataset": "digits,nothing"}, DataError, "dataset must be one of digits"),
        ({"dataset": "digits", "user_groups": 11}, DataError, "groups must be None, or in"),
        ({"num_clients": 2}, DataError, "groups must be in .1, 2., the number of users"),
        ({"hidden": ""}, Refused, "hidden must be one or more for meta-ban"),
        ({"gamma": 1.0}, Refused, "gamma must be less than 1"),
        ({"nu": 1.0}, Refused, "nu must be greater than 1"),
        ({"clip": 1.0}, Refused, "clip is not a setting of meta-ban"),
    ]:
        with entry(special, error):
            with pytest.raises(error, match=message):
                run(tmp_path / "run", **special)
            assert not (tmp_path / "run").exists()
