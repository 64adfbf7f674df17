"""FedProto against its equations, its server's mean, and local training where lambda is 0."""

import pytest
import torch

from engram.aggregates import Update, weighted_mean
from engram.federated.fedproto import fedproto, fedproto_loss, fedproto_server, with_prototypes
from engram.federated.local_only import local_only
from engram.models import begun, build_model, from_module, mean_loss
from engram.optimizers import with_optimizer
from engram.tasks import CLASSIFICATION
from engram.tree import part
from federation.errors import Refused
from tests.client.networks import Characters
from tests.support import assert_same, draw, initial_model, small, train_clients, trainer

CLASSES, WIDTH, ROWS = 4, 3, 6
NET = build_model("mlp", input_shape=(5,), outputs=CLASSES, hidden=(WIDTH,))
BESIDE = with_prototypes(NET, CLASSES)
Y = torch.tensor([0, 0, 1, 1, 1, 2])  # nobody has class 3
SUMS, SHARES = "seen/sums", "seen/shares"


def start(**known):
    w = BESIDE.init(torch.Generator().manual_seed(1)) | known
    return {name: leaf.double() for name, leaf in w.items()}


def batches(count=3):
    return [(draw(h, ROWS, 5), Y.roll(h)) for h in range(count)]


def run(rule, w, some):
    u = rule.init(w, None)
    for batch in some:
        w, u = rule.step(w, u, (batch,))
    return w if rule.finish is None else rule.finish(w, u)


def rule_of(strength):
    return fedproto(fedproto_loss(BESIDE, CLASSIFICATION, strength), eta=0.1)


def known():
    sums, shares = draw(5, CLASSES, WIDTH), torch.tensor([0.5, 0.25, 0.0, 0.25])
    return {SUMS: sums, SHARES: shares.double()}


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_with_lambda_zero_each_client_is_by_itself(name):
    plain = local_only(mean_loss(NET, CLASSIFICATION), eta=0.1)
    mine = with_optimizer(rule_of(0.0), name, clip=0.3)
    alone = with_optimizer(plain, name, clip=0.3)
    found = run(mine, start(**known()), batches())
    expected = run(alone, begun(part(start()), plain.companions), batches())
    assert_same(mine.served(found), alone.served(expected), atol=1e-12)


def test_the_loss_is_the_tasks_and_the_mean_squared_distance_to_prototypes():
    (batch,) = batches(1)
    w = start(**known())
    z = NET.represent(part(w), batch[0])[1]
    far = [
        ((z[i] - w[SUMS][y] / w[SHARES][y]) ** 2).mean() if y != 2 else torch.tensor(0.0)
        for i, y in enumerate(Y.tolist())  # class 2 has no prototype yet
    ]

    def value(strength):
        return fedproto_loss(BESIDE, CLASSIFICATION, strength)(w, batch)

    torch.testing.assert_close(value(2.0) - value(0.0), 2 * torch.stack(far).double().mean())


def test_without_prototypes_lambda_does_not_matter():
    assert_same(run(rule_of(5.0), start(), batches()), run(rule_of(0.0), start(), batches()))


def test_a_client_returns_sums_and_shares_of_what_it_saw():
    w, some = start(**known()), batches(2)
    found = run(rule_of(0.3), w, some)
    after = run(rule_of(0.3), w, some[:1])
    pairs = zip((w, after), some, strict=True)
    z = torch.cat([NET.represent(part(model), x)[1] for model, (x, _) in pairs])
    y = torch.cat([y for _, y in some])
    for j in range(CLASSES):
        torch.testing.assert_close(found[SUMS][j], z[y == j].sum(0) / len(y))
        assert float(found[SHARES][j]) == pytest.approx(float((y == j).double().mean()))


def test_prototypes_pull_representations():
    (batch,) = batches(1)
    prototypes = {SUMS: torch.ones(CLASSES, WIDTH).double(), SHARES: torch.ones(CLASSES).double()}

    def distance(strength):
        found = run(rule_of(strength), start(**prototypes), [batch] * 50)
        return float((NET.represent(part(found), batch[0])[1] - 1).square().mean())

    assert distance(10.0) < 0.5 * distance(0.0)


def test_the_server_has_the_mean_of_all_rows_and_keeps_what_nobody_sent():
    server, model = fedproto_server(), known()
    z, y = [draw(1, 4, WIDTH), draw(2, 8, WIDTH)], [Y[:4], torch.tensor([1] * 8)]
    sent = []
    for rows, classes in zip(z, y, strict=True):
        one_hot = torch.nn.functional.one_hot(classes, CLASSES).double()
        seen = {SUMS: one_hot.T @ rows / len(rows), SHARES: one_hot.mean(0)}
        sent.append(Update(seen, len(rows)))
    merged, _ = server.merge(model, server.init(model), sent)
    everything, classes = torch.cat(z), torch.cat(y)
    for j in (0, 1):
        expected = everything[classes == j].mean(0)
        torch.testing.assert_close(merged[SUMS][j] / merged[SHARES][j], expected)
    for j in (2, 3):
        assert torch.equal(merged[SUMS][j], model[SUMS][j])
        assert merged[SHARES][j] == model[SHARES][j]
    assert_same(server.merge(model, {}, [Update(weighted_mean(sent), 12)])[0], merged)  # additive


def test_clients_exchange_prototypes_alone_and_train_as_local_does():
    ours = trainer(small(method="fedproto", **{"fedproto.lambda": 0.0}))
    local = trainer(small(method="local"))
    model = initial_model(ours)
    assert model.keys() == {SUMS, SHARES}
    scores = []
    for t, sent in ((ours, model), (local, initial_model(local))):
        train_clients(t, sent, [3, 4], server_round=1, durable=0)
        scores.append(t.evaluate(sent, [3, 4, 5], server_round=1).columns)
    for name in ("accuracy", "loss", "accuracy-own", "loss-own"):
        some = slice(None) if name.endswith("own") else slice(2, 3)  # 5 has not trained yet
        torch.testing.assert_close(*(found[name][some] for found in scores), equal_nan=True)


def test_what_it_is_not_for_is_refused():
    with pytest.raises(Refused, match="task must be classification for fedproto, got"):
        small(method="fedproto", task="regression")
    with pytest.raises(ValueError, match="lambda must be at least 0"):
        fedproto_loss(BESIDE, CLASSIFICATION, -1.0)
    words = from_module(Characters, torch.zeros(2, 8, dtype=torch.int64))
    with pytest.raises(ValueError, match="takes one vector for each row"):
        with_prototypes(words, 7)
