"""Records of messages as content of the link, and back, from senders that nobody trusts.

Each record of tensors of some size is content of its own, so that questions to several nodes share
it; the last content has the other records: numbers, texts and bytes as JSON in its metadata, and
long lists of numbers, bytes, and small tensors as tensors.
"""

import json
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from engram.link import content
from engram.link.questions import Content
from engram.settings.errors import Refused, brief, one_line
from engram.wire import messages
from engram.wire.messages import Entries

_SMALL: Final = 2**12  # bytes of arrays, from which on they are content of their own
_LONG: Final = 64  # numbers of a list, from which on it is a tensor
_MOST: Final = 2**21  # numbers of all such lists, each of which takes 40 bytes
_RECORDS: Final = "records"  # the key of the metadata
_VALUES, _ARRAYS, _APART = "config", "arrays", "content"  # kinds of records
_BYTES, _NUMBERS = "bytes", "numbers"  # of values that are tensors


def to_contents(
    records: messages.Content, shared: MutableMapping[int, Content] | None = None
) -> list[Content]:
    """Returns a message's content as that of a question.

    Args:
        records: The message's content.
        shared: Content of records by ``id(record)``, which calls fill, so that questions with the
            same record share its content.

    Raises:
        ValueError: It has a type of array that the format does not have.
    """
    shared = {} if shared is None else shared
    apart = list[Content]()

    def put_apart(record: Entries) -> int | None:
        if id(record) not in shared:
            arrays = _arrays(record)
            if sum(array.nbytes for array in arrays.values()) < _SMALL:
                return None
            shared[id(record)] = Content([*content.parts(arrays)])
        apart.append(shared[id(record)])
        return len(apart) - 1

    last = _last(records, put_apart)
    return [*apart, last]


def to_parts(records: messages.Content) -> Sequence[bytes | memoryview]:
    """Returns a message's content as that of a reply, for ``from_contents``.

    Raises:
        ValueError: As ``to_contents``.
    """
    return _last(records, lambda record: None).parts


def _last(records: messages.Content, put_apart: Callable[[Entries], int | None]) -> Content:
    rest, described = _Rest(), list[tuple[str, str, object]]()
    for name, record in records.items():
        if not any(isinstance(value, torch.Tensor) for value in record.values()):
            described.append((name, _VALUES, {k: rest.put(value) for k, value in record.items()}))
        elif (number := put_apart(record)) is not None:
            described.append((name, _APART, number))
        else:
            placed = {key: rest.add(array) for key, array in _arrays(record).items()}
            described.append((name, _ARRAYS, placed))
    metadata = {_RECORDS: json.dumps(described, separators=(",", ":"))}
    return Content([*content.parts(rest.tensors, metadata)])


def _arrays(record: Entries) -> content.Tensors:
    return {name: tensor.detach().cpu().numpy() for name, tensor in record.items()}


def from_contents(contents: Sequence[bytes | memoryview], limit: float) -> messages.Content:
    """Reads the result of ``to_contents`` or ``to_parts``, from an untrusted sender.

    Large arrays are views of the contents, which must not change.

    Raises:
        Refused: It has more than ``limit`` bytes, or is something else.
    """
    try:
        views = [memoryview(each) for each in contents]
        if (size := sum(map(len, views))) > limit:
            raise Refused(f"it must have at most {limit} bytes, got {size}")
        *apart, last = views
        tensors, metadata = content.read(last)
        rest, found, left = _Rest(tensors), messages.Content(), {**dict(enumerate(apart))}
        for name, kind, said in json.loads(metadata[_RECORDS]):
            if kind == _APART:
                found[name] = _tensors(content.read(left.pop(said))[0])
            elif kind == _ARRAYS:
                found[name] = _tensors({key: rest.pop(at) for key, at in said.items()})
            elif kind != _VALUES:
                raise ValueError(f"a record has values or arrays, got {brief(kind)}")
            else:
                found[name] = {key: rest.get(value) for key, value in said.items()}
    except Refused:
        raise
    except (TypeError, ValueError, KeyError, AttributeError, RecursionError) as error:
        raise Refused(f"it must be records as Engram sends them: {one_line(str(error))}") from error
    return found


class _Rest:
    """The tensors of the last content, of which each belongs to exactly one value."""

    def __init__(self, tensors: content.Tensors | None = None) -> None:
        self.tensors, self._numbers = {} if tensors is None else tensors, 0

    def add(self, array: Any) -> str:
        self.tensors[name := str(len(self.tensors))] = array
        return name

    def pop(self, name: str) -> Any:
        return self.tensors.pop(name)

    def put(self, value: Any) -> object:
        """Returns a value of a record as JSON, and adds it to the tensors if it is to be one."""
        if isinstance(value, bytes):
            return {_BYTES: self.add(np.frombuffer(value, np.uint8))}
        if not isinstance(value, list):
            return value
        kinds = {*map(type, value)}
        if kinds == {bytes}:
            return {_BYTES: [self.add(np.frombuffer(each, np.uint8)) for each in value]}
        if len(value) < _LONG or kinds not in ({int}, {float}):
            return value
        array = np.array(value)
        return {_NUMBERS: self.add(array)} if array.dtype in (np.int64, np.float64) else value

    def get(self, value: Any) -> Any:
        """Returns a value of a record, perhaps one of the tensors."""
        if not isinstance(value, Mapping):
            for each in value if isinstance(value, list) else [value]:
                if not isinstance(each, int | float | str) or _odd(each):
                    expected = "a record has numbers of 64 bits and texts"
                    raise ValueError(f"{expected}, got {brief(each)}")
            return value
        ((kind, name),) = value.items()
        if kind == _NUMBERS:
            numbers = self.pop(name)
            self._numbers += numbers.size
            if numbers.dtype not in (np.int64, np.float64) or self._numbers > _MOST:
                raise ValueError(f"lists must have at most {_MOST} numbers in all")
            return numbers.reshape(-1).tolist()
        if kind != _BYTES:
            raise ValueError(f"a value must be bytes or numbers, got {brief(kind)}")
        if isinstance(name, list):
            return [self.pop(each).tobytes() for each in name]
        return self.pop(name).tobytes()


def _odd(value: object) -> bool:
    return isinstance(value, int) and not -(2**63) <= value < 2**64


def _tensors(arrays: Mapping[str, Any]) -> Entries:
    return {name: _tensor(array) for name, array in arrays.items()}


def _tensor(array: Any) -> torch.Tensor:
    usable = array.flags.writeable and array.flags.aligned  # else torch warns, or cannot
    return torch.from_numpy(array if usable else array.copy())
