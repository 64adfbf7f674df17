"""A message's records as one object, which is how they travel between machines.

Flower moves every array of a message, every chunk of it and every record by a call of its own, each
of them signed, checked and written to a database, which takes a SuperLink some five milliseconds:
with them bundled, a round of a small network takes a third of the time.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from federation.errors import Refused
from federation.flower import recorddict_from_bytes, recorddict_to_bytes

__all__ = ["bundle", "bundled_size", "is_bundled", "unbundle"]

_ALL: Final = "engram.all"
_ARRAYS: Final = "engram.arrays"
_SMALL: Final = 2**20  # bytes; what is larger stays apart from the rest, so that messages share it
_LARGE: Final = 2**28  # bytes; what is larger goes in Flower's chunks: databases have their limits


def bundle(content: RecordDict, joined: dict[int, ConfigRecord] | None = None) -> RecordDict:
    """Returns the content as one string of bytes; or with one for each array record, if large.

    A SuperLink keeps equal objects once, so a large model goes to it once for all nodes. What is
    bundled stays as it is.

    Args:
        content: A message's.
        joined: What was made of large records, by their identity: messages that share a record
            share it afterwards, too. Filled by calls.
    """
    joined = {} if joined is None else joined
    if is_bundled(content):
        return content
    sizes = {name: _size(record) for name, record in content.array_records.items()}
    if sum(sizes.values()) <= _SMALL:
        return RecordDict({_ALL: ConfigRecord({_ALL: recorddict_to_bytes(content)})})
    bundled = RecordDict()
    for name, record in content.items():
        if isinstance(record, ArrayRecord) and sizes[name] <= _LARGE:
            if id(record) not in joined:
                joined[id(record)] = _join(record)
            bundled[name] = joined[id(record)]
        else:
            bundled[name] = record
    return bundled


def unbundle(content: RecordDict) -> RecordDict:
    """Returns what ``bundle`` was given; what is not bundled, as it is.

    Raises:
        Refused: Some record is not what ``bundle`` writes. Nothing else is raised, and no more
            room is taken than the bytes have, whatever they claim to be.
    """
    if _ALL in content.config_records:
        return _read_all(content.config_records[_ALL].get(_ALL))
    found = RecordDict()
    for name, record in content.items():
        joined = isinstance(record, ConfigRecord) and _ARRAYS in record
        found[name] = _split(record) if joined else record
    return found


def bundled_size(content: RecordDict) -> int:
    """Returns the bytes of what is bundled, and of arrays that are not."""
    records = content.config_records.values()
    parts = (record.get(key) for record in records for key in (_ALL, _ARRAYS))
    joined = sum(len(part) for part in parts if isinstance(part, bytes))
    return joined + sum(map(_size, content.array_records.values()))


def is_bundled(content: RecordDict) -> bool:
    """Returns whether there is something to unbundle."""
    return any(_ALL in record or _ARRAYS in record for record in content.config_records.values())


def _read_all(data: object) -> RecordDict:
    if not isinstance(data, bytes):
        raise Refused(f"a bundle must be bytes, got {type(data).__name__}")
    try:
        return recorddict_from_bytes(data)
    except Exception as error:  # Flower reads what a stranger wrote, and raises what it meets
        raise Refused(f"no bundle of records: {error!r}") from error


def _size(record: ArrayRecord) -> int:
    return sum(len(array.data) for array in record.values())


def _join(record: ArrayRecord) -> ConfigRecord:
    arrays = list(record.values())
    described = [
        (name, array.dtype, list(array.shape), array.stype, len(array.data))
        for name, array in record.items()
    ]
    data = b"".join((json.dumps(described).encode(), b"\n", *(array.data for array in arrays)))
    return ConfigRecord({_ARRAYS: data})


def _split(record: Mapping[str, Any]) -> ArrayRecord:
    data = record[_ARRAYS]
    if not isinstance(data, bytes):
        raise Refused(f"bundled arrays must be bytes, got {type(data).__name__}")
    try:
        line, _, rest = data.partition(b"\n")
        found, start = ArrayRecord(), 0
        for name, dtype, shape, stype, size in json.loads(line):
            sizes = [size, *shape]
            if not all(type(n) is int and n >= 0 for n in sizes) or start + size > len(rest):
                raise ValueError(f"{name!r} cannot have shape {shape} and {size} bytes")
            part = rest[start : start + size]
            found[name] = Array(dtype=dtype, shape=tuple(shape), stype=stype, data=part)
            start += size
    except (TypeError, ValueError, RecursionError) as error:
        raise Refused(f"no bundle of arrays: {error}") from error
    return found
