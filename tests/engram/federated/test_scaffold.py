"""SCAFFOLD: what it is where clients are equal, and where it rests where they are not."""

import pytest

from engram.aggregates import Update, mean
from engram.federated.scaffold import scaffold, scaffold_server
from engram.meta.fedavg import fedavg
from engram.optimizers import with_optimizer
from engram.tree import part
from tests.engram.federated.quadratics import client, minimum, moments, quadratic, rounds, steps
from tests.support import DIM, assert_same, draw

CLIENTS = [0, 1, 2, 3]
START = {"w": draw(1, DIM), "control/w": draw(2, DIM), "own-control/w": draw(3, DIM)}


def test_on_equal_clients_it_is_fedavg():
    # All have the rows of client 5, so that c_i = c in every round.
    rule, plain = scaffold(quadratic, eta=0.1), fedavg(quadratic, eta=0.1)
    model = {"w": draw(7, DIM), "control/w": 0 * draw(7, DIM)}
    kept, common = [model | {"own-control/w": model["control/w"]}] * 3, {"w": model["w"]}
    server = scaffold_server(1.0, 3)
    for _ in range(4):
        kept = [steps(rule, own | model, [client(5)] * 3) for own in kept]
        sent = [{name: w[name] for name in model} for w in kept]
        model, _ = server.merge(model, {}, [Update(w, 1.0) for w in sent])
        common = steps(plain, common, [client(5)] * 3)
        assert_same({"w": model["w"]}, common, atol=1e-12)
        assert_same(part(model, "control/"), part(kept[0], "own-control/"), atol=1e-12)


def test_a_step_by_hand():
    (a, b), (w, c, own) = moments(client(3)), START.values()
    stepped = steps(scaffold(quadratic, eta=0.1), START, [client(3)])
    assert_same({"w": stepped["w"]}, {"w": w - 0.1 * (a @ w - b - own + c)}, atol=1e-12)


@pytest.mark.parametrize("count", [1, 4])
def test_a_new_control_variate_is_that_of_option_two(count):
    # (4): c_i+ = c_i - c + (x - y) / (K eta); and c is returned with the change of c_i.
    after = steps(scaffold(quadratic, eta=0.1), START, [client(3 + k) for k in range(count)])
    moved = (START["w"] - after["w"]) / (count * 0.1)
    expected = START["own-control/w"] - START["control/w"] + moved
    assert_same(part(after, "own-control/"), {"w": expected}, atol=1e-12)
    returned = START["control/w"] + expected - START["own-control/w"]
    assert_same(part(after, "control/"), {"w": returned}, atol=1e-12)


def test_an_optimizer_leaves_control_variates_as_they_are():
    # Those of one step are the gradient at the start, however far the step goes.
    rule = with_optimizer(scaffold(quadratic, eta=0.1), "adam", weight_decay=0.3, clip=0.1)
    after, (a, b) = steps(rule, START, [client(3)]), moments(client(3))
    assert_same(part(after, "own-control/"), {"w": a @ START["w"] - b}, atol=1e-12)


def test_the_servers_variate_is_the_mean_of_the_clients():
    # Alg. 1, line 17, keeps that up, whoever takes part.
    model, _, kept = rounds(
        scaffold(quadratic, eta=0.1),
        scaffold_server(1.0, len(CLIENTS)),
        CLIENTS,
        7,
        local_steps=3,
        asked=lambda t, clients: [clients[t % 4], clients[(t + 1) % 4]],
    )
    each = [part(kept[i], "own-control/")["w"] for i in CLIENTS]
    assert_same(part(model, "control/"), {"w": sum(each) / 4}, atol=1e-12)


def test_it_comes_to_the_common_minimum_where_fedavg_does_not():
    best = {"w": minimum(CLIENTS)}
    settings = {"clients": CLIENTS, "count": 60, "local_steps": 8}
    found, _, _ = rounds(scaffold(quadratic, eta=0.2), scaffold_server(1.0, 4), **settings)
    assert_same({"w": found["w"]}, best, atol=1e-6)
    drifted, _, _ = rounds(fedavg(quadratic, eta=0.2), mean(), **settings)
    assert (drifted["w"] - best["w"]).norm() > 0.01


def test_the_servers_step_goes_along_the_mean_change():
    model, ends = {"w": draw(1, DIM), "control/w": draw(2, DIM)}, [draw(3, 2, DIM), draw(4, 2, DIM)]
    updates = [Update({"w": w, "control/w": c}, 1.0) for w, c in ends]
    merged, state = scaffold_server(0.3, clients=5).merge(model, {}, updates)
    middle, control = sum(ends) / 2
    assert state == {}
    assert_same({"w": merged["w"]}, {"w": model["w"] + 0.3 * (middle - model["w"])}, atol=1e-12)
    expected = model["control/w"] + 2 / 5 * (control - model["control/w"])
    assert_same(part(merged, "control/"), {"w": expected}, atol=1e-12)


def test_impossible_values_are_refused():
    with pytest.raises(ValueError, match=r"eta must be positive, got 0.0"):
        scaffold(quadratic, eta=0.0)
    with pytest.raises(ValueError, match=r"server-eta must be positive, got 0.0"):
        scaffold_server(0.0, 4)
    with pytest.raises(ValueError, match="num-clients must be at least 1, got 0"):
        scaffold_server(1.0, 0)
