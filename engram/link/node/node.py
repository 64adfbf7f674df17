"""A resident node, which stays connected to a SuperLink and answers its messages, for months."""

import json
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from functools import partial
from logging import getLogger
from pathlib import Path
from typing import Any

from engram.core.machine import keep_freed
from engram.link.credentials import NodeCredentials
from engram.link.node.fleet import Fleet, KeyRefused, Untrusted
from engram.link.node.session import Session
from engram.link.node.worker import COUNTED, Worker
from engram.settings.errors import EngramError, Refused
from engram.settings.files import locked, refusing, replace_file, sweep
from engram.sites.audit import AUDIT, Audit
from engram.sites.policy import keep_policy
from engram.wire.counters import Counters, beat, serve_counters
from engram.wire.counters import silence as silent_for

_log = getLogger("flwr.engram")

_KEPT = 2**20  # bytes of freed memory that a node keeps
_NODE = "node.json"  # holds this node's id at the SuperLink
_ALIVE = "alive"  # is touched whenever it hears of its SuperLink
_RETRY, _LONGEST = 0.25, 30.0  # seconds until the next attempt, doubled each time up to _LONGEST
_TAKEN = 25.0  # seconds after which a SuperLink notices that a node has died


def run_node(
    credentials: NodeCredentials,
    state: Path,
    node_config: Mapping[str, Any],
    *,
    max_message: int = 0,
    metrics_port: int = 0,
    forked: bool = False,
    stop: threading.Event,
) -> None:
    """Answers messages until it is stopped.

    Args:
        credentials: The SuperLink's address, and the node's identity.
        state: Folder of the node's persistent state: its id, and its clients' memories.
        node_config: The node's configuration, for its ClientApp.
        max_message: Most bytes of a message; 0 for an eighth of the free memory.
        metrics_port: Port of ``/metrics`` and ``/healthz`` on the loopback interface; 0 for none.
        forked: As for ``Worker``.
        stop: Event that ends the node.

    Raises:
        Refused: Another node uses the folder or the key, the SuperLink does not know the key, or
            refuses it for good, or its certificate failed its verification at the beginning.
    """
    keep_freed(_KEPT, largest=_KEPT)  # the parts of large messages come and go
    with only_one(state):
        sweep(state)
        place = Path(node_config["policy"]) if "policy" in node_config else None
        policy = partial(keep_policy, place, state)
        policy()  # whatever becomes of its file before the first message
        counters = Counters(COUNTED)
        serve_counters(counters, metrics_port, lambda: silence(state))
        fleet = Fleet(credentials, on_beat=partial(beat, state / _ALIVE), max_message=max_message)
        worker = Worker(node_config, counters, forked=forked)
        try:
            audit = Audit(state / AUDIT)
            opened = partial(Session, fleet, worker, stop=stop, policy=policy, audit=audit)
            _stay(fleet, opened, state, stop)
        finally:
            worker.close()
            fleet.close()


@contextmanager
def only_one(state: Path) -> Iterator[None]:
    """Locks the folder, and so its clients' memories, against other processes."""
    with ExitStack() as stack:
        try:
            state.mkdir(mode=0o700, parents=True, exist_ok=True)
            stack.enter_context(locked(state / "lock"))
        except BlockingIOError as error:
            raise Refused(
                f"another node runs in {state}: stop it first, or give this one a client of its own"
            ) from error
        except OSError as error:
            raise Refused(f"the node's folder {state} cannot be used: {error.strerror}") from error
        yield


def _stay(
    fleet: Fleet, opened: Callable[[int], Session], state: Path, stop: threading.Event
) -> None:
    known, pause = False, _RETRY
    while not stop.is_set():
        node_id = _connect(fleet, state, stop, known=known)
        if node_id is None:
            return
        known, start = True, time.monotonic()
        _log.info("node %d is connected", node_id)
        try:
            opened(node_id).serve()
        except EngramError as error:
            _log.warning("%s; connecting again", error)
        # Sessions that end soon may all end alike, so the pauses grow.
        pause = _RETRY if time.monotonic() - start > _LONGEST else min(_LONGEST, 2 * pause)
        stop.wait(pause)


def _connect(fleet: Fleet, state: Path, stop: threading.Event, *, known: bool) -> int | None:
    """Tries, with growing waits, until a session is open; returns None if it is to end."""
    wait, refused = _RETRY, math.inf
    told: type[EngramError] | None = None
    while True:
        try:
            node_id = fleet.open(last_node_id(state))
            _keep(state, node_id)
            return node_id
        except KeyRefused as error:
            if _has_left(fleet, error):
                return None
            # The key may be unknown; or this node died and lost its id, and still seems alive.
            refused = min(refused, time.monotonic())
            if known:
                _log.warning("%s", error)
            elif time.monotonic() - refused > _TAKEN:
                raise Refused(
                    f"{error} Either its key is not registered (on the server: engram register), "
                    "or another node uses it"
                ) from error
            elif told is not KeyRefused:
                told = KeyRefused
                _log.warning("%s; trying again for %.0f s", error, _TAKEN)
        except Untrusted as error:
            if not known and not fleet.credentials.former:
                raise Refused(str(error)) from error
            _log.warning("%s", error)
        except EngramError as error:  # Unreachable, a clock, or an unexpected answer
            if told is not type(error):
                told = type(error)
                _log.warning("%s; trying again", error)
        if stop.wait(wait * random.uniform(0.7, 1.3)):
            return None
        wait = min(_LONGEST, 2 * wait)


def _has_left(fleet: Fleet, refused: KeyRefused) -> bool:
    """Whether a client's site has given its key up; raises if it is refused for good otherwise."""
    if fleet.credentials.has_left:
        _log.info("this client has left the federation: its node ends")
        return True
    if refused.for_good:
        raise Refused(str(refused)) from refused
    return False


def _keep(state: Path, node_id: int) -> None:
    try:
        replace_file(state / _NODE, json.dumps({"node-id": node_id}).encode())
    except OSError as error:  # then a restart waits until the old session expires
        _log.warning("%s cannot be written: %s", state / _NODE, error.strerror)
    beat(state / _ALIVE)


def silence(state: Path) -> str:
    """Line on a SuperLink's silence, if it is too long; "" if not."""
    return silent_for(state / _ALIVE, "nothing heard of the SuperLink")


def last_node_id(state: Path) -> int | None:
    """Returns a node's id in its last session; None if that is not known."""
    try:
        number = json.loads((state / _NODE).read_text(encoding="utf-8"))["node-id"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return number if isinstance(number, int) else None


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
    with refusing(f"it has left (stop the node by hand), but {credentials.left} cannot be written"):
        replace_file(credentials.left, credentials.public_key.read_bytes())


def run_together(nodes: Mapping[str, Callable[[], None]]) -> None:
    """Runs nodes until all have ended; one that ends by an error leaves the others alone.

    Args:
        nodes: By name, what runs each until it is stopped.

    Raises:
        BaseException: The error of the node that was the first to end by one.
    """
    with ThreadPoolExecutor(len(nodes)) as threads:
        running = {threads.submit(run): name for name, run in nodes.items()}
        errors = []
        for node in as_completed(running):
            if error := node.exception():
                errors.append(error)
                if len(nodes) > 1:  # else its caller says it at once
                    _log.error("%s has ended: %s", running[node], error)
    if errors:
        raise errors[0]
