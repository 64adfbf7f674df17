"""Meta-Ban between sites makes the choices that it makes with all users in one place."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
from flwr.app import MessageType

from client.hosts import table_host
from client.memory import DiskStore, RamStore
from engram.bandits.play import play as play_in_one_place
from engram.bandits.replay import Drawn
from engram.bandits.worlds.classes import classes
from federation.data.bandits import read_classes
from federation.data.meetings import GROUPED, grouped_users
from federation.errors import DataError, Refused, RunStopped
from federation.opinions import ARMS, OPINIONS, Question, question_for
from federation.policy import meta_ban_of
from federation.wire import ARRAYS, CLIENTS, to_record
from server import bandits as module
from server.bandits import play
from server.record import RunRecord
from simulations.grid import InProcessGrid
from strategies.meta_ban import summed
from tests.server.sites import Odd, error_instead
from tests.support import small

COUNT, T = 6, 40
DISCREET = 8  # the default of tell-turns


def settings(**special):
    base = {"algorithm": "meta-ban", "dataset": "linear-groups", "num_clients": COUNT}
    quick = {"hidden": "6,5", "replay_batch": 4, "replay_rows": 6, "meta_steps": 2}
    return small(**base | quick | {"num_rounds": T, "timeout": 1.0} | special)


def run(folder, *, grid=None, store=None, nodes=COUNT, **special):
    e, store = settings(**special), store or RamStore()
    hosts = [range(node, e.num_clients, nodes) for node in range(nodes)]
    g = (grid or InProcessGrid)(table_host(e, store), hosts)
    ram = store if isinstance(store, RamStore) else None
    return play(g, e, folder, engine="vectorized", memories=ram), store


def world_of(e):
    if e.dataset in GROUPED:
        return grouped_users(GROUPED[e.dataset], users=e.num_clients, horizon=e.rounds, seed=e.seed)
    rows = [read_classes(name, data_dir=None) for name in e.sources]
    return classes(rows, horizon=e.rounds, seed=e.seed, groups=e.user_groups or None)


def in_one_place(**special):
    """Plays the library's policy, and returns what it played, and its state in the end."""
    e, world = settings(**special), world_of(settings(**special))
    moments = []
    played = play_in_one_place(meta_ban_of(e, world.dim).runs, [world], [e.seed], moments.append)
    return world, played, moments[-1]


def rows_of(folder):
    return RunRecord.open(folder).rows()


@pytest.mark.parametrize("nodes", [1, 4, COUNT])
@pytest.mark.parametrize(
    "special",
    [
        {},
        {"dataset": "cosine-groups", "gamma": 0.1, "nu": 2.0, "alpha": 0.3, "user_steps": 1},
    ],
)
def test_the_choices_are_those_of_one_place(tmp_path, special, nodes):
    found, store = run(tmp_path / "run", nodes=nodes, **special)
    world, played, last = in_one_place(**special)
    rows = rows_of(tmp_path / "run")
    assert [row["arm"] for row in rows] == played.arms[0].tolist()
    assert [row["served"] for row in rows] == [world.round(t).user for t in range(T)]
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
            kept = store.load(client, None, before=T + 1)["theta.0"][0]
            torch.testing.assert_close(kept, stack[place], rtol=1e-9, atol=1e-12)


def test_the_regret_curve_is_that_of_one_place_where_every_turn_is_told(tmp_path):
    run(tmp_path / "run", tell_turns=1)
    _, played, _ = in_one_place(tell_turns=1)
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
    assert len(rows[0]["columns"]) == 73


def test_what_is_recorded(tmp_path):
    found, _ = run(tmp_path / "run")
    record = RunRecord.open(tmp_path / "run")
    assert record.results == json.loads(json.dumps(found))
    rows = record.rows()
    assert [row["round"] for row in rows] == list(range(1, T + 1))
    assert (found["turns"], found["rounds"], found["sites"], found["left-out"]) == (T, T, COUNT, {})
    assert rows[6]["told"] == 0
    assert 0 < rows[-1]["told"] <= found["told"] <= T
    assert rows[-1]["told"] == sum(found["clients"]["turns"])
    assert rows[-1]["regret"] == pytest.approx(sum(found["clients"]["regret"]))
    assert record.load_checkpoint().state["chosen"] == T


@pytest.mark.parametrize("kind", ["ram", "disk", "living"])
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path, kind, monkeypatch):
    """So does one whose sites live on, and know more than its last checkpoint."""
    e = settings(checkpoint_every=4)
    whole, _ = run(tmp_path / "whole", checkpoint_every=4)
    store = RamStore() if kind == "ram" else DiskStore(tmp_path / "memory")
    host, train, calls = table_host(e, store), module.train_round, []

    def go(host, store, **special):
        g = InProcessGrid(host, [range(n, COUNT, 2) for n in range(2)])
        ram = store if kind == "ram" else None
        now = settings(checkpoint_every=4, **special)
        return play(g, now, tmp_path / "run", engine="vectorized", memories=ram)

    def dies(*args, **options):
        calls.append(args)
        if len(calls) == 20:  # three turns after the checkpoint of the sixteenth
            raise KeyboardInterrupt
        return train(*args, **options)

    monkeypatch.setattr(module, "train_round", dies)
    with pytest.raises(KeyboardInterrupt):
        go(host, store)
    monkeypatch.undo()
    store = RamStore() if kind == "ram" else store
    host = host if kind == "living" else table_host(e, store)
    again = go(host, store, resume=str(tmp_path / "run"))
    assert again["clients"] == whole["clients"]
    assert [row["arm"] for row in rows_of(tmp_path / "run")] == [
        row["arm"] for row in rows_of(tmp_path / "whole")
    ]


# --- Sites that fail or lie ----------------------------------------------------------------------


def asked_of(reply):
    """Which question a reply answers."""
    content = reply.content
    if OPINIONS in content.array_records:
        return "opinions"
    if ARRAYS in content.array_records:
        return "slopes"
    return "play" if "turns" in content.config_records[CLIENTS] else "offer"


def in_round(number, question, change, client=None):
    """Returns a grid on which replies of one round to one question are changed.

    Those of one client; None for whoever answers first.
    """

    def once():
        done = []

        def odd(node, reply):
            if reply.metadata.message_type != MessageType.TRAIN or done not in ([], [node]):
                return reply
            details = reply.content.config_records[CLIENTS]
            if details["server-round"] != number or asked_of(reply) != question:
                return reply
            if client not in (None, node):
                return reply
            done[:] = [node]
            return change(reply)

        return odd

    return lambda host, hosts: Odd(host, hosts, once())


def entry(key, value):
    def change(reply):
        reply.content.config_records[CLIENTS][key] = value
        return reply

    return change


def arrays(name, key, value):
    def change(reply):
        record = reply.content.array_records[name]
        kept = {k: torch.from_numpy(record[k].numpy().copy()) for k in record}
        reply.content.array_records[name] = to_record(kept | {key: value(kept[key])})
        return reply

    return change


def with_nan(tensor):
    tensor.view(-1)[0] = torch.nan
    return tensor


FAULTS = {
    "silent": ("opinions", lambda reply: None, "no reply"),
    "error": ("opinions", lambda reply: error_instead(reply, "no memory"), "no memory"),
    "offer of another": ("offer", entry("served", [1, 2, 3]), "its node offers arms to [1, 2, 3]"),
    "no arms": ("offer", entry("served", [0]), "its reply lacks"),
    "opinion NaN": (
        "opinions",
        arrays(OPINIONS, "opinions", with_nan),
        "some opinions are NaN or infinite",
    ),
    "opinions' shape": (
        "opinions",
        arrays(OPINIONS, "opinions", lambda a: a[:, :-1]),
        "instead of float64 of",
    ),
    "rows": ("opinions", entry("rows", [10**6]), "numbers of rows cannot be"),
    "rows of nobody": ("opinions", entry("rows", []), "numbers of rows cannot be"),
    "gradient NaN": (
        "slopes",
        arrays(ARRAYS, "theta.0", with_nan),
        "gradients are NaN or infinite",
    ),
    "gradient's shape": (
        "slopes",
        arrays(ARRAYS, "theta.1", lambda a: a[:1]),
        "instead of float64 of",
    ),
    "another round": ("opinions", entry("server-round", 3), "its reply is of round 3"),
    "turns": ("play", entry("turns", 10**6), "its turns, rewards or regrets cannot be"),
    "reward": ("play", entry("reward", 50.0), "its turns, rewards or regrets cannot be"),
    "regret": ("play", entry("regret", float("nan")), "regret must be a finite number"),
}


@pytest.mark.parametrize(("question", "change", "reason"), FAULTS.values(), ids=list(FAULTS))
def test_a_site_that_fails_or_lies_is_named_and_the_run_goes_on(tmp_path, question, change, reason):
    number, turns = 12, 15
    run(tmp_path / "whole", num_rounds=turns)
    served = rows_of(tmp_path / "whole")[number - 1]["served"]
    other = next(c for c in range(COUNT) if c != served)
    client = served if question in ("play", "offer") and "no arms" not in reason else other
    client = other if question == "offer" and reason == "its reply lacks" else client
    run(tmp_path / "run", grid=in_round(number, question, change, client), num_rounds=turns)
    rows = rows_of(tmp_path / "run")
    assert [row["left-out"] for row in rows] == [0] * (number - 1) + [1] + [0] * (turns - number)
    assert reason in rows[number - 1]["absent"][str(client)]
    assert [r["arm"] for r in rows[: number - 1]] == [
        r["arm"] for r in rows_of(tmp_path / "whole")[: number - 1]
    ]
    assert ("arm" in rows[number - 1]) == (question != "offer" or client != served)
    assert all("arm" in row for row in rows[number:])


def test_a_turn_of_a_site_that_is_away_is_nobodys(tmp_path):
    class Away(InProcessGrid):
        def get_node_ids(self):
            return [node for node in super().get_node_ids() if node != 3]

    found, _ = run(tmp_path / "run", grid=Away)
    rows = rows_of(tmp_path / "run")
    assert all(row["absent"] == {"2": "no node hosts it"} for row in rows)
    turns = [world_of(settings()).round(t).user for t in range(T)]
    assert ["arm" in row for row in rows] == [user != 2 for user in turns]
    assert found["clients"]["turns"][2] == 0


def test_each_site_is_asked_about_its_own_rows():
    rng = np.random.default_rng(0)
    drawn = Drawn(
        np.zeros(2, dtype=int),
        rng.integers(3, size=(2, 8)),
        rng.integers(5, size=(2, 8)),
        np.full((2, 8), 1 / 8),
    )
    weights = (torch.ones(2, 4, 3, dtype=torch.float64), torch.ones(2, 1, 4, dtype=torch.float64))
    parts = {c: question_for([c], Question(weights, drawn)).drawn for c in range(3)}
    for client, part in parts.items():
        own = drawn.users == client
        assert set(part.users[part.shares > 0]) == {client}
        np.testing.assert_allclose(part.shares.sum(axis=1), own.sum(axis=1) / 8)
        for asked, there, where in zip(part.slots, drawn.slots, own, strict=True):
            assert sorted(asked[: where.sum()]) == sorted(there[where])
    assert question_for([7], Question(weights, drawn)) is None


def test_gradients_are_means_over_the_rows_of_who_was_heard():
    rng = np.random.default_rng(0)
    users = np.array([[0, 0, 1, 2], [0, 1, 1, 1], [2, 2, 2, 2], [0, 0, 0, 0]])
    shares = np.where(np.arange(4)[:, None] < 3, 1 / 4, 0.0) * np.ones(4)  # the last has no rows
    rows = torch.from_numpy(rng.normal(size=(4, 4)))  # what each row's gradient would be
    like = (torch.ones(4, 1, 1, dtype=torch.float64),)
    weighed = rows * torch.from_numpy(shares)

    def part(client):
        return ((weighed * torch.from_numpy(users == client)).sum(dim=1)[:, None, None],)

    drawn = Drawn(np.zeros(4, dtype=int), users, np.zeros_like(users), shares)
    (whole,) = summed(like, drawn, [0, 1, 2], [part(0), part(1), part(2)])
    torch.testing.assert_close(whole.flatten()[:3], rows.mean(dim=1)[:3])
    (some,) = summed(like, drawn, [0, 1], [part(0), part(1)])
    expected = [rows[0, :3].mean(), rows[1].mean(), 0.0, 0.0]
    torch.testing.assert_close(some.flatten(), torch.tensor(expected, dtype=torch.float64))
    (none,) = summed(like, drawn, [], [])
    assert not none.any()


def test_without_enough_sites_a_run_stops_and_can_go_on(tmp_path):
    grid = in_round(30, "opinions", lambda reply: None, 2)
    with pytest.raises(RunStopped, match="5 of 6 sites are usable; client 2: no reply"):
        run(tmp_path / "run", grid=grid, min_clients=COUNT)
    found, _ = run(tmp_path / "run", min_clients=COUNT, resume=str(tmp_path / "run"))
    whole, _ = run(tmp_path / "whole", min_clients=COUNT)
    assert found["clients"] == whole["clients"]


def test_what_leaves_a_site(tmp_path):
    """Arms that are offered, predictions, gradients: no row, and no reward of a single turn."""
    shapes, told = set(), set()

    def look(node, reply):
        for name, record in reply.content.array_records.items():
            shapes.update((name, key, len(record[key].shape)) for key in record)
        details = reply.content.config_records.get(CLIENTS, {})
        told.add((details.get("turns"), bool(details.get("reward"))))
        return reply

    run(tmp_path / "run", grid=lambda host, hosts: Odd(host, hosts, look))
    layers = {(ARRAYS, f"theta.{k}", 3) for k in range(3)}
    assert shapes == {(ARMS, ARMS, 2), (OPINIONS, OPINIONS, 2), *layers}
    assert told == {(None, False), (0, False), (DISCREET, True)}


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
        ({"y": np.nan}, "y must be in .0, 1. in every row"),
        ({"x1": np.nan}, "its rows have NaN or infinity"),
    ],
)
def test_tables_that_cannot_be_played(tmp_path, columns, message):
    dataset = table(tmp_path / "t.csv", **columns)
    with pytest.raises(DataError, match=message):
        run(tmp_path / "run", dataset=dataset, num_clients=3)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("special", "error", "message"),
    [
        (
            {"dataset": "digits"},
            DataError,
            "num-clients must be the number of users, 10, in digits",
        ),
        ({"dataset": "digits,nothing"}, DataError, "dataset must be one of digits"),
        ({"dataset": "digits", "user_groups": 11}, DataError, "groups must be None, or in"),
        ({"num_clients": 2}, DataError, "groups must be in .1, 2., the number of users"),
        ({"hidden": ""}, Refused, "hidden must be one or more for meta-ban"),
        ({"gamma": 1.0}, Refused, "gamma must be less than 1"),
        ({"nu": 1.0}, Refused, "nu must be greater than 1"),
        ({"clip": 1.0}, Refused, "clip must be 0.0 for meta-ban"),
    ],
)
def test_settings_that_cannot_be(tmp_path, special, error, message):
    with pytest.raises(error, match=message):
        run(tmp_path / "run", **special)
    assert not (tmp_path / "run").exists()
