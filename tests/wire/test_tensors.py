"""Tensors in files: the same numbers, however they are written, and whatever there is room for."""

import pytest
import torch

from engram.settings import method_for_data
from engram.settings.method_for_data import set_aside
from engram.wire.tensors import tensors_from_bytes, tensors_to_bytes, tensors_to_file
from tests.support import assert_same

G = torch.Generator().manual_seed(0)
WIDE = torch.randn(40, 30, generator=G)
MODEL = {
    "w": torch.randn(300, 200, generator=G),
    "across": WIDE.T,
    "part": WIDE[3:5],
    "double": torch.randn(7, generator=G, dtype=torch.float64),
    "count": torch.tensor(3),
    "none": torch.empty(0),
}


def test_a_file_has_the_bytes_that_memory_would_have(tmp_path):
    tensors_to_file(tmp_path / "model", MODEL)
    data = (tmp_path / "model").read_bytes()
    assert data == tensors_to_bytes(MODEL)
    assert_same(tensors_from_bytes(data), MODEL)
    with pytest.raises(OSError, match="No such file"):
        tensors_to_file(tmp_path / "nowhere" / "model", MODEL)


@pytest.mark.parametrize("room", [True, False])
def test_what_is_set_aside_keeps_its_numbers(monkeypatch, room):
    def none(*_):
        raise OSError("no room")

    monkeypatch.setattr(method_for_data, "_LARGE", 4000)
    if not room:
        monkeypatch.setattr(method_for_data, "TemporaryFile", none)
    found = set_aside(MODEL)
    assert list(found) == list(MODEL)
    assert_same(found, MODEL)
    for name, leaf in MODEL.items():
        assert found[name].dtype == leaf.dtype
        assert (found[name] is leaf) == (not room or leaf.nbytes <= 4000)
    if room:
        before = MODEL["w"].clone()
        found["w"] += 1  # a copy
        assert torch.equal(MODEL["w"], before)
