"""Limits of replies to a SuperLink: one at a time, in its own name, of bounded size.

Flower's Fleet API stores whatever a registered node pushes, unchecked. Twenty thousand small
records block its database for longer than others wait, and a reply of gigabytes is stored whole. A
reply refused here is replaced by an error that says why, so that no round waits for it.
"""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from logging import getLogger
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc

from engram.link.flower import (
    Parcel,
    error_instead,
    fleet_pb2,
    forget_push,
    message_pb2,
    pack,
    remove_node,
)
from engram.link.server.registration import note_left
from engram.settings.errors import REFUSED, UNUSABLE
from engram.wire.counters import Counters

_log = getLogger("flwr.engram")

COUNTED: Final = {
    "replies": "Replies that nodes have pushed, including those that they pushed again",
    "reply_bytes": "Bytes of their parts",
    "refused_replies": "Replies, and parts of some, that were refused",
}
# Records, arrays and their chunks of a reply; one of ``engram node`` has a few, whatever the model.
_MOST_PARTS = 1000
_HEADER = 2**20  # most bytes of a reply's header, which includes its error


@dataclass
class _Reply:
    header: Any
    left: int  # bytes that it may still send
    session: str = ""  # Flower's id of this attempt to push


class GuardedFleet:
    """Flower's Fleet API, with checks of pushed replies, and with sites that leave."""

    def __init__(
        self, fleet: Any, mebibytes: int, counters: Counters | None = None, folder: Path = Path()
    ) -> None:
        self._fleet = fleet
        self._folder = folder
        self._counters = counters or Counters(COUNTED)
        self._mebibytes = mebibytes  # that a reply may have
        self._replies: dict[int, _Reply] = {}  # by node, one at a time
        self._counting = threading.Lock()
        # The database takes one writer at a time, and fails others as locked after five seconds.
        # Here they queue without a limit.
        self._storing = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fleet, name)

    def UnregisterNode(self, request: Any, context: Any) -> Any:  # noqa: N802 - Flower's name
        """Lets a node's site leave the federation: its key is refused from then on."""
        if not self._fleet.enable_supernode_auth:
            return self._fleet.UnregisterNode(request, context)
        note_left(self._folder, request.node_id)  # first, so that a repeated call completes it
        remove_node(self._fleet, request.node_id)
        _log.info("node %d has left the federation", request.node_id)
        return fleet_pb2.UnregisterNodeFleetResponse()

    def PushMessages(self, request: Any, context: Any) -> Any:  # noqa: N802 - Flower's name
        """Takes a reply's header and the ids of its parts."""
        if fault := _fault(request):
            self._refuse(request.node, context, fault)
        (header,), (tree,) = request.messages_list, request.message_object_trees
        if next(islice(_parts(tree), _MOST_PARTS, None), None):
            count = sum(1 for _ in _parts(tree))
            reason = f"it must have at most {_MOST_PARTS} parts, got {count}"
            self._answer_instead(request.node, header, context, reason)
        with self._storing:
            if not context.is_active():  # it has waited until its node began anew
                return fleet_pb2.PushMessagesResponse()
            answer = self._fleet.PushMessages(request, context)
            self._note(request.node, header, tree, answer)
        return answer

    def _note(self, node: Any, header: Any, tree: Any, answer: Any) -> None:
        self._counters.add("replies")
        with self._counting:
            reply = self._replies.get(node.node_id)
            if reply is None or reply.header.metadata.message_id != tree.object_id:
                reply = _Reply(header, self._mebibytes * 2**20)
                self._replies[node.node_id] = reply
            reply.session = answer.session_id

    def PushObject(self, request: Any, context: Any) -> Any:  # noqa: N802 - Flower's name
        """Takes a part of a reply."""
        size = len(request.object_content)
        self._counters.add("reply_bytes", size)
        with self._counting:
            reply = self._replies.get(request.node.node_id)
            if reply is None or request.session_id != reply.session:
                self._refuse(request.node, context, "a part must belong to the node's last reply")
            reply.left -= size
            if reply.left < 0:
                del self._replies[request.node.node_id]
        if reply.left < 0:
            with self._storing:
                forget_push(self._fleet, reply.session)
            reason = f"it must have at most {self._mebibytes} MiB, and has more"
            self._answer_instead(request.node, reply.header, context, f"{reason} (--max-reply)")
        with self._storing:
            answer = self._fleet.PushObject(request, context)
        if not answer.stored:
            with self._counting:
                reply.left += size
        return answer

    def _answer_instead(self, node: Any, header: Any, context: Any, reason: str) -> NoReturn:
        text = f"the SuperLink does not take its reply: {reason}"
        parcel = pack(error_instead(Parcel(header.SerializeToString(), b"", {}), UNUSABLE, text))
        with self._storing:
            error = fleet_pb2.PushMessagesRequest(
                node=node,
                messages_list=[message_pb2.Message.FromString(parcel.header)],
                message_object_trees=[message_pb2.ObjectTree.FromString(parcel.tree)],
            )
            answer = self._fleet.PushMessages(error, context)
            for name in answer.objects_to_push:
                self._fleet.PushObject(
                    message_pb2.PushObjectRequest(
                        node=node,
                        run_id=header.metadata.run_id,
                        object_id=name,
                        object_content=parcel.objects[name],
                        session_id=answer.session_id,
                    ),
                    context,
                )
        self._refuse(node, context, reason)

    def _refuse(self, node: Any, context: Any, reason: str) -> NoReturn:
        """Aborts a call as Flower does when a run is over: the node drops its reply."""
        self._counters.add("refused_replies")
        _log.warning("the reply of node %d is refused: %s", node.node_id, reason)
        details = {"code": REFUSED, "public_message": f"the SuperLink does not take it: {reason}"}
        context.abort(grpc.StatusCode.PERMISSION_DENIED, json.dumps(details))
        raise AssertionError("gRPC's abort does not return")


def _fault(request: Any) -> str:
    """Describes a fault of a push that no honest node would have; "" for none."""
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        return f"one reply must be pushed at a time, got {len(request.messages_list)}"
    (header,), (tree,) = request.messages_list, request.message_object_trees
    metadata = header.metadata
    if metadata.src_node_id != request.node.node_id or not metadata.reply_to_message_id:
        return "a node must answer, and in its own name"
    if metadata.message_id != tree.object_id:
        return "the reply must be named for its content"
    if header.ByteSize() > _HEADER:
        return f"the reply's header must have at most {_HEADER} bytes, got {header.ByteSize()}"
    return ""


def _parts(tree: Any) -> Iterator[Any]:
    """Yields a reply's parts; one that is referred to several times is repeated."""
    left = [tree]
    while left:
        yield (part := left.pop())
        left.extend(part.children)
