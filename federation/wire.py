"""What Flower's messages carry. The only place where Flower's records and ours meet."""

from typing import Final, TypeVar

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

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
    return ArrayRecord({name: leaf.detach().cpu() for name, leaf in params.items()})


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
