"""States come back from a file bit for bit, and what is no such state is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as numpy_arrays

from engram.bandits.molar import molar
from engram.bandits.policy import policy_server
from engram.online.estimators import OnlineRegressor
from engram.online.server_step import Epoch
from engram.online.state_arrays import from_arrays, to_arrays
from engram.tables.bandits.site import Buffer, TaskState
from tests.samples import entry

S = TypeVar("S")


class Record(NamedTuple):
    table: np.ndarray
    count: int


class Kept(NamedTuple, Generic[S]):
    inner: S
    records: Mapping[int | str, Record]
    groups: Mapping[frozenset[int], tuple[Record, ...]]
    history: tuple[float, ...]
    members: frozenset[int]
    name: str | None


class Other(NamedTuple):
    inner: Any


EMPTY = Kept((), {}, {}, (), frozenset(), None)

RECORDS = st.builds(
    Record,
    numpy_arrays(
        st.sampled_from([np.float64, np.float32, np.int32, np.bool_]),
        st.tuples(st.integers(0, 3), st.integers(0, 2)),
    ),
    st.integers(-(2**63), 2**63 - 1),
)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
STATES = st.builds(
    Kept,
    st.tuples(st.booleans(), FLOATS, FLOATS.map(np.float64), FLOATS.map(torch.tensor)),
    st.dictionaries(st.one_of(st.integers(), st.text()), RECORDS, max_size=4),
    st.dictionaries(
        st.frozensets(st.integers(0, 99)), st.lists(RECORDS, max_size=3).map(tuple), max_size=3
    ),
    st.lists(FLOATS, max_size=3).map(tuple),
    st.frozensets(st.integers(-(2**63), 2**63 - 1)),
    st.one_of(st.none(), st.text()),
)


def same(one, other):
    assert type(one) is type(other)
    if isinstance(one, (np.ndarray, np.generic)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert one.tobytes() == other.tobytes()
    elif isinstance(one, torch.Tensor):
        same(one.numpy(), other.numpy())
    elif isinstance(one, tuple):
        for a, b in zip(one, other, strict=True):
            same(a, b)
    elif isinstance(one, dict):
        assert list(one) == list(other)  # mappings keep their order
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, float):
        same(np.float64(one), np.float64(other))
    else:
        assert one == other


@settings(max_examples=60)
@given(STATES)
def test_comes_back_bit_for_bit_from_a_state_that_has_not_grown(tmp_path_factory, state):
    path = tmp_path_factory.mktemp("states") / "state.npz"
    np.savez(path, **to_arrays(state))
    with np.load(path, allow_pickle=False) as saved:
        like = EMPTY._replace(inner=(False, 0.0, np.float64(0), torch.tensor(0.0)))
        same(from_arrays(like, saved), state)


ROWS = Buffer(np.ones((3, 2)), np.ones(3), np.zeros(3, dtype=np.intp))


def test_classes_that_older_versions_saved_by_other_names():
    task = TaskState(np.ones((1, 2)), ROWS, ROWS)
    for state, now, then in [
        (task, b"engram.tables.bandits.", b"engram.molar.bandits."),
        (Epoch((1.0,), 8, 2, 0.5, 1), b"engram.online.server_step.", b"engram.online.epochs."),
    ]:
        with entry(state):
            saved = to_arrays(state)
            text = saved["(structure)"].tobytes()
            assert now in text
            former = saved | {"(structure)": np.frombuffer(text.replace(now, then), np.uint8)}
            same(from_arrays(state, former), state)


def regressor():
    return OnlineRegressor().fit(np.eye(2), np.ones(2)).model_


@pytest.mark.parametrize(
    ("name", "like"), [("online", regressor), ("molar", lambda: policy_server(molar(2), 2).init(0))]
)
def test_states_of_9c890261_are_read(name, like):
    """States of an OnlineRegressor after 40 rows and MOLARB after 12 rounds are read as before."""
    with np.load(Path(__file__).parent / "stored" / f"{name}.npz", allow_pickle=False) as stored:
        read = to_arrays(from_arrays(like(), stored))
        assert read.keys() == {*stored}
        for key in read.keys() - {"(structure)"}:
            same(read[key], stored[key])


def test_memory_order_and_types_stay():
    state = Other((np.asfortranarray(np.arange(6.0).reshape(2, 3)), torch.arange(3), np.int16(4)))
    back = from_arrays(state, to_arrays(state))
    same(back, state)
    assert back.inner[0].flags.f_contiguous
    assert not np.shares_memory(back.inner[0], state.inner[0])


def test_names_are_paths_and_the_order_of_arrays_is_free():
    state = EMPTY._replace(records={"a\n'b'": Record(np.eye(2), 3)}, history=(0.5,))
    saved = to_arrays(state)
    assert [*saved] == ["records.0.table", "records.0.count", "history.0", "members", "(structure)"]
    same(from_arrays(EMPTY, dict(reversed(saved.items()))), state)


def test_what_a_state_may_not_hold_is_refused():
    for value, message in [
        ([1.0], r"a state's inner must be an array, .* got 'list'"),
        ({"a": {1.0: 2}}, r"each key of a state's inner.0 must be an integer, .* got 1.0"),
        ({True: 2}, r"each key of a state's inner must be an integer, .* got True"),
        ((2**70,), r"a state's inner.0 must be plain numbers of at most 64 bits"),
        (frozenset("a"), "a state's inner must be what an array can hold"),
        (np.array([None]), "a state's inner must be plain numbers"),
        (torch.zeros(1, dtype=torch.bfloat16), "a state's inner must be what an array can hold"),
    ]:
        with pytest.raises(ValueError, match=message) as refusal:
            to_arrays(Other(value))
        assert "\n" not in str(refusal.value)


def text(*lines):
    return np.frombuffer("\n".join(lines).encode(), np.uint8)


def test_what_is_no_such_state_is_refused():
    state = Other((Record(np.zeros(2), 1), 0.5))
    saved = to_arrays(state)
    other = {name: leaf for name, leaf in saved.items() if name != "inner.1"}
    for like, arrays, message in [
        (state, {}, r"a saved state's names must be with \(structure\)"),
        (state, other, "a saved state's names must be with inner.1"),
        (state, saved | {"more": np.zeros(1)}, "a saved state must be all .* got .'more'."),
        (
            Record(np.zeros(2), 1),
            saved,
            "a saved state's classes must be those of .* got '.*Other'",
        ),
        (Other((state.inner[0], 1)), saved, "inner.1 must be a int, got 'float'"),
        (Other((Record(np.zeros(2, int), 1), 1.0)), saved, "type must be int64, got .*float64"),
        (Other({0: 1}), to_arrays(Other((1,))), "inner must be a dict, got 'tuple'"),
        (state, {"(structure)": text("tuple 1")}, "structure must be all of it"),
        (state, {"(structure)": text("none", "none")}, "must be all that its structure says"),
        (state, {"(structure)": text("mapping 1", "list 0")}, "a saved state's key must be"),
        (state, {"(structure)": np.array([255], np.uint8)}, "structure must be text"),
        (state, {"(structure)": text("os.system 1", "none")}, "got 'os.system'"),
    ]:
        with pytest.raises(ValueError, match=message) as refusal:
            from_arrays(like, arrays)
        assert "\n" not in str(refusal.value)


def test_a_class_whose_fields_have_changed_is_refused():
    saved = to_arrays(Other(1))
    lines = bytes(saved["(structure)"]).decode().replace("Other 1", "Other 2").split("\n")
    with pytest.raises(ValueError, match=r"the fields of a saved .*Other must be 1, got 2"):
        from_arrays(Other(1), saved | {"(structure)": text(*lines)})
