"""The parties of secure rounds: in one process each client, and between machines each node.

A node signs with the key of its folder, and knows the others by the registry there. The first one
comes with a round, by way of the server, signed by the federation's authority; from then on it is
the site's own, which no server changes: whoever made up a member later is found out.
"""

import logging
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric import ec

from engram.client.requests import Request
from engram.core.checks import must
from engram.guards.secure.registry import REGISTRY, fingerprint, is_signed, keys_in, own_registry
from engram.guards.secure.session import Session
from engram.guards.secure.signatures import Identity, Registry
from engram.link.keys import read_certificates, read_node_key, same_key
from engram.link.node_config import NodeConfig
from engram.settings.errors import Refused, few_names
from engram.settings.files import replace_file

_log = logging.getLogger("flwr.engram")


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
        keys = _keys(folder)
        for party, count in session.asked:
            hosted = max(1, len(range(party, num_clients, node.num_partitions)))
            if party not in keys or count > hosted:
                expected = f"at most {hosted}, of a site that this one's registry has"
                raise Refused(must(f"clients-asked of client-{party}", count, expected))

    names = partial(registered, folder), partial(learn, folder)
    return Parties(lambda request: own, *names, check)


def registered(folder: Path, party: int) -> ec.EllipticCurvePublicKey:
    """Returns the key that a site knows a party by.

    Raises:
        Refused: It has none.
    """
    key, data = _keys(folder).get(party), own_registry(folder)
    if key is None:
        named = f"its registry, {fingerprint(data)}" if data else "a registry"
        raise Refused(f"this site has no key of client-{party} in {named}")
    return key


def _keys(folder: Path) -> Mapping[int, ec.EllipticCurvePublicKey]:
    data = own_registry(folder)
    return keys_in(data, folder / REGISTRY) if data else {}


def learn(folder: Path, data: bytes) -> None:
    """Takes the registry that a server sends, if a site has none; it must fit the one that it has.

    ``data`` is empty if the server has none.

    Raises:
        Refused: The site has none, and the authority has not signed this one; or it has a member's
            key otherwise than the site's, or that of another member. Nothing is written then.
    """
    path, sent = folder / REGISTRY, Path("the server's registry")
    known = own_registry(folder)
    if not known:
        roots = folder / "ca.crt"
        if not (roots.is_file() and is_signed(data, read_certificates(roots))):
            got = "one that is not" if data else "none"
            raise Refused(
                f"a registry of keys signed by this federation's authority must come first, got "
                f"{got}: where the authority's key is, engram renew SERVER_FOLDER signs it"
            )
        number = len(keys_in(data, sent))
        try:
            replace_file(path, data)
        except OSError as error:
            words = f"{path.name} of this site cannot be written: {error.strerror}"
            raise Refused(words) from error
        told = "engram status FOLDER shows it, which must be alike at all sites"
        _log.info("this site's registry has keys of %d, %s: %s", number, fingerprint(data), told)
    elif data:
        ours, theirs = keys_in(known, path), keys_in(data, sent)
        new = [n for n, key in theirs.items() if n not in ours or not same_key(key, ours[n])]
        if new:
            raise Refused(
                f"the server's registry, {fingerprint(data)}, has other keys than this site's, "
                f"{fingerprint(known)}, of {few_names([f'client-{n}' for n in sorted(new)])}: the "
                f"site compares it with other sites', and takes it by removing its file {path.name}"
            )
