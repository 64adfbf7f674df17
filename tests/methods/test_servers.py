"""Servers' steps on their own: of means, of hypernetworks, and of heads that are mixed."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch.testing import assert_close

from engram.core.method import FromMean, Update
from engram.core.personal_parameters import build
from engram.core.rounds import merged
from engram.core.slots import mean_of, scatter
from engram.methods.fedadam import FedAdam
from engram.methods.fedavg import FedAvg
from engram.methods.fedpac import FedPac, head_weights
from engram.methods.fedproto import FedProto
from engram.methods.pfedhn import PFedHn
from tests.methods.problem import (
    CLIENTS,
    HEAD,
    SHAPES,
    W,
    batch,
    body,
    built,
    context_of,
    draw,
    head,
    one,
    represent,
    run,
    trained,
)
from tests.methods.test_contract import CASES
from tests.methods.test_updates import class_means
from tests.support import draw as numbers

CLOSE = {"rtol": 1e-4, "atol": 1e-6}
BY_ROWS = {
    *("fedavg", "fedprox", "fedadagrad", "fedyogi", "fedadam", "fedper", "lg-fedavg", "fedbabu"),
    *("fedproto", "feddbe", "knn-per", "fedala", "fedem", "fedrod", "gpfl"),
}
PAIRS = st.lists(
    st.tuples(st.lists(st.floats(-9, 9), min_size=2, max_size=2), st.integers(1, 50)),
    min_size=1,
    max_size=6,
)


# --- Means ---------------------------------------------------------------------------------------


def updates_of(pairs, scale=1.0):
    slot = [torch.tensor(w, dtype=torch.float64) for w, _ in pairs]
    return [
        Update({"w": w, "x": {"a": 2 * w}}, scale * n)
        for w, (_, n) in zip(slot, pairs, strict=True)
    ]


@given(PAIRS, st.floats(0.01, 100))
def test_only_relative_weights_count(pairs, scale):
    found, scaled = (mean_of(updates_of(pairs, s), "rows").slots for s in (1.0, scale))
    assert_close(scaled, found, rtol=0, atol=1e-12)


@given(PAIRS, st.integers(1, 5), st.sampled_from(["rows", "clients"]))
def test_means_of_parts_make_the_mean_of_all(pairs, cut, by):
    updates = updates_of(pairs)
    parts = [mean_of(part, by) for part in (updates[:cut], updates[cut:]) if part]
    found, whole = mean_of(parts, by), mean_of(updates, by)
    assert_close(found.slots, whole.slots, rtol=0, atol=1e-12)
    assert found[1:] == whole[1:]


def test_a_mean_weighs_as_told():
    pairs = [([1.0, 0.0], 1), ([4.0, 8.0], 3)]
    found = mean_of(updates_of(pairs), "rows")
    assert found.slots["w"].tolist() == [3.25, 6.0]  # (1 + 3*4)/4, (0 + 3*8)/4
    assert found[1:4] == (4, 2, None)
    assert mean_of(updates_of(pairs), "clients").slots["x"]["a"].tolist() == [5.0, 8.0]


def test_updates_that_weigh_nothing_have_no_mean():
    with pytest.raises(ValueError, match="total weight must be positive, got 0"):
        mean_of([], "rows")


def from_mean(name):
    return isinstance(built(CASES[name]).server.merge, FromMean)


def test_means_are_by_rows_or_by_clients_and_taken_as_they_are_without_a_step():
    for name in filter(from_mean, CASES):
        method = built(CASES[name])
        merge, (kind, *_) = method.server.merge, name.split(",")
        assert merge.by == ("rows" if kind in BY_ROWS else "clients"), name
        if not merge.steps:
            start = method.server.start
            sent = {slot: start[slot] for slot in method.client.sends}
            moved = {s: {n: leaf + 0.5 for n, leaf in x.items()} for s, x in sent.items() if x}
            found = merge.merge(start, Update(moved, 10.0, 2))
            assert_close({slot: found[slot] for slot in moved}, moved, msg=name)


def test_running_statistics_are_averaged_whatever_the_server_s_step():
    context, running = context_of(), frozenset({"dense0.bias"})
    method = build(FedAdam(), context._replace(network=context.network._replace(running=running)))
    sent = {"model": draw(9)}
    found = method.server.merge.merge(method.server.start, Update(sent, 10.0))["model"]
    assert torch.equal(found["dense0.bias"], sent["model"]["dense0.bias"])
    assert not torch.equal(found["dense1.bias"], sent["model"]["dense1.bias"])


def test_classes_that_nobody_sent_keep_their_statistics():
    method = built(FedProto())
    old = {"sums": torch.ones(3, 8), "shares": torch.full((3,), 0.3)}
    seen = {"sums": torch.full((3, 8), 2.0), "shares": torch.tensor([0.5, 0.0, 0.5])}
    mean = Update({"model": {}, "prototypes": seen}, 10.0)
    found = method.server.merge.merge({"model": {}, "prototypes": old}, mean)["prototypes"]
    assert found["shares"].tolist() == pytest.approx([0.5, 0.3, 0.5])
    assert found["sums"][:, 0].tolist() == [2.0, 1.0, 2.0]


# --- pFedHN --------------------------------------------------------------------------------------


def made(server, v):
    """Returns networks by the server's hypernetwork, of embeddings (c, k)."""
    for i in range(len(server["hidden"]) // 2):
        v = torch.relu(v @ server["hidden"][f"weight{i}"].T + server["hidden"][f"bias{i}"])
    bias, maps = server["bias"], server["maps"]
    return {n: (v @ maps[n].T).reshape(-1, *x.shape) + x for n, x in bias.items()}


def test_at_first_every_client_has_the_initial_network():
    method = built(PFedHn())
    _, own = method.server.send(method.server.start, range(CLIENTS))
    for n, leaf in W.items():
        assert_close(own["model"][n], leaf.expand(CLIENTS, *leaf.shape))


def test_a_round_is_a_step_of_algorithm_1():
    settings, cohort = PFedHn(server_eta=0.3, layers=2, layer_width=7, embedding=3), [4, 1]
    _, before, _ = run(settings, cohorts=[cohort])
    _, after, _ = run(settings, cohorts=[cohort, cohort])
    # theta^T d, with d held constant, has the gradients that Alg. 1 asks for.
    slots = ("hidden", "maps", "bias", "embeddings")
    free = {s: {n: x.clone().requires_grad_() for n, x in before[s].items()} for s in slots}
    theta = made(free, free["embeddings"]["v"][cohort])
    sent = {n: x.detach() for n, x in theta.items()}
    ends = [trained(one(sent, i), c, 2) for i, c in enumerate(cohort)]
    products = [
        sum((theta[n][i] * (end[n] - sent[n][i])).sum() for n in W) for i, end in enumerate(ends)
    ]
    sum(products).backward()
    for slot in slots:
        shared = 1.0 if slot == "embeddings" else 1 / len(cohort)
        expected = {n: x.detach() + 0.3 * shared * x.grad for n, x in free[slot].items()}
        assert_close(after[slot], expected, **CLOSE)
    assert torch.equal(after["embeddings"]["v"][0], before["embeddings"]["v"][0])
    assert not torch.equal(after["embeddings"]["v"][4], before["embeddings"]["v"][4])


def test_newcomers_have_the_network_of_the_mean_embedding():
    method, server, _ = run(PFedHn(), cohorts=[[0, 2], [0, 2]])
    mean = server["embeddings"]["v"][[0, 2]].mean(0, keepdim=True)
    assert_close(server["model"], one(made(server, mean), 0), **CLOSE)
    _, own = method.server.send(server, [5, 2])
    for n, leaf in server["model"].items():
        assert torch.equal(own["model"][n][0], leaf)
        assert not torch.equal(own["model"][n][1], leaf)


def test_the_first_change_of_a_newcomer_is_from_what_it_was_sent():
    method, server, _ = run(PFedHn(), cohorts=[[0, 2], [0, 2]])
    still = Update({"model": server["model"], "statistics": {}}, 1.0, 1, 5)
    after = method.server.merge.merge(server, [still])
    assert_close(after["maps"], server["maps"], rtol=0, atol=0)
    assert_close(after["embeddings"], server["embeddings"], rtol=0, atol=0)
    assert after["known"].tolist() == [1, 0, 1, 0, 0, 1]


# --- FedPAC --------------------------------------------------------------------------------------


def told(variances, means):
    """Returns updates whose expected losses have these variances V and means M (m, classes, k)."""
    found = []
    for v, m in zip(variances, means, strict=True):
        seen = {
            "sums": torch.tensor(m),
            "shares": torch.full((len(m),), 1 / len(m), dtype=torch.float64),
            "square": torch.tensor(v + np.square(m).sum()),
        }
        found.append(Update({"before": seen}, 1.0))
    return found


def test_weights_of_heads_are_those_of_another_solver():
    variances, means = numbers(2, 6).abs().numpy() + 0.1, 0.3 * numbers(3, 6, 3, 4).numpy()
    found, flat = head_weights(told(variances, means)), means.reshape(6, -1)
    for i, own in enumerate(flat):
        away = flat - own

        def lost(a, away=away):
            return a @ (variances * a) + np.square(a @ away).sum()

        sought = minimize(
            lost,
            np.full(6, 1 / 6),
            bounds=[(0, 1)] * 6,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1},
            tol=1e-12,
        )
        assert lost(found[i]) <= sought.fun + 1e-9
        np.testing.assert_allclose(found[i].sum(), 1.0)
        assert (found[i] >= 0).all()


def test_where_nothing_is_lost_all_heads_count_alike():
    found = head_weights(told(np.zeros(4), np.ones((4, 2, 2))))
    np.testing.assert_allclose(found, np.full((4, 4), 0.25), atol=1e-9)


def test_fedpac_s_models_go_at_most_three_times_as_far_as_the_median_client_s():
    method, y = built(FedPac()), torch.tensor([0, 0, 1, 2])
    start, z = method.server.start, numbers(5, 4, 8).float()
    seen = {"before": statistics_of(z, y, 0.2), "after": statistics_of(z, y, 0.3)}

    def after(*lengths):
        updates = []
        for c, length in enumerate(lengths):
            moved = {
                s: {n: x + length * draw(c)[n] / unit[c] for n, x in start[s].items()}
                for s in ("body", "head")
            }
            updates.append(Update(moved | seen, 1.0, 1, c))
        return merged(method, start, updates)

    unit = [float(torch.cat([x.flatten() for x in draw(c).values()]).norm()) for c in range(3)]
    found, expected = after(1.0, 0.5, -60.0), after(1.0, 0.5, -3.0)
    for slot in ("body", "head", "heads"):
        assert_close(found[slot], expected[slot], **CLOSE)
    honest = after(1.0, 0.5, -2.9)  # which is within the bound
    assert any((found["body"][n] - x).abs().max() > 1e-4 for n, x in honest["body"].items())


def statistics_of(z, y, share):
    """Returns class statistics of rows, of which a share of the steps has told."""
    rows = torch.nn.functional.one_hot(y, 3).to(z)
    seen = {"sums": rows.T @ z / len(z), "shares": rows.mean(0), "square": z.square().sum(1).mean()}
    return {n: share * x for n, x in seen.items()}


def test_heads_are_mixed_by_the_statistics_and_bodies_averaged_by_rows():
    method, cohort, rows = built(FedPac()), [3, 0, 2], [1.0, 2.0, 3.0]
    targets, variances, means, updates = torch.tensor([0, 0, 1, 1, 1, 2]), [], [], []
    for c, count in zip(cohort, rows, strict=True):
        z, y = numbers(c, 6, 8).float(), targets.roll(c)
        mine = draw(c)
        # However large a share of the steps told it, statistics are the same.
        seen = {"before": statistics_of(z, y, 0.2 + 0.1 * c), "after": statistics_of(z, y, 0.3)}
        updates.append(Update({"body": body(mine), "head": head(mine)} | seen, count, 1, c))
        shares = [float((y == k).double().mean()) for k in range(3)]
        spread = sum(s * z[y == k].square().sum(1).mean() for k, s in enumerate(shares))
        mean = torch.stack([s * z[y == k].mean(0) for k, s in enumerate(shares)])
        variances.append(float(spread - mean.square().sum()) / count)
        means.append(mean.double().numpy())
    weights = torch.from_numpy(head_weights(told(variances, np.stack(means)))).float()
    server = merged(method, method.server.start, updates)
    common, own = method.server.send(server, [2, 3, 1])
    mean = {n: sum(c * draw(i)[n] for c, i in zip(rows, cohort, strict=True)) / 6 for n in W}
    assert_close(common["body"], body(mean), **CLOSE)
    for n in HEAD:
        theirs = torch.stack([draw(c)[n] for c in cohort])
        for i, c in ((0, 2), (1, 3)):
            mixed = torch.tensordot(weights[cohort.index(c)], theirs, dims=1)
            assert_close(own["head"][n][i], mixed, rtol=1e-3, atol=1e-5)
        assert_close(own["head"][n][2], mean[n], **CLOSE)  # it has not taken part


def test_statistics_are_of_the_network_that_was_sent_and_prototypes_of_the_body_s_steps():
    seen = []

    def leaving(client, received, sent):
        seen.append(sent)
        return sent

    run(FedPac(lambda_=0.0, head_share=0.5), cohorts=[[1]], leaving=leaving)
    w, models = W, []
    for h in range(4):
        models.append(w)
        w = trained(w, 1, 1, HEAD if h < 2 else SHAPES.keys() - HEAD, [h])
    for slot, start in (("before", 0), ("after", 2)):
        sums, shares = class_means(models[start : start + 2], 1, 1, start)
        found = seen[0][slot]
        assert_close((found["sums"], found["shares"]), (sums, shares), **CLOSE)
    z = torch.cat([represent(W, batch(1, 1, h))[1] for h in (0, 1)])
    assert_close(seen[0]["before"]["square"], z.square().sum(1).mean(), **CLOSE)


# --- For all -------------------------------------------------------------------------------------


def test_rows_of_several_clients_are_replaced():
    rows = {"v": torch.zeros(4, 2)}
    found = scatter(rows, [3, 1], {"v": torch.tensor([[1.0, 2.0], [3.0, 4.0]])})
    assert found["v"].tolist() == [[0, 0], [3, 4], [0, 0], [1, 2]]
    assert not rows["v"].any()


def test_a_network_without_a_representation_is_refused():
    network = context_of().network._replace(width=0)
    for name in ("feddbe", "fedproto", "fedpac", "gpfl", "knn-per"):
        with pytest.raises(ValueError, match="whose last layer takes one feature vector per row"):
            build(CASES[name], context_of()._replace(network=network))
    build(FedAvg(), context_of()._replace(network=network))


def test_a_personal_head_leaves_fedpac_nothing_to_mix():
    with pytest.raises(ValueError, match="personal must be a part below it for fedpac"):
        built(FedPac(), personal=HEAD)
