"""The border to Flower: questions and replies as its messages, and back.

This is the one module that uses what Flower does not document: an attribute of its simulation's
grid; a message's id, which has no setter; and who a process is, without which ``Message(...)``
raises in processes that Flower did not start. tests/wire/test_messages.py lists all modules of
Flower that are imported.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from itertools import count
from typing import Any, Final, Literal

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.app import Error as MessageError
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy
from flwr.supercore.task_identity import TaskIdentity

from engram.core.types import Params
from engram.settings.errors import REFUSED, UNUSABLE, Refused, RunStopped, brief, one_line
from engram.wire.messages import Content, Entries, Error, NodeContext, Question, Reply
from engram.wire.wire import ARRAYS, METRICS

_SUPERLINK: Final = 1  # the sender of replies that no node has sent
_GONE: Final = (3, 5)  # codes of its errors: a message is no longer there, or its node
_INTERVAL: Final = "pull_interval"  # an attribute of the grid of Flower's simulation alone
_ORDERS: Final[Sequence[Literal["C", "F"]]] = ("C", "F")
_NUMPY: Final = "numpy.ndarray"  # Flower's name of numpy's format


def is_simulated(grid: object) -> bool:
    """Whether a grid's nodes are Ray's: all there from the beginning, with none joining later."""
    return hasattr(grid, _INTERVAL)


class FlowerGrid:
    """Nodes of Flower's grid, as ``PatientGrid`` asks them.

    Attributes:
        fixed: Whether all nodes are there from the beginning.
        run_id: The run's number.
        lost: Names of questions that Flower has deleted, or whose nodes have gone.
    """

    def __init__(self, grid: Grid) -> None:
        self._grid, self.fixed, self.run_id = grid, is_simulated(grid), grid.run.run_id
        self.lost: set[str] = set()

    def get_nodes(self) -> Iterable[Any]:
        """Returns the records of all online nodes."""
        return self._grid.get_nodes()

    def push(self, questions: Sequence[Question], *, seconds: float) -> None:
        """Sends and names questions, which are deleted after so many seconds."""
        shared = dict[int, ArrayRecord]()
        ttl = None if seconds == math.inf else max(seconds, 1.0)
        messages = [
            Message(to_flower(each.content, shared), each.node, each.kind, ttl=ttl)
            for each in questions
        ]
        for each, name in zip(questions, [*self._grid.push_messages(messages)], strict=True):
            self.lost.discard(each.name)
            each.name = name

    def pull(self, questions: Iterable[Question]) -> list[Reply]:
        """Returns the replies that have come, each once."""
        asked, found = {each.name: each for each in questions}, list[Reply]()
        for message in self._grid.pull_messages([*asked]) if asked else ():
            sender = message.metadata.src_node_id
            question = asked.get(message.metadata.reply_to_message_id)
            if question is None:
                continue
            # A node's own claim does not count: it could have the message resent for ever.
            if message.has_error() and sender == _SUPERLINK and message.error.code in _GONE:
                self.lost.add(question.name)
            elif sender == question.node or (message.has_error() and sender == _SUPERLINK):
                found.append(to_reply(question, message))
        return found


class HostGrid(Grid):
    """Flower's grid over an engine of this process, on which any Flower strategy runs.

    Flower's own strategies, which sample nodes, expect one client per node. The engine is an
    ``engram.server.engine.Engine``.
    """

    run: Any = None

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._names, self._replies = count(1), dict[str, Message]()
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, _SUPERLINK

    def set_run(self, run: Any) -> None:
        """Sets the run that the grid operates in."""
        self.run = run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, *more: Any, **others: Any
    ) -> Message:
        """Creates a message; ``Message(...)`` does the same."""
        del more, others  # a group and a time to live, which nothing here looks at
        return Message(content, dst_node_id, message_type)

    def get_node_ids(self) -> Iterable[int]:
        """Returns all nodes."""
        return list(self._engine.get_node_ids())

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Delivers messages and keeps the replies; returns the messages' ids."""
        asked, shared = dict[Question, Message](), dict[int, Entries]()
        for message in messages:
            message.metadata.__dict__["_message_id"] = name = str(next(self._names))
            to, content = message.metadata, from_flower(message.content, shared)
            asked[Question(to.dst_node_id, to.message_type, content, name)] = message
        for reply in self._engine.ask(asked, timeout=math.inf):
            self._replies[reply.question.name] = _message(reply, asked[reply.question])
        return [question.name for question in asked]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Returns the replies to these messages, once."""
        return [self._replies.pop(name) for name in message_ids if name in self._replies]

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Delivers messages and returns the replies. Nothing is waited for."""
        del timeout
        return self.pull_messages(self.push_messages(messages))

    def train(self, strategy: Strategy, server_round: int, model: Params) -> Params:
        """Trains one round, and returns the merged model.

        Raises:
            RunStopped: The strategy made none.
        """
        arrays = to_flower({ARRAYS: model}).array_records[ARRAYS]
        asked = strategy.configure_train(server_round, arrays, ConfigRecord(), self)
        merged, _ = strategy.aggregate_train(server_round, self.send_and_receive(asked))
        if merged is None:
            raise RunStopped(f"round {server_round}: the strategy made no model")
        return from_flower(RecordDict({ARRAYS: merged}))[ARRAYS]


def client_app(
    answer: Callable[[Question, NodeContext], Reply], queries: Iterable[str]
) -> ClientApp:
    """Returns a ClientApp that answers by a function, of some kinds of queries, too."""
    app = ClientApp()

    def answered(message: Message, context: Context) -> Message:
        node = NodeContext(context.run_id, context.node_config, context.run_config)
        try:
            content = from_flower(message.content)
        except Refused as error:
            return Message(MessageError(REFUSED, str(error)), reply_to=message)
        question = Question(context.node_id, message.metadata.message_type, content)
        return _message(answer(question, node), message)

    for register in (*(app.query(name) for name in queries), app.train(), app.evaluate()):
        register(answered)
    return app


def to_flower(content: Content, shared: dict[int, ArrayRecord] | None = None) -> RecordDict:
    """Returns content as Flower's records.

    ``shared`` has records by ``id(record)``, which calls fill: messages with the same tensors then
    share their bytes.
    """
    found, shared = RecordDict(), {} if shared is None else shared
    for name, record in content.items():
        if not any(isinstance(value, torch.Tensor) for value in record.values()):
            found[name] = MetricRecord(record) if name == METRICS else ConfigRecord(record)
            continue
        if id(record) not in shared:
            shared[id(record)] = to_record(record)
        found[name] = shared[id(record)]
    return found


def to_record(params: Params) -> ArrayRecord:
    """Returns tensors as Flower's record of arrays."""
    found = ArrayRecord()
    for name, tensor in params.items():
        found[name] = _array(tensor)
    return found


def from_flower(records: RecordDict, shared: dict[int, Entries] | None = None) -> Content:
    """Reads Flower's records from an untrusted sender; ``shared`` as in ``to_flower``.

    Raises:
        Refused: An array is not what it is declared to be.
    """
    shared = {} if shared is None else shared
    for record in records.values():
        if id(record) not in shared:
            shared[id(record)] = to_params(record)
    return {name: shared[id(record)] for name, record in records.items()}


def to_params(record: Mapping[str, Any]) -> Entries:
    """Reads one of Flower's records, like ``from_flower``."""
    return {n: _tensor(n, x) if isinstance(x, Array) else x for n, x in record.items()}


def _message(reply: Reply, message: Message) -> Message:
    told = MessageError(*reply.error) if reply.error else to_flower(reply.content)
    return Message(told, reply_to=message)


def to_reply(question: Question, message: Message) -> Reply:
    """Reads the reply to a question from an untrusted sender."""
    if message.has_error():
        return Reply(question, error=Error(message.error.code, message.error.reason or ""))
    try:
        return Reply(question, from_flower(message.content))
    except Refused as error:
        return Reply(question, error=Error(UNUSABLE, str(error)))


def _array(tensor: torch.Tensor) -> Array:
    array = np.ascontiguousarray(tensor.detach().cpu().numpy())
    shape = tuple(tensor.shape)
    data = b"".join((_header(shape, array.dtype), array.tobytes()))
    return Array(str(array.dtype), shape, _NUMPY, data)


def _tensor(name: str, array: Array) -> torch.Tensor:
    """Reads an array; its bytes must be numpy's for its declared shape and type.

    The header is compared rather than interpreted, and nothing of a claimed size is allocated.
    """
    try:
        shape, dtype, data = tuple(array.shape), np.dtype(array.dtype), array.data
        for order in _ORDERS:
            header = _header(shape, dtype, order)
            if array.stype == _NUMPY and data.startswith(header):
                if len(data) != len(header) + math.prod(shape) * dtype.itemsize:
                    raise ValueError(f"it has {len(data) - len(header)} bytes")
                flat = np.frombuffer(data, dtype, offset=len(header)).copy()
                return torch.from_numpy(flat.reshape(shape, order=order))
        found = f"{brief(array.stype)}, {data[:80]!r}"
        raise ValueError(f"no array of {dtype} of {shape} in numpy's format: {found}")
    except (TypeError, ValueError, OverflowError) as error:
        raise Refused(f"array {brief(name)} cannot be read: {one_line(str(error))}") from error


@lru_cache(maxsize=1024)  # it takes ten times as long as the numbers of small arrays
def _header(shape: tuple[int, ...], dtype: np.dtype[Any], order: str = "C") -> bytes:
    stream = BytesIO()
    described = {"descr": dtype.str, "fortran_order": order == "F", "shape": shape}
    np.lib.format.write_array_header_1_0(stream, described)
    return stream.getvalue()
