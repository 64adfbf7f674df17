"""Messages of a server to a node in this process, whose site may set a total."""

import math
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.stats import norm

from engram.client.app import answer_question
from engram.core.slots import flat
from engram.settings.errors import REFUSED
from engram.sites.ledger import LEDGER, Ledger
from engram.sites.policy import keep_policy
from engram.wire.messages import EVALUATE, TRAIN, Content, NodeContext, Question, Reply
from engram.wire.wire import ARRAYS, CLIENTS, CONFIG, OWN, ROSTER_QUERY
from tests.support import initial_model, own_of, small_of_any, trainer

LOCAL = {"privacy": "local", "clip": 0.5, "noise_multiplier": 8.0}
DELTA = 1e-5
TRAINING = "0123456789abcdef"


def answer_of(e, kind, content, run=1, **node) -> Reply:
    """The answer of a node that hosts client 0; each time to another message."""
    question = Question(7, kind, content)
    config = {"partition-id": 0, "num-partitions": 1, **node}
    return answer_question(question, NodeContext(run, config, e.to_config()))


def at(folder) -> dict[str, str]:
    """A node's settings with its state and its policy in a folder."""
    return {"state": str(folder), "policy": str(folder)}


def model_for(e, server_round=1, clients=(0,), *, model=None, **config) -> Content:
    """A message about a model to clients, by default about that of the run's first round."""
    config = {"server-round": server_round, "training": TRAINING, CLIENTS: [*clients]} | config
    records = {CONFIG: config}
    if model is None:
        t = trainer(e)
        model = initial_model(t)
        if own := flat(own_of(t, list(clients))):
            records[OWN] = own
    return {ARRAYS: flat(model), **records}


def refusal(reply: Reply) -> str:
    """The line of a refusal."""
    assert reply.error, reply.content
    assert reply.error.code == REFUSED
    assert "\n" not in reply.error.reason
    return reply.error.reason


told = refusal


def epsilon_of(costs) -> float:
    """Epsilon of Gaussian releases of these mu^2: Balle and Wang's Theorem 8, by scipy alone."""
    mu = math.sqrt(math.fsum(costs))
    if mu == 0:
        return 0.0

    def excess(epsilon: float) -> float:
        high = norm.logcdf(mu / 2 - epsilon / mu)
        return math.exp(high) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - DELTA

    return 0.0 if excess(0.0) <= 0 else brentq(excess, 0.0, mu**2 + 20 * mu, xtol=1e-12)


def policy(folder, epsilon: float = 4.0, more: str = "") -> None:
    (folder / "policy.toml").write_text(f"epsilon = {epsilon}\n{more}\n")
    keep_policy(folder, folder, accept=True)


def ask(folder, kind, content, *, run: int = 1, node=None, **settings: Any) -> Reply:
    """Returns the answer of the node in a folder."""
    where = at(folder) | {"num-partitions": 20} | (node or {})
    return answer_of(small_of_any(**LOCAL | settings), kind, content, run, **where)


def content_of(clients=(0,), server_round: int = 1, nonce: str = "", **settings: Any) -> Content:
    """A message about the first model of a run."""
    e, more = small_of_any(**LOCAL | settings), {"nonce": nonce} if nonce else {}
    return model_for(e, server_round, clients, **more)


def train(folder, server_round=1, nonce="", kind=TRAIN, **how: Any) -> Reply:
    given = {key: value for key, value in how.items() if key not in ("node", "run")}
    content = content_of(server_round=server_round, nonce=nonce, **given)
    return ask(folder, kind, content, **how)


def evaluate(folder, server_round=1, nonce="", **how: Any) -> Reply:
    return train(folder, server_round, nonce, EVALUATE, **how)


def roster(folder, **how: Any) -> Reply:
    return ask(folder, ROSTER_QUERY, {}, **how)


def books(folder, epsilon: float = 4.0):
    return Ledger(folder / LEDGER, epsilon, DELTA).read()


def numbers(reply: Reply) -> np.ndarray:
    """All numbers of an update."""
    return np.concatenate([array.numpy().ravel() for array in reply.content[ARRAYS].values()])
