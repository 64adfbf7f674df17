"""Codecs of arrays, error feedback, and a server that moves by what is written of it."""

import math
from itertools import product

import numpy as np
import pytest
import torch

from engram.core.method import FromMean, Method, Server, Update
from engram.core.slots import replace, sends
from engram.guards.compression.codes import Coder, Layout, unfilled
from engram.guards.compression.delta_broadcast import (
    VERSION,
    WRITTEN,
    Broadcast,
    advanced,
    depth_of,
)
from engram.guards.compression.low_rank import low_rank
from engram.guards.compression.quantize import quantized
from engram.guards.compression.top_k import top_k
from tests import support
from tests.samples import entry

PLAIN = Coder(lambda shape: (unfilled(shape),), lambda x, draw: (x,), lambda code, shape: code[0])
CODERS = [PLAIN, quantized(8), quantized(4), top_k(0.01), top_k(0.5), low_rank(1), low_rank(2)]
SHAPES = [(), (0,), (1,), (7,), (300,), (65, 64), (10, 3, 5, 5)]


def draw(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def halves(size):
    return torch.full((size,), 0.5)


def uniform(seed):
    stream = torch.Generator().manual_seed(seed)
    return lambda size: torch.rand(size, generator=stream)


def of_one(coder, *shape):
    return Layout(coder, {"a": shape}, ["a"])


def bytes_of(coder, x, draw):
    return of_one(coder, *x.shape).encode({"a": x}, {}, draw)[0]


def read(coder, code, *shape):
    return of_one(coder, *shape).decode(code)["a"]


def near(coder, x, draw):
    """Forms of an array on its way."""
    return read(coder, bytes_of(coder, x, draw), *x.shape)


def test_a_code_has_the_bytes_that_the_shape_says_and_decodes_to_that_shape():
    for coder, shape in product(CODERS, SHAPES):
        with entry(coder, shape):
            x, zeros = draw(1, *shape), torch.zeros(shape)
            code = bytes_of(coder, x, halves)
            assert (code.dtype, code.shape) == (torch.uint8, (of_one(coder, *shape).size,))
            found = read(coder, code, *shape)
            assert (found.dtype, found.shape) == (torch.float32, shape)
            assert bytes_of(coder, x, halves).equal(code)
            assert near(coder, zeros, halves).equal(zeros)


def test_numbers_are_rounded_to_multiples_of_a_buckets_largest():
    x, u = draw(2, 600), torch.rand(600, generator=torch.Generator().manual_seed(3))
    for bits, levels, bucket in [(8, 127, 256), (4, 7, 64)]:
        with entry(bits, levels, bucket):
            found = near(quantized(bits), x, lambda _: u).numpy()
            for start in range(0, 600, bucket):
                at = slice(start, start + bucket)
                part, shift = x[at].double().numpy(), u[at].double().numpy()
                m = np.abs(part).max()
                units = levels * part / m
                expected = np.floor(units + shift)
                # Whoever is within rounding of a whole number may be rounded to either neighbor.
                sure = np.abs(expected - units - shift) > 1e-4
                expected = m / levels * np.clip(expected, -levels, levels)
                np.testing.assert_allclose(found[at][sure], expected[sure], rtol=1e-5)
                assert np.abs(found[at] - part).max() <= m / levels * (1 + 1e-5)


def test_rounding_is_right_in_the_mean_and_its_variance_is_bounded():
    x, grid = draw(4, 64), 1000  # the mean over u = (j + 1/2) / 1000 is exact to 1/1000 of a level
    fixed = [torch.full((64,), (j + 0.5) / grid) for j in range(grid)]
    for bits, levels in [(8, 127), (4, 7)]:
        with entry(bits, levels):
            coder = quantized(bits)
            found = torch.stack([near(coder, x, lambda _, u=u: u) for u in fixed]).double()
            level = float(x.abs().max()) / levels
            assert (found.mean(0) - x).abs().max() <= 1.1 * level / grid
            assert found.var(0, correction=0).max() <= (level / 2) ** 2 * (1 + 1e-3)


def test_zeros_stay_zeros_and_signs_stay():
    for bits in [8, 4]:
        with entry(bits):
            x = draw(5, 999) * (torch.arange(999) % 3)
            found = near(quantized(bits), x, uniform(6))
            assert (found[x == 0] == 0).all()
            assert (found * x >= 0).all()


def test_the_largest_numbers_are_kept_and_the_first_of_equal_ones():
    x, coder = draw(7, 40, 30), top_k(0.01)
    found = near(coder, x, halves).reshape(-1).numpy()
    kept = np.argsort(-np.abs(x.reshape(-1).numpy()), kind="stable")[: math.ceil(0.01 * 1200)]
    expected = np.zeros(1200, dtype=np.float32)
    expected[kept] = x.reshape(-1).numpy()[kept]
    np.testing.assert_array_equal(found, expected)
    alike = near(coder, torch.ones(500), halves)
    assert alike.nonzero().reshape(-1).tolist() == [*range(5)]


def test_impossible_places_are_refused():
    for places in [[3, 3], [4, 3], [0, 200]]:
        with entry(places):
            values = torch.ones(2).view(torch.uint8)
            code = torch.cat([torch.tensor(places, dtype=torch.uint8), values])
            with pytest.raises(ValueError, match="places must be ascending, from 0 to 199"):
                read(top_k(0.01), code, 200)


def test_a_matrix_becomes_its_best_approximation_of_the_rank():
    for shape in [(30, 40), (12, 3, 5, 5)]:
        with entry(shape):
            x, coder = draw(8, *shape), low_rank(2)
            found = near(coder, x, halves).numpy()
            left, values, right = np.linalg.svd(x.double().numpy().reshape(shape[0], -1))
            expected = (left[:, :2] * values[:2]) @ right[:2]
            np.testing.assert_allclose(found.reshape(shape[0], -1), expected, atol=1e-4)


def test_what_is_sent_adds_up_to_what_was_to_be_sent_but_for_the_last_residual():
    for coder in CODERS:
        with entry(coder):
            layout = Layout(coder, {"a": (20, 30), "b": (4,)}, ["a"])
            residual, sent, wanted = {}, torch.zeros(20, 30), torch.zeros(20, 30)
            for t in range(30):
                arrays = {"a": draw(t, 20, 30), "b": draw(100 + t, 4)}
                code, found, residual = layout.encode(arrays, residual, uniform(t))
                assert found["b"].equal(arrays["b"])
                assert layout.decode(code)["a"].equal(found["a"])
                sent, wanted = sent + found["a"], wanted + arrays["a"]
            torch.testing.assert_close(sent, wanted - residual["a"], rtol=0, atol=1e-4)


def test_no_residual_of_rounding_exceeds_its_share_of_the_largest_number():
    for bits, levels in [(8, 127), (4, 7)]:
        with entry(bits, levels):
            layout, residual = of_one(quantized(bits), 500), {}
            for t in range(50):
                x = draw(t, 500).clamp(-1, 1)
                _, _, residual = layout.encode({"a": x}, residual, uniform(t))
                assert residual["a"].abs().max() <= 1 / (levels - 1) * (1 + 1e-4)


def test_a_code_of_another_length_is_refused():
    layout = of_one(quantized(8), 10)
    with pytest.raises(ValueError, match=r"code must have 14 bytes, got \(13,\)"):
        layout.decode(torch.zeros(13, dtype=torch.uint8))


def method(coder, *, whole):
    """A server of a model, which every client receives, and of a slot of its own."""
    start = {"model": {"w": support.draw(1, 30, 20).float(), "b": torch.ones(3)}}
    layout = Layout(coder, {"model/b": (3,), "model/w": (30, 20)}, ["model/w"])
    server = Server(
        start | {"own": torch.zeros(())},
        sends("model"),
        FromMean(lambda server, mean: replace(server, mean) | {"own": server["own"] + 1}),
    )
    plain = Method(server, None, None, {"model": "model", "own": "statistic"})
    return Broadcast(coder, whole, seed=0).method(plain, {"b"}), layout


def merged(made, server, t):
    """The server after a round, and the model that was to be sent."""
    step = {"w": 0.1 * support.draw(t, 30, 20).float(), "b": torch.full((3,), float(t))}
    wanted = {"w": server["model"]["w"] + step["w"], "b": step["b"]}
    return made.server.merge.merge(server, Update({"model": wanted}, 1)), wanted


@pytest.mark.parametrize("coder", [quantized(8), top_k(0.1)])
def test_a_server_of_whole_slots_has_what_its_bytes_say(coder):
    made, layout = method(coder, whole=True)
    server = made.server.start
    for t in range(1, 6):
        found = layout.decode(server[WRITTEN])
        assert server["model"]["w"].equal(found["model/w"])
        assert server["model"]["b"].equal(found["model/b"])
        server, _ = merged(made, server, t)
        assert (int(server[VERSION]), float(server["own"])) == (t, t)
        assert server["broadcast-residual-model"]["w"].abs().max() > 0


@pytest.mark.parametrize("coder", [top_k(0.1), quantized(4)])
def test_clients_that_read_all_changes_have_the_servers_slots_to_the_bit(coder):
    made, layout = method(coder, whole=False)
    server, depth = made.server.start, depth_of(layout)
    assert depth * layout.size < layout.plain_size
    versions = [server["model"]]
    for t in range(1, depth + 3):
        server, _ = merged(made, server, t)
        versions.append(server["model"])
    for missed in range(1, depth + 1):
        held = versions[-1 - missed]
        found = {f"model/{name}": leaf for name, leaf in held.items()}
        for code in server[WRITTEN][depth - missed :]:
            found = advanced(layout, found, layout.decode(code))
        assert found["model/w"].equal(server["model"]["w"])
        assert found["model/b"].equal(server["model"]["b"])


def test_a_server_that_is_left_alone_comes_to_what_was_to_be_sent():
    made, _ = method(top_k(0.1), whole=False)
    server, wanted = made.server.start, support.draw(9, 30, 20).float()
    sent = wanted
    for _ in range(41):
        same = {"model": {"w": sent, "b": torch.zeros(3)}}
        server = made.server.merge.merge(server, Update(same, 1))
        sent = server["model"]["w"]
    torch.testing.assert_close(sent, wanted, rtol=0, atol=1e-5)
    assert server["broadcast-residual-model"]["w"].abs().max() == 0
