"""Fetches the replies that wait at a SuperLink, part by part and within limits."""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

from flwr.app import Message
from flwr.serverapp import Grid

from engram.link.flower import (
    Parcel,
    error_instead,
    iterate_object_tree,
    message_pb2,
    runtime_client,
    runtime_pb2,
    unpack,
)
from engram.settings.errors import UNFINISHED, UNUSABLE, Refused, one_line
from engram.wire.mapped_arrays import LARGE, Spool

_SLICE: Final = 16  # parts fetched of one reply before the next reply's turn
_LOOK: Final = 2.0  # seconds after which a poll ends, even if there is more to fetch
_ENVELOPE: Final = 2**10  # bytes of an answer around the part in it


class Limits(NamedTuple):
    """The limits of one reply."""

    size: int  # most bytes, both as transferred and unpacked
    parts: int  # most objects that it may consist of
    seconds: float  # most seconds from its header to its last part


class _Arrival:
    """A reply in transit: the parts fetched so far, and those still missing.

    Nodes send at the same time, so that parts of several large replies come by turns.
    """

    def __init__(self, header: Any, tree: Any, most: int) -> None:
        """Lists its parts, but no more than ``most``."""
        names = [part.object_id for part in islice(iterate_object_tree(tree), most)]
        self.parcel = Parcel(header.SerializeToString(), tree.SerializeToString(), Spool())
        self.name = tree.object_id
        self.parts = len(names)
        self.missing = list(dict.fromkeys(names))[::-1]  # fetched from the end
        self.size = self.parcel.size
        self.since = time.monotonic()


class _TooLarge(Exception):
    """An answer has more bytes than a reply may have."""


class Inbox:
    """Fetches the replies that wait at a SuperLink, part by part, without waiting for senders.

    Flower's own ``pull_messages`` waits up to three minutes for the rest of a reply whose sender
    died half-way through, and a second or more for one that is nearly complete.

    Args:
        grid: Flower's connection to the SuperLink.
        client: Its HTTP client, from ``runtime_client``.
    """

    def __init__(self, grid: Any, client: Any) -> None:
        self._grid = grid
        self._client = client
        self._arriving: dict[str, _Arrival] = {}
        self._room: int | None = None  # bytes that the next answer may have
        client._client.event_hooks["response"].append(self._stop)

    def replies(self, message_ids: Sequence[str], limits: Limits) -> list[Message]:
        """Returns the replies to these messages that are complete now, each once.

        Replies are fetched in turns, so that a large one does not delay the others; of the large
        ones, one after the other as far as they have come, so that memory holds but one of them.

        Args:
            message_ids: The messages replied to. Partial replies to others are discarded.
            limits: The limits of a reply. A reply that exceeds them, cannot be deserialized, or
                stays incomplete is replaced by the error ``UNUSABLE`` or ``UNFINISHED``.
        """
        for name in self._arriving.keys() - set(message_ids):
            self._confirm(self._arriving.pop(name))
        end = time.monotonic() + _LOOK
        while True:
            self._begin([n for n in message_ids if n not in self._arriving], limits)
            found, again, busy = [], False, False
            for name in [n for n in message_ids if n in self._arriving]:
                large = self._arriving[name].size > LARGE
                if large and busy:
                    continue
                reply, more = self._fetch(self._arriving[name], limits)
                again |= more
                busy |= large and (more or reply is not None)
                if reply is not None:
                    self._confirm(self._arriving.pop(name))
                    found.append(reply)
            if found or not again or time.monotonic() > end:
                return found

    def _begin(self, unseen: list[str], limits: Limits) -> None:
        if not unseen:
            return
        answer = self._client.PullMessages(runtime_pb2.PullAppMessagesRequest(message_ids=unseen))
        for header, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            arrival = _Arrival(header, tree, limits.parts + 1)
            self._arriving.setdefault(header.metadata.reply_to_message_id, arrival)

    def _fetch(self, arrival: _Arrival, limits: Limits) -> tuple[Message | None, bool]:
        """Fetches parts; returns the whole reply or an error, and if more can be fetched now."""
        parcel, missing = arrival.parcel, arrival.missing
        if arrival.parts > limits.parts:
            return _unusable(parcel, f"it is made of more than {limits.parts} parts"), False
        for _ in range(_SLICE):
            if not missing:
                return _unpacked(parcel, limits), False
            answer = self._pull(missing[-1], limits.size - arrival.size)
            if answer is None:
                return _unusable(parcel, f"it has more than {limits.size} bytes"), False
            if not answer.object_available:
                late = time.monotonic() - arrival.since > limits.seconds
                if answer.object_found and not late:
                    return None, False
                reason = f"{len(missing)} of its {arrival.parts} parts did not come"
                return error_instead(parcel, UNFINISHED, reason), False
            parcel.objects[missing.pop()] = answer.object_content
            arrival.size += len(answer.object_content)
        return None, True

    def _pull(self, name: str, room: int) -> Any:
        """Fetches a part of a reply; returns None if it has more than ``room`` bytes."""
        request = message_pb2.PullObjectRequest(
            node=self._grid.node, run_id=self._grid.run.run_id, object_id=name
        )
        self._room = room + _ENVELOPE
        try:
            answer = self._client.PullObject(request)
        except _TooLarge:
            return None
        finally:
            self._room = None
        return answer if len(answer.object_content) <= room else None

    def _stop(self, response: Any) -> None:
        """Aborts a call before its answer is read if the content length is too large."""
        if self._room is not None and int(response.headers.get("content-length", 0)) > self._room:
            raise _TooLarge

    def _confirm(self, arrival: _Arrival) -> None:
        """Lets the SuperLink delete a reply, and refuse parts that have not arrived."""
        self._client.ConfirmMessageReceived(
            message_pb2.ConfirmMessageReceivedRequest(
                node=self._grid.node, run_id=self._grid.run.run_id, message_object_id=arrival.name
            )
        )


def replies(grid: Grid) -> Callable[[Sequence[str], Limits], Iterable[Message]]:
    """Returns a function of message ids and limits that fetches arrived replies without waiting."""
    client = runtime_client(grid)
    if client is not None:
        return Inbox(grid, client).replies
    return lambda message_ids, limits: grid.pull_messages(message_ids)


def _unpacked(parcel: Parcel, limits: Limits) -> Message:
    """Unpacks a message; one that cannot be unpacked becomes a message with an error."""
    try:
        return unpack(parcel, limits.size)
    except Refused as error:
        return _unusable(parcel, str(error))
    except Exception as error:  # untrusted bytes: Flower may raise anything
        return _unusable(parcel, f"it cannot be put together: {one_line(repr(error))}")


def _unusable(parcel: Parcel, reason: str) -> Message:
    return error_instead(parcel, UNUSABLE, reason)
