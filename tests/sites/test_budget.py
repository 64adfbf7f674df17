"""A node with a total epsilon: what it answers, what that costs, and when it stops."""

import math
from functools import partialmethod
from itertools import product

import numpy as np
import pytest
import torch

from engram.client import app as module
from engram.client.round_log import in_words
from engram.cohort.trainer.chunks import ClientFailed
from engram.cohort.trainer.sending import leave_together
from engram.cohort.trainer.trainer import Trainer
from engram.core.slots import flat
from engram.guards.noise import simulated_noise
from engram.guards.places import At
from engram.guards.presets import client_guards
from engram.settings.errors import REFUSED
from engram.sites.audit import Audit
from engram.wire.roster import read_entry
from engram.wire.wire import CLIENTS, CONFIG, METRICS, MODEL, ROSTER_QUERY
from tests.samples import entry
from tests.sites.budgets import (
    LOCAL,
    ask,
    books,
    content_of,
    epsilon_of,
    evaluate,
    numbers,
    policy,
    roster,
    told,
    train,
)
from tests.support import initial_model, small_of_any, trainer

pytestmark = pytest.mark.usefixtures("afresh")

COST = (2 / LOCAL["noise_multiplier"]) ** 2  # of an answer: two clipped updates lie 2 clip apart


def test_an_answer_costs_what_two_updates_are_apart(tmp_path):
    policy(tmp_path)
    assert read_entry(roster(tmp_path).content).clients == {0: 1}
    assert books(tmp_path).lines == []
    assert train(tmp_path).error is None
    assert evaluate(tmp_path).error is None
    lines = books(tmp_path).lines
    assert [line["kind"] for line in lines] == ["train", "evaluate"]
    assert [line["total"] for line in lines] == pytest.approx([COST, 2 * COST])
    for count, line in enumerate(lines, start=1):
        assert line["epsilon"] == pytest.approx(epsilon_of([COST] * count), rel=1e-6)
        assert (line["run"], line["round"], line["noise-multiplier"]) == (1, 1, 8.0)
    rows = len(trainer(small_of_any(**LOCAL)).data.train.rows[0])
    assert lines[0]["rows"] == rows


def accuracies(reply):
    return {k: v for k, v in reply.content[CLIENTS].items() if k.startswith("accuracy")}


def test_each_answer_costs_and_has_noise_of_its_own(tmp_path):
    """A question that a server repeats gets the reply that the link has kept, and none of these."""
    policy(tmp_path)
    first, scored = train(tmp_path), evaluate(tmp_path)
    module._node.cache_clear()  # as after a restart
    assert not np.array_equal(numbers(train(tmp_path)), numbers(first))
    assert accuracies(evaluate(tmp_path)) != accuracies(scored)
    assert len(books(tmp_path).lines) == 4


def test_a_budget_that_is_spent_is_said_on_both_sides(tmp_path, warnings_of_engram):
    policy(tmp_path, epsilon=2.0)
    fits = next(n for n in range(1, 100) if epsilon_of([COST] * (n + 1)) > 2.0)
    answers = [train(tmp_path, nonce=str(i)) for i in range(fits + 3)]
    assert [not answer.error for answer in answers] == [True] * fits + [False] * 3
    line = told(answers[-1])
    assert line.startswith(
        f"this site's privacy budget is spent: epsilon {epsilon_of([COST] * fits):.4g} of 2 at "
        f"delta 1e-05, and {epsilon_of([COST] * (fits + 1)):.4g} after this answer"
    )
    assert line.endswith("or the site's operator allow more (epsilon in policy.toml)")
    assert answers[-1].error.code == REFUSED
    assert told(evaluate(tmp_path)) == line
    assert told(roster(tmp_path)) == line
    assert any("privacy budget is spent" in said for said in warnings_of_engram.messages)
    # More noise costs less, and may still fit; so may a larger total.
    assert len(books(tmp_path).lines) == fits
    assert train(tmp_path, noise_multiplier=1000.0).error is None
    policy(tmp_path, epsilon=2.5)
    assert train(tmp_path, nonce="more").error is None


def test_rounds_runs_methods_and_clients_share_one_account(tmp_path):
    policy(tmp_path)
    train(tmp_path)
    train(tmp_path, run=2, seed=5)
    train(tmp_path, server_round=7, method="fedavg", noise_multiplier=16.0)
    costs = [COST, COST, COST / 4]
    assert books(tmp_path).lines[-1]["epsilon"] == pytest.approx(epsilon_of(costs), rel=1e-6)
    assert set(books(tmp_path).accounts.values()) == {0}


def test_settings_beyond_the_policy_are_refused_whatever_is_asked(tmp_path):
    policy(tmp_path, more="noise-multiplier = 4.0\nclip = 1.0")
    local = "privacy must be local where epsilon has a total, got"
    for settings, says in [
        ({"privacy": "none"}, f"{local} none"),
        ({"privacy": "central"}, f"{local} central"),
        ({"noise_multiplier": 0.001}, "noise-multiplier must be at least 4, got 0.001"),
        ({"clip": 3.0}, "clip must be above 0 and at most 1, got 3"),
    ]:
        for answer in (roster, train, evaluate):
            with entry(settings, answer):
                assert says in told(answer(tmp_path, **settings))
    assert books(tmp_path).lines == []


def test_what_has_no_noise_is_refused_by_name(tmp_path):
    content = {CONFIG: {MODEL: "x"}}
    policy(tmp_path)
    assert "epsilon is 4 in all, and scores" in told(ask(tmp_path, ROSTER_QUERY, content))
    (other := tmp_path / "other").mkdir()
    (other / "policy.toml").write_text('privacy = ["local"]\n')
    line = told(ask(other, ROSTER_QUERY, content))
    assert "privacy must be local, and scores of a given model have none" in line


def test_nothing_leaves_that_the_ledger_cannot_have(tmp_path, monkeypatch):
    policy(tmp_path)
    (tmp_path / "ledger").write_text("no folder")
    line = told(train(tmp_path))
    assert "this site's ledger cannot be" in line


def test_a_damaged_ledger_stops_all_answers_and_is_said_once(tmp_path, warnings_of_engram):
    policy(tmp_path)
    first = train(tmp_path)
    assert not first.error
    file = tmp_path / "ledger" / "ledger.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"round": 1', b'"round": 2'))
    warnings_of_engram.clear()
    for answer in (roster, train, evaluate):
        assert told(answer(tmp_path)).startswith("this site's ledger is damaged, so that nothing")
    (said,) = warnings_of_engram.messages
    assert said.endswith(
        "its operator looks at engram ledger CLIENT_FOLDER, and goes on by --accept"
    )


def test_the_log_has_the_rows_and_epsilon_that_a_server_does_not_see(tmp_path):
    policy(tmp_path)
    reply = train(tmp_path)
    (line,) = Audit(tmp_path / "log").read().lines
    rows = len(trainer(small_of_any(**LOCAL)).data.train.rows[0])
    assert line["rows"] == rows
    assert reply.content[METRICS]["num-examples"] == 1
    assert in_words(line).endswith(f"; epsilon {epsilon_of([COST]):.4g} so far")


# --- What leaves is covered --------------------------------------------------------------------


def test_a_client_that_diverges_sends_noise_alone(tmp_path, warnings_of_engram):
    policy(tmp_path)
    method = {"method": "fedavg"}
    reply = train(tmp_path, eta=1e30, local_steps=5, **method)
    assert any("clients [0] send noise alone" in line for line in warnings_of_engram.messages)
    before = flat(initial_model(trainer(small_of_any(**LOCAL | method))))
    start = np.concatenate([leaf.numpy().ravel() for leaf in before.values()])
    drawn = (numbers(reply) - start) / (0.5 * 8.0)
    assert abs(drawn.mean()) < 5 / math.sqrt(len(drawn))
    assert abs(drawn.std() - 1) < 5 / math.sqrt(2 * len(drawn))


def test_an_error_quotes_no_row(tmp_path, monkeypatch, warnings_of_engram):
    def fails(*_, kind, **__):
        raise kind("row 42 has 17.5")

    policy(tmp_path)
    asked = product([(train, "train"), (evaluate, "recalled")], [ValueError, ClientFailed])
    for number, ((answer, name), kind) in enumerate(asked, start=1):
        monkeypatch.setattr(Trainer, name, partialmethod(fails, kind=kind))
        with entry(name, kind):
            line = told(answer(tmp_path, nonce=str(number)))
            assert line == "this node cannot answer: its log says why"
            said = sum("row 42 has 17.5" in each for each in warnings_of_engram.messages)
            assert said == len(books(tmp_path).lines) == number


def test_a_server_cannot_weigh_clients_by_rows(tmp_path):
    """Weights 1 / 2 each give noise of deviation z C / sqrt(2), whatever rows they have."""
    policy(tmp_path, epsilon=1000.0)
    node, wide = {"num-partitions": 1}, {"hidden": "256"}  # whose numbers tell 1 / 2 from 2 / 3
    content = content_of((2, 12), **wide)
    content[CONFIG]["most-examples"] = 10**6
    reply = ask(tmp_path, "train", content, node=node, noise_multiplier=1000.0, **wide)
    assert reply.content[METRICS]["num-examples"] == 2
    assert reply.content[CLIENTS]["examples"] == [1, 1]
    drawn = numbers(reply) / (0.5 * 1000.0 / math.sqrt(2))
    assert abs(drawn.std() - 1) < 5 / math.sqrt(2 * len(drawn))


def test_large_slots_do_not_round_a_change_up():
    """At 2^24, float32 has even numbers alone, where 1.1 would be rounded to 2 without noise."""
    size, deviation = 4096, 2.2
    bound = 1.1 * math.sqrt(size)  # to which changes of 2 are clipped
    settings = {"clip": bound, "noise_multiplier": deviation / bound}
    e = small_of_any(**LOCAL | settings)
    method = trainer(small_of_any(**LOCAL)).method
    received = {"model": {"w": torch.full((size,), 2.0**24)}}
    sent = {"model": {"w": torch.full((1, size), 2.0**24 + 2)}}
    guard, noise = client_guards(e), simulated_noise(0)

    def normal(size, stream):
        return noise(size, stream, 1, 0)[None]

    at = At(method, frozenset(), 1, received, None, normal, None)
    left = leave_together(guard, at, {}, sent)["model"]["w"]
    change = float((left.double() - 2.0**24).mean())
    assert abs(change - 1.1) < 5 * deviation / math.sqrt(size)
    assert left.dtype == torch.float32


def test_scores_have_noise_of_their_range_and_losses_are_not_sent(tmp_path):
    policy(tmp_path, epsilon=50.0)
    replies = [evaluate(tmp_path, nonce=str(i)) for i in range(40)]
    details = [dict(reply.content[CLIENTS]) for reply in replies]
    assert all(one["queries"] == [1] for one in details)
    names = [name for name in details[0] if name not in ("server-round", "ids", "queries")]
    bounded = [name for name in names if "accuracy" in name]
    assert bounded
    assert all(math.isnan(one[name][0]) for one in details for name in names if "loss" in name)
    values = np.array([[one[name][0] for name in bounded] for one in details])
    deviation = 8.0 * math.sqrt(len(bounded)) / 2
    assert abs(values.std() / deviation - 1) < 5 / math.sqrt(2 * values.size)
    assert set(replies[0].content[METRICS]) == {"num-examples", *bounded}


def test_methods_whose_scores_have_no_range_send_none(tmp_path):
    policy(tmp_path)
    line = told(evaluate(tmp_path, metrics="log-loss"))
    assert "metrics must be some whose range has two ends" in line
    assert books(tmp_path).lines == []
