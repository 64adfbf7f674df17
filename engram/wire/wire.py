"""Records of messages: their names, and reading of values from senders that nobody trusts."""

import hashlib
import math
from collections.abc import Mapping
from typing import Any, Final, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from engram.core.standardization import Standard, Tokenizer, Units
from engram.core.types import Params
from engram.settings.errors import EngramError, brief
from engram.wire.messages import Content, Entries

_T = TypeVar("_T", int, float, str)

APPROVAL: Final = "approval"  # key of a roster entry: whether its site approves each run first
ARRAYS: Final = "arrays"  # the name in Flower's own strategies
OWN_DATA: Final = "own-data"  # likewise: whether it has its own data, not a share of the run's
COLUMNS: Final = "columns"  # config key of the roster query: the key that tables are sealed for
CONFIG: Final = "config"
OWN: Final = "own"  # slots of which each client receives its own: a leading axis of clients
METRICS: Final = "metrics"
HELD_OUT: Final = "held-out"  # key of a reply: whether no row of a score was trained on for it
MODEL: Final = "model"  # config key: description of a given model, which nodes are to score
NOISE: Final = "noise-multiplier"  # key of a reply's clients: that of the noise on their scores
CLIENTS: Final = "clients"  # per-client details of a reply, as lists in the order of its ids
RELEASE: Final = "release"  # likewise: whether models are exported with a release only
ROSTER: Final = "roster"
SETTINGS: Final = "settings"  # config key of the roster query: digest of the server's settings
TRAINING: Final = "training"  # config key: the training whose memories to use
VERSION: Final = "version"  # config key: version of the slots, where messages are compressed
WITHHELD: Final = "withheld"  # key of a reply's clients: that their scores stay where they are
SECONDS: Final = "seconds"  # key of a reply's clients: how long the node trained
ROSTER_QUERY: Final = "query.roster"
SECURE_QUERY: Final = "query.secure"  # a stage of a secure round in which nobody trains
WAYS: Final = ("dense", "grouped", "vmap", "in-spans", "in-turn")
"""Ways in which a node trains its clients: by formulas, by grouped convolutions, by
``torch.func.vmap``, or one after the other, with or without formulas."""
DIVERGED: Final = 1001  # error code: the models of all of a node's clients became non-finite


def arrays_of(content: Content, name: str) -> Params:
    """Returns a record's tensors, read-only by convention.

    Raises:
        KeyError: There is no such record.
        TypeError: It holds something else.
    """
    if odd := [key for key, value in content[name].items() if not isinstance(value, torch.Tensor)]:
        raise TypeError(f"record {name} must hold arrays alone, got others: {brief(odd)}")
    return content[name]


def read_array(array: object, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Checks an array from an untrusted sender, and returns it.

    Raises:
        ValueError: It has another shape or dtype.
        TypeError: It is none.
    """
    if not isinstance(array, torch.Tensor):
        raise TypeError(f"an array is needed, got {brief(array)}")
    if (tuple(array.shape), array.dtype) != (shape, dtype):
        found = f"{array.dtype} of {brief(tuple(array.shape))}"
        raise ValueError(f"{found} instead of {dtype} of {shape}".replace("torch.", ""))
    return array


def size_of(content: Content) -> int:
    """Returns the bytes of a message's arrays and of its other values."""
    return sum(_size(value) for record in content.values() for value in record.values())


def _size(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.nbytes
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, str | bytes) else 8


def digest(content: Content) -> str:
    """Returns SHA-256 of a message's content, hexadecimal."""
    hashed = hashlib.sha256()
    for place in sorted((name, key) for name, record in content.items() for key in record):
        value = content[place[0]][place[1]]
        if isinstance(value, torch.Tensor):
            hashed.update(repr((place, value.dtype, value.shape)).encode())
            hashed.update(value.contiguous().numpy().tobytes())
        else:
            hashed.update(repr((place, value)).encode())
    return hashed.hexdigest()


def floats_record(**arrays: npt.NDArray[np.float64]) -> Params:
    """Returns copies of arrays of float64 as tensors."""
    return {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}


def read_floats(record: Params, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Reads an array of float64 from an untrusted sender, like ``read_array``.

    Raises:
        KeyError: If it is missing.
        ValueError: If it has another shape or dtype; the message names it.
        TypeError: If it is not what it is declared to be.
    """
    try:
        array = read_array(record[name], shape, torch.float64)
        found: npt.NDArray[np.float64] = array.numpy().copy()
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from error
    return found


def config_of(content: Content) -> Entries:
    """Returns the message's config record, empty if it has none."""
    return content.get(CONFIG, {})


def read_list(record: Mapping[str, Any], key: str, kind: type[_T]) -> list[_T]:
    """Returns a list of whole numbers, numbers or texts from a record that may hold anything.

    Raises:
        KeyError: If there is no such entry.
        TypeError: If it is not a list of this kind.
    """
    values = record[key]
    if not _are(values, kind):
        raise TypeError(f"{key} must be a list of {kind.__name__}, got {brief(values)}")
    return values[:]


def floats_of(record: Entries, key: str) -> tuple[float, ...]:
    """Returns finite numbers from a record that may hold anything, as ``read_list``."""
    found = read_list(record, key, float)
    if not all(map(math.isfinite, found)):
        raise TypeError(f"{key} must be finite numbers, got {brief(found)}")
    return tuple(found)


def units_entries(units: Units) -> dict[str, Any]:
    """Returns the config entries of the units of a run's rows."""
    return {
        f"{name}-{what}": values
        for name, part in units.to_json().items()
        for what, values in part.items()
    }


def units_of(content: Content) -> Units:
    """Returns the units that a message's config says rows are in; none if it does not say.

    Raises:
        EngramError: They are something else.
    """
    config, ends = config_of(content), ("mean", "deviation")
    there = [name for name in ("inputs", "targets") if f"{name}-mean" in config]
    try:
        parts = {name: [floats_of(config, f"{name}-{end}") for end in ends] for name in there}
        standards = {name: Standard(*part) for name, part in parts.items()}
        units = Units(standards.get("inputs"), standards.get("targets"))
        if "text-by" not in config:
            return units
        text = {name: config[f"text-{name}"] for name in Tokenizer._fields}
        return units._replace(text=Tokenizer.from_json(text))
    except (KeyError, TypeError) as error:
        raise EngramError(f"units must be means and deviations, or a tokenizer: {error}") from error


def read_int(record: Entries, key: str) -> int:
    """Returns a whole number from a record that may hold anything, as ``read_list``."""
    values: object = [record[key]]
    if not _are(values, int):
        raise TypeError(f"{key} must be a whole number of 64 bits, got {brief(record[key])}")
    return values[0]


def read_float(record: Entries, key: str) -> float:
    """Returns a finite number from a record that may hold anything, as ``read_list``."""
    values: object = [record[key]]
    if not _are(values, float) or not math.isfinite(values[0]):
        raise TypeError(f"{key} must be a finite number, got {brief(record[key])}")
    return values[0]


def _are(values: object, kind: type[_T]) -> TypeGuard[list[_T]]:
    if not isinstance(values, list):
        return False
    types = set(map(type, values))
    if bool in types or not all(issubclass(each, kind) for each in types):  # an int in Python
        return False
    if kind is not int:
        return True
    # Flower also carries whole numbers up to 2^64, which no array of ours holds.
    return min(values, default=0) >= -(2**63) and max(values, default=0) < 2**63
