"""Several nodes in one process, so that a machine has room for many."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from logging import getLogger

_log = getLogger("flwr.engram")


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
