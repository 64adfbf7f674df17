"""Large arrays in files: the same numbers as in memory, for whoever reads them in any way."""

import copy
import pickle

import numpy as np
import pytest
import torch
from engram.wire.bundle import PIECE, bundle, unbundle
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from engram.settings.errors import Refused
from engram.wire import mapped_arrays
from engram.wire.mapped_arrays import Mapped, join
from engram.wire.wire import read_array, to_params, to_record
from tests.samples import entry

MODEL = {
    "w": torch.arange(2**19, dtype=torch.float32).reshape(1024, 512),
    "counts": torch.arange(7),
    "b": torch.randn(3, generator=torch.Generator().manual_seed(0), dtype=torch.float64),
}


@pytest.fixture(autouse=True)
def _large(monkeypatch):
    monkeypatch.setattr(mapped_arrays, "LARGE", 2**20)


def arrived(model):
    """A model as it comes out of a bundle."""
    content = RecordDict({"arrays": to_record(model), "config": ConfigRecord({"round": 1})})
    return unbundle(bundle(content)).array_records["arrays"]


def test_a_large_model_comes_out_of_a_file_as_it_was():
    record = arrived(MODEL)
    assert {type(array) for array in record.values()} == {Mapped}
    for name, leaf in MODEL.items():
        assert torch.equal(read_array(record[name], tuple(leaf.shape), leaf.dtype), leaf)
        assert torch.equal(to_params(record)[name], leaf)
        np.testing.assert_array_equal(record[name].numpy(), leaf.numpy())


@pytest.mark.parametrize("why", ["small", "no room"])
def test_a_model_that_is_small_or_finds_no_file_is_in_memory(monkeypatch, tmp_path, why):
    if why == "small":
        monkeypatch.setattr(mapped_arrays, "LARGE", 2**30)
    else:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    record = arrived(MODEL)
    assert {type(array) for array in record.values()} == {Array}
    assert torch.equal(to_params(record)["w"], MODEL["w"])


def test_it_is_sent_stored_and_copied_as_flowers_own_arrays_are():
    record = arrived(MODEL)
    plain = ArrayRecord({name: Array(leaf.numpy()) for name, leaf in MODEL.items()})
    assert record.object_id == plain.object_id
    for again in (pickle.loads(pickle.dumps(record["w"])), copy.deepcopy(record["w"])):
        assert type(again) is Array
        assert again.data == plain["w"].data


def test_arrays_are_aligned_wherever_the_line_before_them_ends():
    for name in ["w", "we", "wei", "weig", "weigh", "weight"]:
        with entry(name):
            (leaf,) = to_params(arrived({name: MODEL["w"]})).values()
            assert leaf.data_ptr() % 64 == 0
            assert torch.equal(leaf, MODEL["w"])


def test_no_file_is_left(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    record = arrived(MODEL)
    assert type(record["w"]) is Mapped
    assert list(tmp_path.iterdir()) == []


def test_pieces_are_joined_in_order():
    pieces = [b"line\n" + bytes(2**19), b"\1" * 2**19, b"\2"]
    data, start = join(pieces)
    assert (start + len(b"line\n")) % 64 == 0
    assert data[start:] == b"".join(pieces)


def test_a_large_model_that_claims_too_much_is_refused():
    content = bundle(RecordDict({"arrays": to_record(MODEL)}))
    first = content.config_records["arrays"]["engram.arrays"]
    content.config_records["arrays"]["engram.arrays"] = first.replace(b"2097280", b"9097280", 1)
    assert len(first) <= PIECE
    with pytest.raises(Refused, match="and 9097280 bytes"):
        unbundle(content)
