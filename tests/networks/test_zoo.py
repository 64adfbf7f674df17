"""Built-in modules: sizes, what they compute, and what they refuse."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from engram.networks.built_in import count_parameters, network
from engram.networks.catalogue import with_group_norm
from engram.networks.registry import is_known, model
from engram.networks.vision import torchvision
from tests.samples import entry

IMAGES = torch.rand(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))
TEXT = torch.arange(18).view(2, 9) % 7
PASS = torch.tensor(5)


def built(name, example, hidden=(), outputs=7, norm="batch"):
    given = {"outputs": outputs, "hidden": hidden, "norm": norm, "statistics": "average"}
    return network(name, example, generator=torch.Generator(), **given)


def started(network, seed=0):
    return network.init(torch.Generator().manual_seed(seed))


def test_widths_of_16_32_and_64_make_a_resnet_8():
    net = built("resnet", IMAGES, (16, 32, 64), outputs=10)
    params = started(net)
    kernels = {name: leaf for name, leaf in params.items() if leaf.ndim == 4}
    # The first one, two for each block, and two shortcuts; with the dense layer 8 without these.
    assert sorted(leaf.shape[-1] for leaf in kernels.values()) == [1, 1] + [3] * 7
    weights = 9 * (3 * 16 + 2 * 16 * 16 + (16 + 32) * 32 + (32 + 64) * 64) + 16 * 32 + 32 * 64
    norms = 4 * (3 * 16 + 3 * 32 + 3 * 64)  # weights, biases, means and variances
    assert net.parameters == weights + norms + 64 * 10 + 10
    assert net.apply(params, IMAGES).shape == (2, 10)


def test_parameters_are_counted_before_there_is_room_for_them():
    resnet = 9 * (3 * 16 + 2 * 16 * 16 + (16 + 32) * 32 + (32 + 64) * 64) + 16 * 32 + 32 * 64
    resnet += 2 * (3 * 16 + 3 * 32 + 3 * 64) + 64 * 10 + 10  # norms, and the dense layer
    w = 10**6  # a width of which one weight alone has terabytes
    for name, hidden, expected in (
        ("resnet", (16, 32, 64), resnet),
        ("resnet", (w,), 9 * (3 * w + 2 * w * w) + 3 * 2 * w + 10 * w + 10),
        ("mlp", (w, w), (3 * 8 * 8 + 1) * w + (w + 1) * w + (w + 1) * 10),
    ):
        found = count_parameters(name, torch.zeros(2, 3, 8, 8), outputs=10, hidden=hidden)
        assert found == expected, (name, hidden)


def test_group_norm_takes_the_place_of_batch_norm():
    net = built("resnet", IMAGES, (4, 5), norm="group")
    assert net.statistics is None
    params = started(net)
    assert not [name for name in params if "running" in name]
    # Nothing depends on the other rows; with batch norm, in training, all does.
    assert_close(net.apply(params, IMAGES)[:1], net.apply(params, IMAGES[:1]))
    batch = built("resnet", IMAGES, (4, 5))
    params = started(batch)
    alone = batch.train(params, torch.cat([IMAGES[:1]] * 2), PASS)[:1]
    assert not torch.allclose(batch.train(params, IMAGES, PASS)[:1], alone)


def test_group_norm_keeps_a_modules_weights_and_leaves_it_as_it_is():
    pretrained = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
    with torch.no_grad():
        pretrained[1].weight.copy_(torch.arange(4))
    found = with_group_norm(pretrained)()
    assert (type(found[1]), type(pretrained[1])) == (nn.GroupNorm, nn.BatchNorm2d)
    assert (found[1].num_groups, found[1].weight.tolist()) == (2, [0, 1, 2, 3])
    assert_close(found[0].weight, pretrained[0].weight)
    mlp = with_group_norm(lambda: nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5)))()
    assert mlp(torch.rand(1, 3)).shape == (1, 5)


@pytest.mark.parametrize(("name", "hidden"), [("lstm", (6, 5)), ("transformer", (8, 8))])
def test_a_character_is_predicted_from_those_up_to_it(name, hidden):
    net = built(name, TEXT, hidden)
    params = started(net)
    found = net.apply(params, TEXT)
    assert found.shape == (2, 9, 7)
    later = TEXT.clone()
    later[:, 5:] = 0
    apart = (net.apply(params, later) - found).abs().amax(dim=(0, 2))
    assert (apart[:5] < 1e-6).all()
    assert (apart[5:] > 1e-6).all()


def test_layers_are_as_wide_as_hidden_says():
    layers = started(built("lstm", TEXT, (6, 5)))
    shapes = {name: tuple(leaf.shape) for name, leaf in layers.items()}
    assert shapes["layers.0.weight_ih_l0"] == (4 * 6, 8)
    assert shapes["layers.1.weight_ih_l0"] == (4 * 5, 6)
    assert shapes["head.weight"] == (7, 5)
    layers = started(built("cnn-valid", torch.rand(2, 1, 28, 28), (512,)))  # PFLlib's CNN
    assert [shape for *_, shape in (leaf.shape for leaf in layers.values() if leaf.ndim > 1)] == [
        *(5, 5, 1024, 512)
    ]
    blocks = started(built("transformer", TEXT, (8, 8, 8)))
    assert {name.split(".")[1] for name in blocks if name.startswith("blocks")} == {"0", "1", "2"}
    assert blocks["positions"].shape == (9, 8)


def test_attention_is_torchs():
    first = {"batch_first": True, "norm_first": True}
    layer = nn.TransformerEncoderLayer(8, 4, 32, 0.0, nn.functional.gelu, **first)
    net = built("transformer", TEXT, (8,))
    own = started(net)
    theirs = {"self_attn.in_proj_": "mixed.", "self_attn.out_proj.": "out."}
    theirs |= {"linear1.": "dense.0.", "linear2.": "dense.2."}
    theirs |= {"norm1.": "before.", "norm2.": "between."}
    pairs = [(there, here, k) for there, here in theirs.items() for k in ("weight", "bias")]
    layer.load_state_dict({there + k: own[f"blocks.0.{here}{k}"] for there, here, k in pairs})
    x = own["embedding.weight"][TEXT] + own["positions"]
    mask = nn.Transformer.generate_square_subsequent_mask(9)
    x = nn.functional.layer_norm(layer(x, mask), (8,), own["norm.weight"], own["norm.bias"])
    expected = nn.functional.linear(x, own["head.weight"], own["head.bias"])
    assert_close(net.apply(own, TEXT), expected, rtol=1e-4, atol=1e-5)


def test_networks_of_torchvision_have_as_many_outputs_as_there_are_classes():
    net = built("torchvision:squeezenet1_1", torch.rand(2, 3, 32, 32), outputs=5)
    assert net.apply(started(net), torch.rand(3, 3, 32, 32)).shape == (3, 5)
    assert not torch.equal(*(started(net, seed)["features.0.weight"] for seed in (0, 1)))
    module = torchvision().models.squeezenet1_1(num_classes=5)
    module.load_state_dict(started(net))
    x = torch.rand(2, 3, 32, 32)
    assert_close(net.apply(started(net), x), module.eval()(x))


def test_stochastic_depth_is_drawn_from_the_key():
    net = built("torchvision:efficientnet_b0", torch.rand(2, 3, 32, 32), norm="group")
    assert net.noisy
    x, params = torch.rand(1, 3, 32, 32).expand(8, -1, -1, -1), started(net)
    one, other = net.train(params, x, PASS), net.train(params, x, PASS + 1)
    assert_close(one, net.train(params, x, PASS), rtol=0, atol=0)
    assert not torch.allclose(one, other)


def test_what_does_not_fit_is_refused():
    for name, example, hidden, words in [
        ("resnet", TEXT, (4,), "inputs of resnet must be images"),
        ("cnn-valid", IMAGES[..., :12], (4,), "of at least 16x16 pixels, got"),
        ("resnet", IMAGES, (), "hidden must be positive widths, at least one, for resnet"),
        ("resnet", (IMAGES, TEXT), (4,), "inputs of a built-in network must be one tensor"),
        ("lstm", TEXT.float(), (4,), "inputs of lstm must be rows of characters, as whole numbers"),
        ("transformer", TEXT, (8, 4), "hidden must be equal multiples of 4 for transformer, got"),
        ("transformer", TEXT, (6, 6), "hidden must be equal multiples of 4"),
        ("torchvision:resnt18", IMAGES, (), "such as resnet18, got 'torchvision:resnt18'"),
        ("torchvision:fcn_resnet50", IMAGES, (), "a classification network of torchvision's"),
        ("torchvision:resnet18", IMAGES[:, :1], (), "must take inputs of shapes"),
    ]:
        with entry(name, example, hidden):
            with pytest.raises(ValueError, match=words) as raised:
                built(name, example, hidden)
            assert len(str(raised.value)) < 500


def test_names_of_built_in_networks_are_taken():
    assert is_known("torchvision:resnet18")
    for name in ("lstm", "torchvision:mine"):
        with pytest.raises(ValueError, match="name of a network must be one that no built-in"):
            model(nn.Identity, name)
