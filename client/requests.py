"""Requests to hosts: a server's messages, and the node's clients that they are about."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from engram.core.checks import must
from engram.settings.errors import REFUSED, EngramError, few, one_line
from engram.settings.experiment import Experiment
from engram.settings.fingerprint import fingerprint, source_root
from engram.wire.messages import Content, Entries, Error, Question, Reply
from engram.wire.wire import SETTINGS, config_of, read_int, read_list

_T = TypeVar("_T")

_LAST: Final = 10**6  # round, as of num-rounds; schedules and random streams count with it


class Request(NamedTuple):
    """A message, and the clients that its node hosts.

    Attributes:
        message: Its content has an array record ``arrays`` (slots that all receive alike), for
            some methods another one ``own`` (slots of which each client receives its own, with a
            leading axis of clients), and a config record ``config``. All keys of that are
            optional, so that Flower's own strategies work too: ``server-round``; ``clients`` (whom
            to train; by default all hosted); ``most-examples`` (most rows of a client that count
            in the node's mean; 1: clients count alike); ``combine`` (false: each client's model,
            stacked, instead of their mean); ``durable`` (the round of the coordinator's oldest
            checkpoint); ``way`` (in which the run was trained before it was resumed);
            ``fingerprint`` (of the server's source); ``settings`` (digest of the
            server's).
        hosted: The node's clients.
    """

    question: Question
    hosted: Sequence[int]


def asked_clients(request: Request) -> list[int]:
    """Returns the clients that a message names, or all that the node hosts.

    Raises:
        EngramError: If there is none, one is named twice, or the node does not host one of them.
    """
    config = config_of(request.question.content)
    if not request.hosted:
        raise EngramError(
            "this node hosts no client: there are more nodes than clients, or too few rows"
        )
    if "clients" not in config:
        return list(request.hosted)
    try:
        clients = read_list(config, "clients", int)
    except TypeError as error:
        raise EngramError(str(error)) from error
    hosted = request.hosted  # often a range, where `in` is fast
    if not clients or not all(client in hosted for client in clients):
        raise EngramError(
            f"clients must be some of those that this node hosts, {few(hosted)}, got {few(clients)}"
        )
    if len({*clients}) < len(clients):  # each time would be another release of the same rows
        raise EngramError(f"clients must be named once each, got {few(clients)}")
    return clients


def check_source(content: Content) -> None:
    """Checks that the server of a message runs the same source.

    Raises:
        EngramError: If it does not; the message names both sources.
    """
    server = str(config_of(content).get("fingerprint", fingerprint()))
    if server != fingerprint():
        raise EngramError(
            f"this node runs {fingerprint()} from {source_root()}, but the server runs {server}"
        )


def check_settings(content: Content, experiment: Experiment) -> None:
    """Refuses a message of a server with other settings.

    Raises:
        EngramError: They differ in something that bears on the numbers.
    """
    theirs = config_of(content).get(SETTINGS)
    if theirs and theirs != experiment.digest():
        raise EngramError(
            "this node's settings are not the server's: write them all into engram in the app's "
            "[tool.flwr.app.config], or give make_client_app and make_server_app the same ones"
        )


def round_of(content: Content) -> int:
    """Returns a message's round; 1 if it does not say.

    Raises:
        EngramError: It is no round that a run can have.
    """
    number = read_whole(config_of(content), "server-round", 1)
    if not 0 <= number <= _LAST:
        raise EngramError(must("server-round", number, f"a whole number in 0..{_LAST}"))
    return number


def durable_of(content: Content) -> int:
    """Returns the round of the coordinator's oldest checkpoint; 0 if the message does not say."""
    return read_whole(config_of(content), "durable", 0)


def read_whole(config: Entries, key: str, default: int) -> int:
    """Returns a whole number from a message's config, or the default if it is missing.

    Raises:
        EngramError: It is something else.
    """
    try:
        return read_int(config, key) if key in config else default
    except TypeError as error:
        raise EngramError(str(error)) from error


def answered(request: Request, answer: Callable[[list[int]], Content]) -> Reply:
    """Replies to a request with the answer for its clients, or with an error."""
    try:
        return Reply(request.question, answer(asked_clients(request)))
    except EngramError as error:
        return Reply(request.question, {}, Error(REFUSED, str(error)))


def by_client(
    clients: Iterable[int], answer: Callable[[int], _T]
) -> tuple[dict[int, _T], dict[int, str]]:
    """Returns the answers of clients, and the reasons of those that have none."""
    found: dict[int, _T] = {}
    failed: dict[int, str] = {}
    for client in clients:
        try:
            found[client] = answer(client)
        except ValueError as error:
            failed[client] = one_line(str(error))
    return found, failed


def split(
    number: int,
    found: Iterable[int],
    failed: Mapping[int, str],
    notes: Mapping[int, str] | None = None,
) -> dict[str, Any]:
    """Returns a reply's entries about its clients.

    They are the round, the clients that succeeded, ascending, why others failed, and remarks on
    some of the former: ``engram.strategies.running.site_strategy.read_split`` reads them.
    """
    notes = notes or {}
    why = {"failed": list(failed), "reasons": list(failed.values())}
    told = {"noted": list(notes), "notes": list(notes.values())}
    return {"server-round": number, "ids": list(found), **why, **told}
