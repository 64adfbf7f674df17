"""What a stranger's bytes may become: little more memory than they have, and one kind of error."""

import contextlib
import itertools
import json
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from engram.wire.bundle import bundle, unbundle
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.proto.recorddict_pb2 import RecordDict as Proto
from google.protobuf.message import DecodeError as ProtobufError
from hypothesis import given
from hypothesis import strategies as st

from engram.link.flower import Parcel, pack, unpack
from engram.link.inbox import Limits, _unpacked
from engram.settings.errors import Refused
from engram.settings.fingerprint import source_root
from engram.wire.mapped_arrays import Spool
from engram.wire.memory_budget import MemoryBudget
from tests.link.messages import question

MIB = 2**20
LIMITS = Limits(5 * MIB, 100, 60)


def reply(content):
    return Message(content, reply_to=question())


def content(numbers=3):
    return RecordDict(
        {
            "arrays": ArrayRecord({"w": Array(np.arange(numbers)), "zeros": Array(np.zeros(3))}),
            "metrics": MetricRecord({"loss": 0.5, "losses": [1.0, float("nan")], "n": [1, -1]}),
            "config": ConfigRecord({"ids": [1, 2], "é": "é", "b": b"\0\n", "yes": [True, False]}),
        }
    )


def all_of(data):
    return RecordDict({"engram.all": ConfigRecord({"engram.all": data})})


def part(kind, parts, body):
    """A part of a message, as Flower writes it."""
    return f"{kind} {','.join(parts)} {len(body)}".encode() + b"\0" + body


def repeated(times):
    """A reply whose array says that it is the same megabyte, so many times."""
    parcel = pack(reply(RecordDict({"a": ArrayRecord({"w": Array(np.zeros(MIB // 8))})})))
    objects = dict(parcel.objects)
    (name,) = (n for n, o in objects.items() if o.startswith(b"Array "))
    head, body = objects[name].split(b"\0", 1)
    described = json.loads(body) | {"arraychunk_ids": [0] * times}
    objects[name] = part(
        "Array", head.split()[1].decode().split(","), json.dumps(described).encode()
    )
    return parcel._replace(objects=objects)


def instead_of(kind, body):
    """A reply one of whose parts is something else."""
    parcel = pack(reply(content()))
    objects = dict(parcel.objects)
    name = next(n for n, o in objects.items() if o.startswith(kind.encode() + b" "))
    parts = objects[name].split(b" ", 2)[1].decode().split(",")
    return parcel._replace(objects=objects | {name: part(kind, filter(None, parts), body)})


def many_names(size):
    letters = range(97, 123)
    names = itertools.cycle(itertools.product(letters, repeat=3))
    return b"".join(
        b"\x0a\x07\x0a\x03" + bytes(next(names)) + b"\x22\x00" for _ in range(size // 9)
    )


EMPTY = b"\x0a\x02\x22\x00"  # a config record without a name
BOMBS = {  # name: what it is made of, given how many bytes it may have
    "empty records": lambda size: all_of(EMPTY * (size // 4)),
    "named records": lambda size: all_of(many_names(size)),
    "numbers": lambda size: all_of(numbers(size // 2)),
    "strings": lambda size: all_of(strings(size // 2)),
    "arrays": lambda size: RecordDict({"a": ConfigRecord({"engram.arrays": nested(size)})}),
    "empty arrays": lambda size: RecordDict(
        {str(i): ConfigRecord({"engram.arrays": empty_arrays(size // 50)}) for i in range(50)}
    ),
    "repeated part": lambda size: repeated(size // 8),
    "config record": lambda size: instead_of("ConfigRecord", EMPTY * (size // 4)),
    "metric record": lambda size: instead_of("MetricRecord", b"\x0a\x00" * (size // 2)),
    "message": lambda size: instead_of(
        "Message", b"\x12" + varint(size) + b"\x0a\x00" * (size // 2)
    ),
    "array record": lambda size: instead_of("ArrayRecord", nested(size)),
    "deep": lambda size: instead_of("RecordDict", b"[" * size),
    "head": lambda size: Parcel(*pack(reply(content()))[:2], {"a": b"Message " + b"," * size}),
}


def varint(number):
    return bytes((number >> s & 127) | 128 for s in range(0, 28, 7)) + bytes([number >> 28])


def numbers(count):
    return proto(
        config_record={"items": [{"key": "k", "value": {"sint_list": {"vals": [999] * count}}}]}
    )


def strings(count):
    return proto(
        config_record={"items": [{"key": "k", "value": {"string_list": {"vals": [""] * count}}}]}
    )


def proto(**record):
    return Proto(items=[{"key": "a", **record}]).SerializeToString()


def nested(size):
    return b"[" + b"[]," * (size // 3) + b"[]]\n"


def empty_arrays(size):
    described = [[f"{i:05}", "", [], "", 0] for i in range(size // 25)]
    return json.dumps(described, separators=(",", ":")).encode() + b"\n"


def opened(bomb):
    """What a coordinator makes of it."""
    message = _unpacked(bomb, LIMITS) if isinstance(bomb, Parcel) else reply(bomb)
    if message.has_error():
        raise Refused(message.error.reason)
    return unbundle(message.content)


def kilobytes(what):
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(status.split(f"{what}:")[1].split()[0])


def measure(name, size):
    """Tries to open it; returns seconds, MiB that it took meanwhile, and what was said."""
    bomb, said = BOMBS[name](size), "taken"
    Path("/proc/self/clear_refs").write_text("5")  # the peak is what it takes from now on
    before, start = kilobytes("VmRSS"), time.process_time()
    try:
        opened(bomb)
    except Refused as error:
        said = str(error)
    return time.process_time() - start, (kilobytes("VmHWM") - before) / 1024, said


@pytest.mark.processes
def test_few_bytes_do_not_become_many():
    # In a process of its own: protobuf's heap is not Python's.
    code = (
        "import json; from tests.wire.test_memory_budget import BOMBS, MIB, measure; "
        "print(json.dumps({name: measure(name, 4 * MIB) for name in BOMBS}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=source_root(), capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found.keys() == BOMBS.keys()
    for name, (seconds, mebibytes, said) in found.items():
        assert mebibytes < 100, (name, mebibytes)
        assert seconds < 5, (name, seconds)
        assert said != "taken", name
        assert len(said) < 500, name


def test_honest_messages_have_room():
    evaluated = RecordDict(
        {
            "clients": ConfigRecord({f"column {i}": [0.5] * 20_000 for i in range(7)}),
            "arrays": ArrayRecord({f"layer {i}": Array(np.zeros(4)) for i in range(2000)}),
        }
    )
    assert list(unbundle(bundle(evaluated))) == list(evaluated)
    again = _unpacked(pack(reply(evaluated)), Limits(MIB, 10**6, 60)).content
    assert list(again) == list(evaluated)


def test_an_array_of_zeros_is_sent_once_and_counts_in_full():
    zeros = reply(RecordDict({"a": ArrayRecord({"w": Array(np.zeros(3 * 2**20))})}))
    parcel = pack(zeros)  # of 24 MiB, of which 5 are sent several times
    assert parcel.size < 16 * MIB
    assert _unpacked(parcel, Limits(25 * MIB, 100, 60)).object_id == zeros.object_id
    assert "arrays must have" in _unpacked(parcel, Limits(20 * MIB, 100, 60)).error.reason


@given(st.data())
def test_damaged_parts_are_an_error_or_harmless(data):
    parcel = packed()
    objects = dict(parcel.objects)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(sorted(objects)))
        objects[name] = damage(data, objects[name])
    if data.draw(st.booleans()):
        del objects[data.draw(st.sampled_from(sorted(objects)))]
    message = _unpacked(parcel._replace(objects=objects), LIMITS)
    assert message.metadata.src_node_id == 7
    if message.has_content():
        with contextlib.suppress(Refused):
            unbundle(message.content)


@cache  # another message has another time in it
def packed():
    return pack(reply(content()))


def damage(data, whole):
    """Some bytes are others, or fewer, or more; or all are."""
    if data.draw(st.booleans()):
        return data.draw(st.binary(max_size=60))
    start = data.draw(st.integers(0, len(whole)))
    end = data.draw(st.integers(start, len(whole)))
    return whole[:start] + data.draw(st.binary(max_size=9)) + whole[end:]


@given(st.binary(max_size=80))
def test_any_bytes_are_counted_or_refused(data):
    with contextlib.suppress(Refused):
        MemoryBudget().take_protobuf(data, Proto.DESCRIPTOR)
    with contextlib.suppress(Refused):
        unbundle(all_of(data))
    with contextlib.suppress(Refused):
        unbundle(RecordDict({"a": ConfigRecord({"engram.arrays": data + b"\n"})}))


@given(st.data())
def test_what_protobuf_reads_is_counted(data):
    whole = proto(
        metric_record={"items": [{"key": "k", "value": {"double_list": {"vals": [1.0, 2.0]}}}]}
    )
    damaged = damage(data, whole)
    try:
        Proto.FromString(damaged)
    except ProtobufError:
        return
    with contextlib.suppress(Refused):  # of a kind that nobody uses any more
        MemoryBudget().take_protobuf(damaged, Proto.DESCRIPTOR)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)


@given(st.lists(JSON, max_size=3) | JSON)
def test_any_description_of_arrays_is_read_or_refused(described):
    data = json.dumps(described).encode() + b"\n" + bytes(20)
    with contextlib.suppress(Refused):
        unbundle(RecordDict({"a": ConfigRecord({"engram.arrays": data})}))


ENTRY = st.tuples(
    st.text(max_size=3),
    st.sampled_from(["float32", "int64", "", 3]),
    st.lists(st.integers(-1, 2**70), max_size=3),
    st.sampled_from(["numpy.ndarray", "", None]),
    st.integers(-1, 30),
)


@given(st.lists(ENTRY, max_size=4))
def test_arrays_have_no_more_bytes_than_came(described):
    data = json.dumps(described).encode() + b"\n" + bytes(20)
    with contextlib.suppress(Refused):
        found = unbundle(RecordDict({"a": ConfigRecord({"engram.arrays": data})}))
        assert sum(len(array.data) for array in found["a"].values()) <= 20


@given(st.data())
def test_a_damaged_parcel_is_refused_or_another_one(data):
    whole = b"".join(packed().to_parts())
    with contextlib.suppress(Refused):
        parcel = Parcel.from_bytes(damage(data, whole))
        assert all(type(part) is bytes for part in (parcel.header, parcel.tree))


@given(JSON)
def test_a_parcel_of_anything_is_refused(described):
    with pytest.raises(Refused, match="no message in parts"):
        Parcel.from_bytes(json.dumps(described).encode() + b"\n+")


def test_a_part_that_is_named_often_is_read_once_to_be_measured():
    reads = []

    class Counted(Spool):
        def __getitem__(self, name):
            reads.append(name)
            return super().__getitem__(name)

    parcel, objects = repeated(10**5), Counted()
    objects.update(parcel.objects)
    with pytest.raises(Refused, match="its arrays must have at most 1000 bytes, got"):
        unpack(parcel._replace(objects=objects), 1000)
    assert len(reads) == len(set(reads)) == len(objects)
