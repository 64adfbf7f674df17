"""Screens the replies of a round. Nothing that a client sends is trusted."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from flwr.app import ArrayRecord, RecordDict

from engram.core.method import Slots, Update
from engram.core.rounds import received_by, sent_to
from engram.core.shapes import Shapes
from engram.core.slots import flat, over_slots, unflat
from engram.core.walkers import changes
from engram.metrics import Metric
from engram.models.base import VARIANCE
from engram.tree import is_finite, norm
from engram.types import Params
from federation.aggregation import Merge
from federation.columns import Column
from federation.errors import brief, few, one_line
from federation.trained import Trained
from federation.wire import ARRAYS, CLIENTS, METRICS, WAYS, read_array, read_int, read_list
from strategies.evaluation import Scored, read_scores
from strategies.reading import REASONS, Kind, Rejected

__all__ = ["Accepted", "implausible", "judged", "screen", "screen_scores"]

_LARGEST: Final = float(np.finfo(np.float32).max)  # of losses, which models compute in float32
_FAR: Final = 100  # norms of honest updates of one round differ by a smaller factor
_ROUNDING: Final = 1e-6  # of the least possible loss


class Accepted(NamedTuple):
    """A usable reply.

    Attributes:
        clients: The clients whose models it holds, ascending.
        updates: Their mean as one update; or one update per client, if the server needs each.
        losses: Their training losses, capped; empty if they were not asked for.
        failed: Clients of the same node that trained without a usable result, and the reasons,
            in one line each.
        way: The way in which they were trained, one of ``WAYS``; empty if it is not known.
    """

    clients: list[int]
    updates: list[Update]
    losses: list[float]
    failed: dict[int, str]
    way: str


def screen(
    content: RecordDict,
    *,
    server_round: int,
    shapes: Shapes,
    asked: Sequence[int],
    examples: Mapping[int, int],
    most: int,
    merge: Merge,
    loss: Metric | None,
) -> Accepted | Rejected:
    """Checks the content of a reply to a training message, for ``read_reply``.

    Each loss is capped at ``Metric.most``, since one client that claims 3e38 could otherwise decide
    the mean: for classes at 104 nats, the loss of a model that gives the right ones the least
    positive probability in float32. A larger loss is no reason to refuse a reply: a model about to
    diverge may have one.

    Args:
        content: The reply's content.
        server_round: The round that the reply must belong to.
        shapes: The slots that a client sends: the reply must have their names, shapes and dtypes.
        asked: The clients that the node was asked to train, ascending.
        examples: Their numbers of training rows in the roster, which the reply must have, since
            they are weights.
        most: Largest number of a client's rows that count; 1: clients count alike.
        merge: The merge, on which depends whether the reply holds a mean or each client's slots.
        loss: The task's loss, if the node was asked for training losses. The reply must then have
            each client's, and none otherwise.

    Raises:
        KeyError: If an entry is missing.
        TypeError, ValueError: If it is something else.
    """
    details = _read_details(content, losses=loss is not None)
    num_examples = content.metric_records[METRICS]["num-examples"]
    arrays = content.array_records[ARRAYS]
    ids = details.ids
    if details.server_round != server_round:
        return _rejected("round", f"it is of round {brief(details.server_round)}")
    if not ids or not _is_split(asked, ids, details.failed):
        named = f"{brief(ids)} answered, {brief(details.failed)} failed"
        return _rejected("clients", f"{few(asked)} were asked, {named}")
    rows = [examples[client] for client in ids]
    if not isinstance(num_examples, int) or num_examples != sum(rows):
        claim = f"{brief(num_examples)} examples are claimed, the roster has {sum(rows)}"
        return _rejected("size", claim)
    like, lead = flat(shapes.sent), None if merge.combines else len(ids)
    params = _read_params(arrays, like, lead)
    if isinstance(params, Rejected):
        return params
    failed = dict(zip(details.failed, details.reasons, strict=True))
    way = str(content.config_records[CLIENTS].get("way"))
    slots = unflat(params, shapes.sent)
    trained = Trained(ids, slots, rows, details.losses, failed, way if way in WAYS else "")
    return judged(trained, most=most, merge=merge, loss=loss)


def judged(
    trained: Trained, *, most: int, merge: Merge, loss: Metric | None
) -> Accepted | Rejected:
    """Checks the numbers of an outcome whose form is right; the arguments are those of ``screen``.

    Returns:
        The updates, or why they are left out.
    """
    if not trained.clients:
        return Rejected("diverged", one_line(trained.reason, longest=REASONS))
    params, losses = flat(trained.slots), trained.losses
    if not ((not params or is_finite(params)) and all(abs(each) <= _LARGEST for each in losses)):
        return _rejected("non-finite", "some parameters or losses are NaN or infinite")
    paths = {name: name.split("/") for name in params}
    running = {
        name
        for name, (slot, *rest) in paths.items()
        if rest and rest[-1] in merge.walker.running and merge.method.kinds[slot] == "model"
    }
    if any(params[name].min() < 0 for name in running if name.endswith(VARIANCE)):
        return _rejected("non-finite", "a running variance is below zero")
    low, most_loss = (loss.low, loss.most) if loss else (0.0, 0.0)
    if min(losses, default=low) < low - _ROUNDING:
        return _rejected("scores", f"losses must be {low:g} or more")
    weights = [float(min(count, most)) for count in trained.examples]
    if merge.combines:
        updates = [Update(trained.slots, sum(weights), len(weights))]
    else:
        updates = [
            Update(over_slots(lambda leaf, i=i: leaf[i], trained.slots), weight, 1, client)
            for i, (client, weight) in enumerate(zip(trained.clients, weights, strict=True))
        ]
    failed = {client: one_line(reason) for client, reason in trained.failures.items()}
    capped = [min(found, most_loss) for found in losses]
    return Accepted(trained.clients, updates, capped, failed, trained.way)


def implausible(
    accepted: list[tuple[list[int], Accepted]], merge: Merge, server: Slots
) -> tuple[list[tuple[list[int], Accepted]], list[tuple[list[int], Rejected]]]:
    """Rejects replies whose models lie much farther from the old one than most do.

    Finite numbers can be as harmful as infinite ones. Of two replies, and where most models have
    not moved, there is no usual distance: one is then rejected if it is farther than the other by
    that factor, and far beyond the old model's own size.
    """
    if len(accepted) < 2:
        return accepted, []
    method = merge.method
    received = {
        update.client: received_by(*sent_to(method, server, [update.client or 0]), 0)
        for _, reply in accepted
        for update in reply.updates
    }
    distances = [
        max(_length(changes(method, received[u.client], u.slots)) for u in reply.updates)
        for _, reply in accepted
    ]
    limit = _FAR * float(np.median(distances)) if len(accepted) > 2 else 0.0
    if limit == 0:
        limit = _FAR * max(min(distances), _FAR * max(1.0, _length(next(iter(received.values())))))
    near, far = [], []
    for (clients, reply), distance in zip(accepted, distances, strict=True):
        if distance > limit:
            reason = f"its model moved by {distance:.3g}, {_FAR} times what is usual, or more"
            far.append((clients, Rejected("size", reason)))
        else:
            near.append((clients, reply))
    return near, far


def screen_scores(
    content: RecordDict, *, server_round: int, asked: Sequence[int], columns: Sequence[Column]
) -> Scored | Rejected:
    """Checks the content of a reply to an evaluation, for ``read_reply``.

    Args:
        content: The reply's content.
        server_round: The round that the reply must belong to.
        asked: The clients that the node hosts, ascending: the reply must have each of them.
        columns: The columns that it must hold, beside ``queries``, the numbers of rows.

    Raises:
        KeyError: If an entry is missing.
        TypeError, ValueError: If it is something else.
    """
    record = content.config_records[CLIENTS]
    number, ids = read_int(record, "server-round"), read_list(record, "ids", int)
    scored = read_scores(record, ids, columns, "queries", least=1)
    if number != server_round:
        return _rejected("round", f"it is of round {brief(number)}")
    if ids != list(asked):
        return _rejected("clients", f"{few(asked)} were asked, {brief(ids)} answered")
    return scored


def _length(slots: Slots) -> float:
    arrays = flat(slots)
    return float(norm(arrays)) if arrays else 0.0


def _rejected(kind: Kind, reason: str) -> Rejected:
    return Rejected(kind, one_line(reason))


class _Details(NamedTuple):
    """A reply's entries about its clients; only the lengths of its lists are checked."""

    server_round: int
    ids: list[int]
    losses: list[float]
    failed: list[int]
    reasons: list[str]


def _read_details(content: RecordDict, *, losses: bool) -> _Details:
    record = content.config_records[CLIENTS]
    details = _Details(
        read_int(record, "server-round"),
        read_list(record, "ids", int),
        read_list(record, "losses", float),
        read_list(record, "failed", int),
        read_list(record, "reasons", str),
    )
    _check_lengths(details.ids if losses else [], details.losses)
    _check_lengths(details.failed, details.reasons)
    return details


def _check_lengths(*columns: Sequence[object]) -> None:
    lengths = [len(column) for column in columns]
    if len(set(lengths)) > 1:
        raise ValueError(f"lists of equal lengths are needed, got {lengths}")


def _is_split(asked: Sequence[int], ids: list[int], failed: list[int]) -> bool:
    """Whether each client that was asked is in one of the lists, and ``ids`` is ascending."""
    sizes = len(ids) + len(failed) == len(asked)
    return sizes and sorted(ids + failed) == list(asked) and ids == sorted(ids)


def _read_params(record: ArrayRecord, model: Params, stacked: int | None) -> Params | Rejected:
    if record.keys() != model.keys():
        odd = sorted(record.keys() ^ model.keys())
        return _rejected("names", f"arrays that are missing or too many: {brief(odd)}")
    lead = () if stacked is None else (stacked,)
    params = {}
    for name, leaf in model.items():
        try:
            params[name] = read_array(record[name], (*lead, *leaf.shape), leaf.dtype)
        except TypeError as error:
            return _rejected("malformed", f"{name}: {error}")
        except ValueError as error:
            return _rejected("shapes", f"{name}: {error}")
    return params
