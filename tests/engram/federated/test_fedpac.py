"""FedPAC's weights in closed cases, its statistics, and FedRep's round where lambda is 0."""

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from engram.aggregates import Update, weighted_mean
from engram.federated.fedpac import (
    aligned_loss,
    collaboration,
    fedpac_server,
    head_and_body,
    with_statistics,
)
from engram.federated.observed import observing
from engram.federated.parts import in_turn, whose_turn
from engram.meta.fedavg import fedavg
from engram.models import build_model, mean_loss
from engram.optimizers import with_optimizer
from engram.tasks import CLASSIFICATION
from engram.tree import part
from federation.errors import Refused
from tests.support import assert_same, draw, small, trainer

CLASSES, WIDTH, ROWS, N = 3, 4, 6, 5
NET = build_model("mlp", input_shape=(5,), outputs=CLASSES, hidden=(WIDTH,))
BESIDE = with_statistics(NET, CLASSES)
HEAD = frozenset({"dense1.weight", "dense1.bias"})
BODY = frozenset({"dense0.weight", "dense0.bias"})
Y = torch.tensor([0, 0, 1, 1, 1, 2])


def start():
    w = BESIDE.init(torch.Generator().manual_seed(1))
    return {name: leaf.double() for name, leaf in w.items()}


def batches(count):
    return [(draw(h, ROWS, 5), Y.roll(h)) for h in range(count)]


def round_of(rule, w, some):
    u, turn = rule.init(w, None), rule.then[0](len(some))
    for h, batch in enumerate(some):
        w, u = whose_turn(rule, later=h >= turn).step(w, u, (batch,))
    return w if rule.finish is None else rule.finish(w, u)


def rule_of(strength, share=0.4):
    loss = aligned_loss(BESIDE, CLASSIFICATION, strength)
    return head_and_body(observing(loss, eta=0.1), HEAD, BODY, share)


# --- The weights ---------------------------------------------------------------------------------


def test_clients_whose_rows_look_alike_are_weighted_by_their_precision():
    # Without bias, sum_j a_j^2 V_j is least at a_j proportional to 1 / V_j.
    variances = np.array([1.0, 2.0, 5.0])
    expected = (1 / variances) / (1 / variances).sum()
    found = collaboration(variances, np.ones((3, CLASSES, WIDTH)))
    np.testing.assert_allclose(found, np.tile(expected, (3, 1)), rtol=1e-6)


def test_of_two_clients_the_weight_is_that_of_a_parabola():
    # (1 - a)^2 V_1 + a^2 V_2 + a^2 |M_1 - M_2|^2 is least at a = V_1 / (V_1 + V_2 + |M_1 - M_2|^2).
    variances, means = np.array([0.3, 0.7]), draw(1, 2, CLASSES, WIDTH).numpy()
    far = np.square(means[0] - means[1]).sum()
    found = collaboration(variances, means)
    assert found[0, 1] == pytest.approx(0.3 / (1.0 + far))
    assert found[1, 0] == pytest.approx(0.7 / (1.0 + far))


def test_weights_are_those_of_another_solver():
    variances, means = draw(2, 6).abs().numpy() + 0.1, 0.3 * draw(3, 6, CLASSES, WIDTH).numpy()
    found = collaboration(variances, means)
    flat = means.reshape(6, -1)
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


def test_a_client_that_is_unlike_all_others_keeps_its_head():
    means = np.zeros((3, CLASSES, WIDTH))
    means[0] = 100.0
    np.testing.assert_allclose(collaboration(np.ones(3), means)[0], [1, 0, 0], atol=1e-4)


def test_where_nothing_is_lost_all_count_alike():
    np.testing.assert_allclose(
        collaboration(np.zeros(4), np.ones((4, 2, 2))), np.full((4, 4), 0.25)
    )


# --- A client's round ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_with_lambda_zero_a_client_trains_as_in_fedrep(name):
    plain = in_turn(fedavg(mean_loss(NET, CLASSIFICATION), eta=0.1), HEAD, 0.4)
    mine = with_optimizer(rule_of(0.0), name, clip=0.3)
    theirs = with_optimizer(plain, name, clip=0.3)
    found, expected = (
        round_of(r, w, batches(5)) for r, w in ((mine, start()), (theirs, part(start())))
    )
    assert_same(part(found), expected, atol=1e-12)


def test_statistics_are_of_the_network_that_was_sent_and_prototypes_of_the_body_s_steps():
    w, some = start(), batches(5)
    found = round_of(rule_of(0.3), w, some)
    z = torch.cat([NET.represent(part(w), x)[1] for x, _ in some[:2]])  # two steps of the head
    y = torch.cat([y for _, y in some[:2]])
    share = 2 / 5  # all means are over a round's steps
    torch.testing.assert_close(found["seen/sent-square"], share * z.square().sum(1).mean())
    for j in range(CLASSES):
        torch.testing.assert_close(found["seen/sent-sums"][j], share * z[y == j].sum(0) / len(y))
        assert float(found["seen/sent-shares"][j]) == pytest.approx(
            share * float((y == j).double().mean())
        )
    later = torch.cat([y for _, y in some[2:]])
    torch.testing.assert_close(
        found["seen/shares"], 3 / 5 * torch.bincount(later, minlength=CLASSES).double() / len(later)
    )


# --- The server's part ---------------------------------------------------------------------------


def sent(seed, share=0.5):
    w = {name: draw(seed + i, 1, *leaf.shape)[0] for i, (name, leaf) in enumerate(start().items())}
    z, y = draw(seed, ROWS, WIDTH), Y.roll(seed)
    one_hot = torch.nn.functional.one_hot(y, CLASSES).double()
    told = {
        "sums": one_hot.T @ z / ROWS,
        "shares": one_hot.mean(0),
        "square": z.square().sum(1).mean(),
    }
    w |= {f"seen/sent-{name}": share * leaf for name, leaf in told.items()}
    return w | {"seen/sums": told["sums"], "seen/shares": told["shares"]}, z, y


def test_heads_are_mixed_by_the_statistics_and_bodies_averaged():
    aggregate, cohort = fedpac_server(HEAD, N), [3, 0, 2]
    clients = [sent(10 * c) for c in cohort]
    # However large a share of their steps told it, statistics are the same.
    clients[1] = (clients[1][0] | part_scaled(clients[1][0], 0.5), *clients[1][1:])
    updates = [
        Update(w, weight, c)
        for (w, _, _), weight, c in zip(clients, (1.0, 2.0, 3.0), cohort, strict=True)
    ]
    model, state = aggregate.merge(start(), aggregate.init(start()), updates)
    variances, means = [], []
    for (_, z, y), weight in zip(clients, (1.0, 2.0, 3.0), strict=True):
        within = sum(
            (y == k).double().mean() * z[y == k].square().sum(1).mean()
            - ((y == k).double().mean() * z[y == k].mean(0)).square().sum()
            for k in range(CLASSES)
        )
        variances.append(float(within) / weight)
        means.append(
            torch.stack(
                [(y == k).double().mean() * z[y == k].mean(0) for k in range(CLASSES)]
            ).numpy()
        )
    weights = collaboration(np.array(variances), np.stack(means))
    made = aggregate.tailored(model, state, [2, 3, 1])
    for name in HEAD:
        theirs = torch.stack([w[name] for w, _, _ in clients])
        for i, c in ((0, 2), (1, 3)):
            mixed = torch.tensordot(torch.from_numpy(weights[cohort.index(c)]), theirs, dims=1)
            torch.testing.assert_close(made[name][i], mixed)
        assert torch.equal(made[name][2], model[name])  # it has not taken part
    mean = weighted_mean(updates)
    for name in (*BODY, *HEAD, "seen/sums", "seen/shares"):
        torch.testing.assert_close(model[name], mean[name])


def part_scaled(w, factor):
    return {name: factor * leaf for name, leaf in w.items() if name.startswith("seen/sent-")}


def test_a_client_alone_keeps_its_head():
    aggregate = fedpac_server(HEAD, N)
    w, *_ = sent(4)
    model, state = aggregate.merge(start(), aggregate.init(start()), [Update(w, 7.0, 1)])
    for name, leaf in aggregate.tailored(model, state, [1]).items():
        torch.testing.assert_close(leaf[0], w[name])


def test_a_client_without_steps_for_its_head_has_no_part_in_others():
    aggregate = fedpac_server(HEAD, N)
    silent, others = sent(40, share=0.0)[0], [sent(10 * c)[0] for c in (1, 2)]
    state = aggregate.init(start())
    _, without = aggregate.merge(start(), state, [Update(w, 1.0, c) for c, w in enumerate(others)])
    some = [Update(w, 1.0, c) for c, w in enumerate([*others, silent])]
    _, after = aggregate.merge(start(), state, some)
    for name in HEAD:
        torch.testing.assert_close(after["heads/" + name][:2], without["heads/" + name][:2])
        assert torch.equal(after["heads/" + name][2], silent[name])


def test_what_it_is_not_for_is_refused():
    with pytest.raises(Refused, match="task must be classification for fedpac"):
        small(method="fedpac", task="regression")
    with pytest.raises(Refused, match="personal must be a part below it for fedpac"):
        trainer(small(method="fedpac", personal="dense1.*"))
    with pytest.raises(Refused, match="local-steps must be at least 2 for fedpac"):
        small(method="fedpac", local_steps=1)
    with pytest.raises(ValueError, match="lambda must be at least 0"):
        aligned_loss(BESIDE, CLASSIFICATION, -1.0)
