"""A node's last reply of a kind, kept until the next: a repeated message is not answered anew.

A node that dies after training and before its reply has arrived gets the same message again, under
another id. So does a node whose coordinator died. It then repeats its first reply.
"""

from pathlib import Path

from flwr.app import Message

from engram.link.flower import Parcel, pack, unpack
from engram.settings.errors import Refused
from engram.settings.files import open_file, read_file, replace_file
from engram.sites.encrypted_file import Damaged, seal_parts, unseal


class Replies:
    """The last reply, in a file with the id of the content that it replies to."""

    def __init__(self, folder: Path, *, name: str = "reply", key: bytes | None = None) -> None:
        self._path = folder / name
        self._key = key

    def find(self, message: Message) -> Message | None:
        """Returns the kept reply, as a reply to this message, if it answers the same content."""
        asked = message.content.object_id.encode()
        try:
            with open_file(self._path, links=False) as file:
                if file.read(len(asked)) != asked:
                    return None  # without reading what may be large
            sealed = read_file(self._path, links=False)[len(asked) :]
            data = unseal(sealed, _label(asked), self._key)
            return Message(unpack(Parcel.from_bytes(data)).content, reply_to=message)
        except (OSError, Damaged, Refused):
            return None  # trained again, from the same memory as at first

    def keep(self, message: Message, reply: Message) -> None:
        """Keeps the reply to a message, unless it is an error, which may not recur.

        Raises:
            OSError: If the file could not be written.
        """
        if reply.has_error():
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        asked = message.content.object_id.encode()
        sealed = seal_parts(pack(reply).to_parts(), _label(asked), self._key)
        replace_file(self._path, [asked, *sealed])


def _label(asked: bytes) -> str:
    return f"reply to {asked.decode()}"
