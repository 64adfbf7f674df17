"""Frames and content: what is written is read, and nothing else is."""

import json
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from engram.link import content
from engram.link.frames import HEADER, BadFrame, pack, unpack
from tests.samples import entry

TENSORS: dict[str, Any] = {
    "w": np.arange(6, dtype=np.float32).reshape(2, 3),
    "n": np.array(7, dtype=np.int64),
    "b": np.array([True, False]),
    "none": np.zeros((0, 3), np.float64),
}


def test_a_frame_is_read_as_it_was_written() -> None:
    frame = unpack(pack("ask", b"body", run="r", size=3))
    assert (frame.kind, frame.text("run"), frame.number("size", 9), bytes(frame.body)) == (
        "ask", "r", 3, b"body",
    )  # fmt: skip


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0\0",
        b"\xff\xff\xff\xff{}",
        b"\5\0\0\0{}",
        b"\2\0\0\0[]",
        b"\2\0\0\0{}",
        HEADER.to_bytes(4, "little") + b"[" * HEADER,
        b"\3\0\0\0\xff\xff\xff",
    ],
)
def test_bytes_that_are_no_frame_are_refused(data: bytes) -> None:
    with pytest.raises(BadFrame):
        unpack(data)


@pytest.mark.parametrize("value", [None, True, -1, 1.5, 2**70, [1], "x"])
def test_a_field_of_another_kind_is_refused(value: object) -> None:
    with pytest.raises(BadFrame, match="size of ask must be a whole number"):
        unpack(pack("ask", size=value)).number("size", 2**48)


def test_tensors_are_read_as_they_were_written() -> None:
    found, said = content.read(b"".join(content.parts(TENSORS, {"made by": "Engram"})))
    assert said == {"made by": "Engram"}
    assert found.keys() == TENSORS.keys()
    for name, array in TENSORS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert np.array_equal(found[name], array)


def test_the_format_is_that_of_safetensors() -> None:
    ours = safetensors.numpy.load(b"".join(content.parts(TENSORS)))
    theirs, _ = content.read(safetensors.numpy.save(TENSORS, {"made by": "safetensors"}))
    for name, array in TENSORS.items():
        assert np.array_equal(ours[name], array)
        assert np.array_equal(theirs[name], array)


def test_what_is_read_is_a_view() -> None:
    data = bytearray(b"".join(content.parts({"w": np.zeros(4, np.float32)})))
    found = content.read(memoryview(data))[0]["w"]
    data[-4:] = np.float32(5).tobytes()
    assert found[3] == 5


IMPOSSIBLE: list[tuple[object, int]] = [
    ({"w": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}, 4),
    ({"w": {"dtype": "F32", "shape": [-1, -1], "data_offsets": [0, 4]}}, 4),
    ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, 8),
    ({"w": {"dtype": "O", "shape": [1], "data_offsets": [0, 8]}}, 8),
    ({"w": {"dtype": "F32", "shape": [1.0], "data_offsets": [0, 4]}}, 4),
    ({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}, 8),
    ({n: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for n in "ab"}, 4),
    ({"w": {"dtype": "U8", "shape": [1] * 40, "data_offsets": [0, 1]}}, 1),
    ({"w": {"dtype": "U8", "shape": [0] * 40, "data_offsets": [0, 0]}}, 0),
    ({"w": []}, 0),
    ({"__metadata__": []}, 0),
    ([], 0),
]


def test_impossible_tensors_are_refused() -> None:
    for header, size in IMPOSSIBLE:
        line = json.dumps(header).encode()
        with entry(header, size), pytest.raises(ValueError, match="content must"):
            content.read(len(line).to_bytes(8, "little") + line + bytes(size))
