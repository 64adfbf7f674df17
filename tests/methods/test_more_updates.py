"""Methods with heads, mixtures or clusters for each client, against their papers' updates."""

from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn
from torch.testing import assert_close

from engram.methods.cfl import Cfl, bipartition
from engram.methods.fedamp import FedAmp
from engram.methods.fedas import FedAs
from engram.methods.fedavg import FedAvg
from engram.methods.fedfomo import FedFomo
from engram.methods.fedrod import FedRod
from engram.methods.floco import Floco, fitted, projected
from engram.methods.local import Local
from engram.methods.mr_mtl import MrMtl
from tests.methods.problem import (
    CLIENTS,
    ETA,
    HEAD,
    STEPS,
    W,
    average,
    batch,
    body,
    draw,
    gradient,
    head,
    loss,
    one,
    plus,
    represent,
    run,
    served,
    trained,
)
from tests.samples import entry

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
EVERYONE = list(range(CLIENTS))


def own_models(settings, cohorts):
    method, server, memories = run(settings, cohorts=cohorts)
    return [served(method, server, memories, c).models[0] for c in sorted(memories)]


def by_rows(models):
    """Returns the mean of models by the rows of the problem's clients."""
    rows = {client: 10 + client for client in models}
    total = sum(rows.values())
    return {n: sum(rows[c] * w[n] for c, w in models.items()) / total for n in W}


def far(w, v):
    return torch.cat([(w[n] - v[n]).flatten() for n in sorted(W)]).norm()


# --- FedRoD --------------------------------------------------------------------------------------


def fedrod_by_hand(w, own, counts, client, server_round):
    w = {n: x.clone().requires_grad_() for n, x in w.items()}
    own = {n: x.clone().requires_grad_() for n, x in own.items()}
    for h in range(STEPS):
        x, y = batch(client, server_round, h)
        counts = counts + torch.bincount(y, minlength=3)
        z = torch.relu(x @ w["dense0.weight"].T + w["dense0.bias"])
        common = z @ w["dense1.weight"].T + w["dense1.bias"]
        mass = counts**0.7 * common.exp()
        balanced = -(mass.gather(1, y[:, None])[:, 0] / mass.sum(1)).log().mean()
        mine = z.detach() @ own["dense1.weight"].T + own["dense1.bias"]
        risk = nn.functional.cross_entropy(common.detach() + mine, y)
        moves = torch.autograd.grad(balanced + risk, [*w.values(), *own.values()])
        with torch.no_grad():
            for leaf, g in zip([*w.values(), *own.values()], moves, strict=True):
                leaf.sub_(g, alpha=ETA)
    return {n: x.detach() for n, x in w.items()}, {n: x.detach() for n, x in own.items()}, counts


def test_fedrod():
    method, server, memories = run(FedRod(gamma=0.7), cohorts=[[1, 4], [1]])
    none = {n: 0 * x for n, x in head(W).items()}
    first = {c: fedrod_by_hand(W, none, torch.zeros(3), c, 1) for c in (1, 4)}
    common = by_rows({c: w for c, (w, _, _) in first.items()})
    w, own, counts = fedrod_by_hand(common, *first[1][1:], 1, 2)
    assert_close(server["model"], w, **CLOSE)
    assert_close(memories[1]["counts"], counts)
    mine = served(method, server, memories, 1).models[0]
    assert_close(mine, w | plus(head(w), 1.0, own), **CLOSE)
    assert_close(served(method, server, memories, 3).models[0], w, **CLOSE)


# --- FedAMP --------------------------------------------------------------------------------------


def fedamp_by_hand(w, near, client, server_round):
    for h in range(STEPS):
        g = gradient(w, batch(client, server_round, h))
        w = {n: w[n] - ETA * (g[n] + 0.7 * (w[n] - near[n])) for n in w}
    return w


def test_fedamp():
    for attraction in [0.3, 3.0]:
        with entry(attraction):
            settings = FedAmp(lambda_=0.7, attraction=attraction, sigma=5.0)
            _, server, memories = run(settings, cohorts=[[1, 4, 2], [1, 5]])
            w = {c: fedamp_by_hand(W, W, c, 1) for c in (1, 4, 2)}
            a = {c: attraction * float(torch.exp(-(far(w[1], w[c]) ** 2) / 5)) for c in (4, 2)}
            a = {c: x / max(1.0, sum(a.values())) for c, x in a.items()}
            near = {n: (1 - sum(a.values())) * w[1][n] + sum(a[c] * w[c][n] for c in a) for n in W}
            assert (sum(a.values()) == pytest.approx(1)) == (attraction == 3.0)
            assert_close(memories[1]["own"], fedamp_by_hand(w[1], near, 1, 2), **CLOSE)
            new = fedamp_by_hand(W, average(*w.values()), 5, 2)  # who is not known yet
            assert_close(memories[5]["own"], new, **CLOSE)
            for client, expected in ((1, memories[1]["own"]), (2, w[2]), (5, new), (0, W)):
                assert_close(one(server["models"], client), expected, **CLOSE)


def test_fedamp_without_bounds_of_distance_holds_models_near_their_mean():
    cohorts = [EVERYONE, EVERYONE, [2, 3]]
    settings = FedAmp(lambda_=0.7, attraction=1 / CLIENTS, sigma=1e12)
    expected = own_models(MrMtl(lambda_=0.7), cohorts)
    assert_close(own_models(settings, cohorts), expected, **CLOSE)


# --- FedFomo -------------------------------------------------------------------------------------


def test_fedfomo():
    method, server, memories = run(FedFomo(models=3), cohorts=[[1, 4, 2], [3]])
    w = {c: trained(W, c, 1) for c in (1, 4, 2)}
    mean, rows = average(*w.values()), batch(3, 2, -1)
    gains = {c: float((loss(mean, rows) - loss(v, rows)) / far(mean, v)) for c, v in w.items()}
    weights = {c: max(g, 0.0) for c, g in gains.items()}
    assert sum(g > 0 for g in gains.values()) == 1  # the others would make its loss greater
    mixed = {n: sum(weights[c] * w[c][n] for c in w) / sum(weights.values()) for n in W}
    assert_close(served(method, server, memories, 3).models[0], trained(mixed, 3, 2), **CLOSE)
    start = method.server.start["affinity"]
    for client, gain in gains.items():
        moved = server["affinity"][3, client] - start[3, client]
        assert_close(float(moved), gain, rtol=1e-3, atol=1e-5)
    assert torch.equal(server["affinity"][[0, 1, 2, 4, 5]], start[[0, 1, 2, 4, 5]])


def test_fedfomo_sends_the_models_of_the_greatest_affinity():
    method, server, _ = run(FedFomo(models=2), cohorts=[[1, 4, 2]])
    affinity = torch.tensor([0.9, 0.1, 0.3, 0.8, 0.2, 0.7]).repeat(CLIENTS, 1)
    _, own = method.server.send(server | {"affinity": affinity}, [4, 0])
    expected = {c: trained(W, c, 1) for c in (1, 2, 4)}  # the others have no model yet
    for i, others in enumerate(((2, 1), (2, 4))):
        for k, client in enumerate(others):
            assert_close(one(one(own["others"], i), k), expected[client], **CLOSE)


def test_fedfomo_of_a_client_alone_is_local():
    cohorts = [[1], [1], [1]]
    assert_close(own_models(FedFomo(), cohorts), own_models(Local(), cohorts), **CLOSE)


# --- CFL -----------------------------------------------------------------------------------------


def best_parts(updates):
    """Returns the parts of all bipartitions whose greatest similarity across is the least."""
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    everyone, found = set(range(len(updates))), []
    for size in range(1, len(updates)):
        for some in combinations(sorted(everyone), size):
            rest = sorted(everyone - {*some})
            found.append((np.max(unit[list(some)] @ unit[rest].T), {some, tuple(rest)}))
    return min(found, key=lambda pair: pair[0])[1]


def test_cfl_s_parts_are_the_best_of_all():
    for count in [2, 3, 6]:
        with entry(count):
            for seed in range(20):
                updates = np.random.default_rng(seed).normal(size=(count, 4))
                assert {tuple(part) for part in bipartition(updates)} == best_parts(updates)


def test_cfl_that_never_parts_is_fedavg():
    _, server, _ = run(Cfl(eps2=1e9))
    assert_close(one(server["models"], 0), run(FedAvg())[1]["model"], **CLOSE)
    assert_close(run(Cfl(eps1=0.0, eps2=0.0))[1]["models"], server["models"], **CLOSE)
    assert_close(run(Cfl(eps1=1e9, eps2=0.0, clusters=1))[1]["models"], _first(server), **CLOSE)


def _first(server):
    return {n: x[:1] for n, x in server["models"].items()}


def test_cfl():
    method, server, memories = run(Cfl(eps1=1e9, eps2=0.0), cohorts=[[0, 1, 2, 4], [3]])
    w = {c: trained(W, c, 1) for c in (0, 1, 2, 4)}
    flat = np.stack([torch.cat([(w[c][n] - W[n]).flatten() for n in W]).numpy() for c in w])
    parts = sorted(best_parts(flat), key=len, reverse=True)
    larger, smaller = ([[*w][i] for i in part] for part in parts)
    models = [by_rows({c: w[c] for c in part}) for part in (larger, smaller)]
    assert len(larger) > len(smaller)
    stayed = trained(models[0], 3, 2)  # with the larger part, as it was not there
    for client in EVERYONE:
        expected = models[1] if client in smaller else stayed
        assert_close(served(method, server, memories, client).models[0], expected, **CLOSE)


# --- FedAS ---------------------------------------------------------------------------------------


def fedas_by_hand(w, known, client, server_round):
    for h in range(2):
        x, y = batch(client, server_round, h)
        at = {n: leaf.clone().requires_grad_() for n, leaf in body(w).items()}
        z = represent(w | at, (x, y))[1]
        apart = [((z[i] - known[c]) ** 2).mean() for i, c in enumerate(y.tolist()) if c in known]
        if apart:
            moves = torch.autograd.grad(sum(apart) / len(y), list(at.values()))
            w = w | {n: w[n] - 0.3 * g for n, g in zip(at, moves, strict=True)}
    seen, traces = {}, []
    for h in range(2, STEPS):
        x, y = batch(client, server_round, h)
        for c, z in zip(y.tolist(), represent(w, (x, y))[1], strict=True):
            seen.setdefault(c, []).append(z)
        g = gradient(w, (x, y))
        traces.append(sum(float((leaf**2).sum()) for leaf in g.values()))
        w = {n: w[n] - ETA * g[n] for n in w}
    return w, {c: torch.stack(z).mean(0) for c, z in seen.items()}, sum(traces) / len(traces)


def test_fedas():
    method, server, memories = run(
        FedAs(align_eta=0.3, align_share=0.5), cohorts=[[1, 4], [1]], personal=HEAD
    )
    first = {c: fedas_by_hand(W, {}, c, 1) for c in (1, 4)}
    total = sum(trace for _, _, trace in first.values())
    common = {n: sum(t * w[n] for w, _, t in first.values()) / total for n in W}
    w, known, _ = fedas_by_hand(common | head(first[1][0]), first[1][1], 1, 2)
    assert_close(server["model"], body(w), **CLOSE)
    assert_close(served(method, server, memories, 1).models[0], w, **CLOSE)
    kept = memories[1]["prototypes"]
    for c, mean in known.items():
        assert_close(kept["sums"][c] / kept["shares"][c], mean, **CLOSE)


def test_fedas_aligns_nothing_in_a_client_s_first_round():
    _, server, _ = run(FedAs(align_share=0.5), cohorts=[[2]], personal=HEAD)
    assert_close(server["model"], body(trained(W, 2, 1, steps=range(2, STEPS))), **CLOSE)


# --- Floco ---------------------------------------------------------------------------------------


def weights_by_hand(count, steps):
    """Returns mixture weights of steps: shares of exponential draws from the sequence R_d."""
    phi = max(np.roots([1, *[0] * (count - 1), -1, -1]).real)  # x^(d + 1) = x + 1
    points = [(0.5 + h * phi ** -np.arange(1, count + 1.0)) % 1 for h in range(1, steps + 1)]
    exponential = -np.log(np.stack(points))
    return torch.from_numpy(exponential / exponential.sum(1, keepdims=True)).float()


def floco_by_hand(w, heads, weights, client, server_round):
    for h in range(STEPS):
        a = weights[h]
        mixed = {n: sum(a[m] * x[n] for m, x in enumerate(heads)) for n in HEAD}
        g = gradient(w | mixed, batch(client, server_round, h))
        w = {n: w[n] - ETA * g[n] for n in w}
        heads = [{n: x[n] - ETA * a[m] * g[n] for n in HEAD} for m, x in enumerate(heads)]
    return body(w), heads


def test_floco():
    method, server, memories = run(Floco(vertices=3, tau=1, rho=0.4), cohorts=[[1, 4, 2], [1]])
    heads = [head(W), head(draw(51)), head(draw(52))]
    weights = weights_by_hand(3, 2 * STEPS)
    first = {c: floco_by_hand(W, heads, weights, c, 1) for c in (1, 4, 2)}
    rows = {1: 11, 4: 14, 2: 12}
    w = {n: sum(rows[c] * first[c][0][n] for c in rows) / 37 for n in body(W)}
    new = [{n: sum(rows[c] * first[c][1][m][n] for c in rows) / 37 for n in HEAD} for m in range(3)]
    p = server["center"][1]
    inside = [p + 0.2 * (a - p) for a in weights[STEPS:]]
    w, new = floco_by_hand(w | head(W), new, inside, 1, 2)
    assert_close(server["body"], w, **CLOSE)
    for m in range(3):
        assert_close(server[f"head{m}"], new[m], **CLOSE)
    mine = w | {n: sum(p[m] * x[n] for m, x in enumerate(new)) for n in HEAD}
    assert_close(served(method, server, memories, 1).models[0], mine, **CLOSE)
    middle = w | {n: sum(x[n] for x in new) / 3 for n in HEAD}
    assert_close(served(method, server, memories, 0).models[0], middle, **CLOSE)
    leaves = [(m, n) for m in range(3) for n in sorted(HEAD)]
    each = [[(own[m][n] - heads[m][n]).flatten() for m, n in leaves] for _, own in first.values()]
    changes = torch.stack([*map(torch.cat, each)])
    expected = projected(changes, fitted(changes, 3))
    assert_close(server["center"][[1, 4, 2]], expected, rtol=1e-3, atol=1e-4)


def test_floco_of_one_vertex_is_fedavg():
    _, server, _ = run(Floco(vertices=1, tau=2))
    assert_close(server["body"] | server["head0"], run(FedAvg())[1]["model"], **CLOSE)


def test_floco_places_a_client_that_comes_late_among_those_that_were_there():
    _, server, _ = run(Floco(vertices=2, tau=2), cohorts=[[0, 1], [1, 2], [0, 3], [0]])
    assert server["spread"].tolist() == pytest.approx([0.05, 0.05, 0.05, 0.05, 1, 1])
    assert_close(server["center"].sum(1), torch.ones(CLIENTS))
    assert server["plane"]["size"] > 0


def test_mixture_weights_are_the_nearest_in_the_simplex():
    rng = np.random.default_rng(3)
    changes, axes = rng.normal(size=(4, 7)), np.linalg.qr(rng.normal(size=(7, 3)))[0].T
    plane = {"mean": changes.mean(0), "axes": axes, "size": np.array(0.8)}
    plane = {name: torch.from_numpy(x) for name, x in plane.items()}
    found = projected(torch.from_numpy(changes), plane).numpy()
    for point, weights in zip((changes - changes.mean(0)) @ axes.T, found, strict=True):
        nearest = minimize(
            lambda b, point=point: np.sum((b - point) ** 2),
            np.full(3, 0.8 / 3),
            bounds=[(0, None)] * 3,
            constraints={"type": "eq", "fun": lambda b: b.sum() - 0.8},
            method="SLSQP",
            options={"ftol": 1e-14},
        )
        np.testing.assert_allclose(0.8 * weights, nearest.x, atol=1e-5)


def test_axes_are_principal_components_and_the_size_is_of_least_energy():
    changes = torch.from_numpy(np.random.default_rng(1).normal(size=(6, 9)) / 4)
    plane = fitted(changes, 3)
    _, vectors = np.linalg.eigh(np.cov(changes.numpy().T))
    alike = np.abs(plane["axes"].numpy() @ vectors[:, ::-1][:, :3])
    np.testing.assert_allclose(alike, np.eye(3), atol=1e-6)

    def energy(size):
        points = projected(changes, plane | {"size": torch.tensor(size)}).numpy()
        pairs = [np.linalg.norm(x - y) for x, y in combinations(points, 2)]
        return sum(1 / max(d, 1e-4) ** 2 for d in pairs)

    energies = [energy(k / 64) for k in range(1, 65)]
    assert energy(float(plane["size"])) == pytest.approx(min(energies), rel=1e-5)


def test_few_clients_have_no_axes_of_rounding():
    changes = torch.from_numpy(np.random.default_rng(2).normal(size=(3, 9))).float()
    lengths = fitted(changes, 4)["axes"].norm(dim=1)
    assert_close(lengths, torch.tensor([1.0, 1.0, 0.0, 0.0]))  # three points span a plane
