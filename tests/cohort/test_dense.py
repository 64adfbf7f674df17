"""Derivatives that are written out equal those of autograd, in any coordinates."""

import pytest
import torch
from torch.func import grad, vmap

from engram.cohort.dense import cost
from engram.cohort.dense_gradients import (
    CROSS_ENTROPY,
    FIRST,
    SQUARED_ERROR,
    Examples,
    PlainCoordinates,
    PlainRows,
    dense_loss,
    indicators,
    product_by_tangents,
)
from engram.cohort.learned_features import FeatureRows
from engram.cohort.span_coordinates import Full, Places, Span, make_coordinates
from engram.core.derivatives import hessian_product
from engram.core.tree import add_scaled, is_finite
from engram.networks.built_in import build_model
from engram.networks.losses import dense_loss_of, mean_loss
from engram.scoring.tasks import CLASSIFICATION, REGRESSION
from tests.samples import entry
from tests.support import assert_same, cross_entropy, draw, squared_error

CLIENTS, ROWS, CLASSES = 3, 4, 3
NETWORKS = {
    "linear": build_model("linear", input_shape=(9,), outputs=CLASSES),
    "mlp": build_model("mlp", input_shape=(9,), outputs=CLASSES, hidden=(6, 5)),
    "cnn": build_model("cnn", input_shape=(1, 4, 4), outputs=CLASSES, hidden=(6,)),
}

OUTPUTS = {"classes": (cross_entropy, CROSS_ENTROPY), "values": (squared_error, SQUARED_ERROR)}


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
    batch = Examples(PlainCoordinates((w[FIRST],), x).see(0, ROWS), indicators(y, CLASSES).double())
    torch.testing.assert_close(loss(w, batch), vmap(reference)(w, (x, y)), rtol=0, atol=1e-12)
    assert_same(loss.gradient(w, batch), vmap(grad(reference))(w, (x, y)), atol=1e-12)
    expected = vmap(hessian_product(reference))(w, (x, y), v)
    assert_same(loss.hessian_product(w, batch, v), expected, atol=1e-12)


@pytest.mark.parametrize("output", OUTPUTS)
def test_padding_has_no_part_in_a_batch(output):
    network, counts = NETWORKS["mlp"], [ROWS, 2, 1]
    own, written = OUTPUTS[output]
    loss, reference = dense_loss(network.dense_layers, written), own(network)
    w, v = cohort(network), cohort(network, seed=50)
    x, y = rows(1, ROWS, 9)
    targets = indicators(y, CLASSES).double()
    shares = torch.tensor([[1 / n] * n + [0.0] * (ROWS - n) for n in counts]).double()
    batch = Examples(PlainRows(x), targets, shares)
    found = loss(w, batch), loss.gradient(w, batch), loss.hessian_product(w, batch, v)
    for i, n in enumerate(counts):
        mine, along = pick(w, i), pick(v, i)
        alone = x[i, :n], y[i, :n] if output == "classes" else targets[i, :n]
        torch.testing.assert_close(found[0][i], reference(mine, alone), rtol=0, atol=1e-12)
        assert_same(pick(found[1], i), grad(reference)(mine, alone), atol=1e-12)
        assert_same(pick(found[2], i), hessian_product(reference)(mine, alone, along), atol=1e-12)


def pick(stack, i):
    return {name: leaf[i] for name, leaf in stack.items()}


@pytest.fixture(params=["common", "own"])
def spanned(request):
    """Networks in a span of two bases whose last four rows are a batch, and these networks."""
    network = NETWORKS["mlp"]
    bases = (cohort(network)[FIRST][0], cohort(network, seed=30)[FIRST])
    if request.param == "own":
        bases = (cohort(network)[FIRST], bases[1])
    others = cohort(network, seed=20)
    x, y = rows(2, 5 + ROWS, 9)
    span = Span(bases, x)
    moved = rows(3, 2 + 5 + ROWS, 6)[0] / 10
    held = others | {FIRST: moved}
    first = moved[:, 0].unsqueeze(2) * bases[0] + moved[:, 1].unsqueeze(2) * bases[1]
    plain = others | {FIRST: first + moved[:, 2:].mT @ x}
    targets = indicators(y[:, 5:], CLASSES).double()
    return (
        span,
        (held, Examples(span.see(0, 5 + ROWS).narrow(5, 5 + ROWS), targets)),
        (plain, Examples(PlainCoordinates(bases, x).see(5, 5 + ROWS), targets)),
    )


def unspan(span, direction):
    return direction | {FIRST: direction[FIRST][:, 2:].mT @ span.rows}


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


def test_a_base_is_itself_and_one_without_a_part_is_not_read(spanned):
    span, _, _ = spanned
    for number, base in enumerate(span.bases):
        held = span.see(0, 5 + ROWS).fit(span.base(number))
        found = span.of([0, 2]).weights(held[[0, 2]])
        assert torch.equal(found, base.expand(CLIENTS, -1, -1)[[0, 2]])
        alone = span.reading([held]).see(0, 3)
        assert list(alone.of_bases) == [number]
        held = alone.fit(span.base(number))
        bias = torch.ones(CLIENTS, 6, dtype=torch.float64)
        expected = 1 + span.rows[:, :3] @ base.mT
        torch.testing.assert_close(alone.value(held, bias), expected, rtol=0, atol=1e-12)


def test_a_mean_of_equal_bases_is_that_base():
    # Shares that do not add up to 1 to the last bit must not shrink the model.
    base, shares = draw(1, 5, 6), torch.full((49,), 1 / 49).double()
    span = Span((base,), draw(2, 49, 3, 6))
    held = span.see(0, 3).fit(span.base(0))
    assert torch.equal(span.mean(held, shares), base)


def test_learned_features_enter_the_span_as_gradients_are_taken():
    # Two gradient steps on two batches, against autograd on the whole networks.
    network = NETWORKS["cnn"]
    common = {name: leaf[0] for name, leaf in cohort(network).items()}
    w = {name: leaf.expand(CLIENTS, *leaf.shape).clone() for name, leaf in common.items()}
    x, y = rows(4, 2 * ROWS, 1, 4, 4)
    width = common[FIRST].shape[1]
    span = Span((common[FIRST],), x.new_zeros(CLIENTS, 2 * ROWS, width))
    loss, reference = dense_loss(network.dense_layers), vmap(grad(cross_entropy(network)))
    held, places = w | {FIRST: span.base(0)}, Places(2 * ROWS)
    for start in (0, ROWS):
        part = slice(start, start + ROWS)
        batch = Examples(
            FeatureRows(network.features, span, places, x[:, part], start + ROWS),
            indicators(y[:, part], CLASSES).double(),
        )
        held = held | {FIRST: batch.rows.fit(held[FIRST])}
        expected = vmap(cross_entropy(network))(w, (x[:, part], y[:, part]))
        torch.testing.assert_close(loss(held, batch), expected, rtol=0, atol=1e-12)
        held = add_scaled(held, -0.1, loss.gradient(held, batch))
        w = add_scaled(w, -0.1, reference(w, (x[:, part], y[:, part])))
    assert_same(held | {FIRST: span.weights(held[FIRST])}, w, atol=1e-12)


@pytest.mark.parametrize("task", [CLASSIFICATION, REGRESSION])
def test_hessian_products_of_learned_features(task):
    # At what a step made of the clients' own networks, along a gradient and what lies between
    # these networks and others; against whole networks.
    network, reference = NETWORKS["cnn"], vmap(hessian_product(mean_loss(NETWORKS["cnn"], task)))
    gradients = vmap(grad(mean_loss(network, task)))
    w, (x, y) = cohort(network), rows(4, 2 * ROWS, 1, 4, 4)
    y = y if task is CLASSIFICATION else draw(5, CLIENTS, 2 * ROWS, CLASSES)
    loss, targets = dense_loss_of(task, network.dense_layers, CLASSES)
    away = cohort(network, seed=50)
    span = Span((away[FIRST], w[FIRST]), x.new_zeros(CLIENTS, 5 * ROWS, w[FIRST].shape[2]))
    places = Places(5 * ROWS)
    first, second = (
        Examples(
            FeatureRows(network.features, span, places, x[:, part], 5 * ROWS),
            targets(y[:, part]).double(),
        )
        for part in (slice(ROWS), slice(ROWS, None))
    )
    held = w | {FIRST: first.rows.fit(span.base(1))}
    held = add_scaled(held, -0.1, loss.gradient(held, first))
    v = add_scaled(loss.gradient(held, first), 0.3, away | {FIRST: first.rows.fit(span.base(0))})
    found = product_by_tangents(loss.gradient)(held, second, v)
    assert places.used == 4 * ROWS
    half, other_half = ((x[:, part], y[:, part]) for part in (slice(ROWS), slice(ROWS, None)))
    w = add_scaled(w, -0.1, gradients(w, half))
    expected = reference(w, other_half, add_scaled(gradients(w, half), 0.3, away))
    assert_same(found | {FIRST: span.weights(found[FIRST])}, expected, atol=1e-12)
    loss.gradient(held, first)
    with pytest.raises(Full):
        loss.gradient(held, first)


def test_a_gradient_by_the_last_layers_alone_goes_no_deeper():
    network = NETWORKS["mlp"]
    loss, w, (x, y) = dense_loss(network.dense_layers), cohort(NETWORKS["mlp"]), rows(1, ROWS, 9)
    batch = Examples(PlainRows(x), indicators(y, CLASSES).double())
    whole, last = loss.gradient(w, batch), f"dense{network.dense_layers - 1}."
    for names in ({last + "bias"}, {last + "weight", last + "bias"}):
        found = loss.gradient(w, batch, names)
        assert all(name.startswith(last) for name in found)
        assert names <= found.keys()
        assert_same(found, {name: whole[name] for name in found})
    assert loss.gradient(w, batch, {"dense0.bias"}).keys() == whole.keys()


def test_hessian_products_of_learned_features_are_refused_not_wrong():
    network = NETWORKS["cnn"]
    w = cohort(network)
    x, y = rows(4, ROWS, 1, 4, 4)
    span = Span((w[FIRST][0],), x.new_zeros(CLIENTS, ROWS, w[FIRST].shape[2]))
    learned = FeatureRows(network.features, span, Places(ROWS), x, ROWS)
    batch = Examples(learned, indicators(y, CLASSES).double())
    held = w | {FIRST: learned.fit(span.base(0))}
    with pytest.raises(NotImplementedError, match="not Hessian products"):
        dense_loss(network.dense_layers).hessian_product(held, batch, held)


def test_numbers_that_are_not_finite_are_found():
    for value in (torch.nan, torch.inf, -torch.inf):
        large = torch.full((40, 3), 3e38)  # finite, though its sum is not in float32
        assert is_finite({"a": large, "b": -large})
        large[17, 1] = value
        assert not is_finite({"b": torch.zeros(2), "a": large})
        many = torch.zeros(3, 2**20 - 1)  # looked at part by part
        assert is_finite(many)
        many[2, -1] = value
        assert not is_finite(many)


@pytest.mark.parametrize("own", [False, True])
def test_some_clients_of_a_cohort_have_their_own_weights(own):
    for drawn in [3, 9]:
        with entry(drawn):
            weight = draw(1, 4, 5, 6) if own else draw(1, 5, 6)
            coordinates = make_coordinates([weight], 4, drawn, size=3)
            coordinates.drawn.copy_(draw(2, 4, drawn, 6))
            held = coordinates.base(0)
            if drawn < 6:
                held = draw(3, 4, 1 + drawn, 5)
            some = [3, 1]  # the others have diverged
            found = coordinates.of(some).weights(held[some])
            torch.testing.assert_close(found, coordinates.weights(held)[some])


def test_the_cost_covers_the_rows_of_clients_of_any_length():
    for size in [1, 5, 32]:
        for out, width in [(2, 3000), (1, 784), (10, 784), (100, 64), (40, 784)]:
            with entry(size, out, width):
                model = {FIRST: torch.empty(out, width), "dense0.bias": torch.empty(out)}
                for most in (10, 100, 1000, 5000):
                    covered = cost(model, most, size, 2, 0)
                    for drawn in range(1, most + 1, 7):
                        chunk = min(drawn, 47 + 2 * size)
                        found = make_coordinates([model[FIRST]], 1, drawn, size=size, most=chunk)
                        assert found.drawn.numel() <= covered
                assert cost(model, 6000, size, 2, 5000) >= 5000 * width


def test_a_span_is_for_rounds_of_few_rows():
    def kind(out, width, size, drawn, bases=1):
        every = [torch.empty(out, width)] * bases
        return type(make_coordinates(every, 1, drawn, size=size)).__name__

    assert kind(40, 784, 5, 155, bases=2) == "Span"  # as much as a round of exact LocalMOML has
    assert kind(40, 784, 5, 300) == "PlainCoordinates"
    assert kind(2, 3000, 32, 1280) == "PlainCoordinates"
    assert kind(100, 64, 10, 64) == "PlainCoordinates"  # no fewer rows than inputs
