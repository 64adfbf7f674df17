"""A node's connection to a SuperLink: Flower's Fleet API over gRPC, call by call.

Every call has a deadline and is safe to repeat, so that callers simply retry after a network
failure, as long as they choose.
"""

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import islice
from typing import Any, NamedTuple

import grpc
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

from engram.core.machine import available
from engram.link.announcement import ENDED
from engram.link.credentials import NodeCredentials
from engram.link.flower import (
    CLOCK_REFUSED,
    KEY_IN_USE,
    PUBLIC_KEY_HEADER,
    SIGNATURE_HEADER,
    TIMESTAMP_HEADER,
    FleetStub,
    Parcel,
    fab_from_proto,
    fab_pb2,
    fleet_pb2,
    heartbeat_pb2,
    iterate_object_tree,
    message_pb2,
    node_pb2,
    public_key_to_bytes,
    run_from_proto,
    run_pb2,
    sign_message,
)
from engram.link.keys import read_node_key
from engram.link.node.fab import read_project
from engram.link.node.superlink_address import Way
from engram.link.node.tls_check import find_fault, speaks_tls
from engram.settings.errors import REFUSED, EngramError, Refused, one_line
from engram.wire.clock import in_words, now, sent_time, stamp

_HEARTBEAT = 10.0  # seconds; the shortest that a SuperLink allows. It waits for two of them
CALL = 20.0  # seconds that a call may take
_TRANSFER = 300.0  # seconds that a call with a part of a model may take
_MOST_OBJECTS = 10_000  # in a message; in pieces of 4 MiB, these are 40 GiB
_LARGEST = 2**29  # bytes of one answer; twice the largest object that a coordinator makes
_SHARE = 8  # a message may have 1/8 of the free memory: reading it takes six times its size
_ANEW = "to take part again it needs another, by an invitation or init-federation --new-key"
_REFUSALS = {
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
}


class Signing(grpc.UnaryUnaryClientInterceptor):  # type: ignore[misc]  # gRPC has no types
    """Adds to each call the node's public key, the time, and the time's signature.

    Flower's own interceptor of this kind has gone with its gRPC client; its SuperLinks still ask
    for what it added.
    """

    def __init__(self, key: EllipticCurvePrivateKey) -> None:
        self._key = key
        self._public_key = public_key_to_bytes(key.public_key())

    def intercept_unary_unary(
        self, continuation: Callable[[Any, Any], Any], details: Any, request: Any
    ) -> Any:
        """Makes a call with the signature in its metadata, as gRPC asks an interceptor to."""
        time = now().isoformat()
        signed = [
            *(details.metadata or []),
            (PUBLIC_KEY_HEADER, self._public_key),
            (TIMESTAMP_HEADER, time),
            (SIGNATURE_HEADER, sign_message(self._key, time.encode("ascii"))),
        ]
        return continuation(details._replace(metadata=signed), request)


class Unreachable(EngramError):
    """The SuperLink cannot be reached at the moment."""


class ClockRefused(EngramError):
    """The SuperLink answers, but this machine's clock differs too much from its own."""


class KeyRefused(EngramError):
    """The SuperLink answers, but does not accept this node.

    Attributes:
        for_good: Whether it never will.
    """

    for_good = False


class Untrusted(EngramError):
    """Something other than the SuperLink answers, or the SuperLink cannot prove its identity."""


class RunOver(EngramError):
    """The run or the round that a message belongs to is over."""


class Unusable(EngramError):
    """The SuperLink delivers content that is too large, or does not match its declaration."""


class RunInfo(NamedTuple):
    """A run, as far as a node must know it.

    Attributes:
        run_id: Its number.
        project: Its app's pyproject.toml, with the defaults of its settings.
        overrides: Settings whose values differ from the defaults.
    """

    run_id: int
    project: bytes
    overrides: dict[str, Any]


_FAULTS = {"certificate": Untrusted, "clock": ClockRefused, "protocol": Unreachable}


class Fleet:
    """One node's sessions with a SuperLink. Calls may be made from several threads.

    Args:
        credentials: The SuperLink's address, and the node's identity.
        on_beat: Called after every heartbeat that the SuperLink has acknowledged.
        max_message: Most bytes of a message; 0 for an eighth of the free memory.

    Attributes:
        credentials: As given, with the address of the last call.
    """

    def __init__(
        self,
        credentials: NodeCredentials,
        on_beat: Callable[[], None] = lambda: None,
        max_message: int = 0,
    ) -> None:
        self.credentials = credentials
        self._on_beat = on_beat
        self._max_message = max_message
        self._way = Way(credentials)
        self._key = read_node_key(credentials.private_key)
        self._node = node_pb2.Node()
        self._stop = threading.Event()
        self._channel: grpc.Channel | None = None

    @property
    def _public_key(self) -> bytes:
        return public_key_to_bytes(self._key.public_key())

    def open(self, last_node_id: int | None) -> int:
        """Starts a session, and the heartbeats that keep it; returns the node's id.

        Args:
            last_node_id: The id of this node's last session. A node that died still counts as
                alive until it misses two heartbeats, and until then the SuperLink refuses others
                with its key; but whoever has the key and this id may log it out.

        Raises:
            Unreachable: The SuperLink does not answer.
            Untrusted: What answers is not the SuperLink that the node was set up for.
            ClockRefused: Its clock and this machine's differ too much.
            KeyRefused: It does not accept the node.
        """
        self._dial()
        c = self.credentials
        if c.insecure:
            if speaks_tls(c.superlink):
                raise Untrusted(
                    f"the SuperLink at {c.superlink} speaks TLS, which this node was set up "
                    "without: use a folder that `engram init-federation` made without --insecure"
                )
            self._register()
        if last_node_id is not None:
            self._log_out(last_node_id)
        request = fleet_pb2.ActivateNodeRequest(
            public_key=self._public_key, heartbeat_interval=_HEARTBEAT
        )
        try:
            answer = self._call(self._stub.ActivateNode, request)
        except Unreachable:
            self._check_certificate()
            raise
        self._way.reached()
        self._node = node_pb2.Node(node_id=answer.node_id)
        self._stop = threading.Event()
        threading.Thread(target=self._beat, args=(self._stop,), daemon=True).start()
        return int(self._node.node_id)

    def leave(self, node_id: int | None) -> None:
        """Has the SuperLink refuse this node's key from now on.

        Args:
            node_id: The id of this node's last session; None if it has had none.

        Raises:
            EngramError: As ``open``.
        """
        number = self.open(None) if node_id is None else node_id
        if node_id is not None:
            self._dial()
        self._stop.set()
        request = fleet_pb2.UnregisterNodeFleetRequest(node_id=number)
        try:
            self._call(self._stub.UnregisterNode, request)
        except Unreachable:
            self._check_certificate()
            raise
        finally:
            self.close()

    def greet(self, node_id: int | None) -> timedelta | None:
        """Asks whether the SuperLink answers and knows this node, by a call that changes nothing.

        Args:
            node_id: The id of this node's last session. Without one, a SuperLink that does not know
                the key cannot be told from one that does.

        Returns:
            How far this machine's clock is ahead of the SuperLink's; None if it did not say.

        Raises:
            EngramError: As ``open``; ``KeyRefused`` also if the key is known by another id.
        """
        self._dial()  # beside the session of the node that may be running
        request = run_pb2.GetRunRequest(node=node_pb2.Node(node_id=node_id or 0))
        try:
            self._stub.GetRun(request, timeout=CALL)
        except grpc.RpcError as error:
            refusal, server = self._explain(error), sent_time(error.trailing_metadata())
            if server is None and isinstance(refusal, Unreachable):
                self._check_certificate()
                raise refusal from error
            unknown = isinstance(refusal, KeyRefused) and (node_id is not None or refusal.for_good)
            if unknown or isinstance(refusal, ClockRefused):
                raise refusal from error
            return None if server is None else now() - server
        finally:
            self.close()
        return None

    def _dial(self) -> None:
        self.close()
        self.credentials = c = self._way.next()
        roots, name = self._way.roots(), self._way.key_host
        options: list[tuple[str, str | int]] = [("grpc.max_receive_message_length", _LARGEST)]
        options += [("grpc.ssl_target_name_override", name)] if name else []
        channel = (
            grpc.insecure_channel(c.superlink, options)
            if c.insecure
            else grpc.secure_channel(c.superlink, grpc.ssl_channel_credentials(roots), options)
        )
        self._channel = grpc.intercept_channel(channel, Signing(self._key), self._way)
        self._stub = FleetStub(self._channel)

    def close(self) -> None:
        """Ends the session, if there is one, and logs out if the SuperLink can be reached."""
        if self._node.node_id and not self._stop.is_set():
            self._stop.set()
            self._log_out(self._node.node_id)
        if self._channel is not None:
            self._channel.close()

    def _check_certificate(self) -> None:
        root = self.credentials.root_certificate
        fault = None if root is None else find_fault(self.credentials.superlink, root)
        if fault is not None:
            raise _FAULTS[fault.kind](f"{self._where} {fault.text}")

    def _register(self) -> None:
        """Registers the key with a SuperLink that admits any node."""
        try:
            request = fleet_pb2.RegisterNodeFleetRequest(public_key=self._public_key)
            self._call(self._stub.RegisterNode, request)
        except KeyRefused as error:
            flower = _flower(error.__cause__)
            if flower is None or flower.code != KEY_IN_USE:
                raise

    def _log_out(self, node_id: int) -> None:
        # Fails if the node is offline already, or if another SuperLink gave it the id.
        with contextlib.suppress(EngramError):
            self._call(self._stub.DeactivateNode, fleet_pb2.DeactivateNodeRequest(node_id=node_id))

    def _beat(self, stop: threading.Event) -> None:
        request = heartbeat_pb2.SendNodeHeartbeatRequest(
            node=self._node, heartbeat_interval=_HEARTBEAT
        )
        while not stop.wait(_HEARTBEAT / 2):
            with contextlib.suppress(EngramError):  # the next call will raise it
                self._call(self._stub.SendNodeHeartbeat, request)
                self._on_beat()

    # --- Messages ------------------------------------------------------------------------------

    def pull(self) -> tuple[int, Parcel] | None:
        """Fetches the next message's run and the message, without content; None if there is none.

        Raises:
            Unreachable: The SuperLink does not answer.
            KeyRefused: It does not know this node any more.
            Unusable: The SuperLink sent something that is not a message; it is lost.
        """
        answer = self._call(self._stub.PullMessages, fleet_pb2.PullMessagesRequest(node=self._node))
        if not answer.messages_list:
            return None
        if not answer.message_object_trees:
            raise Unusable("a message came without a list of its contents")
        header, tree = answer.messages_list[0], answer.message_object_trees[0]
        parcel = Parcel(header.SerializeToString(), tree.SerializeToString(), {})
        return header.metadata.run_id, parcel

    def fetch(self, run_id: int, message: Parcel, *, until: float) -> Parcel:
        """Returns a pulled message with its content.

        Args:
            run_id: Its run.
            message: The message without content.
            until: When its reply is no longer awaited, in ``time.monotonic`` seconds.

        Raises:
            Unreachable: The SuperLink does not answer.
            RunOver: The message's run has ended, or its reply is no longer awaited.
            Unusable: If the content is too large, incomplete, or not what the message names.
        """
        parts = iterate_object_tree(message_pb2.ObjectTree.FromString(message.tree))
        names = [part.object_id for part in islice(parts, _MOST_OBJECTS + 1)]
        if len(names) > _MOST_OBJECTS:
            raise Unusable(f"the message has more than {_MOST_OBJECTS} parts")
        limit = self._max_message or available("cpu") // _SHARE
        objects: dict[str, bytes] = {}
        size = 0
        for name in dict.fromkeys(names):
            if time.monotonic() > until:
                raise RunOver("its round is over")
            objects[name] = self._pull_object(run_id, name)
            size += len(objects[name])
            if size > limit:
                whose = "its --max-message" if self._max_message else "an eighth of its free memory"
                raise Unusable(
                    f"the message has more than the {limit / 2**20:.1f} MiB that this node takes, "
                    f"{whose}"
                )
        self.confirm(run_id, message)
        return message._replace(objects=objects)

    def _pull_object(self, run_id: int, name: str) -> bytes:
        request = message_pb2.PullObjectRequest(node=self._node, run_id=run_id, object_id=name)
        wait = 0.01
        while True:
            begun = time.monotonic()
            answer = self._call(self._stub.PullObject, request, timeout=_TRANSFER)
            took = time.monotonic() - begun
            if answer.object_available:
                content: bytes = answer.object_content
                if hashlib.sha256(content).hexdigest() != name:
                    raise Unusable("a part of the message has other bytes than its name says")
                return content
            if not answer.object_found or wait > CALL:
                raise Unusable("a part of the message is not there (any more)")
            self._stop.wait(max(wait, took))  # its sender is still uploading it
            wait *= 2

    def confirm(self, run_id: int, message: Parcel) -> None:
        """Lets the SuperLink delete a message's content; raises like ``fetch``."""
        request = message_pb2.ConfirmMessageReceivedRequest(
            node=self._node,
            run_id=run_id,
            message_object_id=message_pb2.ObjectTree.FromString(message.tree).object_id,
        )
        self._call(self._stub.ConfirmMessageReceived, request)

    def push(self, run_id: int, reply: Parcel) -> None:
        """Sends a reply. Sent twice, it counts once.

        Raises:
            Unreachable: The SuperLink does not answer.
            RunOver: The reply is no longer awaited.
        """
        answer = self._call(
            self._stub.PushMessages,
            fleet_pb2.PushMessagesRequest(
                node=self._node,
                messages_list=[message_pb2.Message.FromString(reply.header)],
                message_object_trees=[message_pb2.ObjectTree.FromString(reply.tree)],
            ),
        )
        for name in dict.fromkeys(answer.objects_to_push):
            if name not in reply.objects:
                raise RunOver("the SuperLink asks for what was never part of the reply")
            request = message_pb2.PushObjectRequest(
                node=self._node,
                run_id=run_id,
                object_id=name,
                object_content=reply.objects[name],
                session_id=answer.session_id,
            )
            if not self._call(self._stub.PushObject, request, timeout=_TRANSFER).stored:
                raise RunOver("the reply came too late to be stored")

    def check_run(self, run_id: int) -> Any:
        """Returns a run as the SuperLink describes it.

        Raises:
            Unreachable: The SuperLink does not answer.
            RunOver: The run is not running any more.
        """
        request = run_pb2.GetRunRequest(node=self._node, run_id=run_id)
        return self._call(self._stub.GetRun, request).run

    def run_info(self, run_id: int) -> RunInfo:
        """Fetches a run's settings, and checks the hash of the app bundle that they are read from.

        Only the bundle's settings are used. The source installed here is what runs, and the
        fingerprint in messages ensures that the coordinator runs the same.

        Raises:
            Unreachable: The SuperLink does not answer.
            RunOver: The run has ended.
            Unusable: Its bundle is too large, or is not what the run says.
        """
        run = run_from_proto(self.check_run(run_id))
        request = fab_pb2.GetFabRequest(node=self._node, hash_str=run.fab_hash, run_id=run_id)
        fab = fab_from_proto(self._call(self._stub.GetFab, request, timeout=_TRANSFER).fab)
        if hashlib.sha256(fab.content).hexdigest() != run.fab_hash:
            raise Unusable(f"the app bundle of run {run_id} is not the one that the run names")
        try:
            return RunInfo(run_id, read_project(fab.content), dict(run.override_config))
        except Refused as error:
            raise Unusable(f"the app bundle of run {run_id} {error}") from error

    # --- Calls ---------------------------------------------------------------------------------

    def _call(self, method: Callable[..., Any], request: Any, *, timeout: float = CALL) -> Any:
        try:
            return method(request, timeout=timeout)
        except grpc.RpcError as error:
            raise self._explain(error) from error
        except ValueError as error:  # another thread has closed the channel
            raise Unreachable("the session has ended") from error

    @property
    def _where(self) -> str:
        return f"the SuperLink at {self.credentials.superlink}"

    def _explain(self, error: grpc.RpcError) -> EngramError:
        code, details = error.code(), one_line(str(error.details() or ""))
        flower = _flower(error)
        if flower and flower.code == REFUSED:  # from server/replies.py, with a reason
            return RunOver(one_line(flower.message))
        if "SERVER: Received message larger than max" in details:
            return RunOver(f"{self._where} does not take it: {details}")
        if code == grpc.StatusCode.PERMISSION_DENIED and flower:  # not from a proxy
            return RunOver("the run is not running any more")
        if code == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in details:
            return Unusable(f"{self._where} sends more than {_LARGEST // 2**20} MiB at once")
        if code in _REFUSALS:
            return _refusal(self._where, error, flower.message if flower else details)
        return Unreachable(f"{self._where} does not answer: {details}")


def _refusal(where: str, error: grpc.RpcError, says: str) -> EngramError:
    """Returns why a SuperLink refuses a node: its clock, or its key, for now or for good."""
    if error.details() == CLOCK_REFUSED:
        return ClockRefused(f"{where} refuses this node: {_clocks(error)}")
    end = one_line(str(dict(error.trailing_metadata() or ()).get(ENDED, "")))
    told = f"this client's key for good, as it is noted as {end}: {_ANEW}"
    found = KeyRefused(f"{where} refuses {told if end else f'this node: {one_line(says)}'}")
    found.for_good = bool(end)
    return found


def _clocks(error: grpc.RpcError) -> str:
    """Returns the difference between this clock and the SuperLink's, if it sent one, in words."""
    own, server = now(), sent_time(error.trailing_metadata())
    if server is None:  # not from engram/link/server/superlink.py
        return f"its clock says {stamp(own)}, and differs: set the one that is wrong"
    apart = f"{in_words(own - server)} {'ahead of' if own > server else 'behind'}"
    return f"its clock says {stamp(own)}, {apart} the SuperLink's: set the one that is wrong"


class _Worded(NamedTuple):
    code: int
    message: str


def _flower(error: BaseException | None) -> _Worded | None:
    """Reads the JSON in which a SuperLink words an error; None where something else stands."""
    if not isinstance(error, grpc.RpcError):
        return None
    try:
        found = json.loads(error.details() or "")
        worded = _Worded(found["code"], found["public_message"])
    except (ValueError, TypeError, KeyError, RecursionError):  # from a proxy, or nested deeply
        return None
    return worded if type(worded.code) is int and isinstance(worded.message, str) else None
