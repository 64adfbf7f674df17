"""Privacy and robustness over slots: of every method, and by formulas."""

import numpy as np
import pytest
import torch
from flwr.app import Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from flwr.serverapp.strategy import FedAvg as Flowers
from torch.testing import assert_close

from engram.cohort.sequential import in_turn
from engram.core.clip_and_noise import Walker, changes
from engram.core.method import FromMean, Update
from engram.core.rounds import merged
from engram.core.slots import flat, mean_of, unflat
from engram.guards.robust import median
from engram.link.flower import local_run
from engram.methods.fedavg import FedAvg
from engram.methods.pfedme import PFedMe
from engram.methods.scaffold import Scaffold
from engram.wire.wire import to_params, to_record
from tests.methods.problem import WIDTH, W, built, draw, plus, run_round
from tests.methods.test_contract import CASES
from tests.samples import entry


def update_of(settings):
    """Returns a method, and what a client received and sent in a second round."""
    method, seen = built(settings), []

    def leaving(client, received, sent):
        seen.append((received, sent))
        return sent

    server, memories = run_round(method, in_turn, method.server.start, {}, 1, [0, 2])
    run_round(method, in_turn, server, memories, 2, [2], leaving=leaving)
    return (method, *seen[0])


def length(slots):
    return float(sum(leaf.double().square().sum() for leaf in flat(slots).values()).sqrt())


EACH = {"ifca", "fedpac", "pfedhn", "fedamp", "fedfomo", "cfl", "fedas", "floco"}


def test_updates_of_every_method_are_bounded_and_noised_in_every_slot():
    for name, settings in CASES.items():
        with entry(name):
            check_bound_and_noise(name, *update_of(settings))


def check_bound_and_noise(name, method, received, sent):
    walker = Walker(method)
    kept = {slot: x for slot, x in sent.items() if not isinstance(x, dict) or x}
    assert_close(unflat(flat(sent)), kept, rtol=0, atol=0)
    assert isinstance(method.server.merge, FromMean) or name in EACH
    assert_close(walker.rebase(received, received, sent, 1.0), sent)
    noisy = flat(walker.add_noise(sent, 0.5, torch.ones(walker.size(sent))))
    assert_close(noisy, {n: leaf + 0.5 for n, leaf in flat(sent).items()})
    near = walker.clip(received, sent, 0.01)
    if not flat(sent):
        assert near == sent
        return
    assert length(changes(method, received, near)) == pytest.approx(0.01, rel=1e-4)
    far = walker.clip(received, sent, 1e6)
    assert_close(far, sent, rtol=0, atol=0)
    assert {n: leaf.dtype for n, leaf in flat(near).items()} == {
        n: leaf.dtype for n, leaf in flat(sent).items()
    }


def test_noise_does_not_depend_on_the_order_of_names():
    walker = Walker(built(Scaffold()))
    sent = {"model": W, "change": W}
    other = {s: dict(reversed(x.items())) for s, x in reversed(sent.items())}
    normal = torch.randn(walker.size(sent), generator=torch.Generator().manual_seed(3))
    assert_close(walker.add_noise(sent, 1.0, normal), walker.add_noise(other, 1.0, normal))


def test_running_statistics_are_passed_over():
    method = built(FedAvg())
    walker = Walker(method, frozenset({"dense0.bias"}))
    start, sent = {"model": W}, {"model": draw(9)}
    assert walker.size(sent) == 8 * WIDTH + 3 * 8 + 3
    for found in (
        walker.clip(start, sent, 0.1),
        walker.add_noise(sent, 1.0, torch.ones(8 * WIDTH + 27)),
    ):
        assert torch.equal(found["model"]["dense0.bias"], sent["model"]["dense0.bias"])
        assert list(found["model"]) == list(W)
        assert not torch.equal(found["model"]["dense0.weight"], sent["model"]["dense0.weight"])


def test_a_center_takes_the_place_of_the_mean():
    method = built(FedAvg())
    updates = [Update({"model": draw(c)}, 10.0 * c, 1, c) for c in (1, 2, 3)]
    found = Walker(method).center(updates, median, median)
    middle = {n: torch.stack([draw(c)[n] for c in (1, 2, 3)]).median(0).values for n in W}
    assert_close(found.slots["model"], middle)
    assert (found.rows, found.clients) == (60.0, 3)


def test_a_private_mean_clips_each_and_counts_whoever_was_asked():
    method = built(FedAvg())
    server, ends = {"model": W}, [draw(7), draw(8)]
    updates = [Update({"model": end}, 10.0, 1, c) for c, end in enumerate(ends)]
    found = Walker(method).private_mean(
        server, updates, bound=0.5, multiplier=2.0, clients=4, normal=torch.ones
    )
    expected = {n: leaf.double() for n, leaf in W.items()}
    for end in ends:
        away = {n: end[n].double() - W[n].double() for n in W}
        norm = torch.stack([leaf.square().sum() for leaf in away.values()]).sum().sqrt()
        expected = {n: x + away[n] * min(1, 0.5 / norm) / 4 for n, x in expected.items()}
    expected = {n: (x + 2.0 * 0.5 / 4).float() for n, x in expected.items()}
    assert_close(found.slots["model"], expected, rtol=1e-5, atol=1e-6)


ENDS = [draw(7), draw(8), W, {n: leaf + 1e-3 for n, leaf in W.items()}]


def private(ends=ENDS, settings=None, normal=torch.zeros, multiplier=2.0):
    """Returns the server's slots after updates were bounded by 0.5 and hidden, of 4 clients."""
    method = built(settings or FedAvg())
    updates = [end if isinstance(end, Update) else Update({"model": end}, 10.0) for end in ends]

    def mean(updates, by):
        how = {"bound": 0.5, "multiplier": multiplier, "clients": 4, "normal": normal}
        return Walker(method).private_mean({"model": W}, updates, **how)

    return merged(method, {"model": W}, updates, mean)["model"]


def test_a_client_more_or_less_moves_the_sum_by_the_bound_at_most():
    # What the promise rests on: nothing else depends on a client, not even what it is divided by.
    whole = private()
    for i, end in enumerate(ENDS):
        without = private([other for j, other in enumerate(ENDS) if j != i])
        away = length({"model": {n: end[n] - W[n] for n in W}})
        moved = length({"model": {n: whole[n] - without[n] for n in W}})
        assert 4 * moved == pytest.approx(min(0.5, away), abs=1e-5)


def test_means_of_nodes_count_for_their_clients():
    walker = Walker(built(FedAvg()))
    near = [Update(walker.clip({"model": W}, {"model": end}, 0.5), 10.0) for end in ENDS]
    node = mean_of(near[:3], "clients")
    assert_close(private([node, near[3]]), private(near))


def test_a_server_s_step_scales_the_noise_too():
    quiet, noisy = (
        private([W], PFedMe(server_mix=0.5), normal) for normal in (torch.zeros, torch.ones)
    )
    step = 0.5 * 2.0 * 0.5 / 4  # of the server, and of the noise
    assert_close(noisy, {n: leaf + step for n, leaf in quiet.items()})


def test_what_would_not_be_private_is_refused():
    with pytest.raises(ValueError, match="noise-multiplier must be positive, got 0"):
        private(multiplier=0.0)


def test_it_is_flowers_wrapper_around_the_mean(monkeypatch):
    # Its noise is drawn from numpy's global generator; here it is as many ones as its deviation.
    monkeypatch.setattr(np.random, "normal", lambda mean, std, shape: np.full(shape, std))
    wrapper = DifferentialPrivacyServerSideFixedClipping(Flowers(), 0.8, 0.5, 4)
    wrapper.current_arrays, ends = to_record(W), [*ENDS[:2], draw(9), ENDS[3]]
    local_run()
    query = Message(RecordDict(), dst_node_id=1, message_type="train")
    metrics = MetricRecord({"num-examples": 7})
    replies = [
        Message(RecordDict({"arrays": to_record(one), "metrics": metrics}), reply_to=query)
        for one in ends
    ]
    theirs = to_params(wrapper.aggregate_train(1, replies)[0])
    assert_close(private(ends, normal=torch.ones, multiplier=0.8), theirs, rtol=0, atol=1e-6)


def test_a_server_s_step_is_taken_towards_the_center():
    method = built(PFedMe(server_mix=0.25))
    updates = [Update({"model": draw(c)}, 10.0 * c, 1, c) for c in (1, 2, 3)]

    def center(updates, by):
        return Walker(method).center(updates, median, median)

    found = merged(method, {"model": W}, updates, center)["model"]
    middle = {n: torch.stack([draw(c)[n] for c in (1, 2, 3)]).median(0).values for n in W}
    assert_close(found, plus(W, 0.25, plus(middle, -1.0, W)))


def test_changes_of_older_slots_become_changes_of_newer_ones():
    method = built(Scaffold())
    then, now, sent = (
        {"model": {"w": torch.tensor([x])}, "control": {"w": torch.tensor([0.5])}}
        for x in (1.0, 3.0, 5.0)
    )
    update = {"model": sent["model"], "change": {"w": torch.tensor([8.0])}}
    walker = Walker(method._replace(kinds={"model": "model", "change": "difference"}))
    found = walker.rebase(then, now, update, 0.5)
    assert found["model"]["w"].tolist() == [3.0 + 0.5 * (5.0 - 1.0)]
    assert found["change"]["w"].tolist() == [4.0]
    told = walker._replace(
        method=method._replace(kinds={"model": "model", "change": "statistic"}), running={"v"}
    )
    for slots, v in ((then, 1.0), (now, 2.0), (update, 9.0)):
        slots["model"]["v"] = torch.tensor([v])
    found = told.rebase(then, now, update, 0.5)
    assert found["model"]["w"].tolist() == [5.0]
    assert found["model"]["v"].tolist() == [9.0]  # a running statistic, as it was sent
    assert found["change"]["w"].tolist() == [8.0]
    assert [*flat(found)] == [*flat(update)]
