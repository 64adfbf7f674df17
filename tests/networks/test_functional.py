"""Any torch.nn.Module as a function of its parameters: the same numbers as torch gives."""

from functools import partial

import pytest
import torch
from torch import nn
from torch.func import grad, vmap
from torch.nn import functional

from engram.core.derivatives import by_autograd
from engram.networks.functional import Pure, uniform
from engram.networks.losses import mean_loss
from engram.networks.module import from_module
from engram.scoring.tasks import TASKS
from tests.samples import entry
from tests.support import cross_entropy


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed))


def key(number=7):
    return torch.tensor(number)


def loaded(make, params):
    """A module of torch's with these parameters."""
    module = make()
    module.load_state_dict(params, strict=False)
    return module


# --- Forward passes and gradients are torch's own ------------------------------------------------


class Recurrent(nn.Module):
    def __init__(self, kind, **options):
        super().__init__()
        self.net = kind(3, 4, batch_first=True, **options)
        width = 4 * (2 if options.get("bidirectional") else 1)
        self.head = nn.Linear(width, 2)

    def forward(self, x):
        return self.head(self.net(x)[0][:, -1])


RECURRENT = [
    (kind, options)
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
    for options in ({}, {"num_layers": 2, "bidirectional": True}, {"bias": False})
] + [(nn.RNN, {"nonlinearity": "relu"})]


def test_recurrent_networks_are_torchs():
    x = rows(5, 6, 3)
    for kind, options in RECURRENT:
        with entry(kind, options):
            make = partial(Recurrent, kind, **options)
            model = from_module(make, x)
            params = model.init(seeded())
            expected = loaded(make, params)(x)
            torch.testing.assert_close(model.apply(params, x), expected)
            torch.testing.assert_close(model.train(params, x, None), expected)


class Attentive(nn.Module):
    def __init__(self, dropout=0.0):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout, batch_first=True)
        self.net = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.head(self.net(x, mask=mask, is_causal=True)[:, -1])


def test_a_transformer_is_torchs():
    x = rows(4, 5, 8)
    model = from_module(Attentive, x)
    params = model.init(seeded())
    module = loaded(Attentive, params)
    torch.testing.assert_close(model.apply(params, x), module.eval()(x), rtol=1e-4, atol=1e-5)
    trained = model.train(params, x, key())
    torch.testing.assert_close(trained, module.train()(x), rtol=1e-4, atol=1e-5)


def test_attention_is_torchs():
    q, k, v = (rows(2, 3, 5, 4, seed=seed) for seed in range(3))
    for bias in (None, rows(5, 5, seed=9)):
        attend = partial(functional.scaled_dot_product_attention, is_causal=bias is None)
        with Pure(None):
            found = attend(q, k, v, bias)
        torch.testing.assert_close(found, attend(q, k, v, bias))


def test_a_step_with_batch_norm_is_torchs():
    def make():
        return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 2))

    x, y = rows(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    model = from_module(make, x)
    params = model.init(seeded())
    module = loaded(make, params).train()
    functional.cross_entropy(module(x), y).backward()
    gradient = grad(cross_entropy(model))(params, (x, y))
    for name, leaf in module.named_parameters():
        torch.testing.assert_close(gradient[name], leaf.grad)
    after = model.statistics(params, x)
    assert set(after) == {"1.running_mean", "1.running_var"}
    for name, leaf in after.items():
        torch.testing.assert_close(leaf, module.get_buffer(name))
        assert (gradient[name] == 0).all()
    torch.testing.assert_close(model.apply(params | after, x), module.eval()(x))


def test_statistics_of_a_training_pass_are_its_own_and_only_its_own():
    passes = []

    class Seen(nn.Sequential):
        def forward(self, x):
            passes.append(self.training)
            return super().forward(x)

    def make():
        return Seen(nn.Dropout(0.5), nn.BatchNorm1d(3), nn.Linear(3, 2), nn.Tanh())

    x, y = rows(6, 3), torch.tensor([0, 1, 1, 0, 1, 0])
    model, anew = from_module(make, x), from_module(make, x)
    params, drawn = model.init(seeded()), key()
    batch = x, y, drawn
    by_autograd(mean_loss(model, TASKS["classification"])).gradient(params, batch)
    passes.clear()
    found = model.statistics(params, x, drawn)
    assert passes == []
    torch.testing.assert_close(found, anew.statistics(params, x, drawn), rtol=0, atol=0)
    moved = {name: leaf + 1 for name, leaf in params.items()}
    for given in ((moved, x, drawn), (params, x + 1, drawn), (params, x, key(8))):
        passes.clear()
        found = model.statistics(*given)
        assert passes == [True]
        torch.testing.assert_close(found, anew.statistics(*given), rtol=0, atol=0)


def test_fixed_statistics_are_used_in_training_and_stay():
    def make():
        return nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 2), nn.Tanh())

    x = rows(6, 3)
    model = from_module(make, x, statistics="fixed")
    params = model.init(seeded())
    assert model.statistics is None
    assert not any("running" in name for name in params)
    torch.testing.assert_close(model.train(params, x, None), model.apply(params, x))


# --- Dropout -------------------------------------------------------------------------------------


def test_a_key_determines_what_is_dropped_and_how_much():
    one, same, other = (uniform(key(k), site, (400, 500)) for k, site in ((1, 2), (1, 2), (1, 3)))
    assert torch.equal(one, same)
    assert (one < 1).all()
    assert (one >= 0).all()
    # 200,000 numbers: the mean of uniform ones has a standard deviation of 0.29 / 447.
    assert abs(float(one.mean()) - 0.5) < 0.003
    assert abs(float(((one - 0.5) * (other - 0.5)).mean())) < 0.001
    assert abs(float(((one[:, 1:] - 0.5) * (one[:, :-1] - 0.5)).mean())) < 0.001
    counts = torch.histc(one, 16, 0, 1) / one.numel()
    torch.testing.assert_close(counts, torch.full((16,), 1 / 16), rtol=0.03, atol=0)


def test_dropout_keeps_the_mean_and_follows_the_key():
    def make():
        return nn.Sequential(nn.Dropout(0.3), nn.Linear(1000, 1, bias=False))

    x = torch.ones(50, 1000)
    model = from_module(make, x)
    params = {"1.weight": torch.full((1, 1000), 1e-3)}
    assert model.noisy
    dropped = model.train(params, x, key())
    assert float(dropped.mean()) == pytest.approx(1, abs=0.02)  # sd 0.65 / sqrt(50,000) = 0.003
    assert torch.equal(dropped, model.train(params, x, key()))
    assert not torch.equal(dropped, model.train(params, x, key(8)))
    torch.testing.assert_close(model.apply(params, x), torch.ones(50, 1))
    together = vmap(model.train, in_dims=(None, None, 0))(params, x, torch.tensor([7, 8]))
    torch.testing.assert_close(together[0], dropped)


def test_whole_channels_are_dropped():
    net = nn.Sequential(nn.Dropout2d(0.5), nn.Conv2d(64, 1, 1))
    model = from_module(lambda: net, rows(2, 64, 4, 4))
    with Pure(key()):
        found = functional.dropout2d(torch.ones(2, 64, 4, 4), 0.5)
    assert model.noisy
    assert ((found == 0).all((2, 3)) | (found == 2).all((2, 3))).all()


def test_dropout_inside_recurrent_and_attentive_networks_follows_the_key():
    for make, x in (
        (lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.5), rows(5, 6, 3)),
        (lambda: Attentive(0.5), rows(4, 5, 8)),
    ):
        model = from_module(make, x)
        params = model.init(seeded())
        assert model.noisy
        assert torch.equal(model.train(params, x, key()), model.train(params, x, key()))
        assert not torch.equal(model.train(params, x, key()), model.train(params, x, key(8)))


# --- What is a parameter -------------------------------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(6, 4)
        self.out = nn.Linear(4, 6, bias=False)
        self.out.weight = self.embed.weight

    def forward(self, tokens):
        return self.out(self.embed(tokens))


def test_tied_parameters_have_the_last_layers_name_and_both_gradients():
    tokens = torch.tensor([[0, 1, 2], [3, 4, 5]])
    model = from_module(Tied, tokens)
    params = model.init(seeded())
    assert list(params) == ["out.weight"]
    module = loaded(Tied, {"out.weight": params["out.weight"]})
    loss = mean_loss(model, TASKS["next-token"])
    functional.cross_entropy(module(tokens).flatten(0, 1), tokens.flatten()).backward()
    gradient = grad(loss)(params, (tokens, tokens))["out.weight"]
    torch.testing.assert_close(gradient, module.out.weight.grad)


def test_frozen_parameters_are_constants_made_alike_everywhere():
    def make():
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
        net[0].requires_grad_(False)
        return net

    x = rows(5, 3)
    one, other = (from_module(make, x, generator=seeded(3)) for _ in range(2))
    params = one.init(seeded(3))
    assert sorted(params) == ["dense0.bias", "dense0.weight"]
    assert torch.equal(one.apply(params, x), other.apply(params, x))


def test_an_instance_starts_where_it_is_and_is_not_changed():
    module = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    before = {name: leaf.clone() for name, leaf in module.state_dict().items()}
    model = from_module(module, rows(4, 3))
    params = model.init(seeded())
    for name, leaf in before.items():
        assert torch.equal(params[name], leaf)
    params["0.weight"].zero_()
    assert torch.equal(module[0].weight, before["0.weight"])


def test_a_class_starts_by_the_generator_and_draws_from_nothing_else():
    state = torch.get_rng_state()
    model = from_module(lambda: nn.Linear(3, 2), rows(4, 3))
    one, same, other = (model.init(seeded(k)) for k in (1, 1, 2))
    assert torch.equal(one["weight"], same["weight"])
    assert not torch.equal(one["weight"], other["weight"])
    assert torch.equal(torch.get_rng_state(), state)


def test_lazy_layers_take_their_shape_from_the_example():
    model = from_module(lambda: nn.Sequential(nn.LazyLinear(4), nn.Tanh()), rows(2, 7))
    assert model.init(seeded())["0.weight"].shape == (4, 7)


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Embedding(5, 2)

    def forward(self, numbers, codes):
        return self.a(numbers) + self.b(codes)


def test_several_inputs_come_in_order_or_by_name():
    numbers, codes = rows(4, 3), torch.tensor([0, 4, 2, 1])
    in_order = from_module(Several, (numbers, codes))
    by_name = from_module(Several, {"codes": codes, "numbers": numbers})
    params = in_order.init(seeded())
    torch.testing.assert_close(
        in_order.apply(params, (numbers, codes)),
        by_name.apply(params, {"codes": codes, "numbers": numbers}),
    )


# --- Dense layers are found ----------------------------------------------------------------------


def test_a_sequential_that_ends_in_dense_layers_is_known_by_them():
    x = rows(3, 1, 3, 4)
    for net, layers, features in [
        ([nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 2)], 2, False),
        ([nn.Flatten(), nn.Linear(12, 2)], 1, False),
        ([nn.Conv2d(1, 2, 2), nn.Flatten(), nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2)], 2, True),
        ([nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 2)], 1, True),
        ([nn.Flatten(), nn.Linear(12, 2, bias=False)], 0, False),
        ([nn.Flatten(), nn.Linear(12, 2), nn.ReLU()], 0, False),
        ([nn.Dropout(0.1), nn.Flatten(), nn.Linear(12, 2)], 0, False),
    ]:
        with entry(net):
            module = nn.Sequential(*net)
            model = from_module(module, x)
            assert (model.dense_layers, model.features is not None) == (layers, features)
            found = model.apply(model.init(seeded()), x)
            torch.testing.assert_close(found, module.eval()(x))


# --- What is refused -----------------------------------------------------------------------------


class Random(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(3, 2)

    def forward(self, x):
        return self.a(x + torch.rand_like(x))


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.calls = nn.Linear(3, 2), 0

    def forward(self, x):
        self.calls += 1
        return self.a(x) * self.calls


def test_a_module_that_is_no_function_of_the_rows_is_refused():
    for make, words in [
        (Random, "must be a function of its inputs and parameters"),
        (Counting, "must be a function of its inputs and parameters"),
        (lambda: nn.Linear(5, 2), r"Linear must take inputs of shapes \(4, 3\), got Runtime"),
        (nn.ReLU, "one with parameters that are trained, got 'ReLU'"),
        (lambda: 3, r"a network must be a torch.nn.Module, got 'int'"),
    ]:
        with entry(words), pytest.raises(ValueError, match=words):
            from_module(make, rows(4, 3))
