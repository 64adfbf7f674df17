"""What several tests need: quadratics with unequal numbers, and a small federation of digits."""

import json
from collections import deque
from pathlib import Path
from typing import Any

import torch

from engram.client.hosts.local import LocalHost
from engram.client.memory import MemoryStore, RamStore
from engram.cohort.trainer.chunks import score
from engram.cohort.trainer.trainer import Trainer
from engram.core.method import Slots, Update
from engram.core.rounds import merged
from engram.core.slots import flat, over_slots
from engram.core.types import Weighted
from engram.data.load_federation import federated_data
from engram.guards.noise import secret_noise
from engram.networks.losses import mean_loss
from engram.scoring.tasks import CLASSIFICATION, REGRESSION
from engram.server.roster import query_roster
from engram.settings.experiment import Experiment, read_by
from engram.settings.families import METHODS, family
from engram.settings.fields import key_of
from engram.simulations.grid import InProcessGrid
from engram.strategies.running.network_strategy import Federated
from engram.strategies.running.rounds import rounds
from engram.tune.runs import Stacked, members_of
from tests.samples import EIGHT

DIM, K = 3, 5
# Methods that need no batch norm in the network.
ANY_NETWORK = [name for name in family("local") if METHODS[name].personal != "norm"]
# Methods of which a mean over all clients can be bounded or replaced.
PROTECTED = [name for name in ANY_NETWORK if not METHODS[name].each]
# Those of the eight whose network needs no batch norm.
SEVEN = [name for name in EIGHT if name in ANY_NETWORK]


def cross_entropy(model):
    """The mean negative log-likelihood of a batch of classes, in nats."""
    return mean_loss(model, CLASSIFICATION)


def squared_error(model):
    """The mean squared error of a batch, over its rows (k) and outputs (k, out)."""
    return mean_loss(model, REGRESSION)


def quadratic(params, batch):
    """|Xw - y|^2 / 2K: its gradient is A w - b and its Hessian A, see `moments`."""
    (x, y), weights = batch if isinstance(batch, Weighted) else (batch, None)
    rows = 0.5 * (x @ params["w"] - y) ** 2
    return rows.mean() if weights is None else rows @ weights


def moments(batch):
    x, y = batch
    return x.T @ x / len(x), x.T @ y / len(x)


def size_of(params):
    """The bytes of arrays, counted one by one."""
    return sum(leaf.numel() * leaf.element_size() for leaf in params.values())


def gen(*keys):
    """A generator that is a function of whole numbers."""
    return torch.Generator().manual_seed(hash(keys) % 10**6)


def draw(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def batch(seed, *lead):
    return draw(seed, *lead, K, DIM), draw(seed + 1000, *lead, K)


def small(**settings: Any) -> Experiment:
    """A quick experiment; settings with `_` for `-`."""
    quick = {"num-rounds": 4, "clients-per-round": 4, "local-steps": 2, "batch-size": 4}
    quick |= {"hidden": "8", "eval-every": 2, "checkpoint-every": 2}
    quick |= {"weighting": "paper"}  # as the method's record has it
    method = settings.setdefault("method", "local-moml")
    # With the Hessian, the harder of both variants.
    exact = {"hessian": "exact"} if "hessian" in METHODS[method].model_fields else {}
    own = exact | ({"initial-batch-size": 3} if method == "local-moml" else {})
    given = {key_of(key): value for key, value in settings.items()}
    return Experiment.from_config(read_by(method, quick) | own | given)


def small_of_any(**settings: Any) -> Experiment:
    """As ``small``, for tables over methods: settings that only others read are left out."""
    given = {key_of(key): value for key, value in settings.items()}
    return small(**read_by(settings.get("method", "local-moml"), given))


def trainer(experiment: Experiment, store: MemoryStore | None = None, **options: Any) -> Trainer:
    return Trainer(experiment, federated_data(experiment), store or RamStore(), **options)


def initial_model(t: Trainer) -> Slots:
    """Slots that the server sends to all clients alike in the first round."""
    return t.method.server.send(t.method.server.start, [0])[0]


def own_of(t: Trainer, clients) -> Slots:
    """Slots of which it sends each client its own then, with a leading axis."""
    return t.method.server.send(t.method.server.start, list(clients))[1]


def train_clients(t: Trainer, common, clients, **when):
    """What every client sends after a round, and what else came of it."""
    (trained,) = t.train(common, [clients], **{"own": own_of(t, clients)} | when)
    return trained


def run_rounds(t: Trainer, cohorts, server=None):
    """What the last cohort sends, and the server's slots, after a round of each cohort."""
    server = server or t.method.server.start
    for server_round, clients in enumerate(cohorts, start=1):
        common, own = t.method.server.send(server, clients)
        when = {"server_round": server_round, "durable": server_round - 1}
        trained = train_clients(t, common, clients, own=own, **when)
        server = merged(t.method, server, updates_of(trained))
    return trained, server


def updates_of(trained):
    """The updates of clients that have trained, one by one."""
    return [
        Update(over_slots(lambda leaf, i=i: leaf[i], trained.slots), float(rows), 1, client)
        for i, (client, rows) in enumerate(zip(trained.clients, trained.examples, strict=True))
    ]


def scores_of(t: Trainer, clients, server=None, *, server_round=0):
    """Clients' scores by the server's slots; by default, before the first round."""
    common, own = t.method.server.send(server or t.method.server.start, list(clients))
    return score(t, common, clients, server_round=server_round, own=own)


def grid(t: Trainer, nodes: int | None = None) -> InProcessGrid:
    n = t.experiment.num_clients
    nodes = nodes or n
    return InProcessGrid(LocalHost(t), [range(node, n, nodes) for node in range(nodes)])


def strategy_of(e: Experiment, g, *, roster=None, noise=secret_noise):
    """The strategy of a run on a grid, and what it sends to all clients at first, by name."""
    strategy = Federated.build(e, roster or query_roster(g, e.num_clients), noise)
    return strategy, strategy.init()


def assert_same(one, other, *, atol=0.0):
    """Compares dictionaries of tensors, such as slots."""
    one, other = flat(one), flat(other)
    assert one.keys() == other.keys()
    for name in one:
        torch.testing.assert_close(
            one[name], other[name], rtol=0, atol=atol, equal_nan=True, msg=name
        )


def write_npz(path: Path, **arrays) -> str:
    import numpy as np

    np.savez(path, **arrays)
    return f"npz:{path}"


def write_plug_in(path: Path, name: str) -> None:
    """Writes a module that registers a method: fedavg under a name of its own."""
    path.write_text(
        "import engram\nfrom engram.methods.fedavg import FedAvg\n\n\n"
        f"@engram.method({name!r}, source='nobody')\n"
        'class Own(FedAvg):\n    """FedAvg under a name of its own."""\n',
        encoding="utf-8",
    )


def check_lines(lines, longest: int) -> None:
    """There are lines of a log, and each is one of bounded length that a terminal shows."""
    assert lines
    assert all(line.isprintable() and len(line) < longest for line in lines)


def declared_values(**columns):
    """Returns lines of a schema: the values of columns, each as ``"cat|dog"``."""
    each = ((name, json.dumps(values.split("|"))) for name, values in columns.items())
    return "\n".join(f"columns.{name} = {{values = {values}}}" for name, values in each)


def trained_together(experiments):
    """Returns runs after all their rounds, which they train as stacks."""
    members = members_of(experiments)
    deque(rounds(experiments[0], Stacked(members).train), maxlen=0)
    return members
