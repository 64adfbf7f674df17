"""The round loop: cohorts, order, what is left out, and when a run must stop."""

import gc
import itertools
import re
import weakref

import pytest
import torch

from engram.client.hosts.local import LocalHost
from engram.core.slots import flat, unflat
from engram.link.node_config import NodeConfig, hosted_clients
from engram.server.roster import query_roster
from engram.settings.errors import RunStopped
from engram.simulations.grid import InProcessGrid
from engram.strategies.running.rounds import draw_cohort
from engram.wire.messages import Error, Reply
from tests.support import assert_same, grid, small, strategy_of, train_clients, trainer


def strategy_on(nodes, experiment=None):
    e = experiment or small(clients_per_round=6)
    g = grid(trainer(e), nodes)
    strategy, model = strategy_of(e, g)
    return strategy, g, model


def sent_by(e, model, clients):
    """Slots that clients send after the first round, each with a leading client axis."""
    return flat(train_clients(trainer(e), unflat(model), clients, server_round=1, durable=0).slots)


def one_round(strategy, g, model, server_round=1, spoil=lambda replies: replies):
    questions = strategy.configure_train(server_round, model, {}, g)
    replies = spoil(list(g.ask(questions, timeout=60)))
    arrays, metrics = strategy.aggregate_train(server_round, replies)
    return arrays, metrics


def test_cohorts_depend_on_seed_and_round_alone():
    assert draw_cohort(1, 5, 100, 10) == draw_cohort(1, 5, 100, 10)
    others = [draw_cohort(1, 6, 100, 10), draw_cohort(2, 5, 100, 10)]
    assert draw_cohort(1, 5, 100, 10) not in others
    assert draw_cohort(0, 1, 7, 7) == list(range(7))


def test_cohorts_are_fair():
    drawn = list(itertools.chain(*(draw_cohort(0, r, 10, 3) for r in range(2000))))
    # 600 each, with a standard deviation of about 20.
    assert all(abs(drawn.count(client) - 600) < 100 for client in range(10))


def test_shards_are_what_nodes_host_and_give_alike():
    # The LocalMOML paper's four workers, each of which draws B' of its own clients; 22 clients do
    # not divide by four.
    for server_round in range(200):
        cohort = draw_cohort(3, server_round, 22, 8, shards=4)
        assert len(set(cohort)) == 8
        for node in range(4):
            assert len(set(cohort) & set(hosted_clients(22, NodeConfig(node, 4)))) == 2
    drawn = list(itertools.chain(*(draw_cohort(0, r, 12, 4, shards=2) for r in range(1500))))
    assert all(abs(drawn.count(client) - 500) < 100 for client in range(12))


def test_a_reply_that_fails_is_left_out_named_and_counted(warnings_of_engram):
    strategy, g, model = strategy_on(20)
    cohort = draw_cohort(0, 1, 20, 6)

    def spoil(replies):
        replies[0].content["arrays"]["model/dense0.bias"] = torch.full((8,), torch.nan)
        return [*replies[:-1], Reply(strategy._sent[0].asked[-1][0], {}, Error(5, "gone"))]

    merged, metrics = one_round(strategy, g, model, spoil=spoil)
    expected = sent_by(small(), model, cohort[1:-1])
    assert_same(merged, {k: v.mean(dim=0) for k, v in expected.items()}, atol=1e-6)
    assert metrics["left-out"] == 2
    assert (metrics["rejected-non-finite"], metrics["rejected-error"]) == (1, 1)
    assert f"clients [{cohort[0]}] is left out (non-finite)" in warnings_of_engram.text
    assert f"clients [{cohort[-1]}] is left out (error): gone" in warnings_of_engram.text


def test_a_round_without_a_usable_reply_stops_the_run_with_the_reasons():
    strategy, g, model = strategy_on(2)

    def spoil(replies):
        return [Reply(strategy._sent[0].asked[0][0], {}, Error(2, "out of memory"))]

    with pytest.raises(RunStopped, match=r"round 3 has no usable reply; .*out of memory.*no reply"):
        one_round(strategy, g, model, server_round=3, spoil=spoil)


@pytest.mark.parametrize("nodes", [1, 20])
def test_a_run_stops_when_most_of_the_cohort_diverges(nodes, warnings_of_engram):
    strategy, g, model = strategy_on(nodes)
    cohort = draw_cohort(0, 1, 20, 6)
    data = g._host.trainer.data.train
    for client in cohort[:3]:  # half
        data.x[data.rows[client]] = torch.inf
    _, metrics = one_round(strategy, g, model)
    assert (metrics["clients"], metrics["left-out"]) == (3, 3)
    (line,) = (text for text in warnings_of_engram.messages if "left out" in text)
    assert f": client {cohort[0]}: its model or loss became non-finite in round 1" in line
    assert line.endswith(" (the first of 3 reasons)")
    data.x[data.rows[cohort[3]]] = torch.inf
    named = re.escape(str(cohort[:4]))
    expected = (
        rf"round 1 diverged: the models of clients {named} .*; client {cohort[0]}: .*of 4 rea"
    )
    with pytest.raises(RunStopped, match=expected):
        one_round(strategy, g, model)


def test_replies_are_merged_in_the_order_of_their_clients(monkeypatch):
    # Clients dealt to nodes in another order than nodes are numbered in.
    seen = []

    def gather(at, updates):
        seen.extend(float(u.slots["model"]["dense1.bias"][0]) for u in updates)
        return updates

    e = small(clients_per_round=6, merge="median")
    t = trainer(e)
    g = InProcessGrid(LocalHost(t), [[client] for client in reversed(range(20))])
    strategy, model = strategy_of(e, g)
    merge = strategy.rounds.merge
    merge.guard = merge.guard._replace(gather=gather)
    one_round(strategy, g, model)
    each = sent_by(e, model, draw_cohort(0, 1, 20, 6))
    assert seen == pytest.approx(each["model/dense1.bias"][:, 0].tolist(), abs=1e-6)


def scores_of(lie=None):
    """The summary of three clients' scores, of which the last may say what it likes."""
    strategy, g, model = strategy_on(3, small(num_clients=3, clients_per_round=3))
    questions = strategy.configure_evaluate(1, model, {}, g)
    replies = list(g.ask(questions, timeout=60))
    replies[2].content["clients"].update(lie or {})
    strategy.aggregate_evaluate(1, replies)
    return strategy.scores(), strategy.evaluation.columns["accuracy"]


def test_one_of_three_who_lies_about_its_scores_moves_means_by_a_third_at_most():
    honest, each = scores_of()
    huge = {"loss-common": [3.4e38], "loss": [3.4e38]}
    found, _ = scores_of({"accuracy": [1.0], "queries": [2**31 - 1]} | huge)
    assert found["accuracy"] - honest["accuracy"] == pytest.approx((1 - each[2]) / 3)
    assert min(each[:2]) <= found["accuracy-median"] <= max(each[:2])
    for loss in ("loss", "loss-common"):  # without bounds: no mean that the liar owns
        assert found[loss] is None
        assert found[f"{loss}-median"] == pytest.approx(honest[loss], abs=1)


def test_an_evaluation_without_scores_forgets_the_one_before():
    strategy, g, model = strategy_on(2)
    questions = strategy.configure_evaluate(1, model, {}, g)
    strategy.aggregate_evaluate(1, g.ask(questions, timeout=60))
    assert strategy.evaluation is not None
    strategy.configure_evaluate(2, model, {}, g)
    strategy.aggregate_evaluate(2, [])
    assert strategy.evaluation is None


# --- Who is away ----------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [1, 4])
def test_who_is_away_is_replaced_and_the_others_stay(shards):
    for server_round in range(1, 30):
        drawn = draw_cohort(3, server_round, 22, 8, shards=shards)
        away = set(drawn[:3]) | {1}
        instead = draw_cohort(3, server_round, 22, 8, shards=shards, absent=away)
        assert set(drawn) - away <= set(instead)
        assert not away & set(instead)
        assert len(set(instead)) == 8
        assert draw_cohort(3, server_round, 22, 8, shards=shards, absent=away) == instead
        if shards > 1:
            assert {sum(c % shards == s for c in instead) for s in range(shards)} == {2}


def test_fewer_are_drawn_where_fewer_are_there():
    assert draw_cohort(0, 1, 5, 4, absent={0, 1, 2}) == [3, 4]
    assert draw_cohort(0, 1, 5, 4, absent=range(5)) == []


def test_clients_that_have_not_come_yet_are_neither_asked_nor_scored():
    t = trainer(small(num_clients=6, clients_per_round=4))
    g = grid(t)
    whole = query_roster(g, 6)
    some = whole._replace(nodes=[1, None, 3, 4, None, 6], examples=[40, 0, 40, 40, 0, 20])
    strategy, model = strategy_of(t.experiment, g, roster=some)
    arrays = model
    asked = strategy.configure_train(1, arrays, {}, g)
    assert {m.node for m in asked} == {1, 3, 4, 6}
    assert strategy.cohort == draw_cohort(0, 1, 6, 4, absent={1, 4})
    asked = strategy.configure_evaluate(1, arrays, {}, g)
    assert {m.node for m in asked} == {1, 3, 4, 6}
    strategy.meet(whole)
    list(strategy.configure_train(2, arrays, {}, g))
    assert strategy.cohort == draw_cohort(0, 2, 6, 4)


def test_the_former_model_has_gone_before_the_next_one_is_sent():
    strategy, g, model = strategy_on(2)
    former, old = {name: leaf.clone() for name, leaf in model.items()}, []

    def noted(replies):
        old.extend(weakref.ref(leaf) for leaf in strategy.slots["model"].values())
        return replies

    found, _ = one_round(strategy, g, former, spoil=noted)
    del former
    gc.collect()
    assert all(leaf() is not None for leaf in old)
    list(strategy.configure_evaluate(1, found, {}, g))
    gc.collect()
    assert [leaf() for leaf in old] == [None] * len(model)
