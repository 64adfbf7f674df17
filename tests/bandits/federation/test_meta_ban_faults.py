"""What a site of Meta-Ban that fails or lies costs, and what leaves one that does not."""

from functools import partial

import numpy as np
import pytest
import torch

from engram.bandits.federation.bandit_turns import drawn_environment
from engram.bandits.federation.meta_ban_messages import ARMS, PREDICTIONS, drawn_of, summed
from engram.bandits.replay import Drawn
from engram.client.disk_memory import MemoryFull
from engram.client.hosts import Opening, host_of
from engram.client.memory import RamStore
from engram.settings.errors import RunStopped
from engram.simulations.grid import InProcessGrid
from engram.wire.messages import EVALUATE, TRAIN
from engram.wire.wire import ARRAYS, CLIENTS
from tests.bandits.federation.turns import COUNT, DISCREET, T, entry, rows_of, run, settings
from tests.server.late import Late
from tests.tables.federation.sites import Odd, error_instead


def asked_of(reply):
    """Which question a reply answers."""
    content = reply.content
    if PREDICTIONS in content:
        return "predictions"
    if ARRAYS in content:
        return "gradients"
    return "play" if "turns" in content[CLIENTS] else "offer"


def changing(client, question, change, number=None):
    """Returns a grid on which a client's replies to a question are changed, in one round or all."""

    def odd(node, reply):
        if node != client or reply.question.kind != TRAIN:
            return reply
        there = reply.content[CLIENTS]["server-round"]
        ours = number in (None, there) and asked_of(reply) == question
        return change(reply) if ours else reply

    return partial(Odd, change=odd)


def arrays(name, key, value):
    """Changes an array of a message's record, or all where the key is None."""

    def change(message):
        record = message.content[name]
        kept = {k: torch.from_numpy(record[k].numpy().copy()) for k in record}
        kept |= {k: value(leaf).contiguous() for k, leaf in kept.items() if key in (None, k)}
        message.content[name] = kept
        return message

    return change


def beginning_with(number):
    def value(tensor):
        tensor.view(-1)[0] = number
        return tensor

    return value


with_nan = beginning_with(torch.nan)


FAULTS = [  # of which reply, how it is changed, and what is said of it
    ("offer", entry("served", [1, 2, 3]), "its node offers arms to [1, 2, 3]"),
    ("offer", entry("served", [0]), "its reply lacks"),
    ("predictions", lambda reply: error_instead(reply, "no memory"), "no memory"),
    ("predictions", arrays(PREDICTIONS, None, with_nan), "some predictions are NaN or infinite"),
    ("predictions", arrays(PREDICTIONS, None, lambda a: a[:, :-1]), "instead of float64 of"),
    ("predictions", entry("rows", [10**6]), "numbers of rows are impossible"),
    ("predictions", entry("rows", [11]), "numbers of rows are impossible"),  # others' turns
    ("predictions", entry("rows", []), "numbers of rows are impossible"),
    ("predictions", entry("server-round", 3), "its reply is of round 3"),
    ("gradients", arrays(ARRAYS, "theta.0", with_nan), "gradients are NaN or infinite"),
    ("gradients", arrays(ARRAYS, "theta.0", lambda a: a + 1e300), "the impossible entry 1e+300"),
    ("gradients", arrays(ARRAYS, "theta.1", lambda a: a[:1]), "instead of float64 of"),
    ("play", entry("turns", 10**6), "its turns, rewards or regrets are impossible"),
    ("play", entry("turns", 11), "its turns, rewards or regrets are impossible"),  # others' turns
    ("play", entry("reward", 50.0), "its turns, rewards or regrets are impossible"),
    ("play", entry("regret", float("nan")), "regret must be a finite number"),
]
TURNS = 15
SAME = {"num_rounds": TURNS, "group_cap": 0}  # so that gradients are asked of all


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The rows of a run in which no site fails or lies."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder / "run", **SAME)
    return rows_of(folder / "run")


@pytest.mark.parametrize(("question", "change", "reason"), FAULTS)
def test_a_site_that_fails_or_lies_is_named_and_the_run_goes_on(
    tmp_path, whole, question, change, reason
):
    number = 12
    served = whole[number - 1]["served"]
    other = next(c for c in range(COUNT) if c != served)
    client = served if question in ("play", "offer") and reason != "its reply lacks" else other
    run(tmp_path / "run", grid=changing(client, question, change, number), **SAME)
    rows = rows_of(tmp_path / "run")
    assert [row["left-out"] for row in rows] == [0] * (number - 1) + [1] + [0] * (TURNS - number)
    assert reason in rows[number - 1]["absent"][str(client)]
    assert [r["arm"] for r in rows[: number - 1]] == [r["arm"] for r in whole[: number - 1]]
    assert ("arm" in rows[number - 1]) == (question != "offer" or client != served)
    assert all("arm" in row for row in rows[number:])


@pytest.mark.parametrize(("times", "seed"), [(-1.0, 0), (-1.0, 2), (-100.0, 2)])
def test_flipped_gradients_of_one_site_leave_no_majority_out(tmp_path, times, seed):
    """They drive the server's weights to where honest gradients are large, too."""
    liar = 2
    grid = changing(liar, "gradients", arrays(ARRAYS, None, lambda a: times * a))
    run(tmp_path / "run", grid=grid, seed=seed, num_rounds=TURNS, group_cap=0)
    rows = rows_of(tmp_path / "run")
    assert len(rows) == TURNS
    assert all(2 * len(row["absent"]) < COUNT for row in rows)
    # Of two that are heard, nobody can say who is right: some honest ones are left out of a turn.
    honest = sum(len(row["absent"].keys() - {str(liar)}) for row in rows)
    assert honest <= TURNS // 3
    assert all("arm" in row for row in rows)


@pytest.mark.parametrize("number", [150.0, 1e3, 1e30])
def test_no_site_alone_has_the_server_begin_anew(tmp_path, warnings_of_engram, number):
    grid = changing(2, "gradients", arrays(ARRAYS, None, beginning_with(number)))
    run(tmp_path / "run", grid=grid, seed=1, **SAME)
    assert "begins anew" not in warnings_of_engram.text
    rows = rows_of(tmp_path / "run")
    assert any("2" in row["absent"] for row in rows)
    assert all(row["absent"].keys() <= {"2"} for row in rows)


def test_in_the_end_a_site_tells_of_its_own_turns_only(tmp_path):
    def lie(node, reply):
        if node == 1 and reply.question.kind == EVALUATE:
            reply.content[CLIENTS].update(turns=T, reward=float(T), regret=float(T))
        return reply

    honest, _ = run(tmp_path / "honest", report_every=1)
    assert honest["told"] == T
    found, _ = run(tmp_path / "run", grid=partial(Odd, change=lie), report_every=1)
    for name in ("told", "reward", "regret"):
        assert found[name] == honest[name]


def test_a_site_that_comes_late_is_served_from_then_on(tmp_path):
    found, _ = run(tmp_path / "run", grid=partial(Late, comes={3: 20}))
    rows = rows_of(tmp_path / "run")
    turns = [drawn_environment(settings()).round(t).user for t in range(T)]
    expected = [user != 2 or t >= 20 for t, user in enumerate(turns)]
    assert ["arm" in row for row in rows] == expected
    away = {"2": "no node hosts it"}
    assert [row["absent"] for row in rows] == [away if t < 20 else {} for t in range(T)]
    assert 2 in set(turns[:20]) & set(turns[20:])
    assert found["left-out"] == {}


def test_each_site_is_asked_about_its_own_rows():
    rng = np.random.default_rng(0)
    drawn = Drawn(
        np.zeros(2, dtype=int),
        rng.integers(3, size=(2, 8)),
        rng.integers(5, size=(2, 8)),
        np.full((2, 8), 1 / 8),
    )
    parts = {c: drawn_of([c], drawn) for c in range(3)}
    for client, part in parts.items():
        own = drawn.users == client
        assert set(part.users[part.shares > 0]) == {client}
        np.testing.assert_allclose(part.shares.sum(axis=1), own.sum(axis=1) / 8)
        for asked, there, where in zip(part.slots, drawn.slots, own, strict=True):
            assert sorted(asked[: where.sum()]) == sorted(there[where])
    assert drawn_of([7], drawn) is None


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
    grid = changing(2, "predictions", lambda reply: None, 30)
    with pytest.raises(RunStopped, match="5 of 6 sites are usable; client 2: no reply"):
        run(tmp_path / "run", grid=grid, min_clients=COUNT)
    found, _ = run(tmp_path / "run", min_clients=COUNT, resume=str(tmp_path / "run"))
    whole, _ = run(tmp_path / "whole", min_clients=COUNT)
    assert found["clients"] == whole["clients"]


def test_what_leaves_a_site(tmp_path):
    """Arms that are offered, predictions, gradients: no row, and no reward of a single turn."""
    shapes, told = set(), set()

    def look(node, reply):
        for name, record in reply.content.items():
            tensors = {key: x for key, x in record.items() if isinstance(x, torch.Tensor)}
            shapes.update((name, key, tensor.ndim) for key, tensor in tensors.items())
        details = reply.content.get(CLIENTS, {})
        told.add((details.get("turns"), bool(details.get("reward"))))
        return reply

    run(tmp_path / "run", grid=partial(Odd, change=look))
    layers = {(ARRAYS, f"theta.{k}", 3) for k in range(3)}
    assert shapes == {(ARMS, ARMS, 2), (PREDICTIONS, PREDICTIONS, 2), *layers}
    assert told == {(None, False), (0, False), (DISCREET, True)}


def test_a_site_that_claims_every_turn_takes_few_from_the_others(tmp_path):
    greedy = 1

    def claim(node, reply):
        details = reply.content.get(CLIENTS, {}) if not reply.error else {}
        if details.get("served") == [] and node == greedy:
            details["served"] = [node]
            arms = torch.zeros(10, 11, dtype=torch.float64)
            reply.content[ARMS] = {ARMS: arms}
        return reply

    run(tmp_path / "run", grid=partial(Odd, change=claim))
    rows = rows_of(tmp_path / "run")
    environment = drawn_environment(settings())
    users = [environment.round(t).user for t in range(T)]
    taken = [row for row, user in zip(rows, users, strict=True) if row["served"] != user]
    assert {row["served"] for row in taken} == {greedy}
    # It gets a turn of another only where it was served no more often until then.
    honest = np.bincount([row["served"] for row in rows if row not in taken], minlength=COUNT)
    assert 0 < len(taken) <= np.delete(honest, greedy).max() + 1
    for row, user in zip(rows, users, strict=True):
        told = row["absent"].get(str(greedy if row["served"] == user else user), "")
        assert user == greedy or f"claim the same turn: {row['served']} was served least" in told


@pytest.mark.parametrize(
    ("key", "change", "message"),
    [
        ("shares", lambda a: -a, "shares must be at least 0"),
        ("shares", lambda a: a * torch.nan, "shares must be at least 0"),
        ("shares", lambda a: a * 30, "those of a network at most 1 in all"),
        ("slots", lambda a: a + 999, "rows that are not there"),
        ("slots", lambda a: a - 1000, "rows of other clients"),
        ("clients", lambda a: a + 3, "rows of other clients"),
        ("theta.0", lambda a: a[:, :-1], "instead of float64 of"),
        ("theta.1", lambda a: a * torch.inf, "NaN or infinite"),
    ],
)
def test_a_wrong_question_of_a_server_is_refused(tmp_path, key, change, message):
    """And is answered by no other client's row."""

    class Wrong(InProcessGrid):
        def ask(self, messages, *, timeout=None):
            asked = list(messages)
            for each in asked:
                there = key in each.content.get(ARRAYS, {})
                if there and each.content["config"]["server-round"] == 12:
                    arrays(ARRAYS, key, change)(each)
            return super().ask(asked, timeout=timeout)

    run(tmp_path / "run", grid=Wrong, num_rounds=13)
    absent = rows_of(tmp_path / "run")[11]["absent"]
    assert absent
    assert all(message in reason for reason in absent.values()), absent


def test_what_cannot_be_kept_is_not_learned():
    class Full(RamStore):
        def save(self, *args, **options):
            raise MemoryFull(f"no room for {args}, {options}")

    e = settings(report_every=1)
    host = host_of(Opening(e, Full()))
    first = drawn_environment(e).round(0)
    before, rows = host.predictions([first.user], first.arms, 1)
    with pytest.raises(MemoryFull, match="no room"):
        host.play(first.user, range(COUNT), 0, server_round=1, durable=0)
    after, still = host.predictions([first.user], first.arms, 2)
    assert np.array_equal(before, after)
    assert rows == still == [0]
    assert not host.untold([first.user], 1).any()
