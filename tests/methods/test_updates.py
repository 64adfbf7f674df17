"""Every method against its paper's update, written out for one client after the other."""

import pytest
import torch
from torch.testing import assert_close

from engram.core.method import Update
from engram.core.slot_optimizers import optimizer_of
from engram.core.slots import over_slots
from engram.methods.apfl import Apfl
from engram.methods.ditto import Ditto
from engram.methods.fedadagrad import FedAdagrad
from engram.methods.fedadam import FedAdam
from engram.methods.fedala import FedAla
from engram.methods.fedalt import FedAlt
from engram.methods.fedavg import FedAvg
from engram.methods.fedavgm import FedAvgM
from engram.methods.fedbabu import FedBabu
from engram.methods.feddbe import FedDbe
from engram.methods.feddyn import FedDyn
from engram.methods.fedem import FedEm
from engram.methods.fedlc import FedLc
from engram.methods.fedpac import FedPac, head_weights
from engram.methods.fedper import FedPer
from engram.methods.fedproto import FedProto
from engram.methods.fedprox import FedProx
from engram.methods.fedrep import FedRep
from engram.methods.fedyogi import FedYogi
from engram.methods.ifca import Ifca
from engram.methods.knn_per import KnnPer
from engram.methods.lg_fedavg import LgFedAvg
from engram.methods.local import Local
from engram.methods.local_moml import LocalMoml
from engram.methods.moon import Moon
from engram.methods.mr_mtl import MrMtl
from engram.methods.per_fedavg import PerFedAvg
from engram.methods.pfedhn import PFedHn
from engram.methods.pfedme import PFedMe
from engram.methods.scaffold import Scaffold
from tests.methods.problem import (
    CLIENTS,
    ETA,
    HEAD,
    SHAPES,
    STEPS,
    W,
    average,
    batch,
    body,
    draw,
    gradient,
    head,
    loss,
    plus,
    represent,
    row_losses,
    run,
    served,
    trained,
)
from tests.samples import entry

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
ZERO = {n: 0 * x for n, x in W.items()}


def test_local():
    _, server, memories = run(Local(), cohorts=[[1, 2], [2]])
    assert server == {}
    assert_close(memories[2]["own"], trained(trained(W, 2, 1), 2, 2), **CLOSE)


def test_fedavg_weighs_by_rows():
    _, server, _ = run(FedAvg(), cohorts=[[1, 4]])
    a, b = trained(W, 1, 1), trained(W, 4, 1)
    assert_close(server["model"], {n: (11 * a[n] + 14 * b[n]) / 25 for n in W}, **CLOSE)


def test_fedprox():
    _, server, _ = run(FedProx(mu=0.7), cohorts=[[1]])
    w = W
    for h in range(STEPS):
        g = gradient(w, batch(1, 1, h))
        w = {n: w[n] - ETA * (g[n] + 0.7 * (w[n] - W[n])) for n in w}
    assert_close(server["model"], w, **CLOSE)


def test_feddyn():
    _, server, memories = run(FedDyn(alpha=0.5), cohorts=[[1, 4], [1]])
    x, h, own = W, ZERO, {1: ZERO, 4: ZERO}
    for server_round, cohort in ((1, (1, 4)), (2, (1,))):
        models = []
        for client in cohort:
            w = x
            for step in range(STEPS):
                g = gradient(w, batch(client, server_round, step))
                w = {n: w[n] - ETA * (g[n] - own[client][n] + 0.5 * (w[n] - x[n])) for n in w}
            own[client] = {n: own[client][n] - 0.5 * (w[n] - x[n]) for n in w}
            models.append(w)
        away = {n: sum(w[n] - x[n] for w in models) / CLIENTS for n in x}
        h = {n: h[n] - 0.5 * away[n] for n in x}
        x = {n: average(*models)[n] - h[n] / 0.5 for n in x}
    assert_close(server["model"], x, **CLOSE)
    assert_close(memories[1]["gradient"], own[1], **CLOSE)


def test_optimizers_of_the_server():
    for settings, second in [
        (FedAdam(server_eta=0.3, tau=0.1), lambda v, s: 0.99 * v + 0.01 * s),
        (FedYogi(server_eta=0.3, tau=0.1), lambda v, s: v - 0.01 * s * (v - s).sign()),
        (FedAdagrad(server_eta=0.3, tau=0.1, beta1=0.9), lambda v, s: v + s),
    ]:
        with entry(settings):
            _, server, _ = run(settings, cohorts=[[1], [1]])
            w, m, v = W, ZERO, {n: 0.01 + 0 * x for n, x in W.items()}
            for server_round in (1, 2):
                change = plus(trained(w, 1, server_round), -1.0, w)
                m = {n: 0.9 * m[n] + 0.1 * change[n] for n in w}
                v = {n: second(v[n], change[n] ** 2) for n in w}
                w = {n: w[n] + 0.3 * m[n] / (v[n] ** 0.5 + 0.1) for n in w}
            assert_close(server["model"], w, **CLOSE)


def test_fedavgm_is_sgd_with_momentum_along_the_mean_change():
    _, server, _ = run(FedAvgM(beta=0.7), cohorts=[[1, 4]] * 3)
    w = {n: x.clone().requires_grad_() for n, x in W.items()}
    steps = torch.optim.SGD(w.values(), lr=1.0, momentum=0.7)
    for server_round in (1, 2, 3):
        now = {n: x.detach() for n, x in w.items()}
        ends = [trained(now, c, server_round) for c in (1, 4)]
        for n, x in w.items():  # 11 and 14 rows
            x.grad = now[n] - (11 * ends[0][n] + 14 * ends[1][n]) / 25
        steps.step()
    assert_close(server["model"], {n: x.detach() for n, x in w.items()}, **CLOSE)


def test_moon():
    method, server, memories = run(Moon(mu=0.7, tau=0.4), cohorts=[[2], [1], [1]])
    former, common = W, trained(W, 2, 1)  # in a first round at the initial model nothing pulls
    for server_round in (2, 3):
        w = common
        for h in range(STEPS):
            w = {n: x.clone().requires_grad_() for n, x in w.items()}
            b = batch(1, server_round, h)
            outputs, z = represent(w, b)
            near, far = (
                (z * other).sum(1) / (z.norm(dim=1) * other.norm(dim=1)) / 0.4
                for other in (represent(common, b)[1], represent(former, b)[1])
            )
            contrast = -(near.exp() / (near.exp() + far.exp())).log().mean()
            value = torch.nn.functional.cross_entropy(outputs, b[1]) + 0.7 * contrast
            moves = torch.autograd.grad(value, [*w.values()])
            w = {n: (w[n] - ETA * g).detach() for n, g in zip(w, moves, strict=True)}
        former = common = w
    assert_close(server["model"], w, **CLOSE)
    assert_close(memories[1]["former"], w, **CLOSE)
    assert_close(served(method, server, memories, 1).models[0], w, **CLOSE)


def test_fedlc():
    # With q = softmax(o - tau p^(-1/4)), the gradient by the outputs o of a row is q - e_y.
    _, server, memories = run(FedLc(tau=0.3), cohorts=[[1], [1]])
    w, counts = W, torch.zeros(3)
    for server_round in (1, 2):
        for h in range(STEPS):
            x, y = batch(1, server_round, h)
            counts = counts + torch.bincount(y, minlength=3)
            outputs, z = represent(w, (x, y))
            weights = outputs.exp() * torch.exp(-0.3 * (counts / counts.sum()) ** -0.25)
            d = (weights / weights.sum(1, keepdim=True) - torch.eye(3)[y]) / len(y)
            below = d @ w["dense1.weight"] * (z > 0)
            w = {
                "dense0.weight": w["dense0.weight"] - ETA * below.T @ x,
                "dense0.bias": w["dense0.bias"] - ETA * below.sum(0),
                "dense1.weight": w["dense1.weight"] - ETA * d.T @ z,
                "dense1.bias": w["dense1.bias"] - ETA * d.sum(0),
            }
    assert_close(server["model"], w, **CLOSE)
    assert_close(memories[1]["counts"], counts)
    assert counts.min() > 0  # and at first a class was missing
    assert torch.bincount(batch(1, 1, 0)[1], minlength=3).min() == 0


def ditto_by_hand(v, w, client, server_round):
    start = w
    for h in range(STEPS):
        g = gradient(v, batch(client, server_round, h))
        v = {n: v[n] - ETA * (g[n] + 0.7 * (v[n] - start[n])) for n in v}
    return v


def test_ditto():
    _, server, memories = run(Ditto(lambda_=0.7), cohorts=[[1, 4], [1]])
    common = average(trained(W, 1, 1), trained(W, 4, 1))
    own = ditto_by_hand(ditto_by_hand(W, W, 1, 1), common, 1, 2)
    assert_close(server["model"], trained(common, 1, 2), **CLOSE)
    assert_close(memories[1]["own"], own, **CLOSE)


def test_mr_mtl():
    _, server, memories = run(MrMtl(lambda_=0.7), cohorts=[[1, 4], [1]])
    mean = average(ditto_by_hand(W, W, 1, 1), ditto_by_hand(W, W, 4, 1))
    own = ditto_by_hand(ditto_by_hand(W, W, 1, 1), mean, 1, 2)
    assert_close(memories[1]["own"], own, **CLOSE)
    assert_close(server["model"], own, **CLOSE)


def test_pfedme():
    settings = PFedMe(lambda_=2.0, inner_steps=3, alpha=0.3, server_mix=0.5)
    method, server, memories = run(settings, cohorts=[[1]], steps=2)
    w = W
    for h in range(2):
        theta = w
        for _ in range(3):
            g = gradient(theta, batch(1, 1, h))
            theta = {n: theta[n] - 0.3 * (g[n] + 2 * (theta[n] - w[n])) for n in w}
        w = {n: w[n] - ETA * 2 * (w[n] - theta[n]) for n in w}
    assert_close(served(method, server, memories, 1).models[0], theta, **CLOSE)
    assert_close(server["model"], average(W, w), **CLOSE)


def test_pfedme_refuses_inner_steps_that_diverge():
    with pytest.raises(ValueError, match=r"alpha \* lambda must be below 2, got 3"):
        PFedMe(alpha=0.3, lambda_=10.0)


@pytest.mark.parametrize("memory", ["carry", "reset"])
def test_local_moml(memory):
    settings = LocalMoml(alpha=0.2, beta=0.3, eta=ETA, hessian="exact", memory=memory)
    _, server, memories = run(settings, cohorts=[[1], [1]], steps=2)
    w, u = W, None
    for server_round in (1, 2):
        if u is None or memory == "reset":
            u = plus(w, -0.2, gradient(w, batch(1, server_round, -1)))
        for h in range(2):
            first, second, third = (batch(1, server_round, h, b) for b in range(3))
            u = {n: 0.7 * u[n] + 0.3 * x for n, x in plus(w, -0.2, gradient(w, first)).items()}
            at_u = gradient(u, third)
            blocks = torch.func.hessian(lambda p, b=second: loss(p, b))(w)
            pulled = {
                n: at_u[n]
                - 0.2 * sum((blocks[n][m] * at_u[m]).flatten(w[n].ndim).sum(-1) for m in w)
                for n in w
            }
            w = plus(w, -ETA, pulled)
    assert_close(server["model"], w, **CLOSE)
    assert_close(memories[1], {"memory": u} if memory == "carry" else {}, **CLOSE)


def test_per_fedavg_in_first_order():
    _, server, _ = run(PerFedAvg(alpha=0.2, eta=ETA), cohorts=[[1]], steps=2)
    w = W
    for h in range(2):
        first, third = (batch(1, 1, h, b) for b in range(2))
        w = plus(w, -ETA, gradient(plus(w, -0.2, gradient(w, first)), third))
    assert_close(server["model"], w, **CLOSE)


def test_scaffold():
    _, server, memories = run(Scaffold(server_eta=0.5), cohorts=[[1, 4], [1]])
    x, c, own = W, ZERO, {1: ZERO, 4: ZERO}
    for server_round, cohort in ((1, (1, 4)), (2, (1,))):
        models, changes = [], []
        for client in cohort:
            y = x
            for h in range(STEPS):
                g = gradient(y, batch(client, server_round, h))
                y = {n: y[n] - ETA * (g[n] - own[client][n] + c[n]) for n in y}
            new = {n: own[client][n] - c[n] + (x[n] - y[n]) / (STEPS * ETA) for n in y}  # option II
            models.append(y)
            changes.append(plus(new, -1.0, own[client]))
            own[client] = new
        x = {n: (x[n] + average(*models)[n]) / 2 for n in x}
        c = plus(c, len(cohort) / CLIENTS, average(*changes))
    assert_close(server["model"], x, **CLOSE)
    assert_close(server["control"], c, rtol=1e-3, atol=1e-5)
    assert_close(memories[1]["own-control"], own[1], rtol=1e-3, atol=1e-5)


def test_a_personal_head_moves_freely_under_scaffold():
    _, _, memories = run(Scaffold(), cohorts=[[1]], personal=HEAD)
    assert_close(memories[1]["personal model"], head(trained(W, 1, 1)), **CLOSE)


def test_fedper_keeps_heads_at_home():
    _, server, memories = run(FedPer(), cohorts=[[1], [2], [1]])
    one = trained(W, 1, 1)
    two = trained(body(one) | head(W), 2, 2)
    three = trained(body(two) | head(one), 1, 3)
    assert_close(memories[1]["personal model"], head(three), **CLOSE)
    assert_close(server["model"], body(three), **CLOSE)


def test_lg_fedavg_keeps_bodies_at_home():
    _, server, memories = run(LgFedAvg(), cohorts=[[1]])
    assert_close(server["model"], head(trained(W, 1, 1)), **CLOSE)
    assert_close(memories[1]["personal model"], body(trained(W, 1, 1)), **CLOSE)


def test_fedbabu_leaves_the_head_as_it_began():
    method, server, memories = run(FedBabu(), cohorts=[[1]])
    assert_close(server["model"], trained(W, 1, 1, SHAPES.keys() - HEAD), **CLOSE)
    assert served(method, server, memories, 1).tuned


@pytest.mark.parametrize("settings", [FedRep(personal_share=0.5), FedAlt()])
def test_fedrep_and_fedalt_train_the_head_first(settings):
    _, server, memories = run(settings, cohorts=[[1]])
    first = trained(W, 1, 1, HEAD, range(2))
    whole = trained(first, 1, 1, SHAPES.keys() - HEAD, range(2, 4))
    assert_close(server["model"] | memories[1]["personal model"], whole, **CLOSE)


def test_fedrep_needs_both_parts():
    with pytest.raises(ValueError, match="the network has no shared ones"):
        run(FedRep(), personal=frozenset(SHAPES))


def test_ifca_trains_the_model_with_the_least_loss():
    _, server, _ = run(Ifca(), cohorts=[[1, 4]])
    models = [W, draw(51), draw(52)]
    best = [min(range(3), key=lambda i: float(loss(models[i], batch(c, 1, -1)))) for c in (1, 4)]
    ends = {c: trained(models[i], c, 1) for c, i in zip((1, 4), best, strict=True)}
    for i, model in enumerate(models):
        mine = [ends[c] for c, j in zip((1, 4), best, strict=True) if j == i]
        assert_close(server[f"model{i}"], average(*mine) if mine else model, **CLOSE)


@pytest.mark.parametrize("adaptive", [False, True])
def test_apfl(adaptive):
    method, server, memories = run(Apfl(alpha=0.4, adaptive=adaptive), cohorts=[[1], [1]])
    w, v, alpha = W, W, torch.tensor(0.4)
    for server_round in (1, 2):
        for h in range(STEPS):
            b = batch(1, server_round, h)
            g = gradient({n: alpha * v[n] + (1 - alpha) * w[n] for n in w}, b)
            slope = sum((g[n] * (v[n] - w[n])).sum() for n in w)
            w, v = plus(w, -ETA, gradient(w, b)), {n: v[n] - ETA * alpha * g[n] for n in v}
            alpha = (alpha - ETA * slope).clamp(0, 1) if adaptive else alpha
    mixed = {n: alpha * v[n] + (1 - alpha) * w[n] for n in w}
    assert_close(served(method, server, memories, 1).models[0], mixed, **CLOSE)
    assert_close(server["model"], w, **CLOSE)
    assert not adaptive or abs(float(alpha) - 0.4) > 1e-4


def mix_by(w, v, a):
    return {n: (1 - a[n]) * w[n] + a[n] * v[n] if n in a else w[n] for n in w}


def weights(w, v, a, client, server_round):
    for h in range(2):
        g = gradient(mix_by(w, v, a), batch(client, server_round, h))
        a = {n: (a[n] - 0.9 * g[n] * (v[n] - w[n])).clamp(0, 1) for n in a}
    return a


@pytest.mark.parametrize("layers", [1, 2])
def test_fedala(layers):
    settings = FedAla(weight_eta=0.9, weight_share=0.5, layers=layers)
    method, server, memories = run(settings, cohorts=[[1], [2], [1]])
    none = {n: 0 * W[n] for n in (HEAD if layers == 1 else SHAPES)}
    one = trained(W, 1, 1, steps=range(2, 4))
    # Client 2's last model is the initial one, so its weights move.
    start = mix_by(one, W, weights(one, W, none, 2, 2))
    common = trained(start, 2, 2, steps=(2, 3))
    a = weights(common, one, none, 1, 3)
    end = trained(mix_by(common, one, a), 1, 3, steps=range(2, 4))
    assert_close(memories[1], {"own": end, "weights": a}, **CLOSE)
    found = served(method, server, memories, 1)
    assert_close(found.models[0], mix_by(end, end, a), **CLOSE)


def class_means(models, client, server_round, start=0):
    """Returns sums and shares of classes over steps of a client, each at the model before it."""
    sums, shares = torch.zeros(3, 8), torch.zeros(3)
    for h, w in enumerate(models, start):
        x, y = batch(client, server_round, h)
        z = represent(w, (x, y))[1]
        for row, label in zip(z, y, strict=True):
            sums[label] += row / (len(z) * len(models))
            shares[label] += 1 / (len(z) * len(models))
    return sums, shares


def test_fedproto():
    method, server, memories = run(FedProto(lambda_=0.5), cohorts=[[1], [1]])
    models, own = [], W
    for h in range(STEPS):  # without means, the first round is plain
        models.append(own)
        own = plus(own, -ETA, gradient(own, batch(1, 1, h)))
    sums, shares = class_means(models, 1, 1)
    first = run(FedProto(lambda_=0.5), cohorts=[[1]])[1]["prototypes"]
    assert_close((first["sums"], first["shares"]), (sums, shares), **CLOSE)

    def pulled(w, b):
        z = represent(w, b)[1]
        far = [
            (row - sums[label] / shares[label]).square().mean()
            if shares[label] > 0
            else 0 * row.sum()
            for row, label in zip(z, b[1].tolist(), strict=True)
        ]
        return loss(w, b) + 0.5 * sum(far) / len(far)

    for h in range(STEPS):
        own = plus(own, -ETA, torch.func.grad(pulled)(own, batch(1, 2, h)))
    assert_close(served(method, server, memories, 1).models[0], own, **CLOSE)
    assert server["model"] == {}


def test_fedproto_weighs_statistics_by_rows():
    settings = FedProto(lambda_=0.5)
    one, four = (run(settings, cohorts=[[c]])[1]["prototypes"] for c in (1, 4))
    _, server, _ = run(settings, cohorts=[[1, 4]])
    both = {n: (11 * one[n] + 14 * four[n]) / 25 for n in one}
    assert_close(server["prototypes"], both, **CLOSE)


def test_feddbe():
    method, server, memories = run(FedDbe(kappa=0.8), cohorts=[[1], [1]])
    w, bias, common = W, torch.zeros(8), None
    for server_round in (1, 2):
        seen = []
        for h in range(STEPS):

            def pulled(both, b, common=common):
                outputs, z = represent(both["w"], b, both["bias"])
                far = 0.0 if common is None else (z.mean(0) - common).square().mean()
                return torch.nn.functional.cross_entropy(outputs, b[1]) + 0.4 * far

            b = batch(1, server_round, h)
            seen.append(represent(w, b)[1].mean(0))
            d = torch.func.grad(pulled)({"w": w, "bias": bias}, b)
            w, bias = plus(w, -ETA, d["w"]), bias - ETA * d["bias"]
        common = torch.stack(seen).mean(0) if common is None else common
    assert_close(server["model"], w, **CLOSE)
    assert_close(server["common"]["mean"], common, **CLOSE)
    assert_close(served(method, server, memories, 1).shift, bias, **CLOSE)


def test_fedem():
    _, server, memories = run(FedEm(components=2), cohorts=[[1], [1]])
    models, pi = [W, draw(51)], torch.tensor([0.5, 0.5])
    for server_round in (1, 2):
        starts, seen = list(models), []
        for h in range(STEPS):
            b = batch(1, server_round, h)
            each = torch.stack([row_losses(w, b) for w in starts])
            q = pi[:, None] * torch.exp(-each)
            q = q / q.sum(0)
            seen.append(q)
            for m, w in enumerate(models):
                g = torch.func.grad(lambda p, m=m, b=b, q=q: (q[m] * row_losses(p, b)).mean())(w)
                models[m] = plus(w, -ETA, g)
        pi = torch.cat(seen, 1).mean(1)
    assert_close([server["model0"], server["model1"]], models, **CLOSE)
    assert_close(memories[1]["weights"], pi, **CLOSE)


def test_pfedhn_in_its_first_round():
    _, server, _ = run(PFedHn(server_eta=0.3, layers=0), cohorts=[[1, 4]])
    ends = {c: trained(W, c, 1) for c in (1, 4)}
    back = average(*ends.values())
    assert_close(server["bias"], {n: 0.7 * W[n] + 0.3 * back[n] for n in W}, **CLOSE)
    start = torch.randn(CLIENTS, 8, generator=torch.Generator().manual_seed(0))
    for n in W:
        changed = [(ends[c][n] - W[n]).flatten()[:, None] * start[c] for c in (1, 4)]
        assert_close(server["maps"][n], 0.3 * sum(changed) / 2, **CLOSE)


def test_pfedhn_s_embeddings_move_in_the_second_round():
    settings = PFedHn(server_eta=0.3, layers=0)
    _, first, _ = run(settings, cohorts=[[1]])
    _, second, _ = run(settings, cohorts=[[1], [1]])
    v = first["embeddings"]["v"][1]
    sent = {n: (first["maps"][n] @ v).view(x.shape) + first["bias"][n] for n, x in W.items()}
    change = plus(trained(sent, 1, 2), -1.0, sent)
    moved = v + 0.3 * sum(first["maps"][n].T @ change[n].flatten() for n in W)
    assert_close(second["embeddings"]["v"][1], moved, **CLOSE)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_fedpac_without_a_pull_trains_as_fedrep_does(optimizer):
    how = {"cohorts": [[1]], "optimizer": optimizer_of(optimizer, clip=0.3)}
    _, server, memories = run(FedRep(personal_share=0.5), **how)
    _, other, _ = run(FedPac(lambda_=0.0, head_share=0.5), **how)
    mine = memories[1]["personal model"]
    assert_close(other["body"], server["model"], **CLOSE)
    assert_close(other["head"], mine, **CLOSE)
    assert_close({n: leaf[1] for n, leaf in other["heads"].items()}, mine, **CLOSE)


def update_that_saw(rows, way, shares=None):
    sums = torch.zeros(3, 8)
    sums[way] = 1.0
    shares = torch.eye(3)[way] if shares is None else shares
    before = {"sums": sums, "shares": shares, "square": torch.tensor(8.5)}
    return Update({"before": before}, rows, 1, 0)


def test_fedpac_keeps_strangers_apart():
    found = head_weights([update_that_saw(10, 0), update_that_saw(30, 0), update_that_saw(10, 2)])
    assert found.sum(1) == pytest.approx([1, 1, 1])
    assert found[0, 1] / found[0, 0] == pytest.approx(3.0)  # variances are by rows
    assert found[0, 2] < 0.05


def test_fedpac_keeps_the_head_of_a_client_that_had_no_step_for_it():
    silent = update_that_saw(10, 0, torch.zeros(3))
    found = head_weights([update_that_saw(10, 0), silent])
    assert found.tolist() == [[1, 0], [0, 1]]


def test_knn_per_trains_as_fedavg_does_and_adds_votes():
    method, server, memories = run(KnnPer(lambda_=0.3, k=7, scale=2.0))
    assert_close(server, run(FedAvg())[1])
    assert served(method, server, memories, 0).neighbors == (0.3, 7, 2.0)


def test_a_hostile_update_does_not_move_what_it_does_not_send():
    def leaving(client, received, sent):
        return over_slots(lambda leaf: leaf * (100.0 if client == 1 else 1.0), sent)

    method, server, memories = run(Local(), cohorts=[[1, 4]], leaving=leaving)
    assert_close(served(method, server, memories, 4).models[0], trained(W, 4, 1), **CLOSE)
