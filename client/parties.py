"""The parties of secure rounds: in one process each client, and between machines each node.

A node signs with the key of its folder, and knows the others by the public keys in ``clients``
there. These come from the other sites, or from whoever made the federation: from the server's
operator they would be worth nothing, since it is the operator whom secure aggregation keeps out.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec

from client.requests import Request
from federation.errors import Refused
from federation.keys import read_node_key, read_public_key
from federation.secure.session import Registry


class Identity(NamedTuple):
    """A party of secure rounds.

    Attributes:
        party: Its number: that of its first client.
        key: Its registered key.
    """

    party: int
    key: ec.EllipticCurvePrivateKey


class Parties(NamedTuple):
    """The parties that a host answers for.

    Attributes:
        identity: Returns the party that a request is for.
        registry: The registered keys of all parties.
    """

    identity: Callable[[Request], Identity]
    registry: Registry


def of_process() -> Parties:
    """Returns a party for each client, with keys that are made when they are first needed."""
    keys: dict[int, ec.EllipticCurvePrivateKey] = {}

    def key(party: int) -> ec.EllipticCurvePrivateKey:
        if party not in keys:
            keys[party] = ec.generate_private_key(ec.SECP256R1())
        return keys[party]

    def identity(request: Request) -> Identity:
        party = request.hosted[0]
        return Identity(party, key(party))

    return Parties(identity, lambda party: key(party).public_key())


def of_node(folder: Path | None, party: int) -> Parties:
    """Returns the one party of a node.

    Args:
        folder: The client's folder: its key, and in ``clients`` those of the others.
        party: The number of its client.

    Raises:
        Refused: There is no folder, or no key in it.
    """
    if folder is None:
        raise Refused(
            "aggregation must be plain on this node, which was started without identity: secure "
            "aggregation needs `engram node FOLDER`, with the others' keys in FOLDER/clients"
        )
    own = Identity(party, read_node_key(folder / "client.key"))
    return Parties(lambda request: own, partial(registered, folder))


def registered(folder: Path, party: int) -> ec.EllipticCurvePublicKey:
    """Returns the key that a site knows a party by.

    Raises:
        Refused: It has none.
    """
    path = folder / "clients" / f"client-{party}.pub"
    if not path.is_file():
        raise Refused(
            f"this site has no key of client-{party}, and cannot tell it from the server: bring "
            f"its client.pub, not by way of the server, as clients/client-{party}.pub"
        )
    return read_public_key(path)
