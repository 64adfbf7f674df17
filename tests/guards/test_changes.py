"""Privacy and robustness over slots: of every method, and by formulas."""

import numpy as np
import pytest
import torch
from flwr.app import Message
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping
from flwr.serverapp.strategy import FedAvg as Flowers
from torch.testing import assert_close

from engram.cohort.sequential import in_turn
from engram.core.method import FromMean, Update
from engram.core.rounds import merged
from engram.core.slots import flat, mean_of, unflat
from engram.core.tree import add_scaled
from engram.guards.central_noise import central_noise
from engram.guards.chain import chain
from engram.guards.changes import arrays_of, change_of, changed, rebased, shortened, size_of
from engram.guards.clip import clip
from engram.guards.places import At
from engram.guards.robust.choices import robust_center
from engram.methods.fedavg import FedAvg
from engram.methods.pfedme import PFedMe
from engram.methods.scaffold import Scaffold
from engram.wire.flower import HostGrid, from_flower, to_flower
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


def at_of(method, received, *, asked=4, normal=torch.zeros, running=frozenset()):
    """Where guards act, in a round in which every client received the same slots."""
    draws = lambda size, stream: normal(size), lambda stream: np.random.default_rng(0)
    return At(method, running, asked, received, lambda update: received, *draws)


def test_updates_of_every_method_are_bounded_and_noised_in_every_slot():
    for name, settings in CASES.items():
        with entry(name):
            check_bound_and_noise(name, *update_of(settings))


def check_bound_and_noise(name, method, received, sent):
    kept = {slot: x for slot, x in sent.items() if not isinstance(x, dict) or x}
    assert_close(unflat(flat(sent)), kept, rtol=0, atol=0)
    assert isinstance(method.server.merge, FromMean) or name in EACH
    at, update = at_of(method, received), Update(sent, 1)
    assert_close(rebased(at, received, update, 0).slots, sent)
    change = change_of(at, update)
    ones = arrays_of(torch.ones(size_of(change)), change)
    noisy = flat(changed(at, update, add_scaled(change, 0.5, ones)).slots)
    assert_close(noisy, {n: leaf + 0.5 for n, leaf in flat(sent).items()})
    near = shortened(at, update, 0.01).slots
    if not flat(sent):
        assert near == sent
        return
    assert length(change_of(at, Update(near, 1))) == pytest.approx(0.01, rel=1e-4)
    far = shortened(at, update, 1e6).slots
    assert_close(far, sent, rtol=0, atol=0)
    assert {n: leaf.dtype for n, leaf in flat(near).items()} == {
        n: leaf.dtype for n, leaf in flat(sent).items()
    }


def test_running_statistics_are_passed_over():
    at = at_of(built(FedAvg()), {"model": W}, running={"dense0.bias"})
    update = Update({"model": draw(9)}, 1)
    change = change_of(at, update)
    assert size_of(change) == 8 * WIDTH + 3 * 8 + 3
    found = shortened(at, update, 0.1).slots["model"]
    assert torch.equal(found["dense0.bias"], update.slots["model"]["dense0.bias"])
    assert list(found) == list(W)
    assert not torch.equal(found["dense0.weight"], update.slots["model"]["dense0.weight"])


def test_a_center_takes_the_place_of_the_mean_and_a_server_s_step_is_taken_towards_it():
    method = built(PFedMe(server_mix=0.25))
    updates = [Update({"model": draw(c)}, 10.0 * c, 1, c) for c in (1, 2, 3)]
    (center,) = robust_center("median").gather(at_of(method, {"model": W}), updates)
    middle = {n: torch.stack([draw(c)[n] for c in (1, 2, 3)]).median(0).values for n in W}
    assert_close(center.slots["model"], middle)
    assert (center.rows, center.clients) == (60.0, 3)
    found = merged(method, {"model": W}, [center])["model"]
    assert_close(found, plus(W, 0.25, plus(middle, -1.0, W)))


ENDS = [draw(7), draw(8), W, {n: leaf + 1e-3 for n, leaf in W.items()}]


def private(ends=ENDS, settings=None, normal=torch.zeros, multiplier=2.0):
    """Returns the server's slots after updates were bounded by 0.5 and hidden, of 4 clients."""
    method, server = built(settings or FedAvg()), {"model": W}
    guard = chain(clip(0.5), central_noise(multiplier))
    at = at_of(method, server, normal=normal)
    updates = [end if isinstance(end, Update) else Update({"model": end}, 10.0) for end in ends]
    found = guard.gather(at, [guard.admit(at, update) for update in updates])
    return merged(method, server, found)["model"]


def test_a_private_mean_clips_each_and_counts_whoever_was_asked():
    expected = {n: leaf.double() for n, leaf in W.items()}
    for end in ENDS[:2]:
        away = {n: end[n].double() - W[n].double() for n in W}
        norm = torch.stack([leaf.square().sum() for leaf in away.values()]).sum().sqrt()
        expected = {n: x + away[n] * min(1, 0.5 / norm) / 4 for n, x in expected.items()}
    expected = {n: (x + 2.0 * 0.5 / 4).float() for n, x in expected.items()}
    assert_close(private(ENDS[:2], normal=torch.ones), expected, rtol=1e-5, atol=1e-6)


def test_a_client_more_or_less_moves_the_sum_by_the_bound_at_most():
    # What the promise rests on: nothing else depends on a client, not even what it is divided by.
    whole = private()
    for i, end in enumerate(ENDS):
        without = private([other for j, other in enumerate(ENDS) if j != i])
        away = length({"model": {n: end[n] - W[n] for n in W}})
        moved = length({"model": {n: whole[n] - without[n] for n in W}})
        assert 4 * moved == pytest.approx(min(0.5, away), abs=1e-5)


def test_means_of_nodes_count_for_their_clients():
    at = at_of(built(FedAvg()), {"model": W})
    near = [shortened(at, Update({"model": end}, 10.0), 0.5) for end in ENDS]
    node = mean_of(near[:3], "clients")
    assert_close(private([node, near[3]]), private(near))


def test_a_server_s_step_scales_the_noise_too():
    quiet, noisy = (
        private([W], PFedMe(server_mix=0.5), normal) for normal in (torch.zeros, torch.ones)
    )
    step = 0.5 * 2.0 * 0.5 / 4  # of the server, and of the noise
    assert_close(noisy, {n: leaf + step for n, leaf in quiet.items()})


def test_it_is_flowers_wrapper_around_the_mean(monkeypatch):
    # Its noise is drawn from numpy's global generator; here it is as many ones as its deviation.
    monkeypatch.setattr(np.random, "normal", lambda mean, std, shape: np.full(shape, std))
    wrapper = DifferentialPrivacyServerSideFixedClipping(Flowers(), 0.8, 0.5, 4)
    query = HostGrid(None).create_message(to_flower({"arrays": W}), "train", 1, "")
    wrapper.current_arrays, ends = query.content["arrays"], [*ENDS[:2], draw(9), ENDS[3]]
    metrics = {"num-examples": 7}
    replies = [
        Message(to_flower({"arrays": one, "metrics": metrics}), reply_to=query) for one in ends
    ]
    theirs = from_flower({"arrays": wrapper.aggregate_train(1, replies)[0]})["arrays"]
    assert_close(private(ends, normal=torch.ones, multiplier=0.8), theirs, rtol=0, atol=1e-6)


def test_changes_of_older_slots_become_changes_of_newer_ones():
    method = built(Scaffold())
    then, now, sent = (
        {"model": {"w": torch.tensor([x])}, "control": {"w": torch.tensor([0.5])}}
        for x in (1.0, 3.0, 5.0)
    )
    update = {"model": sent["model"], "change": {"w": torch.tensor([8.0])}}

    def found(kind, running=frozenset()):
        kinds = method._replace(kinds={"model": "model", "change": kind})
        at = at_of(kinds, now, running=running)
        return rebased(at, then, Update(update, 1), 3).slots

    assert found("difference")["model"]["w"].tolist() == [3.0 + (5.0 - 1.0) / 2]  # 1 / sqrt(1 + 3)
    assert found("difference")["change"]["w"].tolist() == [4.0]
    for slots, v in ((then, 1.0), (now, 2.0), (update, 9.0)):
        slots["model"]["v"] = torch.tensor([v])
    told = found("statistic", {"v"})
    assert told["model"]["w"].tolist() == [5.0]
    assert told["model"]["v"].tolist() == [9.0]  # a running statistic, as it was sent
    assert told["change"]["w"].tolist() == [8.0]
    assert [*flat(told)] == [*flat(update)]
