"""Rows of users: in their own shape but for images, and grey levels by each client's own type."""

import copy
import itertools
import logging

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import engram
from engram.data.federated import model_for
from engram.data.image_axes import say_once
from engram.data.load_federation import federated_data, own_data
from engram.data.readers.in_memory import arrays_of, hold
from engram.networks.registry import model
from engram.settings.errors import DataError, Refused
from engram.settings.experiment import Experiment
from tests.networks import mixed
from tests.samples import entry
from tests.support import write_npz

ROWS = 20
Y = np.arange(ROWS) % 2


@pytest.fixture(autouse=True)
def _own(plug_ins):
    model(nn.Identity, "Own")


def read(data, **settings):
    given = {"partition": "natural", "num_clients": len(data), "clients_per_round": 1}
    given |= {"batch_size": 2, "method": "fedavg", "validation_fraction": 0} | settings
    return federated_data(Experiment(dataset=hold(arrays_of(data)), **given))


def alone(x, **settings):
    """A row's dtype and shape, as a network gets it."""
    return read([(x, Y)] * 2, **settings).kind.inputs


def numbers(*shape, dtype="float32", low=0, high=200):
    return np.random.default_rng(0).integers(low, high, (ROWS, *shape)).astype(dtype)


SEEN = [
    ("Own", "float32", (9, 32), "auto", "float32[9,32]"),
    ("Own", "float64", (4, 8, 8), "auto", "float32[4,8,8]"),
    ("Own", "float32", (1, 16, 3), "auto", "float32[1,16,3]"),
    ("Own", "float32", (2, 3, 4, 5), "auto", "float32[2,3,4,5]"),
    ("Own", "int64", (7, 5), "auto", "int64[7,5]"),
    ("Own", "float32", (), "auto", "float32[]"),
    ("mlp", "float32", (9, 32), "auto", "float32[9,32]"),
    ("mlp", "int64", (1, 16, 3), "auto", "float32[1,16,3]"),
    ("mlp", "bool", (5,), "auto", "float32[5]"),
    ("Own", "uint8", (8, 6), "auto", "float32[1,8,6]"),
    ("Own", "uint8", (8, 6, 3), "auto", "float32[3,8,6]"),
    ("Own", "uint8", (3, 8, 6), "auto", "float32[3,8,6]"),
    ("Own", "uint8", (4, 8, 6), "auto", "float32[4,8,6]"),
    ("Own", "uint8", (5,), "auto", "float32[5]"),
    ("Own", "uint8", (1, 4, 5, 6), "auto", "float32[1,4,5,6]"),
    ("Own", "uint8", (8, 6), "none", "float32[8,6]"),
    ("Own", "uint8", (8, 6, 3), "none", "float32[8,6,3]"),
    ("cnn", "float32", (8, 6), "auto", "float32[1,8,6]"),
    ("resnet", "float32", (8, 6, 3), "auto", "float32[3,8,6]"),
    ("torchvision:resnet18", "float32", (1, 8, 6), "auto", "float32[1,8,6]"),
    ("cnn", "float32", (4, 8, 6), "none", "float32[4,8,6]"),
    ("Own", "float32", (8, 6), "grey", "float32[1,8,6]"),
    ("Own", "float32", (8, 6, 4), "channels-last", "float32[4,8,6]"),
]


def test_rows_have_their_own_shape_but_for_images(caplog):
    for network, dtype, shape, images, seen in SEEN:
        with entry(network, dtype, shape, images, seen):
            caplog.clear()
            say_once.cache_clear()
            assert alone(numbers(*shape, dtype=dtype), model=network, images=images) == seen
            is_said = "x is uint8, grey levels of 255" in caplog.text
            assert is_said == (dtype == "uint8" and len(shape) == 1)


AMBIGUOUS = [
    (
        (1, 16, 3),
        {"model": "cnn"},
        r"x must be images with 1 or 3 channels, first or last, got shape \(40, 1, 16, 3\), "
        "where both may be: set images=channels-last, or images=none if they are first",
    ),
    ((4, 8, 8), {"model": "cnn"}, r"got shape \(40, 4, 8, 8\): set images=none if rows are"),
    ((4,), {"images": "grey"}, r"x must be of 3 axes for images=grey, got shape \(40, 4\)"),
    ((), {}, r"x must be numbers, in rows, got float32 of shape \(40,\)"),
]


def test_ambiguous_shapes_are_refused():
    for shape, settings, words in AMBIGUOUS:
        with entry(shape, settings, words), pytest.raises(DataError, match=words):
            alone(numbers(*shape), **settings)


def test_of_several_inputs_none_is_an_image():
    x = {"photo": numbers(8, 6, dtype="uint8"), "codes": numbers(3, dtype="int32")}
    assert alone(x, model="Own") == '{"codes": "int64[3]", "photo": "float32[8,6]"}'
    with pytest.raises(DataError, match="images must be auto or none for several inputs, got grey"):
        alone(x, model="Own", images="grey")


# --- Several types ------------------------------------------------------------------------------


def everyone(data):
    """Each client's rows as networks get them, sorted, by client."""

    def rows(split, client):
        return split.take(torch.from_numpy(split.rows[client]))[0].flatten(1)

    each = ((rows(data.train, c), rows(data.test, c)) for c in range(len(data.train.rows)))
    return [torch.cat(both).sort(0)[0] for both in each]


def as_data_set(x, y):
    return TensorDataset(torch.from_numpy(x), torch.from_numpy(y))


@pytest.mark.parametrize("given", [lambda x, y: (x, y), as_data_set])
def test_grey_levels_are_scaled_beside_any_other_type(given):
    kinds = itertools.product([(0, 1, 2), (0,), (1, 2), ()], ["float32", "float64"])
    for grey, dtype in kinds:
        with entry(grey, dtype):
            raw = [numbers(4, 4, dtype="uint8", low=40 * c, high=40 * c + 50) for c in range(3)]
            rows = [x if c in grey else (x / 255).astype(dtype) for c, x in enumerate(raw)]
            data = read([given(x, Y) for x in rows], model="cnn")
            for x, found in zip(raw, everyone(data), strict=True):
                expected = np.sort(x.reshape(ROWS, -1), axis=0) / 255
                np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)


def test_a_node_alone_has_the_rows_of_one_process(plug_ins):
    for function in (mixed.all_grey, mixed.some_grey, mixed.none_grey):
        engram.data(function)
        e = mixed.experiment(function)
        whole = everyone(federated_data(e))
        for client in range(mixed.CLIENTS):
            for part in (federated_data(e, hosted=[client]), own_data(e, e.source, client)):
                assert everyone(part)[client].equal(whole[client])


def test_types_that_give_networks_other_rows_are_refused():
    grey, shares = numbers(8, 6, dtype="uint8"), numbers(8, 6) / 200
    data = {"elm": as_data_set(grey, Y), "oak": as_data_set(shares, Y)}
    with pytest.raises(DataError, match=r"^[^\n]*of client oak[^\n]*say by images what they are$"):
        read(data, model="Own")
    assert read(data, model="Own", images="grey").kind.inputs == "float32[1,8,6]"
    assert read(data, model="Own", images="none").kind.inputs == "float32[8,6]"
    mixed = {"elm": as_data_set(numbers(3), Y), "oak": as_data_set(numbers(3, dtype="int64"), Y)}
    with pytest.raises(DataError, match=r"^[^\n]*of client oak[^\n]*int64[^\n]*in one type"):
        read(mixed, model="Own")
    assert read(mixed, model="mlp").kind.inputs == "float32[3]"


def test_numbers_up_to_255_beside_grey_levels_are_told(caplog):
    raw = numbers(8, 6, dtype="uint8", high=140)
    raw[0, 0, 0] = 143
    data = {"elm": (raw, Y), "oak": (raw.astype("float32"), Y)}
    with caplog.at_level(logging.WARNING, "flwr.engram"):
        read(data, model="cnn")
        read(data, model="cnn")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == (
        "data: some rows of x go up to 143 and are used as they are, while those of uint8 are "
        "divided by 255: if all are grey levels, give all as uint8"
    )


# --- Rows that are no numbers -------------------------------------------------------------------


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_row_without_a_number_is_named(value, tmp_path):
    x, y = numbers(3), Y.astype("float32") + 0.5
    bad, worse = x.copy(), y.copy()
    bad[7, 1], worse[4] = value, value
    with pytest.raises(DataError, match=f"x must be finite, got {value} in row 7 of client oak$"):
        read({"elm": (x, Y), "oak": (bad, Y)})
    with pytest.raises(DataError, match=f"y must be finite, got {value} in row 4 of client oak$"):
        read({"elm": (x, y), "oak": (x, worse)}, task="regression")
    with pytest.raises(DataError, match=f"y must be .*, got float64, {value} in row 4 of client 1"):
        read([(x, Y), (x, np.where(np.arange(ROWS) == 4, value, Y))])
    words = rf"x\.elm must be finite, got {value} in row 7 of client 1"
    with pytest.raises(DataError, match=words):
        read([({"elm": x}, Y), ({"elm": bad}, Y)], model="Own")
    with pytest.raises(DataError, match=f"^client oak: row 7 cannot be read: .*got {value}$"):
        everyone(read({"elm": as_data_set(x, Y), "oak": as_data_set(bad, Y)}))
    halves = {"task_train": Y, "task_test": Y, "y_train": Y, "x_train": x}
    arrays = {**halves, "x_test": bad, "y_test": Y}
    given = {"num_clients": 2, "partition": "natural", "batch_size": 2, "method": "fedavg"}
    given["clients_per_round"] = 1
    with pytest.raises(DataError, match=f"x must be finite, got {value} in row 3 of the test row"):
        federated_data(Experiment(dataset=write_npz(tmp_path / "a.npz", **arrays), **given))
    targets = {"x_test": x, "y_train": y, "y_test": worse}
    dataset = write_npz(tmp_path / "b.npz", **arrays | targets)
    with pytest.raises(DataError, match=f"{value} in row 2 of the test rows of client 0"):
        federated_data(Experiment(dataset=dataset, task="regression", **given))


def test_float_images_with_channels_last_are_told_the_way():
    words = r"^[^\n]*set images=channels-last if rows are images \(height, width, chan[^\n]*$"
    for channels in (1, 3, 4):
        layers = nn.Conv2d(channels, 2, 3), nn.Flatten(), nn.LazyLinear(2)
        model(lambda layers=layers: nn.Sequential(*copy.deepcopy(layers)), f"Conv{channels}")
        e = Experiment(model=f"Conv{channels}", method="fedavg", batch_size=2)
        given = [(numbers(8, 6, channels), Y)] * 2
        data, last = (read(given, model=e.model, images=how) for how in ("none", "channels-last"))
        with entry(channels), pytest.raises(Refused, match=words):
            model_for(e, data.kind)
        assert model_for(e, last.kind).parameters
    with pytest.raises(DataError, match=r"images=channels-last if they are \(height, width, chan"):
        read([(numbers(8, 6, 4), Y)] * 2, model="cnn")
