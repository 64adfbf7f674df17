"""Reading of the replies to a round of training. Nothing that a client sends is trusted."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from flwr.app import ArrayRecord, Message, RecordDict

from engram.core.method_shapes import Shapes
from engram.core.slots import flat, unflat
from engram.core.types import Params
from engram.guards.aggregation import Merge
from engram.scoring.metrics import Metric
from engram.settings.errors import brief, few
from engram.strategies.reply_border import Rejected, first_answers, read_reply
from engram.strategies.screening import Accepted, TrainReplies, judged
from engram.wire.roster import Roster
from engram.wire.training_result import Trained
from engram.wire.wire import ARRAYS, CLIENTS, METRICS, WAYS, read_array, read_int, read_list

if TYPE_CHECKING:
    from engram.guards.compressed_messages import Coded


def collect_replies(
    replies: Iterable[Message],
    asked: Sequence[tuple[Message, list[int]]],
    *,
    server_round: int,
    shapes: Shapes,
    roster: Roster,
    most: int,
    merge: Merge,
    loss: Metric | None,
    coded: "Coded | None" = None,
) -> TrainReplies:
    """Screens the replies to a round's messages, each by itself.

    Args:
        replies: All replies that arrived.
        asked: The messages, and the clients that each asks.
        server_round: The round.
        shapes: The slots of one client.
        roster: The clients.
        most: Largest number of a client's rows that count.
        merge: The merge of their updates.
        loss: The task's loss, if clients were asked for their training losses.
        coded: Reads replies in bytes; None if they have the slots themselves.
    """
    answers, others = first_answers(replies, [message for message, _ in asked])
    accepted, rejected, silent = [], [], []
    for message, clients in sorted(asked, key=lambda item: item[1]):
        reply = answers.get(message.metadata.message_id)
        if reply is None:
            silent.append(clients)
            continue
        read = partial(
            screen,
            server_round=server_round,
            shapes=shapes,
            asked=clients,
            examples={client: roster.examples[client] for client in clients},
            most=most,
            merge=merge,
            loss=loss,
            coded=coded,
        )
        verdict = read_reply(reply, read)
        if isinstance(verdict, Accepted):
            accepted.append((clients, verdict))
        else:
            rejected.append((clients, verdict))
    return TrainReplies(accepted, rejected, silent, others)


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
    coded: "Coded | None" = None,
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
            each client's, and none otherwise; under local privacy it may have none.
        coded: As for ``collect_replies``.

    Raises:
        KeyError: If an entry is missing.
        TypeError, ValueError: If it is something else.
    """
    details = read_clients(
        content,
        server_round=server_round,
        asked=asked,
        examples=examples,
        losses=loss is not None and not _keeps_losses(content, merge),
    )
    arrays = content.array_records[ARRAYS]
    if isinstance(details, Rejected):
        return details
    ids = details.ids
    like = coded.like if coded else flat(shapes.sent)
    lead = None if merge.combines else len(ids)
    params = _read_params(arrays, like, lead)
    if isinstance(params, Rejected):
        return params
    if coded:
        params = coded.read(params)
    rows = [examples[client] for client in ids]
    way = str(content.config_records[CLIENTS].get("way"))
    slots = unflat(params, shapes.sent)
    trained = Trained(ids, slots, rows, details.losses, details.why, way if way in WAYS else "")
    return judged(trained, most=most, merge=merge, loss=loss)


class Details(NamedTuple):
    """A reply's entries about its clients; only the lengths of its lists are checked."""

    server_round: int
    ids: list[int]
    losses: list[float]
    failed: list[int]
    reasons: list[str]

    @property
    def why(self) -> dict[int, str]:
        """The reasons of clients that failed."""
        return dict(zip(self.failed, self.reasons, strict=True))


def _keeps_losses(content: RecordDict, merge: Merge) -> bool:
    """Returns whether a node keeps its losses to itself, as a site does whose noise is its own."""
    private = merge.settings.privacy in ("local", "example")
    return private and not content.config_records[CLIENTS].get("losses")


def read_clients(
    content: RecordDict,
    *,
    server_round: int,
    asked: Sequence[int],
    examples: Mapping[int, int],
    losses: bool,
) -> Details | Rejected:
    """Reads which clients have trained, and checks that with what is known of them.

    Args:
        content: As for ``screen``, like all others.
        server_round: The round.
        asked: The clients.
        examples: Their numbers of training rows.
        losses: Whether there must be their training losses.

    Raises:
        KeyError: If an entry is missing.
        TypeError, ValueError: If it is something else.
    """
    details = _read_details(content, losses=losses)
    num_examples, ids = content.metric_records[METRICS]["num-examples"], details.ids
    if details.server_round != server_round:
        return Rejected.of("round", f"it is of round {brief(details.server_round)}")
    if not ids or not _is_split(asked, ids, details.failed):
        named = f"{brief(ids)} answered, {brief(details.failed)} failed"
        return Rejected.of("clients", f"{few(asked)} were asked, {named}")
    rows = sum(examples[client] for client in ids)
    if not isinstance(num_examples, int) or num_examples != rows:
        claim = f"{brief(num_examples)} examples are claimed, the roster has {rows}"
        return Rejected.of("size", claim)
    return details


def _read_details(content: RecordDict, *, losses: bool) -> Details:
    record = content.config_records[CLIENTS]
    details = Details(
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
        return Rejected.of("names", f"arrays that are missing or too many: {brief(odd)}")
    lead = () if stacked is None else (stacked,)
    params = {}
    for name, leaf in model.items():
        try:
            params[name] = read_array(record[name], (*lead, *leaf.shape), leaf.dtype)
        except TypeError as error:
            return Rejected.of("malformed", f"{name}: {error}")
        except ValueError as error:
            return Rejected.of("shapes", f"{name}: {error}")
    return params
