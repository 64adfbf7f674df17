"""Methods on quadratics: where they come to rest, and what they leave as it is."""

import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close

from engram.core.method import Update
from engram.core.rounds import Stepper, merged, received_by
from engram.core.settings import METHODS
from engram.core.slot_optimizers import optimizer_of
from engram.core.tree import add_scaled
from engram.methods.apfl import Apfl
from engram.methods.ditto import Ditto
from engram.methods.fedala import FedAla
from engram.methods.fedavg import FedAvg
from engram.methods.feddyn import FedDyn
from engram.methods.fedem import FedEm
from engram.methods.fednova import FedNova
from engram.methods.fedprox import FedProx
from engram.methods.ifca import Ifca
from engram.methods.local import Local
from engram.methods.local_moml import LocalMoml
from engram.methods.mr_mtl import MrMtl
from engram.methods.per_fedavg import PerFedAvg
from engram.methods.pfedme import PFedMe
from engram.methods.scaffold import Scaffold
from engram.scoring.mixtures import loss_of
from tests.methods.quadratics import (
    EYE,
    built,
    client,
    local_round,
    minimum,
    moments,
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


# --- Where a client comes to rest ----------------------------------------------------------------


@pytest.mark.parametrize("make", [FedProx, Ditto, MrMtl])
def test_steps_come_to_the_minimum_of_the_penalized_loss(make):
    # Of w'Aw/2 - b'w + strength/2 |w - w_t|^2: (A + strength) w = b + strength w_t.
    for strength in [0.3, 2.0]:
        with entry(strength):
            method, (a, b) = built(make(0.3, strength)), moments(client(3))
            kept = {slot: {"w": V} for slot in method.client.start}
            sent, kept = local_round(method, {"model": {"w": W}}, kept, [client(3)] * 300)
            expected = torch.linalg.solve(a + strength * EYE, b + strength * W)
            assert_close((kept.get("own") or sent["model"])["w"], expected, **CLOSE)


def test_the_inner_steps_of_pfedme_reach_the_moreau_envelope():
    # The envelope's gradient at w is lambda (w - theta*), (A + lambda) theta* = b + lambda w.
    method = built(PFedMe(lambda_=15.0, inner_steps=200, alpha=0.02, eta=0.05))
    (a, b), kept = moments(client(1)), {"own": {"w": W}}
    sent, kept = local_round(method, {"model": {"w": W}}, kept, [client(1)])
    theta = torch.linalg.solve(a + 15 * EYE, b + 15 * W)
    assert_close(kept["own"]["w"], theta, **CLOSE)
    assert_close(sent["model"]["w"], W - 0.05 * 15 * (W - theta), **CLOSE)


def test_alone_a_client_comes_to_its_own_minimum():
    _, kept = rounds(built(Local(eta=0.3)), CLIENTS, 10, local_steps=40)
    for i in CLIENTS:
        assert_close(kept[i]["own"]["w"], minimum([i]), **CLOSE)


def test_feddyn_s_slope_is_the_gradient_at_the_minimum_of_the_penalized_loss():
    # (1) is least where A w - b - h + alpha (w - w_t) = 0.
    method, (a, b) = built(FedDyn(eta=0.3, alpha=0.4)), moments(client(3))
    kept = {"gradient": {"w": V}}
    sent, kept = local_round(method, {"model": {"w": W}}, kept, [client(3)] * 300)
    w = torch.linalg.solve(a + 0.4 * EYE, b + V + 0.4 * W)
    assert_close(sent["model"]["w"], w, **CLOSE)
    assert_close(kept["gradient"]["w"], a @ w - b, **CLOSE)


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


# --- Where a federation comes to rest ------------------------------------------------------------


def test_it_comes_to_the_common_minimum_where_fedavg_does_not():
    best = minimum(CLIENTS)
    for settings, local_steps, atol in [
        (Scaffold(eta=0.2), 8, 1e-6),
        (FedDyn(eta=0.2, alpha=0.5), 20, 1e-4),
    ]:
        with entry(settings):
            server, kept = rounds(built(settings), CLIENTS, 60, local_steps=local_steps)
            NEAR(server["model"]["w"], best, atol=atol)
            slopes = sum(next(iter(kept[i].values()))["w"] for i in CLIENTS)
            NEAR(slopes, torch.zeros_like(best), atol=1e-3)
            drifted, _ = rounds(built(FedAvg(eta=0.2)), CLIENTS, 60, local_steps=local_steps)
            assert (drifted["model"]["w"] - best).norm() > 0.01


def test_of_unequal_steps_fednova_rests_at_the_minimum_and_fedavg_at_that_of_sums_by_steps():
    # Client i takes t_i small steps: the changes are -eta t_i (A_i w - b_i) up to eta^2 t_i^2. In
    # FedAvg's mean they cancel where sum t_i (A_i w - b_i) = 0; divided by t_i, where it is least.
    steps, eta = (1, 2, 10, 30), 1e-5
    parts = [moments(client(i)) for i in CLIENTS]
    (a, b) = (sum(t * m[j] for t, m in zip(steps, parts, strict=True)) for j in (0, 1))

    def rest(settings):
        """Returns the fixed point of a round, which is affine: w -> M w + v."""
        method, found = built(settings), []
        for w in (torch.zeros(DIM, dtype=torch.float64), *EYE):
            server = method.server.start | {"model": {"w": w}}
            received = received_by(method, server, 0)
            sent = [local_round(method, received, {}, [client(i)] * steps[i])[0] for i in CLIENTS]
            updates = [Update(sent[i], 12, 1, i) for i in CLIENTS]
            found.append(merged(method, server, updates)["model"]["w"])
        v, *columns = found
        return torch.linalg.solve(EYE - torch.stack([column - v for column in columns], 1), v)

    best, drifted = minimum(CLIENTS), torch.linalg.solve(a, b)
    NEAR(rest(FedNova(eta=eta)), best, atol=1e-3)
    NEAR(rest(FedAvg(eta=eta)), drifted, atol=1e-3)
    assert (drifted - best).norm() > 0.1


def test_scaffold_s_variate_is_the_mean_of_the_clients():
    # Alg. 1, line 17, keeps that up, whoever takes part.
    def asked(t, clients):
        return [clients[t % 4], clients[(t + 1) % 4]]

    server, kept = rounds(built(Scaffold()), CLIENTS, 7, local_steps=3, asked=asked)
    mean = sum(kept[i]["own-control"]["w"] for i in CLIENTS) / 4
    assert_close(server["control"]["w"], mean, **CLOSE)


def test_mr_mtl_comes_to_the_minimum_of_its_objective():
    # Of mean_i L_i(v_i) + 2/2 |v_i - mean_j v_j|^2: (A_i + 2) v_i = b_i + 2 m, and m their mean.
    some = CLIENTS[:3]
    server, kept = rounds(built(MrMtl(eta=0.3, lambda_=2.0)), some, 25, local_steps=20)
    parts = [moments(client(i)) for i in some]
    inverse = [torch.linalg.inv(a + 2 * EYE) for a, _ in parts]
    known = sum(r @ b for r, (_, b) in zip(inverse, parts, strict=True)) / 3
    middle = torch.linalg.solve(EYE - 2 * sum(inverse) / 3, known)
    NEAR(server["model"]["w"], middle, atol=1e-3)
    for i, (r, (_, b)) in enumerate(zip(inverse, parts, strict=True)):
        NEAR(kept[i]["own"]["w"], r @ (b + 2 * middle), atol=1e-3)


def test_ifca_s_clusters_come_to_their_minima_where_one_model_cannot():
    # Clients 0, 2 and 4 have the rows of client 0, the others those of 1; two models start apart.
    groups = minimum([0]), minimum([1])
    method = built(Ifca(eta=0.2, clusters=2), groups[1] + 0.4, groups[0] + 0.4, clients=5)
    how = {"local_steps": 5, "rows": lambda c: client(c % 2)}
    server, _ = rounds(method, [*CLIENTS, 4], 40, **how)
    NEAR(server["model0"]["w"], groups[1], atol=1e-6)
    NEAR(server["model1"]["w"], groups[0], atol=1e-6)


def test_fedem_s_clients_come_to_the_component_that_fits_them():
    # Rows of two planes, which lie far apart; two clients have those of each.
    planes, x = (draw(1, DIM) + 3, draw(2, DIM) - 3), [draw(30 + i, 40, DIM) for i in range(4)]
    method = built(FedEm(eta=0.3, components=2), planes[0] - 1, planes[1] + 1)
    rows = {i: (x[i], x[i] @ planes[i % 2]) for i in CLIENTS}
    server, kept = rounds(method, CLIENTS, 30, local_steps=3, rows=rows.get)
    for i in CLIENTS:
        assert served(method, server, kept, i).weights[i % 2] > 0.95
    for m in range(2):
        NEAR(server[f"model{m}"]["w"], planes[m], atol=0.1)


def test_rounds_of_fedem_lower_the_negative_log_likelihood_of_the_mixture():
    method, losses = built(FedEm(eta=0.3, components=2), draw(1, DIM), draw(2, DIM)), []
    server, kept = method.server.start, method.client.start
    for _ in range(15):
        losses.append(float(loss_of(method.serve(server, kept, True), quadratic, client(1))))
        server, kept = local_round(method, server, kept, [client(1)] * 4)
    assert all(after < before for before, after in pairwise(losses))


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
    if name.startswith(
        ("fedproto", "feddbe", "fedpac", "knn-per", "fedrod", "floco", "moon", "fedlc")
    ):
        return False  # which have a representation, or a head on a body
    # A head and what is below it.
    return METHODS[name.partition(",")[0]].about.personal == "" and name != "fedbabu"


EASY = [name for name in CASES if on_quadratics(name)]


def test_nothing_moves_where_every_gradient_is_zero():
    for name in EASY:
        with entry(name):
            method = built(CASES[name], W)
            fits = {c: (x := draw(c, 5, DIM), x @ W) for c in CLIENTS}
            unmoved = method.server.start.keys() - {"embeddings", "known", "affinity", "steps"}
            start = {s: method.server.start[s] for s in unmoved}
            server, kept = rounds(method, CLIENTS, 2, local_steps=3, rows=fits.get)
            assert_close({slot: server[slot] for slot in start}, start, rtol=0, atol=1e-7)
            for c in CLIENTS:
                for model in served(method, server, kept, c).models:
                    assert_close(model["w"].double(), W, rtol=0, atol=1e-6)


def test_an_optimizer_bears_on_models_alone():
    adam = optimizer_of("adam", weight_decay=0.3)
    for settings, slot, steps in [
        (Scaffold(), "own-control", 1),  # the gradient at the start, however far a step goes
        (FedAla(weight_share=0.5), "weights", 2),
        (Apfl(adaptive=True), "alpha", 1),
    ]:
        with entry(settings):
            method, batches = built(settings), [client(3 + k) for k in range(steps)]
            received, kept = {"model": {"w": W}, "control": NONE}, dict(method.client.start)
            if "own" in kept:
                kept["own"] = {"w": V}
            plain, other = (
                local_round(method, received, kept, batches, Stepper(moves, factor))
                for moves, factor in ((optimizer_of(), 1.0), (adam, 0.5))
            )
            assert_close(plain[1][slot], other[1][slot])
            assert not torch.equal(plain[0]["model"]["w"], other[0]["model"]["w"])
