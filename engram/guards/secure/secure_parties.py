"""The parties of secure rounds: in one process each client, and between machines each node.

A node signs with the key of its folder, and knows the others by the registry there.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec

from engram.client.requests import Request
from engram.core.checks import must
from engram.guards.secure.session import Session
from engram.guards.secure.signatures import Identity, Registry
from engram.guards.secure.site_registry import learn, registered, registered_keys
from engram.link.keys import read_node_key
from engram.link.node_config import NodeConfig
from engram.settings.errors import Refused


class Parties(NamedTuple):
    """The parties that a host answers for."""

    identity: Callable[[Request], Identity]  # returns the party that a request is for
    registry: Registry  # the registered keys of all parties
    learn: Callable[[bytes], None] = lambda data: None  # takes the server's registry, or refuses it
    # Refuses parties that are not registered, or have more clients than they can host.
    check: Callable[[Session], None] = lambda session: None


def of_process() -> Parties:
    """Returns a party for each client, with keys that are made when they are first needed."""
    key = cache(lambda party: ec.generate_private_key(ec.SECP256R1()))
    return Parties(
        lambda request: Identity(request.hosted[0], key(request.hosted[0])),
        lambda party: key(party).public_key(),
    )


def of_node(node: NodeConfig, num_clients: int) -> Parties:
    """Returns the one party of a node.

    Raises:
        Refused: There is no folder, or no key in it.
    """
    folder = node.identity
    if folder is None:
        raise Refused(
            "aggregation must be plain on this node, which was started without identity: secure "
            "aggregation needs `engram node FOLDER`, with the client's key in FOLDER"
        )
    own = Identity(node.partition_id, read_node_key(folder / "client.key"))

    def check(session: Session) -> None:
        keys = registered_keys(folder)
        for party, count in session.asked:
            hosted = max(1, len(range(party, num_clients, node.num_partitions)))
            if party not in keys or count > hosted:
                expected = f"at most {hosted}, of a site that this one's registry has"
                raise Refused(must(f"clients-asked of client-{party}", count, expected))

    names = partial(registered, folder), partial(learn, folder)
    return Parties(lambda request: own, *names, check)
