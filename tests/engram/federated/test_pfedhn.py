"""pFedHN's server against Alg. 1 by autograd, FedAvg's mean, and its paper's linear case."""

import pytest
import torch

from engram.aggregates import Update, weighted_mean
from engram.federated.pfedhn import generate, pfedhn_server
from engram.tree import part
from tests.support import assert_same, draw

N, K, DIM = 6, 2, 5
MODEL = {"a": draw(1, 2, 3).float(), "b": draw(2, 4).float()}


def server(**given):
    generator = torch.Generator().manual_seed(3)
    sizes = {"clients": N, "eta": 0.1, "embedding": K, "hidden": 7, "layers": 2}
    return pfedhn_server(**sizes | given, generator=generator)


def trained(sent, clients, seed=5):
    """What clients return: a change of their own from what they were sent."""
    return [
        Update(
            {
                n: leaf[i] + 0.1 * draw(seed + c, *leaf.shape[1:]).float()
                for n, leaf in sent.items()
            },
            1.0,
            c,
        )
        for i, c in enumerate(clients)
    ]


def a_round(aggregate, model, state, clients):
    return aggregate.merge(
        model, state, trained(aggregate.tailored(model, state, clients), clients)
    )


def test_at_first_every_client_has_the_initial_network():
    aggregate = server()
    state = aggregate.init(MODEL)
    made = generate(state, state["embeddings"])
    for name, leaf in MODEL.items():
        assert torch.equal(made[name], leaf.expand(N, *leaf.shape))


def test_a_round_is_a_step_of_algorithm_1():
    aggregate, clients = server(eta=0.3), [4, 1]
    model, state = a_round(aggregate, MODEL, aggregate.init(MODEL), clients)
    sent = aggregate.tailored(model, state, clients)
    updates = trained(sent, clients, seed=50)
    _, after = aggregate.merge(model, state, updates)
    # theta^T d, with d held constant, has the gradients that Alg. 1 asks for.
    free = {n: leaf.clone().requires_grad_() for n, leaf in state.items() if n != "known"}
    made = generate(free, free["embeddings"][clients])
    for name, leaf in made.items():
        assert torch.equal(leaf, sent[name])
    products = torch.stack(
        [
            sum((made[n][i] * (u.params[n] - sent[n][i])).sum() for n in MODEL)
            for i, u in enumerate(updates)
        ]
    )
    by_mean = dict(
        zip(
            free,
            torch.autograd.grad(products.mean(), free.values(), retain_graph=True),
            strict=True,
        )
    )
    (by_each,) = torch.autograd.grad(products.sum(), [free["embeddings"]])
    for name, leaf in free.items():
        g = by_each if name == "embeddings" else by_mean[name]
        torch.testing.assert_close(after[name], leaf.detach() + 0.3 * g)
        if name == "embeddings":
            assert not torch.equal(after[name][4], state[name][4])
            assert torch.equal(after[name][0], state[name][0])


def test_without_embeddings_it_is_fedavg():
    aggregate = server(layers=0, eta=1.0)
    model, state = MODEL, aggregate.init(MODEL)
    state["embeddings"].zero_()
    for clients in ([0, 1, 2], [3, 1]):
        updates = trained(aggregate.tailored(model, state, clients), clients)
        model, state = aggregate.merge(model, state, updates)
        assert_same(model, weighted_mean(updates), atol=1e-6)


def test_a_linear_map_finds_the_plane_that_the_clients_minima_lie_in():
    # Two numbers of each client suffice for minima in a plane; one does not.
    plane = torch.linalg.qr(draw(8, DIM, 2)).Q.float()
    minima = draw(9, N, 2).float() @ plane.T + draw(10, DIM).float()

    def error(size):
        aggregate = server(layers=0, embedding=size, eta=0.2)
        model = {"w": torch.zeros(DIM)}
        state, everyone = aggregate.init(model), list(range(N))
        for _ in range(600):
            sent = aggregate.tailored(model, state, everyone)["w"]
            updates = [
                Update({"w": w + 0.5 * (m - w)}, 1.0, i)
                for i, (w, m) in enumerate(zip(sent, minima, strict=True))
            ]
            model, state = aggregate.merge(model, state, updates)
        return float((aggregate.tailored(model, state, everyone)["w"] - minima).norm())

    assert error(2) < 1e-3
    assert error(1) > 0.3


def test_newcomers_have_the_network_of_the_mean_embedding():
    aggregate, clients = server(), [0, 2]
    model, state = a_round(aggregate, MODEL, aggregate.init(MODEL), clients)
    model, state = a_round(aggregate, model, state, clients)
    mean = state["embeddings"][clients].mean(0, keepdim=True)
    assert_same(model, {n: leaf[0] for n, leaf in generate(state, mean).items()}, atol=1e-6)
    sent = aggregate.tailored(model, state, [5, 2])
    for name, leaf in model.items():
        assert torch.equal(sent[name][0], leaf)
        assert not torch.equal(sent[name][1], leaf)


def test_the_first_change_of_a_newcomer_is_from_what_it_was_sent():
    aggregate = server(eta=1e-9)
    model, state = a_round(aggregate, MODEL, aggregate.init(MODEL), [0, 2])
    still = [Update(dict(model), 1.0, 5)]  # it returns what it was sent
    _, after = aggregate.merge(model, state, still)
    assert_same(part(after, "maps/"), part(state, "maps/"))
    assert torch.equal(after["embeddings"], state["embeddings"])
    assert after["known"].tolist() == [1, 0, 1, 0, 0, 1]


def test_values_out_of_range_are_refused():
    for name, value in (
        ("clients", 0),
        ("embedding", 0),
        ("hidden", 0),
        ("eta", 0.0),
        ("layers", -1),
    ):
        with pytest.raises(ValueError, match="must be"):
            server(**{name: value})


def test_inputs_stay_as_they_are():
    aggregate = server()
    state = aggregate.init(MODEL)
    before = {name: leaf.clone() for name, leaf in state.items()}
    a_round(aggregate, MODEL, state, [1, 3])
    assert_same(state, before)
