"""All arrays of a message as one object, which is how they travel between machines.

Flower moves every array of a message, every chunk of it and every record by a call of its own, each
of them signed, checked and written to a database: with them bundled, a round of a small network
takes a third of the time.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from federation.errors import Refused

__all__ = ["bundle", "bundled_size", "is_bundled", "unbundle"]

_KEY: Final = "engram.arrays"


def bundle(content: RecordDict) -> RecordDict:
    """Returns the content with each array record written as one string of bytes."""
    bundled = RecordDict()
    for name, record in content.items():
        bundled[name] = _join(record) if isinstance(record, ArrayRecord) else record
    return bundled


def unbundle(content: RecordDict) -> RecordDict:
    """Returns what ``bundle`` was given.

    Raises:
        Refused: Some record is not what ``bundle`` writes. Nothing else is raised, and no more
            room is taken than the bytes have, whatever they claim to be.
    """
    found = RecordDict()
    for name, record in content.items():
        joined = isinstance(record, ConfigRecord) and _KEY in record
        found[name] = _split(record) if joined else record
    return found


def bundled_size(content: RecordDict) -> int:
    """Returns the bytes of what is bundled."""
    parts = (record.get(_KEY) for record in content.config_records.values())
    return sum(len(part) for part in parts if isinstance(part, bytes))


def is_bundled(content: RecordDict) -> bool:
    """Returns whether there is something to unbundle."""
    return any(_KEY in record for record in content.config_records.values())


def _join(record: ArrayRecord) -> ConfigRecord:
    arrays = list(record.values())
    described = [
        (name, array.dtype, list(array.shape), array.stype, len(array.data))
        for name, array in record.items()
    ]
    data = b"".join((json.dumps(described).encode(), b"\n", *(array.data for array in arrays)))
    return ConfigRecord({_KEY: data})


def _split(record: Mapping[str, Any]) -> ArrayRecord:
    data = record[_KEY]
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
