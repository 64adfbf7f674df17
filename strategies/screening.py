"""Which replies of a training round may touch the model. Nothing a client sends is trusted."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, RecordDict

from engram.aggregates import Aggregate, Update
from engram.tree import is_finite
from engram.types import Params
from federation.wire import ARRAYS, CLIENTS, DIVERGED, METRICS, read_array, read_list

__all__ = ["Accepted", "Rejected", "screen"]


class Accepted(NamedTuple):
    """A usable reply.

    Attributes:
        clients: Who stands behind it, ascending.
        updates: Their mean, one update; or one a client where the aggregate is not additive.
        losses: Their training losses.
        failed: Clients of the same node that trained without a usable result, and why.
    """

    clients: list[int]
    updates: list[Update]
    losses: list[float]
    failed: dict[int, str]


class Rejected(NamedTuple):
    """A reply that is left out.

    Attributes:
        kind: ``error``, ``diverged``, ``malformed``, ``clients``, ``size``, ``names``,
            ``shapes`` or ``non-finite``.
        reason: One line for the log.
    """

    kind: str
    reason: str


def screen(  # noqa: PLR0911 - one return for each reason to refuse
    reply: Message,
    *,
    model: Params,
    asked: Sequence[int],
    examples: Mapping[int, int],
    aggregate: Aggregate,
) -> Accepted | Rejected:
    """Checks a reply against what was asked.

    Args:
        reply: What came back.
        model: The model that was sent out: the reply must have its names, shapes and dtypes.
        asked: The clients that the node was asked to train.
        examples: Training rows of each of them, as the roster has it: a reply that claims
            another number would weigh more than it is worth.
        aggregate: Says whether the reply holds a mean or each client's model, and what counts
            as weight.
    """
    if reply.has_error():
        kind = "diverged" if reply.error.code == DIVERGED else "error"
        return Rejected(kind, reply.error.reason or "no reason given")
    try:
        ids, losses, failed = _read_clients(reply.content)
        num_examples = reply.content.metric_records[METRICS]["num-examples"]
        arrays = reply.content.array_records[ARRAYS]
    except (KeyError, TypeError, ValueError) as error:
        return Rejected("malformed", f"the reply lacks what it should hold: {error!r}")
    weights = [examples[client] for client in ids if client in asked]
    named = [*ids, *failed]
    if not ids or len(set(named)) < len(named) or not set(named) <= set(asked):
        return Rejected("clients", f"clients {list(asked)} were asked, {named} answered")
    if num_examples != sum(weights):
        claim = f"{num_examples} examples are claimed, the roster has {sum(weights)}"
        return Rejected("size", claim)
    params = _read_params(arrays, model, None if aggregate.additive else len(ids))
    if isinstance(params, Rejected):
        return params
    if not (is_finite(params) and np.isfinite(losses).all()):
        return Rejected("non-finite", "some parameters or losses are NaN or infinite")
    if aggregate.weighting == "clients":
        weights = [1] * len(ids)
    if aggregate.additive:
        updates = [Update(params, float(sum(weights)))]
    else:
        updates = [
            Update({name: leaf[i] for name, leaf in params.items()}, float(weight))
            for i, weight in enumerate(weights)
        ]
    return Accepted(ids, updates, losses, failed)


def _read_clients(content: RecordDict) -> tuple[list[int], list[float], dict[int, str]]:
    record: ConfigRecord = content.config_records[CLIENTS]
    ids, losses = read_list(record, "ids", int), read_list(record, "losses", float)
    failed = dict(
        zip(read_list(record, "failed", int), read_list(record, "reasons", str), strict=True)
    )
    if len(losses) != len(ids):
        raise ValueError(f"{len(losses)} losses for {len(ids)} clients")
    return ids, losses, failed


def _read_params(record: ArrayRecord, model: Params, stacked: int | None) -> Params | Rejected:
    if record.keys() != model.keys():
        return Rejected("names", f"{list(record)} instead of {list(model)}")
    lead = () if stacked is None else (stacked,)
    params = {}
    for name, leaf in model.items():
        array, shape = record[name], (*lead, *leaf.shape)
        if array.shape != shape:
            return Rejected("shapes", f"{name}: {array.shape} instead of {shape}")
        try:
            params[name] = read_array(array, shape, leaf.dtype)
        except TypeError as error:
            return Rejected("malformed", f"{name}: {error}")
        except ValueError as error:
            return Rejected("shapes", f"{name}: {error}")
    return params
