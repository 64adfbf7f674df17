"""Derivatives that are written out equal those of autograd, in any coordinates."""

import pytest
import torch
from torch.func import grad, vmap

from engram.dense import FIRST, Examples, PlainCoordinates, dense_loss, indicators
from engram.derivatives import hessian_product
from engram.features import FeatureRows
from engram.models import build_model, cross_entropy
from engram.span import Span, make_coordinates
from engram.tree import add_scaled, is_finite
from tests.support import assert_same, draw

CLIENTS, ROWS, CLASSES = 3, 4, 3
NETWORKS = {
    "linear": build_model("linear", input_shape=(9,), outputs=CLASSES),
    "mlp": build_model("mlp", input_shape=(9,), outputs=CLASSES, hidden=(6, 5)),
    "cnn": build_model("cnn", input_shape=(1, 4, 4), outputs=CLASSES, hidden=(6,)),
}


def cohort(network, seed=0, scale=1.0):
    """Different networks for every client, in float64."""
    each = [network.init(torch.Generator().manual_seed(seed + i)) for i in range(CLIENTS)]
    return {name: scale * torch.stack([w[name] for w in each]).double() for name in each[0]}


def rows(seed, count, *shape):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(CLIENTS, count, *shape, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, CLASSES, (CLIENTS, count), generator=generator)


@pytest.mark.parametrize("name", ["linear", "mlp"])
def test_gradients_and_hessian_products_are_those_of_autograd(name):
    network = NETWORKS[name]
    loss, reference = dense_loss(network.dense_layers), cross_entropy(network)
    w, v = cohort(network), cohort(network, seed=50)
    x, y = rows(1, ROWS, 9)
    batch = Examples(PlainCoordinates(w[FIRST][0], x).see(0, ROWS), indicators(y, CLASSES).double())
    torch.testing.assert_close(loss(w, batch), vmap(reference)(w, (x, y)), rtol=0, atol=1e-12)
    assert_same(loss.gradient(w, batch), vmap(grad(reference))(w, (x, y)), atol=1e-12)
    expected = vmap(hessian_product(reference))(w, (x, y), v)
    assert_same(loss.hessian_product(w, batch, v), expected, atol=1e-12)


@pytest.fixture
def spanned():
    """Networks in a span whose last four rows are a batch, and the same networks as they are."""
    network = NETWORKS["mlp"]
    common = {name: leaf[0] for name, leaf in cohort(network).items()}
    others = cohort(network, seed=20)
    x, y = rows(2, 5 + ROWS, 9)
    span = Span(common[FIRST], x, 0)
    moved = rows(3, 5 + ROWS, 6)[0] / 10
    held = others | {FIRST: moved}
    plain = others | {FIRST: common[FIRST] + moved.mT @ x}
    targets = indicators(y[:, 5:], CLASSES).double()
    return (
        span,
        (held, Examples(span.see(0, 5 + ROWS).narrow(5, 5 + ROWS), targets)),
        (plain, Examples(PlainCoordinates(common[FIRST], x).see(5, 5 + ROWS), targets)),
    )


def unspan(span, direction):
    return direction | {FIRST: direction[FIRST].mT @ span.rows}


def test_a_span_gives_the_derivatives_of_the_weights_it_stands_for(spanned):
    span, (held, seen), (plain, batch) = spanned
    loss = dense_loss(3)
    torch.testing.assert_close(span.weights(held[FIRST]), plain[FIRST], rtol=0, atol=1e-12)
    torch.testing.assert_close(loss(held, seen), loss(plain, batch), rtol=0, atol=1e-12)
    first, expected = loss.gradient(held, seen), loss.gradient(plain, batch)
    assert_same(unspan(span, first), expected, atol=1e-12)
    product = loss.hessian_product(held, seen, first)
    assert_same(unspan(span, product), loss.hessian_product(plain, batch, expected), atol=1e-12)


def test_the_mean_of_a_span_is_the_mean_of_its_weights(spanned):
    span, (held, _), (plain, _) = spanned
    shares = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    expected = torch.tensordot(shares, plain[FIRST], dims=1)
    torch.testing.assert_close(span.mean(held[FIRST], shares), expected, rtol=0, atol=1e-12)
    two = span.of([0, 2]).weights(held[FIRST][[0, 2]])
    torch.testing.assert_close(two, plain[FIRST][[0, 2]], rtol=0, atol=1e-12)


def test_a_span_takes_weights_that_are_brought_along(spanned):
    span, _, (plain, _) = spanned
    room = torch.full((CLIENTS, 6 + 5, 9), torch.nan, dtype=torch.float64)
    wider = Span(span.weight, room, 6)
    held = wider.hold(plain[FIRST][[0, 2]], [0, 2])
    wider.drawn.copy_(span.rows[:, :5])
    held = wider.see(0, 5).fit(held)
    weights = wider.of([0, 2]).weights(held)
    torch.testing.assert_close(weights, plain[FIRST][[0, 2]], rtol=0, atol=1e-12)
    nothing = wider.of([1]).weights(wider.see(0, 5).fit(wider.origin()[[1]]))
    torch.testing.assert_close(nothing[0], span.weight, rtol=0, atol=0)


def test_learned_features_enter_the_span_as_gradients_are_taken():
    # Two gradient steps on two batches, against autograd on the whole networks.
    network = NETWORKS["cnn"]
    common = {name: leaf[0] for name, leaf in cohort(network).items()}
    w = {name: leaf.expand(CLIENTS, *leaf.shape).clone() for name, leaf in common.items()}
    x, y = rows(4, 2 * ROWS, 1, 4, 4)
    width = common[FIRST].shape[1]
    span = Span(common[FIRST], x.new_zeros(CLIENTS, 2 * ROWS, width), 0)
    names = tuple(name for name in w if name.startswith("conv"))
    loss, reference = dense_loss(network.dense_layers), vmap(grad(cross_entropy(network)))
    held = w | {FIRST: span.origin()}
    for start in (0, ROWS):
        part = slice(start, start + ROWS)
        batch = Examples(
            FeatureRows(network.features, names, span, x[:, part], start, start + ROWS),
            indicators(y[:, part], CLASSES).double(),
        )
        held = held | {FIRST: batch.rows.fit(held[FIRST])}
        torch.testing.assert_close(
            loss(held, batch),
            vmap(cross_entropy(network))(w, (x[:, part], y[:, part])),
            rtol=0,
            atol=1e-12,
        )
        held = add_scaled(held, -0.1, loss.gradient(held, batch))
        w = add_scaled(w, -0.1, reference(w, (x[:, part], y[:, part])))
    assert_same(held | {FIRST: span.weights(held[FIRST])}, w, atol=1e-12)


def test_hessian_products_of_learned_features_are_refused_not_wrong():
    network = NETWORKS["cnn"]
    w = cohort(network)
    x, y = rows(4, ROWS, 1, 4, 4)
    span = Span(w[FIRST][0], x.new_zeros(CLIENTS, ROWS, w[FIRST].shape[2]), 0)
    names = tuple(name for name in w if name.startswith("conv"))
    learned = FeatureRows(network.features, names, span, x, 0, ROWS)
    batch = Examples(learned, indicators(y, CLASSES).double())
    held = w | {FIRST: learned.fit(span.origin())}
    with pytest.raises(NotImplementedError, match="not Hessian products"):
        dense_loss(network.dense_layers).hessian_product(held, batch, held)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_is_found(value):
    large = torch.full((40, 3), 3e38)  # finite, though its sum is not in float32
    assert is_finite({"a": large, "b": -large})
    large[17, 1] = value
    assert not is_finite({"b": torch.zeros(2), "a": large})


@pytest.mark.parametrize("drawn", [3, 9])  # fewer rows than inputs, and more
@pytest.mark.parametrize("own", [False, True])
def test_some_clients_of_a_cohort_have_their_own_weights(drawn, own):
    weight = draw(1, 4, 5, 6) if own else draw(1, 5, 6)
    coordinates = make_coordinates(weight, 4, drawn)
    coordinates.drawn.copy_(draw(2, 4, drawn, 6))
    held = coordinates.origin()
    if drawn < 6:
        held = draw(3, 4, drawn, 5)
    some = [3, 1]  # the others have diverged
    found = coordinates.of(some).weights(held[some])
    torch.testing.assert_close(found, coordinates.weights(held)[some])
