"""Conversion between Flower's records and our types."""

import math
from collections.abc import Mapping
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from engram.core.standardization import Standard, Tokenizer, Units
from engram.core.types import Params
from engram.settings.errors import EngramError, brief

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
ROSTER: Final = "roster"
SETTINGS: Final = "settings"  # config key of the roster query: digest of the server's settings
TRAINING: Final = "training"  # config key: the training whose memories to use
VERSION: Final = "version"  # config key: version of the slots, where messages are compressed
WITHHELD: Final = "withheld"  # key of a reply's clients: that their scores stay where they are
SECONDS: Final = "seconds"  # key of a reply's clients: how long the node trained
ROSTER_QUERY: Final = "query.roster"
SECURE_QUERY: Final = "query.secure"  # a stage of a secure round in which nobody trains
_NUMPY: Final = "numpy.ndarray"  # Flower's name of numpy's format
WAYS: Final = ("dense", "grouped", "vmap", "in-spans", "in-turn")
"""Ways in which a node trains its clients: by formulas, by grouped convolutions, by
``torch.func.vmap``, or one after the other, with or without formulas."""
DIVERGED: Final = 1001  # error code: the models of all of a node's clients became non-finite


class _Carried(Array):
    """An array that holds the tensor that it was made of; its bytes are written when they are read.

    In one process nobody reads them. Whoever sends, stores or copies the array does, and has one of
    Flower's own.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        dtype = str(tensor.dtype).removeprefix("torch.")
        vars(self).update(dtype=dtype, shape=tuple(tensor.shape), stype=_NUMPY, tensor=tensor)

    def __getattr__(self, name: str) -> bytes:
        """Returns the bytes, the first time that they are read."""
        if name != "data":
            raise AttributeError(name)
        found = vars(self)["data"] = _bytes(vars(self)["tensor"].numpy())
        return found

    def __setattr__(self, name: str, value: object) -> None:
        """Sets a value; the array is then its bytes alone."""
        if name in ("dtype", "shape", "stype", "data") and "tensor" in vars(self):
            vars(self)["data"] = self.data
            del vars(self)["tensor"]
        super().__setattr__(name, value)

    def __reduce__(self) -> tuple[type[Array], tuple[object, ...]]:
        return Array, (self.dtype, self.shape, self.stype, self.data)


_Carried.__qualname__ = Array.__qualname__  # by which Flower names the type of what it sends


def to_params(record: ArrayRecord) -> Params:
    """Returns the arrays as tensors in a plain dict, read-only by convention.

    ``to_torch_state_dict`` would give an OrderedDict, which is a different pytree from dict.
    """
    return {name: _tensor(array) for name, array in record.items()}


def to_record(params: Params) -> ArrayRecord:
    """Returns the parameters, detached and on the CPU; nobody changes them in place."""
    record = ArrayRecord()
    for name, leaf in params.items():  # ArrayRecord(dict) would check and copy each entry twice
        record[name] = _Carried(leaf.detach().cpu().contiguous())
    return record


def read_array(array: Array, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Reads an array from an untrusted sender.

    Its bytes must be exactly what numpy writes for such an array: the header is compared rather
    than interpreted, and nothing of a claimed size is allocated.

    Raises:
        ValueError: If it is declared to be of another shape or dtype.
        TypeError: If it is not what it is declared to be.
    """
    wanted = np.dtype(str(dtype).removeprefix("torch."))
    if (array.shape, array.dtype) != (shape, str(wanted)):
        declared = f"{brief(array.dtype)} of {brief(array.shape)}"
        raise ValueError(f"{declared} instead of {wanted} of {shape}")
    if (tensor := _tensor_in(array)) is not None:
        return tensor
    header, size = _header(shape, wanted), wanted.itemsize * math.prod(shape)
    data = array.data
    if array.stype != _NUMPY or data[: len(header)] != header:
        found = f"{brief(array.stype)}, {data[: len(header)]!r}"
        raise TypeError(f"no array of {wanted} of {shape} in numpy's format: {found}")
    if len(data) != len(header) + size:
        raise TypeError(f"{len(data) - len(header)} bytes instead of {size}")
    return _decode(data, len(header), shape, wanted)


def size_of(content: RecordDict) -> int:
    """Returns the bytes of a message's arrays and of the values in its other records."""
    # Flower's own views of its records, such as `content.array_records`, make a cycle of content
    # and view, which outlives both until Python looks for such: too long for large content.
    return sum(_size(value) for record in content.values() for value in record.values())


def _size(value: object) -> int:
    if isinstance(value, Array):
        return len(value.data) if (tensor := _tensor_in(value)) is None else tensor.nbytes
    if isinstance(value, list):
        return sum(map(_size, value))
    return len(value) if isinstance(value, str | bytes) else 8


def floats_record(**arrays: npt.NDArray[np.float64]) -> ArrayRecord:
    """Serializes arrays of float64 by name."""
    # Copies, since numpy's arrays are changed in place.
    return to_record({k: torch.from_numpy(np.array(a, order="C")) for k, a in arrays.items()})


def read_floats(record: ArrayRecord, name: str, shape: tuple[int, ...]) -> npt.NDArray[np.float64]:
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


def _bytes(array: npt.NDArray[Any]) -> bytes:
    # As `numpy.save` writes it, but with a cached header: for a model of 30,000 parameters, writing
    # and parsing headers costs ten times as much as the bytes.
    return b"".join((_header(array.shape, array.dtype), array.tobytes()))


def _tensor_in(array: Array) -> torch.Tensor | None:
    return vars(array).get("tensor") if isinstance(array, _Carried) else None


def _tensor(array: Array) -> torch.Tensor:
    if (tensor := _tensor_in(array)) is not None:
        return tensor
    dtype = np.dtype(array.dtype)
    header = _header(tuple(array.shape), dtype)
    data = array.data
    if array.stype == _NUMPY and data[: len(header)] == header:
        return _decode(data, len(header), tuple(array.shape), dtype)
    return torch.from_numpy(array.numpy())


def _decode(data: bytes, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
    return torch.from_numpy(np.frombuffer(data, dtype, offset=start).reshape(shape).copy())


@lru_cache(maxsize=1024)
def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    stream = BytesIO()
    described = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, described)
    return stream.getvalue()


def config_of(content: RecordDict) -> ConfigRecord:
    """Returns the message's config record, empty if it has none."""
    found = content.get(CONFIG)  # ``content.config_records`` copies them all
    return found if isinstance(found, ConfigRecord) else ConfigRecord()


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


def floats_of(record: ConfigRecord, key: str) -> tuple[float, ...]:
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


def units_of(content: RecordDict) -> Units:
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


def read_int(record: ConfigRecord, key: str) -> int:
    """Returns a whole number from a record that may hold anything, as ``read_list``."""
    values: object = [record[key]]
    if not _are(values, int):
        raise TypeError(f"{key} must be a whole number of 64 bits, got {brief(record[key])}")
    return values[0]


def read_float(record: ConfigRecord, key: str) -> float:
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
