"""What Flower's messages carry. The only place where Flower's records and ours meet."""

from typing import Final

import torch
from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from engram.types import Params

__all__ = [
    "ARRAYS",
    "CLIENTS",
    "CONFIG",
    "DIVERGED",
    "METRICS",
    "ROSTER",
    "ROSTER_QUERY",
    "config_of",
    "to_params",
    "to_record",
]

ARRAYS: Final = "arrays"  # as Flower's own strategies call them
CONFIG: Final = "config"
METRICS: Final = "metrics"
CLIENTS: Final = "clients"  # per-client details of a reply, as lists in the order of its ids
ROSTER: Final = "roster"
ROSTER_QUERY: Final = "query.roster"
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
