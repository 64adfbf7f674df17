"""The last reply of a node, kept until the next: a message that comes again is not trained again.

A node that dies after training and before its reply has arrived gets the same message again, under
another name. So does one whose coordinator died. What it answers then is what it answered at first.
"""

from pathlib import Path

from flwr.app import Message

from client.sealed import Damaged, seal, unseal
from federation.errors import Refused
from federation.files import read_file, replace_file
from federation.flower import Parcel, pack, unpack

__all__ = ["Replies"]

_LABEL = "reply"


class Replies:
    """The last reply, in one file of a folder, with what it is the reply to.

    Args:
        folder: Where; created when there is a reply.
        key: As for ``DiskStore``.
    """

    def __init__(self, folder: Path, *, key: bytes | None = None) -> None:
        self._path = folder / "reply"
        self._key = key

    def find(self, message: Message) -> Message | None:
        """Returns what was answered to this content, as an answer to this message."""
        try:
            data = unseal(read_file(self._path), _LABEL, self._key)
            asked, reply = data[:64], data[64:]
            if asked != message.content.object_id.encode():
                return None
            return Message(unpack(Parcel.from_bytes(reply)).content, reply_to=message)
        except (OSError, Damaged, Refused):
            return None  # then it is trained again, from the memory it was trained from at first

    def keep(self, message: Message, reply: Message) -> None:
        """Keeps the reply to a message; errors are not kept, since they may not come again.

        Raises:
            OSError: The file could not be written.
        """
        if reply.has_error():
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        asked = message.content.object_id.encode()
        replace_file(self._path, seal(asked + pack(reply).to_bytes(), _LABEL, self._key))
