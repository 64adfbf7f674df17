"""Bounds the memory that a message takes once parsed, counted from its bytes before parsing.

Two bytes can encode an empty record, which takes hundreds of bytes as an object and about ten
microseconds to create: four megabytes of them keep a reader busy for ten seconds.
"""

from functools import lru_cache
from typing import Any, Final, NamedTuple

from engram.settings.errors import Refused

_MOST: Final = 2**26  # bytes that a message's objects may take, besides texts, bytes and arrays
_RECORD, _VALUE, _NUMBER = 512, 96, 36  # bytes taken by a message, a field, a number in a list
_JSON: Final = 32  # most bytes of objects per byte of JSON
_VARINT, _EIGHT, _DELIMITED, _FOUR = 0, 1, 2, 5  # wire types of protobuf
_DOUBLE: Final = 1  # a field's type in protobuf
_TEXTS: Final = (9, 12)  # likewise: string and bytes
_CONTINUED: Final = bytes(range(128, 256))  # all bytes of a varint but its last one


class MemoryBudget:
    """The memory that the objects of one message may take; each call uses up some of it.

    Args:
        most: Bytes. Texts, bytes and arrays, which take no more than they send, do not count.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = self._left = most

    def take_json(self, text: bytes | memoryview) -> None:
        """Counts the objects that a JSON text can create.

        Raises:
            Refused: If the budget is exceeded.
        """
        self._take(_JSON * len(text))

    def take_protobuf(self, data: bytes | memoryview, kind: Any) -> None:
        """Counts the objects that a serialized message creates.

        Raises:
            Refused: If the budget is exceeded, or the message is truncated.
        """
        view, at = memoryview(data), 0
        while at < len(view):
            tag, at = _varint(view, at)
            field, wire = _fields(kind).get(tag >> 3), tag & 7
            if wire != _DELIMITED:
                self._take(_VALUE)
                at = _after(view, at, wire)
                continue
            size, at = _varint(view, at)
            part, at = view[at : at + size], at + size
            if field is not None and field.message is not None:
                self._take(_RECORD)
                self.take_protobuf(part, field.message)
            else:
                self._take(_VALUE + (0 if field is None else _NUMBER * field.count(part)))

    def _take(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise Refused(f"its records would take more than {self._most // 2**20} MiB")


class _Field(NamedTuple):
    message: Any
    kind: int

    def count(self, part: memoryview) -> int:
        """Returns how many numbers a packed list holds; 0 for a text."""
        if self.kind in _TEXTS:
            return 0
        if self.kind == _DOUBLE:
            return len(part) // 8
        return len(part.tobytes().translate(None, _CONTINUED))


@lru_cache(maxsize=64)
def _fields(kind: Any) -> dict[int, _Field]:
    return {field.number: _Field(field.message_type, field.type) for field in kind.fields}


def _after(view: memoryview, at: int, wire: int) -> int:
    """Returns where a field without a length prefix ends."""
    if wire == _VARINT:
        return _varint(view, at)[1]
    if wire == _EIGHT:
        return at + 8
    if wire == _FOUR:
        return at + 4
    raise Refused("a field must have a length, a number, or four or eight bytes")


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    """Reads a varint (seven bits a byte, lowest first); returns it and where it ends."""
    value = 0
    for place, byte in enumerate(view[at : at + 10]):
        value |= (byte & 127) << (7 * place)
        if byte < 128:
            return value, at + place + 1
    raise Refused("a number must end within ten bytes, and before the message does")
