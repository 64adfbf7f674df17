"""Reading of the replies to a round of training. Nothing that a client sends is trusted."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from engram.core.method import Slots, Update
from engram.core.slots import flat, unflat
from engram.core.tree import select, stacked
from engram.core.types import Params
from engram.guards.chain import parted
from engram.scoring.metrics import Metric
from engram.settings.errors import brief, few
from engram.strategies.running.reply_border import Rejected, read_reply
from engram.strategies.running.rounds import Rounds
from engram.strategies.running.screening import Accepted, TrainReplies, judged
from engram.wire.messages import Content, Question, Reply
from engram.wire.training_result import Trained
from engram.wire.wire import ARRAYS, CLIENTS, METRICS, WAYS, read_array, read_int, read_list


def collect_replies(
    came: Mapping[Question, Reply],
    asked: Sequence[tuple[Question, list[int]]],
    examples: Sequence[int],
    read: Callable[..., Accepted | Rejected],
) -> TrainReplies:
    """Screens the replies to a round's questions, each by itself.

    ``read`` is ``screen``, but for its ``asked`` and ``examples``.
    """

    def verdict(question: Question, clients: list[int]) -> Accepted | Rejected | None:
        if (reply := came.get(question)) is None:
            return None
        rows = {client: examples[client] for client in clients}
        return read_reply(reply, partial(read, asked=clients, examples=rows))

    return TrainReplies.of((clients, verdict(question, clients)) for question, clients in asked)


def screen(
    content: Content,
    *,
    server_round: int,
    rounds: Rounds,
    asked: Sequence[int],
    examples: Mapping[int, int],
    most: int,
    loss: Metric | None,
    server: Slots,
) -> Accepted | Rejected:
    """Checks the content of a reply to a training message, for ``read_reply``.

    Each loss is capped at ``Metric.most``, since one client that claims 3e38 could otherwise decide
    the mean: for classes at 104 nats, the loss of a model that gives the right ones the least
    positive probability in float32. A larger loss is no reason to refuse a reply: a model about to
    diverge may have one.

    Args:
        content: The reply's content.
        server_round: The round that the reply must belong to.
        rounds: The slots that a client sends, whose names, shapes and dtypes the reply must have;
            and the merge, on which depends whether it holds a mean or each client's slots.
        asked: The clients that the node was asked to train, ascending.
        examples: Their numbers of rows in the roster, which the reply must have: they are weights.
        most: Largest number of a client's rows that count; 1: clients count alike.
        loss: The task's loss, if the node was asked for training losses. The reply must then have
            each client's, and none otherwise; under local privacy it may have none.
        server: The server's slots from which the clients started.

    Raises:
        KeyError: If an entry is missing.
        TypeError, ValueError: If it is something else.
    """
    record, merge, like = content[CLIENTS], rounds.merge, rounds.shapes.sent
    private = merge.quiet and not record.get("losses")
    details = read_clients(
        content,
        server_round=server_round,
        asked=asked,
        examples=examples,
        losses=loss is not None and not private,  # whose site may keep them
    )
    arrays = content[ARRAYS]
    if isinstance(details, Rejected):
        return details
    ids, losses, failed = details
    lead = None if merge.combines else len(ids)
    at = merge.at(server, server_round)._replace(like=like)
    form = merge.guard.form(at, like)
    params = _read_params(arrays, flat(form), lead)
    if isinstance(params, Rejected):
        return params
    rows = [examples[client] for client in ids]
    way = str(record.get("way"))
    slots = unflat(params, form)
    if merge.guard.encodes:
        updates = [Update(select(slots, i), 0, 1, client) for i, client in enumerate(ids)]
        found, refused = parted([merge.guard.arrive(at, update) for update in updates])
        if refused:
            return Rejected.of(refused[0].kind, refused[0].reason)
        slots = stacked([update.slots for update in found])
    trained = Trained(ids, slots, rows, losses, failed, way if way in WAYS else "")
    return judged(trained, merge, most=most, loss=loss)


def read_clients(
    content: Content,
    *,
    server_round: int,
    asked: Sequence[int],
    examples: Mapping[int, int],
    losses: bool,
) -> tuple[list[int], list[float], dict[int, str]] | Rejected:
    """Reads a reply's entries about its clients; the arguments are those of ``screen``.

    ``losses`` says whether there must be the clients' training losses.

    Returns:
        The clients that trained, their losses, and by client why others failed.
    """
    record = content[CLIENTS]
    number = read_int(record, "server-round")
    ids, told = read_list(record, "ids", int), read_list(record, "losses", float)
    failed, reasons = read_list(record, "failed", int), read_list(record, "reasons", str)
    for some, values in ((ids if losses else [], told), (failed, reasons)):
        if len(some) != len(values):
            lengths = f"{len(some)} and {len(values)}"
            raise ValueError(f"lists of equal lengths are needed, got {lengths}")
    num_examples = content[METRICS]["num-examples"]
    if number != server_round:
        return Rejected.of("round", f"it is of round {brief(number)}")
    whole = len(ids) + len(failed) == len(asked) and sorted(ids + failed) == list(asked)
    if not ids or not whole or ids != sorted(ids):
        named = f"{brief(ids)} answered, {brief(failed)} failed"
        return Rejected.of("clients", f"{few(asked)} were asked, {named}")
    rows = sum(examples[client] for client in ids)
    if not isinstance(num_examples, int) or num_examples != rows:
        claim = f"{brief(num_examples)} examples are claimed, the roster has {rows}"
        return Rejected.of("size", claim)
    return ids, told, dict(zip(failed, reasons, strict=True))


def _read_params(record: Params, model: Params, stacked: int | None) -> Params | Rejected:
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
