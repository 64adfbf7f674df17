"""What Flower's messages carry. The only place where Flower's records and ours meet."""

import math
from io import BytesIO
from typing import Final, TypeVar

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
ROSTER_QUERY: Final = "query.roster"
REFUSED: Final = 1002  # error code of a node that cannot do what it is asked, and says why
DIVERGED: Final = 1001  # error code of a node all of whose clients' models became non-finite


def to_params(record: ArrayRecord) -> Params:
    """Returns the arrays as tensors of their own, in a plain dict.

    ``to_torch_state_dict`` would give an OrderedDict, which is another pytree than dict.
    """
    return {name: torch.from_numpy(array.numpy()) for name, array in record.items()}


def to_record(params: Params) -> ArrayRecord:
    """Returns the parameters, detached and on the CPU."""
    return ArrayRecord({name: leaf.detach().cpu().contiguous() for name, leaf in params.items()})


def read_array(array: Array, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Reads an array that somebody else sent, and that may hold anything.

    What its bytes claim to be is checked before room is made for it.

    Raises:
        TypeError: It is no array.
        ValueError: It is one of another shape, order or dtype.
    """
    stream = BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        header = np.lib.format.read_array_header_1_0(stream) if version == (1, 0) else None
    except Exception as error:  # numpy parses the header as Python, and raises whatever it meets
        raise TypeError(f"no array: {error!r}") from error
    if header is None or array.stype != "numpy.ndarray":
        raise TypeError(f"{array.stype} {version} instead of numpy's format")
    wanted = (shape, False, np.dtype(str(dtype).removeprefix("torch.")))
    data = array.data[stream.tell() :]
    if header != wanted or len(data) != wanted[2].itemsize * math.prod(shape):
        raise ValueError(f"{header} with {len(data)} bytes instead of {wanted}")
    # A copy, since what is read from bytes cannot be written to.
    return torch.from_numpy(np.frombuffer(data, wanted[2]).reshape(shape).copy())


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
