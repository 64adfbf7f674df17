"""A site that leaves its federation: its key is given up, at the SuperLink first and then here."""

from pathlib import Path

from engram.link.credentials import NodeCredentials
from engram.link.node.fleet import Fleet
from engram.link.node.node import last_node_id
from engram.settings.errors import Refused
from engram.settings.files import replace_file


def check_there(credentials: NodeCredentials) -> None:
    """Checks that a client's site has not left.

    Raises:
        Refused: It has.
    """
    if credentials.has_left:
        raise Refused(
            f"{credentials.public_key.parent} has left {credentials.federation}: to take part "
            "again, it needs a new key, by `engram init-federation FOLDER --new-key "
            f"{credentials.partition_id}` where the federation was made"
        )


def leave(credentials: NodeCredentials, state: Path) -> None:
    """Gives up a client's key; its node, if one runs, ends.

    An interrupted call can be repeated.

    Args:
        credentials: The client's.
        state: Folder of its node's state.

    Raises:
        Refused: The federation is insecure, the key was given up before, or that cannot be noted.
        Unreachable: The SuperLink does not answer; nothing has changed.
        KeyRefused: The SuperLink does not know the key.
    """
    if credentials.insecure:
        raise Refused("an insecure federation registers nobody: stop the node, and it is gone")
    check_there(credentials)
    Fleet(credentials).leave(last_node_id(state))
    try:
        replace_file(credentials.left, credentials.public_key.read_bytes())
    except OSError as error:
        told = f"it has left, but {credentials.left} cannot be written"
        raise Refused(f"{told}: {error.strerror}; stop the node by hand") from error
