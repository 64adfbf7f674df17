"""Every name of Flower that is not public API, and all that differs between its releases.

Written for flwr 1.39.0 and 1.42.0. For a later release, check that each import still exists, and
that

- ``Message`` still takes its sender from ``TaskIdentity``, and ``Metadata`` still keeps its id in
  ``_message_id``;
- a message's parts are still protobuf, JSON or bytes, depending on their kind, as ``_check_room``
  assumes, and ``HttpGrid`` still uses httpx, whose hooks ``Inbox`` uses;
- a message still travels as its metadata, a tree of object ids, and the objects, each under the
  SHA-256 of its bytes (``pack`` and ``unpack``);
- a SuperLink still has a Fleet API over gRPC (``_GRPC_FLEET``), whose calls are signed as
  engram/link/node/fleet.py does, and are made in the order of engram/link/node/fleet.py;
- ``flower-superlink`` still has the names that ``run_superlink`` replaces, and its gRPC server
  still has its certificate by ``grpc.ssl_server_credentials``; and its SuperExec still
  starts tasks by ``subprocess.Popen([..., "--token", TOKEN, ...])``, and calls ``reconcile``
  before it asks for one;
- nodes still call a SuperLink over HTTP below ``/v1/fleet/`` (engram/link/server/http_fleet.py),
  with the headers that ``_sender_fault`` reads, and its router calls ``fleet_handlers`` by name;
- a SuperLink still reports its nodes' activation times and names (``activations``, ``names``), and
  ``HttpGrid`` still fetches a reply as ``Inbox`` does, from ``_addr``, where the Control API
  listens as well (``api_of``).
"""

import importlib
import itertools
import json
import math
import os
import subprocess
import sys
from base64 import b64decode
from collections import Counter
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from functools import partial
from importlib.util import find_spec
from logging import Formatter
from types import SimpleNamespace
from typing import Any, Final, NamedTuple, NoReturn

from flwr.app import Context, Error, Message, Metadata, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.constant import (
    FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE,
    PUBLIC_KEY_HEADER,
    SIGNATURE_HEADER,
    SUPERLINK_NODE_ID,
    TIMESTAMP_HEADER,
    ErrorCode,
)
from flwr.common.logger import console_handler, update_console_handler
from flwr.common.serde import (
    fab_from_proto,
    message_from_proto,
    message_to_proto,
    recorddict_from_proto,
    recorddict_to_proto,
    run_from_proto,
)
from flwr.proto import (
    fab_pb2,
    fleet_pb2,
    heartbeat_pb2,
    message_pb2,
    node_pb2,
    recorddict_pb2,
    run_pb2,
    runtime_pb2,
)
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.serverapp import Grid
from flwr.supercore.constant import OBJECT_PUSH_SESSION_TTL_SECONDS
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_head_values_from_object_content,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from engram.settings.errors import Refused, one_line
from engram.wire.memory_budget import MemoryBudget

# Of Flower's names, those that other modules take from here.
__all__ = [
    "PUBLIC_KEY_HEADER",
    "SIGNATURE_HEADER",
    "TIMESTAMP_HEADER",
    "ErrorCode",
    "FleetStub",
    "Run",
    "fab_from_proto",
    "fab_pb2",
    "fleet_pb2",
    "heartbeat_pb2",
    "iterate_object_tree",
    "message_pb2",
    "node_pb2",
    "public_key_to_bytes",
    "run_from_proto",
    "run_pb2",
    "runtime_pb2",
    "sign_message",
]

CLOCK_REFUSED: Final = "Invalid timestamp"  # by a SuperLink, of a node whose clock differs
KEY_IN_USE: Final = 23  # ApiErrorCode.PUBLIC_KEY_ALREADY_IN_USE; its module loads a web server
CHUNK: Final = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE  # bytes of an array that are one part of a message
PUSH_SESSION: Final = float(OBJECT_PUSH_SESSION_TTL_SECONDS)  # how long a SuperLink awaits a part
SUPERLINK: Final = SUPERLINK_NODE_ID  # a SuperLink's own node id
_HTTP_FLEET: Final = "flwr.superlink.routers.fleet"  # where later releases serve nodes
_HTTP_PUBLIC_KEY: Final = "flwr-public-key"  # the header of a call of theirs with the node's key
_GRPC_FLEET: Final = "FLWR_INTERNAL_GRPC_FLEET_API"  # whether nodes are served over gRPC; from 1.40
_PROTOBUF: Final[dict[str, Any]] = {  # a message's protobuf parts; others but chunks are JSON
    "Message": message_pb2.Message,
    "MetricRecord": recorddict_pb2.MetricRecord,
    "ConfigRecord": recorddict_pb2.ConfigRecord,
}
_HEAD, _ID = 100, 65  # bytes of a part's head, and of each id in it


class Parcel(NamedTuple):
    """A message as it travels: bytes only, for sockets, pipes and files."""

    header: bytes  # its metadata, and its error if it is one, as Flower serializes them
    tree: bytes  # the ids of the objects that its content is made of, likewise
    objects: MutableMapping[str, bytes]  # their bytes, by id

    @property
    def size(self) -> int:
        """Its total size in bytes."""
        return len(self.header) + len(self.tree) + sum(map(len, self.objects.values()))

    def to_parts(self) -> list[bytes]:
        """Serializes the parcel, as parts of one sequence of bytes."""
        parts = [self.header, self.tree, *self.objects.values()]
        sizes = [*map(len, parts), *self.objects]
        return [json.dumps(sizes).encode(), b"\n", *parts]

    @classmethod
    def from_bytes(cls, data: bytes) -> "Parcel":
        """Reads the parts that ``to_parts`` returned, joined.

        Raises:
            Refused: If the bytes are not those of a parcel.
        """
        line, _, rest = data.partition(b"\n")
        try:
            entries = json.loads(line)
            names = [entry for entry in entries if isinstance(entry, str)]
            sizes = entries[: len(entries) - len(names)]
            if not all(type(size) is int and size >= 0 for size in sizes):
                raise ValueError("sizes must be whole numbers")
            if sum(sizes) != len(rest):
                raise ValueError(f"{len(rest)} bytes follow")
            ends = [0, *itertools.accumulate(sizes)]
            header, tree, *objects = (rest[a:b] for a, b in itertools.pairwise(ends))
            return cls(header, tree, dict(zip(names, objects, strict=True)))
        except (TypeError, ValueError, RecursionError) as error:
            raise Refused(f"no message in parts: {one_line(str(error))}") from error


def pack(message: Message) -> Parcel:
    """Serializes a message, and sets its id, which is a hash of its contents."""
    with no_object_id_recompute():
        name_message(message, message.object_id)
        objects = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
        tree = get_object_tree(message).SerializeToString()
    header = remove_content_from_message(message) if message.has_content() else message
    return Parcel(message_to_proto(header).SerializeToString(), tree, objects)


def unpack(parcel: Parcel, limit: float = math.inf) -> Message:
    """Deserializes a message from parts that may hold anything.

    The sender and the message replied to are those in the header, which a SuperLink has checked,
    not those that the sender wrote into the message itself. Arrays may have ``limit`` bytes.

    Raises:
        Refused: The message would take too much memory. Flower may raise any other exception for a
            malformed message.
    """
    _check_room(parcel, limit)
    metadata = metadata_of(parcel)
    name = metadata.message_id
    contents: Any = parcel.objects  # which Flower wants to be a dict, and reads alone
    message = inflate_object_from_contents(name, contents, keep_object_contents=True)
    if not isinstance(message, Message):
        raise TypeError(f"expected a message, got {type(message).__name__}")
    if message.has_error():
        return make_message(metadata=metadata, error=message.error)
    return make_message(metadata=metadata, content=message.content)


def _check_room(parcel: Parcel, limit: float) -> None:
    """Refuses a message that would take much more memory than its parts have bytes."""
    budget, lengths, named = MemoryBudget(), dict[str, int](), Counter[str]()
    longest = _HEAD + _ID * len(parcel.objects)
    for name, content in parcel.objects.items():
        lengths[name] = len(content)
        end = content.find(b"\0", 0, longest)
        if end < 0:
            raise Refused("a part of it does not say what it is")
        kind, parts, _ = get_object_head_values_from_object_content(content[: end + 1])
        body = memoryview(content)[end + 1 :]
        if kind in _PROTOBUF:
            budget.take_protobuf(body, _PROTOBUF[kind].DESCRIPTOR)
        elif kind != "ArrayChunk":
            budget.take_json(body)
        if kind == "Array":  # whose parts count as often as it names them
            named.update(parts[i] for i in json.loads(body.tobytes())["arraychunk_ids"])
    size = sum(times * lengths[part] for part, times in named.items())
    if size > limit:
        raise Refused(f"its arrays must have at most {limit} bytes, got {size}")


def metadata_of(parcel: Parcel) -> Metadata:
    """Returns the metadata in a parcel's header."""
    return message_from_proto(message_pb2.Message.FromString(parcel.header)).metadata


def is_error(parcel: Parcel) -> bool:
    """Whether a parcel is of a message that carries an error."""
    return bool(message_pb2.Message.FromString(parcel.header).HasField("error"))


def error_instead(parcel: Parcel, code: int, reason: str) -> Message:
    """Returns a message with a parcel's metadata that carries an error."""
    return make_message(metadata=metadata_of(parcel), error=Error(code, reason))


def instead(message: Message, code: int, reason: str) -> Message:
    """Returns a message with another one's metadata that carries an error."""
    return make_message(metadata=message.metadata, error=Error(code, reason))


def node_context(run_id: int, node_id: int, node_config: Any, run_config: Any) -> Context:
    """Builds a ClientApp's context, and lets this process send messages as the node."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, run_id, node_id
    return Context(run_id, node_id, node_config, RecordDict(), run_config)


def activations(grid: Grid) -> Mapping[int, str]:
    """Returns when each online node was last activated, in its SuperLink's notation.

    A node that was activated again has lost the message it was working on. Empty for grids that
    do not report it, whose nodes live and die with the run.
    """
    nodes: Callable[[], Any] | None = getattr(grid, "get_nodes", None)
    return {node.node_id: node.last_activated_at for node in nodes()} if nodes else {}


def names(grid: Grid) -> Mapping[int, str]:
    """Registered names of online nodes' keys.

    A node cannot choose its own. Empty for grids that do not report names, or without registration.
    """
    nodes: Callable[[], Any] | None = getattr(grid, "get_nodes", None)
    return {node.node_id: node.name for node in nodes() if node.name} if nodes else {}


def log_plainly() -> None:
    """Keeps color codes out of Flower's log where no terminal shows it."""
    if sys.stderr is None or not sys.stderr.isatty():
        update_console_handler(colored=False)


def log_as(formatter: Formatter) -> None:
    """Has Flower's log, and the logs below it, written to standard error by a formatter."""
    console_handler.stream = sys.stderr
    vars(console_handler)["format"] = formatter.format  # the handler's own ignores formatters


def simulated(grid: Grid) -> bool:
    """Whether a grid's nodes are Ray's: all there from the beginning, with none joining later."""
    from flwr.superlink.grid import InMemoryGrid  # noqa: PLC0415 - brings a database

    return isinstance(grid, InMemoryGrid)


def api_of(grid: Grid) -> str | None:
    """Returns HOST:PORT of a ServerApp's SuperLink and its Control API; None if it has none."""
    address: str | None = getattr(grid, "_addr", None)
    return address


def recorddict_to_bytes(content: RecordDict) -> bytes:
    """Serializes records."""
    data: bytes = recorddict_to_proto(content).SerializeToString()
    return data


def recorddict_from_bytes(data: bytes) -> RecordDict:
    """Reads records from bytes of ``recorddict_to_bytes``.

    Raises:
        Refused: Its records would take much more memory than it has bytes. Flower may raise any
            other exception for malformed bytes.
    """
    MemoryBudget().take_protobuf(data, recorddict_pb2.RecordDict.DESCRIPTOR)
    return recorddict_from_proto(recorddict_pb2.RecordDict.FromString(data))


def runtime_client(grid: Grid) -> Any:
    """A grid's HTTP client of its SuperLink; None for other grids."""
    from flwr.superlink.grid import HttpGrid  # noqa: PLC0415 - brings a database; nodes need none

    if not isinstance(grid, HttpGrid):
        return None
    _outlast_timeouts(grid._retry_invoker)
    return grid._runtime_client


def local_run() -> Run:
    """Gives this process the identity that Flower gives to those it starts; returns its run.

    ``Message(...)`` raises without one. A process that Flower started keeps its own.
    """
    if TaskIdentity._run_id is None:
        TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 1
    return Run.create_empty(TaskIdentity.run_id)


def name_message(message: Message, message_id: str) -> None:
    """Gives a message its id, as a SuperLink does on arrival."""
    message.metadata.__dict__["_message_id"] = message_id


# --- The SuperLink's processes ---------------------------------------------------------------
# These import Flower's servers and a database, which nodes and simulations do not need.


def nodes_over_http() -> bool:
    """Whether a SuperLink serves nodes over HTTP, too, at the port of its Control API."""
    return find_spec(_HTTP_FLEET) is not None


def run_superlink(
    arguments: Sequence[str],
    *,
    serve: Callable[..., None],
    superexec: Callable[..., Any],
    fleet: Callable[[Any], Any],
    http_fleet: Callable[[Any, Callable[[Mapping[str, str]], str]], Any],
    authentication: Callable[[Any], Any],
    credentials: Callable[[bytes, bytes], Any],
    largest: int,
    pragmas: Mapping[str, str],
    begins: float,
) -> None:
    """Runs ``flower-superlink`` in this process, until it ends.

    Args:
        arguments: The command's arguments.
        serve: Called instead of ``uvicorn.run`` with its arguments.
        superexec: Starts a SuperExec, given Flower's command and the options of ``Popen``.
        fleet: Wraps Flower's Fleet API. Nodes that are served over HTTP, too, as by releases from
            1.40, get the same.
        http_fleet: Wraps the app that serves them, if one does; also given what says, of a call's
            headers, why no node of this SuperLink can have sent it, or "".
        authentication: Wraps Flower's interceptor that authenticates nodes.
        credentials: Returns gRPC's credentials of a server, of its private key and certificate.
        largest: Bytes of the longest message that the Fleet API receives or sends.
        pragmas: Further settings of each connection with its SQLite database.
        begins: Seconds in which a run's coordinator must have begun, or its run fails.
    """
    flower = importlib.import_module("flwr.superlink.cli.flower_superlink")
    database = importlib.import_module("flwr.supercore.sql_mixin")
    servicer, interceptor = flower.FleetServicer, flower.NodeAuthServerInterceptor
    over_http = nodes_over_http()

    def guarded(**given: Any) -> Any:
        made = fleet(servicer(**given))
        if over_http:
            _answer_over_http(made)
        return made

    def run(app: Any, **options: Any) -> None:
        serve(http_fleet(app, partial(_sender_fault, app)) if over_http else app, **options)

    changes: dict[str, Any] = {
        "uvicorn": SimpleNamespace(run=run),
        "subprocess": SimpleNamespace(**vars(subprocess) | {"Popen": superexec}),
        "FleetServicer": guarded,
        "NodeAuthServerInterceptor": lambda *given: authentication(interceptor(*given)),
        "GRPC_MAX_MESSAGE_LENGTH": largest,
    }
    vars(flower).update(changes)
    by = {"ssl_server_credentials": lambda pairs, *_, **given: credentials(*pairs[0])}
    transport = importlib.import_module("flwr.supercore.grpc")
    vars(transport)["grpc"] = SimpleNamespace(**vars(transport.grpc) | by)
    os.environ[_GRPC_FLEET] = "1"
    tasks = importlib.import_module("flwr.supercore.corestate.sql_corestate")
    alive = tasks.HEARTBEAT_PATIENCE * tasks.HEARTBEAT_DEFAULT_INTERVAL  # once it has begun: as is
    vars(tasks).update(HEARTBEAT_DEFAULT_INTERVAL=begins, HEARTBEAT_PATIENCE=alive / begins)
    vars(database)["SQLITE_PRAGMAS"] = (*database.SQLITE_PRAGMAS, *pragmas.items())
    sys.argv = ["flower-superlink", *arguments]
    flower.flower_superlink()


def _answer_over_http(fleet: Any) -> None:
    """Has pushes that come over HTTP answered by a Fleet API."""
    router = importlib.import_module(f"{_HTTP_FLEET}.router")
    changes = {
        "push_messages": lambda request, state: fleet.PushMessages(request, _HttpContext),
        "push_object": lambda request, state: fleet.PushObject(request, _HttpContext),
    }
    vars(router)["fleet_handlers"] = SimpleNamespace(**vars(router.fleet_handlers) | changes)


class _HttpContext:
    """The part of gRPC's context that a Fleet API uses, for a call over HTTP."""

    @staticmethod
    def is_active() -> bool:
        return True

    @staticmethod
    def abort(code: Any, details: str) -> NoReturn:
        """Ends a call as one that is not allowed, at which a node drops its reply."""
        del code
        raise importlib.import_module("fastapi").HTTPException(403, details)


def _sender_fault(app: Any, headers: Mapping[str, str]) -> str:
    """Returns why no node of a SuperLink can have sent a call with these headers; "" if one can.

    A call is signed as over gRPC, but the SuperLink looks only after it has read its body.
    """
    check = importlib.import_module(f"{_HTTP_FLEET}.node_auth").authenticate_node
    try:
        key = b64decode(headers.get(_HTTP_PUBLIC_KEY, ""), validate=True)
    except ValueError:
        return "its key cannot be read"
    # Of a call that names a key, Flower's check asks no more than what is in the headers.
    body = fleet_pb2.ActivateNodeRequest(public_key=key)
    try:
        check(SimpleNamespace(headers=headers, state=SimpleNamespace(protobuf_request=body)))
    except Exception as error:  # whatever stands in the headers
        return one_line(str(getattr(error, "detail", error)))
    known = app.state.linkstate_factory.state().get_node_id_by_public_key(key) is not None
    return "" if known or not app.state.enable_supernode_auth else "its key is not registered"


def forget_push(fleet: Any, session: str) -> None:
    """Deletes a reply that a node has begun to push, with the parts stored so far."""
    fleet.state_factory.state()._cleanup_push_session(session, cleanup_messages=True)


def remove_node(fleet: Any, node_id: int) -> None:
    """Removes a node from a SuperLink's database, which refuses its key from then on.

    Raises:
        ValueError: It is not there.
    """
    state = fleet.state_factory.state()
    for node in state.get_node_info(node_ids=[node_id]):
        state.delete_node(node.owner_aid, node_id)


def run_superexec(start: Callable[..., Any], beat: Callable[[], None]) -> None:
    """Runs ``flower-superexec`` in this process; ``start`` is called instead of ``Popen``.

    ``beat`` is called each time before the SuperLink is asked for what to start.
    """
    executor = importlib.import_module("flwr.supercore.superexec.executor.subprocess_executor")
    vars(executor)["subprocess"] = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
    executor.SubprocessExecutor.reconcile = lambda executor: beat()
    loop = importlib.import_module("flwr.supercore.superexec.run_superexec")
    invoker = loop.make_simple_http_retry_invoker
    vars(loop)["make_simple_http_retry_invoker"] = lambda: _outlast_timeouts(invoker())
    importlib.import_module("flwr.supercore.cli.flower_superexec").flower_superexec()


def _outlast_timeouts(invoker: Any) -> Any:
    """Has calls tried again after any timeout; Flower takes a slow TLS handshake for a refusal."""
    gives_up = invoker.should_giveup
    invoker.should_giveup = lambda e: not type(e).__name__.endswith("Timeout") and gives_up(e)
    return invoker
