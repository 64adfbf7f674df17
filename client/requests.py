"""What hosts are asked: messages of a server, and whom of a node's clients they are about."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from flwr.app import ConfigRecord, Error, Message, RecordDict

from federation.errors import EngramError, few
from federation.experiment import Experiment
from federation.fingerprint import fingerprint, source_root
from federation.wire import REFUSED, SETTINGS, config_of, read_list

__all__ = [
    "Request",
    "answered",
    "asked_clients",
    "check_settings",
    "check_source",
    "durable_of",
    "read_whole",
    "round_of",
    "split",
]


class Request(NamedTuple):
    """A message, and the clients that the node it is addressed to hosts.

    Attributes:
        message: Its content has an array record ``arrays`` (the model) and a config record
            ``config``, of which all keys are optional, so that Flower's own strategies are
            understood: ``server-round``; ``clients`` (whom to train; all hosted);
            ``most-examples`` (how many rows of a client count at most in the node's mean; 1:
            clients count alike); ``combine`` (false: every client's model, stacked, instead of
            their mean); ``durable`` (the coordinator's last checkpoint); ``fingerprint`` (of the
            source the server runs); ``settings`` (digest of the server's).
        hosted: The node's clients.
    """

    message: Message
    hosted: Sequence[int]


def asked_clients(request: Request) -> list[int]:
    """Returns whom a message asks: all clients of its node, or those that it names.

    Raises:
        EngramError: There are none, or some are others'.
    """
    config = config_of(request.message.content)
    if not request.hosted:
        raise EngramError("this node hosts no client: there are more nodes than clients")
    if "clients" not in config:
        return list(request.hosted)
    try:
        clients = read_list(config, "clients", int)
    except TypeError as error:
        raise EngramError(str(error)) from error
    hosted = request.hosted  # often a range, which knows its members without looking through them
    if not clients or not all(client in hosted for client in clients):
        raise EngramError(
            f"clients must be some of those that this node hosts, {few(hosted)}, got {few(clients)}"
        )
    return clients


def check_source(content: RecordDict) -> None:
    """Refuses a message of a server that runs another source.

    Raises:
        EngramError: It names both.
    """
    server = str(config_of(content).get("fingerprint", fingerprint()))
    if server != fingerprint():
        raise EngramError(
            f"this node runs {fingerprint()} from {source_root()}, but the server runs {server}"
        )


def check_settings(content: RecordDict, experiment: Experiment) -> None:
    """Refuses a message of a server whose settings differ from those that this node was given.

    Raises:
        EngramError: They differ in something that bears on the numbers.
    """
    theirs = config_of(content).get(SETTINGS)
    if theirs and theirs != experiment.digest():
        raise EngramError(
            "this node's settings are not the server's: write them all into the app's "
            "[tool.flwr.app.config], or give make_client_app and make_server_app the same ones"
        )


def round_of(content: RecordDict) -> int:
    """Returns the round that a message is of; 1 if it does not say."""
    return read_whole(config_of(content), "server-round", 1)


def durable_of(content: RecordDict) -> int:
    """Returns the coordinator's last checkpoint; 0 if the message does not say."""
    return read_whole(config_of(content), "durable", 0)


def read_whole(config: ConfigRecord, key: str, default: int) -> int:
    """Returns a whole number of a message, or the default where it says none."""
    value = config.get(key, default)
    if not isinstance(value, int):
        raise EngramError(f"{key} must be a whole number, got {value!r}")
    return value


def answered(request: Request, answer: Callable[[list[int]], RecordDict]) -> Message:
    """Returns the reply to a request, of the clients that it names; or says what failed."""
    try:
        return Message(answer(asked_clients(request)), reply_to=request.message)
    except EngramError as error:
        return Message(Error(REFUSED, str(error)), reply_to=request.message)


def split(
    number: int,
    found: Iterable[int],
    failed: Mapping[int, str],
    notes: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Returns what a reply says of a round's clients, as ``strategies.sites.read_split`` reads it.

    Args:
        number: The round.
        found: Clients that the reply is of, ascending.
        failed: Others, and why.
        notes: What there is to say of some of the former.
    """
    notes = notes or {}
    return {
        "server-round": number,
        "ids": list(found),
        "failed": list(failed),
        "reasons": list(failed.values()),
        "noted": list(notes),
        "notes": list(notes.values()),
    }
