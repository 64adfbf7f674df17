"""Records as content of the link: what is sent is read, and nothing else is."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from engram.link import content
from engram.link.blobs import Blob
from engram.link.questions import Content
from engram.link.records import from_contents, to_contents, to_parts
from engram.settings.errors import Refused
from tests.samples import entry

MODEL = {"w": torch.arange(2000.0).reshape(20, 100), "n": torch.tensor(7)}
CONFIG: dict[str, Any] = {
    "rate": 0.5, "whole": 1.0, "seed": 2**63, "on": True, "name": "\u00e9\n", "key": b"\0\xff",
    "keys": [b"a", b"", b"bc"], "none": [], "clients": [3, 1], "texts": ["a", ""],
    "losses": [float(n) for n in range(100)], "ids": [*range(100)], "high": [2**63] * 100,
    "nan": [float("inf")],
}  # fmt: skip


def joined(found: list[Content]) -> list[bytes]:
    """Contents' bytes."""
    return [b"".join(each.parts) for each in found]


def test_records_are_read_as_they_were_sent(tmp_path: Path) -> None:
    bias, metrics = {"b": torch.tensor([True, False])}, {"loss": 0.25, "counts": [1, 2]}
    sent = {"config": CONFIG, "arrays": MODEL, "own": bias, "metrics": metrics}
    model, rest = joined(to_contents(sent))
    found = from_contents([Blob.write(tmp_path, [model]).view(), memoryview(rest)], 10**6)
    assert list(found) == ["config", "arrays", "own", "metrics"]
    assert found["config"] == CONFIG
    assert all(type(found["config"][key]) is type(value) for key, value in CONFIG.items())
    assert found["metrics"] == {"loss": 0.25, "counts": [1, 2]}
    for name in ("arrays", "own"):
        read, wanted = found[name], sent[name]
        assert list(read) == list(wanted)
        assert all(torch.equal(read[key], leaf) for key, leaf in wanted.items())
    assert joined(to_contents(found)) == [model, rest]
    again = from_contents([b"".join(to_parts(sent))], 10**6)
    assert joined(to_contents(again)) == [model, rest]


def test_messages_with_the_same_model_share_its_content() -> None:
    shared = dict[int, Content]()
    first, second = (to_contents({"arrays": MODEL, "c": {"n": n}}, shared) for n in range(2))
    assert first[0] is second[0]
    assert first[1] is not second[1]


def of(records: object, **tensors: Any) -> bytes:
    """Content with such records."""
    return b"".join(content.parts(tensors, {"records": json.dumps(records)}))


BYTES, HALVES = np.zeros(9, np.uint8), np.zeros(9, np.float16)
MANY = np.zeros(2**20 + 1, np.int64)


OTHERS = [
    [],
    [b""],
    [b"x" * 100],
    [of("text")],
    [of({"a": 1})],
    [of([["a", "code", {}]])],
    [of([[[], "config", {}]])],
    [of([["a", "config", 3]])],
    [of([["a", "config", {"k": None}]])],
    [of([["a", "config", {"k": 2**64}]])],
    [of([["a", "config", {"k": [0, -(2**63) - 1]}]])],
    [of([["a", "config", {"k": [[]]}]])],
    [of([["a", "config", {"k": {"bytes": "t", "numbers": "t"}}]], t=BYTES)],
    [of([["a", "config", {"k": {"bytes": "t"}, "l": {"bytes": "t"}}]], t=BYTES)],
    [of([["a", "config", {"k": {"numbers": "t"}}]], t=HALVES)],
    [of([["a", "config", {n: {"numbers": n} for n in "tu"}]], t=MANY, u=MANY)],
    [of([["a", "arrays", {"k": "t", "l": "t"}]], t=BYTES)],
    [of([["a", "content", 0]])],
    [of([]), of([["a", "content", 0], ["b", "content", 0]])],
    [of([]), of([["a", "content", {}]])],
    [of([["a", "config", {"k": {"bytes": "t"}}]], t=np.zeros(2**25, np.uint8))],
]


def test_content_of_another_kind_is_refused() -> None:
    for number, sent in enumerate(OTHERS):
        with entry(number), pytest.raises(Refused, match=r"^it must "):
            from_contents(sent, 2**25)
