"""Methods on quadratics: weights at rest, steps by hand in float64, and what stays as it is."""

import math
from functools import partial

import pytest
import torch
from torch.testing import assert_close

from engram.core.rounds import Stepper
from engram.core.settings import METHODS
from engram.core.slot_optimizers import optimizer_of
from engram.core.tree import add_scaled
from engram.methods.apfl import Apfl
from engram.methods.fedala import FedAla
from engram.methods.fedem import FedEm
from engram.methods.ifca import Ifca
from engram.methods.local_moml import LocalMoml
from engram.methods.per_fedavg import PerFedAvg
from engram.methods.scaffold import Scaffold
from tests.methods.quadratics import (
    built,
    client,
    local_round,
    minimum,
    quadratic,
    rounds,
    served,
)
from tests.methods.test_contract import CASES
from tests.samples import entry
from tests.support import DIM, draw

CLIENTS = [0, 1, 2, 3]
CLOSE = {"rtol": 0, "atol": 1e-8}
NEAR = partial(assert_close, rtol=0)
W, V = draw(10, DIM), draw(11, DIM)
NONE = {"w": torch.zeros(DIM, dtype=torch.float64)}


def test_apfl_s_weight_goes_to_the_better_model_and_no_further():
    for near, end in [("model", 0.0), ("own", 1.0)]:
        with entry(near, end):
            method, best = built(Apfl(eta=0.01, alpha=0.5, adaptive=True)), minimum([3])
            work = {slot: {"w": best + 1} for slot in ("model", "own")} | {near: {"w": best}}
            work["alpha"] = torch.tensor(0.5)
            for _ in range(200):  # of alpha alone
                _, work = method.client.phases[0].direction(work, (client(3),))
            assert float(work["alpha"]) == pytest.approx(end, abs=0.05)
            assert 0 <= float(work["alpha"]) <= 1


def test_fedala_s_weights_come_to_what_is_best_for_the_client():
    # Each coordinate of |w - c|^2 / 2 is a problem of its own: its minimum lies at the weight
    # (c - w_t) / (v - w_t), or at the end of [0, 1] that is nearer.
    x = torch.eye(DIM, dtype=torch.float64) * DIM**0.5
    common, own, best = torch.tensor([[0, 0, 0], [1, 2, -1], [0.25, 5, 1]], dtype=torch.float64)
    method = built(FedAla(weight_eta=0.5, weight_share=0.9))
    kept = {"own": {"w": own}, "weights": {"w": draw(1, DIM).abs().clamp(0, 1)}}
    work = method.client.begin({"model": {"w": common}}, kept, None)
    for _ in range(80):
        _, work = method.client.phases[0].direction(work, ((x, x @ best),))
    expected = torch.tensor([0.25, 1.0, 0.0], dtype=torch.float64)
    assert_close(work["weights"]["w"], expected, **CLOSE)
    assert_close(work["model"]["w"], expected * own, **CLOSE)


# --- Steps by hand, in float64 -------------------------------------------------------------------


def test_fedem_s_weights_are_means_over_all_rows_of_batches_of_several_sizes():
    method = built(FedEm(components=3), *(draw(20 + m, DIM) for m in range(3)))
    pi, batches = torch.tensor([0.2, 0.5, 0.3]), [client(3), tuple(x[:5] for x in client(4))]
    _, kept = local_round(method, method.server.start, {"weights": pi}, batches)
    shares = []
    for x, y in batches:
        gaps = torch.stack([(x @ draw(20 + m, DIM) - y) ** 2 for m in range(3)])
        likely = pi[:, None] * (-gaps / 2).exp()
        shares.append(likely / likely.sum(0))
    assert_close(kept["weights"], torch.cat(shares, 1).mean(1), rtol=1e-6, atol=1e-8)


def test_a_component_without_weight_loses_nothing_to_rounding():
    method = built(FedEm(components=2), minimum([1]), draw(2, DIM) + 50)
    kept = {"weights": torch.tensor([1.0, 0.0])}
    sent, kept = local_round(method, method.server.start, kept, [client(1)] * 2)
    assert all(x["w"].isfinite().all() for x in sent.values())
    NEAR(sent["model0"]["w"], minimum([1]), atol=1e-9)
    assert_close(kept["weights"], torch.tensor([1.0, 0.0]).double())


def test_ifca_s_first_of_equal_losses_counts_and_none_that_is_not_finite():
    for far, chosen in [(1.0, 0), (math.inf, 1), (math.nan, 1)]:
        with entry(far, chosen):
            method = built(Ifca(clusters=2), far * W, W)
            work = method.client.begin(method.server.start, {}, client(0))
            assert int(work["choice"].argmax()) == chosen
            if chosen == 0:
                assert_close(work["model"]["w"], W)


def test_the_meta_gradient_is_that_of_the_adapted_loss():
    # With S1 = S2, (7) is the gradient of w -> L3(w - alpha grad L1(w)), here of no quadratic.
    def quartic(params, data):
        return quadratic(params, data) ** 2 + params["w"].pow(4).sum()

    w, first, third = {"w": 0.3 * W}, client(1), client(3)

    def adapted_loss(v):
        return quartic(add_scaled(v, -0.05, torch.func.grad(quartic)(v, first)), third)

    method = built(PerFedAvg(alpha=0.05, hessian="exact"), loss=quartic)
    work = method.client.begin({"model": w}, {}, None)
    found, _ = method.client.phases[0].direction(work, (first, first, third))
    assert_close(found["model"], torch.func.grad(adapted_loss)(w), **CLOSE)


def test_central_differences_are_exact_on_a_quadratic_but_for_rounding():
    ends = []
    for hessian in ("exact", "finite-difference"):
        method = built(LocalMoml(alpha=0.3, beta=0.25, eta=0.1, hessian=hessian))
        ends.append(local_round(method, {"model": {"w": W}}, {}, [client(1), client(2)])[0])
    NEAR(*ends, atol=1e-10)


# --- What is left as it is -----------------------------------------------------------------------


def on_quadratics(name):
    """Returns whether a method trains any model, and all of it."""
    if name.startswith(("fedproto", "feddbe", "fedpac", "knn-per", "fedrod", "floco")):
        return False  # which have a representation, or a head on a body
    # A head and what is below it.
    return METHODS[name.partition(",")[0]].about.personal == "" and name != "fedbabu"


EASY = [name for name in CASES if on_quadratics(name)]


def test_nothing_moves_where_every_gradient_is_zero():
    for name in EASY:
        with entry(name):
            method = built(CASES[name], W)
            fits = {c: (x := draw(c, 5, DIM), x @ W) for c in CLIENTS}
            unmoved = method.server.start.keys() - {"embeddings", "known", "affinity"}
            start = {s: method.server.start[s] for s in unmoved}
            server, kept = rounds(method, CLIENTS, 2, local_steps=3, rows=fits.get)
            assert_close({slot: server[slot] for slot in start}, start, rtol=0, atol=1e-7)
            for c in CLIENTS:
                for model in served(method, server, kept, c).models:
                    assert_close(model["w"].double(), W, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "slot", "steps"),
    [
        (Scaffold(), "own-control", 1),  # the gradient at the start, however far a step goes
        (FedAla(weight_share=0.5), "weights", 2),
        (Apfl(adaptive=True), "alpha", 1),
    ],
)
def test_an_optimizer_bears_on_models_alone(settings, slot, steps):
    method = built(settings)
    received = {"model": {"w": W}, "control": NONE}
    kept = dict(method.client.start)
    if "own" in kept:
        kept["own"] = {"w": V}
    batches, adam = [client(3 + k) for k in range(steps)], optimizer_of("adam", weight_decay=0.3)
    plain, other = (
        local_round(method, received, kept, batches, Stepper(moves, factor))
        for moves, factor in ((optimizer_of(), 1.0), (adam, 0.5))
    )
    assert_close(plain[1][slot], other[1][slot])
    assert not torch.equal(plain[0]["model"]["w"], other[0]["model"]["w"])
