"""Conversion of states to named arrays and back, for ``np.savez`` without pickle.

States of learners and policies consist of tuples, named tuples, mappings, arrays, tensors, numbers,
frozen sets of integers, strings and None. Classes, lengths of tuples, and keys of mappings are
saved along with the numbers, so a saved state may be larger than an initial one.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import cache
from typing import Any, Final, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
import torch

from engram.bandits.versioned_tensor import Persistent
from engram.core.checks import require

Saved = npt.NDArray[Any]
S = TypeVar("S")

_STRUCTURE: Final = "(structure)"  # no field is called so
_FORMER: Final = {  # modules of classes in states that older versions saved
    "engram.bandits.user_stats": "engram.bandits.ridge",
    "engram.molar": "engram.tables",
    "engram.online.base_learners": "engram.online.learner",
    "engram.online.bases": "engram.online.learner",
    "engram.online.doubling_trick": "engram.online.server_step",
    "engram.online.epochs": "engram.online.server_step",
    "engram.online.metagrad": "engram.online.baselines",
    "engram.online.rows": "engram.online.compiled_updates",
    "engram.online.tasks": "engram.online.losses",
    "engram.online.usc": "engram.online.baselines",
}


def _integers(numbers: frozenset[int]) -> Saved:
    if not all(type(one) is int for one in numbers):
        raise TypeError("a set of other things than integers")
    return np.array(sorted(numbers), dtype=np.int64)


def _tensor(array: Saved) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def _text(array: Saved) -> str:
    return array.tobytes().decode("utf-8", "surrogatepass")


def _bytes(text: str) -> Saved:
    return np.array(bytearray(text.encode("utf-8", "surrogatepass")), dtype=np.uint8)


# By kind: the type of a value, its array, and the value of an array.
_LEAVES: Final[dict[str, tuple[type, Callable[[Any], Saved], Callable[[Saved], Any]]]] = {
    "array": (np.ndarray, np.array, np.array),
    "tensor": (torch.Tensor, lambda value: np.array(value.numpy(force=True)), _tensor),
    "persistent": (
        Persistent,
        lambda value: np.array(value.read().numpy(force=True)),
        lambda array: Persistent(_tensor(array)),
    ),
    "bool": (bool, np.array, lambda array: bool(array.item())),
    "int": (int, np.array, lambda array: int(array.item())),
    "float": (float, np.array, lambda array: float(array.item())),
    "scalar": (np.generic, np.array, lambda array: array[()]),
    "str": (str, _bytes, _text),
    "set": (frozenset, _integers, lambda array: frozenset(array.tolist())),
}
_KINDS: Final = {kind: name for name, (kind, *_) in _LEAVES.items()}


def to_arrays(state: object) -> dict[str, Saved]:
    """Returns a state as arrays by name; ``from_arrays`` is the inverse.

    Names are paths of field names and of positions in tuples and mappings.

    Raises:
        ValueError: If the state holds something else, such as a list or an object, or a key that is
            not an integer, a string or a frozen set of integers.
    """
    arrays: dict[str, Saved] = {}
    lines: list[str] = []
    for path, line, leaf in _nodes("", state):
        lines.append(line)
        if leaf is not None:
            arrays[path] = leaf
    return {**arrays, _STRUCTURE: _bytes("\n".join(lines))}


def from_arrays(like: S, arrays: Mapping[str, Saved]) -> S:
    """Restores a state bit for bit, with tensors on the CPU.

    Args:
        like: A state of the same learner, such as the initial one. Only its classes, and those
            named in their annotations, are instantiated.
        arrays: The result of ``to_arrays``, in any order.

    Raises:
        ValueError: If they are not a state of this learner.
    """
    require(_STRUCTURE in arrays, "a saved state's names", list(arrays), f"with {_STRUCTURE}")
    try:
        lines = _text(arrays[_STRUCTURE]).split("\n")
    except UnicodeDecodeError as error:
        raise ValueError("a saved state's structure must be text, got other bytes") from error
    reading = _Reading(iter(lines), arrays, dict(_classes(like)), {_STRUCTURE})
    state: S = _read(reading, "")
    left = sorted(set(arrays) - reading.used) + list(reading.lines)
    require(not left, "a saved state", left[:3], "all that its structure says, and no more")
    _compare(like, state, "")
    return state


# --- To arrays -------------------------------------------------------------------------------


def _nodes(path: str, value: Any) -> Iterator[tuple[str, str, Saved | None]]:
    """Yields all parts of a state, each before its own: path, line, and array if it is a leaf."""
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", range(len(value)))
        name = _name(type(value)) if hasattr(value, "_fields") else "tuple"
        yield path, f"{name} {len(value)}", None
        for field, part in zip(fields, value, strict=True):
            yield from _nodes(_joined(path, field), part)
    elif isinstance(value, Mapping):
        yield path, f"mapping {len(value)}", None
        for place, (key, part) in enumerate(value.items()):
            yield path, _key_line(path, key), None
            yield from _nodes(_joined(path, place), part)
    elif value is None:
        yield path, "none", None
    else:
        kind = "scalar" if isinstance(value, np.generic) else _KINDS.get(type(value))
        expected = "an array, a tensor, a number, a frozen set, a string, None, or made of these"
        require(kind is not None, f"a state's {path or 'root'}", type(value).__name__, expected)
        yield path, str(kind), _saved(str(kind), path, value)


def _saved(kind: str, path: str, value: Any) -> Saved:
    try:
        array = _LEAVES[kind][1](value)
    except TypeError as error:  # such as a tensor of a type that numpy has not
        raise ValueError(f"a state's {path} must be what an array can hold, got {error}") from error
    plain = not array.dtype.hasobject
    require(plain, f"a state's {path}", value, "plain numbers of at most 64 bits, or text")
    return array


def _joined(path: str, part: object) -> str:
    return f"{path}.{part}" if path else str(part)


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _key_line(path: str, key: Hashable) -> str:
    if type(key) is int:
        return f"int {key}"
    if type(key) is str:
        return f"str {key.encode('unicode_escape').decode('ascii')}"  # on one line
    if isinstance(key, frozenset) and all(type(one) is int for one in key):
        return " ".join(["set", *map(str, sorted(key))])
    expected = "an integer, a string or a frozen set of integers"
    raise ValueError(f"each key of a state's {path or 'root'} must be {expected}, got {key!r}")


# --- From arrays -----------------------------------------------------------------------------


class _Reading(NamedTuple):
    lines: Iterator[str]
    arrays: Mapping[str, Saved]
    classes: Mapping[str, Any]
    used: set[str]


def _read(reading: _Reading, path: str) -> Any:
    kind, _, count = _next_line(reading).partition(" ")
    if kind == "none":
        return None
    if kind in _LEAVES:
        require(path in reading.arrays, "a saved state's names", list(reading.used), f"with {path}")
        reading.used.add(path)
        return _LEAVES[kind][2](reading.arrays[path])
    if kind == "tuple":
        return tuple(_read(reading, _joined(path, place)) for place in range(int(count)))
    if kind == "mapping":
        return {_read_key(reading): _read(reading, _joined(path, k)) for k in range(int(count))}
    expected = "those of this learner's states"
    kind = _present_name(kind)
    require(kind in reading.classes, "a saved state's classes", kind, expected)
    named = reading.classes[kind]
    right = int(count) == len(named._fields)
    require(right, f"the fields of a saved {kind}", int(count), f"{len(named._fields)}")
    return named(*(_read(reading, _joined(path, field)) for field in named._fields))


def _present_name(kind: str) -> str:
    """Returns a class's name; older versions had some modules elsewhere."""
    moved = (old for old in _FORMER if kind.startswith(f"{old}."))
    return next((_FORMER[old] + kind.removeprefix(old) for old in moved), kind)


def _read_key(reading: _Reading) -> Hashable:
    kind, _, text = _next_line(reading).partition(" ")
    require(kind in ("int", "str", "set"), "a saved state's key", kind, "an int, a str or a set")
    if kind == "int":
        return int(text)
    if kind == "str":
        return text.encode("ascii").decode("unicode_escape")
    return frozenset(map(int, text.split()))


def _next_line(reading: _Reading) -> str:
    line = next(reading.lines, None)
    require(line is not None, "a saved state's structure", "its beginning", "all of it")
    return str(line)


def _classes(like: object) -> Iterator[tuple[str, Any]]:
    """Yields named tuples by name: those in a state, and all that annotations of these name."""
    waiting, seen = list(_types(like)), set()
    while waiting:
        kind = waiting.pop()
        if kind not in seen:
            seen.add(kind)
            waiting += _annotations(kind)
            yield _name(kind), kind


def _types(value: object) -> Iterator[type]:
    if isinstance(value, (tuple, Mapping)):
        if hasattr(value, "_fields"):
            yield type(value)
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _types(part)


@cache
def _annotations(kind: type) -> list[type]:
    """Returns the named tuples that a named tuple's fields are, or hold, by its annotations."""
    found, waiting = [], list(get_type_hints(kind).values())
    while waiting:
        hint = waiting.pop()
        waiting += get_args(hint)
        hint = get_origin(hint) or hint
        if isinstance(hint, type) and hasattr(hint, "_fields"):
            found.append(hint)
    return found


def _compare(like: Any, state: Any, path: str) -> None:
    """Raises ``ValueError`` where there are other kinds of things than in a learner's state."""
    if like is None or state is None:
        return
    where = f"a saved state's {path or 'root'}"
    mapping = isinstance(like, Mapping) and isinstance(state, Mapping)
    same = mapping or type(like) is type(state)
    require(same, where, type(state).__name__, f"a {type(like).__name__}")
    if isinstance(like, (np.ndarray, torch.Tensor)):
        require(like.dtype == state.dtype, f"{where}'s type", state.dtype, f"{like.dtype}")
    elif isinstance(like, tuple):
        fields = getattr(like, "_fields", range(len(like)))
        for field, one, other in zip(fields, like, state, strict=False):
            _compare(one, other, _joined(path, field))
    elif mapping:
        for key in like.keys() & state.keys():
            _compare(like[key], state[key], _joined(path, key))
