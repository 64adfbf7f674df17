"""What Flower's messages carry. The only place where Flower's records and ours meet."""

import math
from functools import lru_cache
from io import BytesIO
from typing import Any, Final, TypeVar

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from engram.types import Params

__all__ = [
    "ARRAYS",
    "CLIENTS",
    "CONFIG",
    "DIVERGED",
    "METRICS",
    "REFUSED",
    "ROSTER",
    "ROSTER_QUERY",
    "TRAINING",
    "config_of",
    "read_array",
    "read_list",
    "to_params",
    "to_record",
]

_T = TypeVar("_T", int, float, str)

ARRAYS: Final = "arrays"  # as Flower's own strategies call them
CONFIG: Final = "config"
METRICS: Final = "metrics"
CLIENTS: Final = "clients"  # per-client details of a reply, as lists in the order of its ids
ROSTER: Final = "roster"
TRAINING: Final = "training"  # config key: which memories a message is about
ROSTER_QUERY: Final = "query.roster"
REFUSED: Final = 1002  # error code of a node that cannot do what it is asked, and says why
_NUMPY: Final = "numpy.ndarray"  # how Flower calls numpy's format
DIVERGED: Final = 1001  # error code of a node all of whose clients' models became non-finite


def to_params(record: ArrayRecord) -> Params:
    """Returns the arrays as tensors of their own, in a plain dict.

    ``to_torch_state_dict`` would give an OrderedDict, which is another pytree than dict.
    """
    return {name: _tensor(array) for name, array in record.items()}


def to_record(params: Params) -> ArrayRecord:
    """Returns the parameters, detached and on the CPU."""
    record = ArrayRecord()
    for name, leaf in params.items():  # given a dict, it would check and copy every entry twice
        record[name] = _array(leaf)
    return record


def read_array(array: Array, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Reads an array that somebody else sent, and that may hold anything.

    What its bytes claim to be is checked before room is made for it.

    Raises:
        TypeError: It is no array.
        ValueError: It is one of another shape, order or dtype.
    """
    wanted = (shape, False, np.dtype(str(dtype).removeprefix("torch.")))
    usual = _header(shape, wanted[2])
    if array.stype == _NUMPY and array.data.startswith(usual):
        header, start = wanted, len(usual)
    else:
        stream = BytesIO(array.data)
        try:
            version = np.lib.format.read_magic(stream)
            found = np.lib.format.read_array_header_1_0(stream) if version == (1, 0) else None
        except Exception as error:  # numpy parses the header as Python, and raises what it meets
            raise TypeError(f"no array: {error!r}") from error
        if found is None or array.stype != _NUMPY:
            raise TypeError(f"{array.stype} {version} instead of numpy's format")
        header, start = found, stream.tell()
    size = len(array.data) - start
    if header != wanted or size != wanted[2].itemsize * math.prod(shape):
        raise ValueError(f"{header} with {size} bytes instead of {wanted}")
    return _decode(array.data, start, shape, wanted[2])


def _array(leaf: torch.Tensor) -> Array:
    # As `Array(leaf)` does, without numpy's writing and parsing of the same header each time:
    # for a model of 30,000 parameters that costs ten times what its bytes cost.
    array = leaf.detach().cpu().contiguous().numpy()
    header = _header(array.shape, array.dtype)
    data = b"".join((header, array.tobytes()))
    return Array(dtype=str(array.dtype), shape=array.shape, stype=_NUMPY, data=data)


def _tensor(array: Array) -> torch.Tensor:
    dtype = np.dtype(array.dtype)
    header = _header(tuple(array.shape), dtype)
    if array.stype == _NUMPY and array.data.startswith(header):
        return _decode(array.data, len(header), tuple(array.shape), dtype)
    return torch.from_numpy(array.numpy())


def _decode(data: bytes, start: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> torch.Tensor:
    # A copy, since what is read from bytes cannot be written to.
    return torch.from_numpy(np.frombuffer(data, dtype, offset=start).reshape(shape).copy())


@lru_cache(maxsize=1024)
def _header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Returns what numpy's format writes before an array's bytes."""
    stream = BytesIO()
    described = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, described)
    return stream.getvalue()


def config_of(content: RecordDict) -> ConfigRecord:
    """Returns the message's config record, empty if it has none."""
    records = content.config_records
    return records[CONFIG] if CONFIG in records else ConfigRecord()


def read_list(record: ConfigRecord, key: str, kind: type[_T]) -> list[_T]:
    """Returns a list of whole numbers, numbers or texts from a record that may hold anything.

    Raises:
        KeyError: There is no such entry.
        TypeError: It is something else.
    """
    values = record[key]
    items = (
        [value for value in values if isinstance(value, kind)] if isinstance(values, list) else []
    )
    if not isinstance(values, list) or len(items) < len(values):
        raise TypeError(f"{key} must be a list of {kind.__name__}, got {values!r}")
    return items
