"""Bundles give back what they were given, and hostile ones cost a line."""

import contextlib
import gc
import json
import weakref

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from engram.settings.errors import Refused
from engram.wire.bundle import bundle, bundled_size, is_bundled, unbundle
from tests.samples import entry


def content(size):
    arrays = {"w": Array(np.arange(size, dtype=np.float32)), "b": Array(np.ones((2, 3)))}
    return RecordDict(
        {
            "arrays": ArrayRecord(arrays),
            "metrics": MetricRecord({"loss": 0.5, "losses": [1.0, float("nan")]}),
            "config": ConfigRecord({"clients": [1, 2], "name": "é", "blob": b"\0\n"}),
        }
    )


def same(one, other):
    assert list(one) == list(other)
    for name in one:
        assert type(one[name]) is type(other[name])
        for key in other[name]:
            a, b = one[name][key], other[name][key]
            if isinstance(a, Array):
                mine, theirs = ((x.dtype, tuple(x.shape), x.stype, x.data) for x in (a, b))
                assert mine == theirs
            else:
                assert repr(a) == repr(b)


def test_gives_back_what_it_was_given():
    for size in [0, 10, 2**19]:
        with entry(size):
            given_ = content(size)
            made = bundle(given_)
            assert is_bundled(made)
            assert not made.array_records
            assert bundled_size(made) > 4 * size
            same(unbundle(bundle(made)), content(size))
            same(given_, content(size))


def test_a_small_message_is_one_record_and_a_large_model_is_apart_from_the_rest():
    assert len(bundle(content(10))) == 1
    assert list(bundle(content(2**19))) == ["arrays", "metrics", "config"]
    other = content(2**19)
    other["config"]["clients"] = [3]
    # So that a SuperLink keeps it once for all nodes.
    assert bundle(other)["arrays"].object_id == bundle(content(2**19))["arrays"].object_id


def test_a_large_model_goes_in_pieces(monkeypatch):
    monkeypatch.setattr("engram.wire.bundle.PIECE", 2**18)
    made = bundle(content(2**19))
    assert list(made) == ["arrays", *(f"arrays.{i}" for i in range(1, 9)), "metrics", "config"]
    assert max(len(next(iter(made[name].values()))) for name in list(made)[:9]) == 2**18
    assert bundled_size(made) > 2**21
    same(unbundle(made), content(2**19))
    assert is_bundled(made)
    assert bundle(made) is made
    assert len(bundle(content(2**16))) == 1


def test_a_model_without_some_of_its_pieces_is_refused(monkeypatch):
    monkeypatch.setattr("engram.wire.bundle.PIECE", 2**20)
    for count in [-1, 1.5, "2", True, 2**40, 3]:
        with entry(count):
            made = bundle(content(2**19))
            assert made["arrays"]["engram.pieces"] == 2
            made["arrays"]["engram.pieces"] = count
            with pytest.raises(Refused, match="pieces"):
                unbundle(made)
            made["arrays"]["engram.pieces"] = 2
            same(unbundle(made), content(2**19))
            made["arrays.2"]["engram.piece"] = "text"
            with pytest.raises(Refused, match="must have all of its 3 pieces"):
                unbundle(made)


def test_what_is_not_bundled_stays_as_it_is():
    same(unbundle(content(3)), content(3))
    assert not is_bundled(content(3))


def described(*entry):
    return json.dumps(entry).encode() + b"\n"


UNWRITTEN = [
    *("text", b"", b"[]junk", b"not json\n", b'{"a": 1}\n', b"[" * 10**5 + b"\n"),
    described(["w", "float32", [2], "numpy.ndarray", 9]),
    json.dumps([["w", "float32", [-2], "numpy.ndarray", 0]]).encode() + b"\n",
    *(described(["w", "float32", shape, "x", 0]) for shape in ([2.5], [True], "ab")),
]


def test_what_bundle_does_not_write_is_refused():
    for data in UNWRITTEN:
        with entry(data), pytest.raises(Refused, match="bundle"):
            unbundle(RecordDict({"arrays": ConfigRecord({"engram.arrays": data})}))


def test_a_bundle_goes_when_nobody_refers_to_it():
    """Large ones could not wait until Python looks for cycles."""
    gc.disable()
    try:
        sent = bundle(content(10**6))
        assert bundled_size(sent) > 4 * 10**6
        found, gone = unbundle(sent), weakref.ref(sent)
        del sent
        assert gone() is None
        assert same(found, content(10**6)) is None
    finally:
        gc.enable()


@pytest.mark.parametrize("value", [b"\xff\xff", "text", 3])
def test_what_is_no_message_is_refused(value):
    with pytest.raises(Refused, match="bundle"):
        unbundle(RecordDict({"engram.all": ConfigRecord({"engram.all": value})}))


@given(st.data())
def test_damage_is_refused_or_harmless(data):
    (name, record), *_ = bundle(content(5)).items()
    ((key, whole),) = record.items()
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    damaged = whole[:start] + data.draw(st.binary(max_size=9)) + whole[end:]
    with contextlib.suppress(Refused):
        unbundle(RecordDict({name: ConfigRecord({key: damaged})}))
