"""FedDBE against its loss, the global mean of its first round, and FedAvg without its two parts."""

import pytest
import torch

from engram.aggregates import Update, mean
from engram.federated.dbe import BIAS, fed_dbe, fed_dbe_loss, with_bias
from engram.federated.parts import without
from engram.meta.fedavg import fedavg
from engram.models import build_model, from_module, mean_loss
from engram.optimizers import with_optimizer
from engram.tasks import CLASSIFICATION
from tests.client.networks import IMAGES, Characters, Normed
from tests.support import assert_same, draw, initial_model, small, train_clients, trainer

WIDTH = 3
NET = build_model("mlp", input_shape=(5,), outputs=4, hidden=(WIDTH,))
BIASED = with_bias(NET)
Y = torch.tensor([0, 0, 1, 1, 3, 2])
MEAN, KNOWN = "seen/mean", "seen/known"


def start(**known):
    w = BIASED.init(torch.Generator().manual_seed(1)) | known
    return {name: leaf.double() for name, leaf in w.items()}


def known():
    return {MEAN: draw(5, WIDTH), KNOWN: torch.ones(())}


def batches(count=3):
    return [(draw(h, len(Y), 5), Y.roll(h)) for h in range(count)]


def run(rule, w, some):
    u = rule.init(w, None)
    for batch in some:
        w, u = rule.step(w, u, (batch,))
    return w if rule.finish is None else rule.finish(w, u)


def rule_of(strength):
    return fed_dbe(fed_dbe_loss(BIASED, CLASSIFICATION, strength), eta=0.1)


def of(w):
    return {name: w[name] for name in NET.init(torch.Generator())}


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_with_kappa_zero_and_without_bias_it_is_fedavg(name):
    plain = fedavg(mean_loss(NET, CLASSIFICATION), eta=0.1)
    mine = with_optimizer(without(rule_of(0.0), {BIAS, MEAN, KNOWN}), name)
    found = run(mine, start(**known()), batches())
    assert_same(of(found), run(with_optimizer(plain, name), of(start()), batches()), atol=1e-12)
    assert not found[BIAS].any()


def test_the_loss_is_the_tasks_and_the_squared_distance_of_means():
    (batch,) = batches(1)
    w = start(**known())
    far = (NET.represent(w, batch[0])[1].mean(0) - w[MEAN]).square().sum() / WIDTH

    def value(strength, **other):
        return fed_dbe_loss(BIASED, CLASSIFICATION, strength)(w | other, batch)

    torch.testing.assert_close(value(6.0) - value(0.0), 3 * far)
    half = {name: 0.5 * w[name] for name in (MEAN, KNOWN)}  # the same mean, half of it known
    torch.testing.assert_close(value(6.0, **half) - value(0.0, **half), 3 * far / 4)
    unknown = {name: 0 * w[name] for name in (MEAN, KNOWN)}
    assert value(6.0, **unknown) == value(0.0, **unknown)


def test_a_bias_is_added_before_the_last_layer_and_trained_there():
    (batch,) = batches(1)
    w = start(**{BIAS: draw(6, WIDTH)})
    moved_bias = w["dense1.bias"] + w["dense1.weight"] @ w[BIAS]
    torch.testing.assert_close(
        BIASED.apply(w, batch[0]), NET.apply(w | {"dense1.bias": moved_bias}, batch[0])
    )
    gradient = torch.func.grad(mean_loss(BIASED, CLASSIFICATION))(w, batch)
    # By the chain rule, of a bias of the last layer.
    torch.testing.assert_close(gradient[BIAS], w["dense1.weight"].T @ gradient["dense1.bias"])
    after = run(rule_of(0.0), w, [batch])
    torch.testing.assert_close(after[BIAS], w[BIAS] - 0.1 * gradient[BIAS])


def test_the_first_rounds_mean_stays():
    w, server = start(), mean("examples")
    some = [batches(2), [(draw(9, 4, 5), Y[:4])] * 2]
    trained = [run(rule_of(5.0), w, each) for each in some]
    first = []
    for each in some:
        after = run(rule_of(5.0), w, each[:1])
        pairs = zip((w, after), each, strict=True)
        first.append(torch.stack([NET.represent(at, x)[1].mean(0) for at, (x, _) in pairs]).mean(0))
    merged, _ = server.merge(w, {}, [Update(found, 3.0) for found in trained])
    torch.testing.assert_close(merged[MEAN], torch.stack(first).mean(0))
    assert merged[KNOWN] == 1
    again = run(rule_of(5.0), merged, batches())
    assert_same({n: again[n] for n in (MEAN, KNOWN)}, {n: merged[n] for n in (MEAN, KNOWN)})


def test_kappa_holds_the_mean_in_place():
    (batch,) = batches(1)
    target = {MEAN: torch.ones(WIDTH), KNOWN: torch.ones(())}

    def distance(strength):
        w = run(rule_of(strength), start(**target), [batch] * 50)
        return float((NET.represent(w, batch[0])[1].mean(0) - 1).square().mean())

    assert distance(20.0) < 0.2 * distance(0.0)


def test_clients_keep_their_bias_and_exchange_the_rest():
    t = trainer(small(method="feddbe"))
    model = initial_model(t)
    assert BIAS not in model
    assert {MEAN, KNOWN} < model.keys()
    train_clients(t, model, [3], server_round=1, durable=0)
    scores = t.evaluate(model, [3, 5], server_round=1).columns["loss-before"]
    plain = trainer(small(method="fedavg"))
    expected = plain.evaluate(initial_model(plain), [3, 5], server_round=1).columns["loss-before"]
    assert scores[0] < expected[0]  # its bias has been trained
    torch.testing.assert_close(scores[1], expected[1])  # 5 has none yet


def test_modules_have_it_too_and_keep_their_statistics():
    x = torch.from_numpy(IMAGES["x"][:6])
    plain = from_module(Normed, x)
    biased, key = with_bias(plain), torch.zeros((), dtype=torch.int64)
    w = biased.init(torch.Generator().manual_seed(1))
    assert torch.equal(biased.train(w, x, key), plain.train(w, x, key))
    shifted = w | {BIAS: torch.ones(4)}
    expected = plain.apply(w, x) + w["head.weight"].sum(1)
    torch.testing.assert_close(biased.apply(shifted, x), expected)
    assert_same(biased.statistics(shifted, x, key), plain.statistics(w, x, key), atol=1e-6)


def test_what_it_cannot_do_is_refused():
    with pytest.raises(ValueError, match="kappa must be at least 0"):
        fed_dbe_loss(BIASED, CLASSIFICATION, -1.0)
    with pytest.raises(ValueError, match="takes one vector for each row"):
        with_bias(from_module(Characters, torch.zeros(2, 8, dtype=torch.int64)))
