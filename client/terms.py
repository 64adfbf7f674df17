"""The terms of a training: what a site approves when it approves a run."""

import hashlib
import json
from pathlib import Path

from client.approvals import APPROVALS, Request, require
from federation.clock import now
from federation.errors import Refused, one_line
from federation.experiment import Experiment, default_config
from federation.fingerprint import fingerprint
from federation.guarantee import guarantee
from federation.plugins import plugins

__all__ = ["request_of", "require_approval"]


def require_approval(state: Path, request: Request, number: int) -> None:
    """Returns if a node's site has approved a round of a training.

    Args:
        state: The folder of the node's state.
        request: The training, as it is asked for now.
        number: The round.

    Raises:
        Awaited: The site has not answered.
        Refused: It has refused the training, or approved fewer rounds.
    """
    require(state / APPROVALS, request, now())
    if number > request.rounds:
        raise Refused(f"this site has approved {request.rounds} rounds, got round {number}")


def request_of(experiment: Experiment, training: str, run: int) -> Request:
    """Returns the request for a training, without time and answer.

    Its terms are the settings that affect results, the number of rounds, and the source.

    Args:
        experiment: The run's settings.
        training: The training's name.
        run: The run's number.
    """
    e, usual = experiment, default_config()
    settings = {key: value for key, value in e.identity().items() if key != "data-dir"}
    terms = json.dumps([settings, e.rounds, fingerprint()], sort_keys=True)
    return Request(
        training,
        hashlib.sha256(terms.encode()).hexdigest(),
        run,
        e.method,
        e.rounds,
        {
            key: one_line(value) if isinstance(value, str) else value
            for key, value in settings.items()
            if value != usual.get(key) and key != "method"
        },
        tuple(one_line(name.rpartition("/")[2]) for name in plugins()),
        guarantee(e),
    )
