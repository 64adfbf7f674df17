"""Other ways to run FedAvg on the same federation, each as a function of the round."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from federation.data.federated import FederatedData, model_for
from federation.experiment import Experiment
from federation.methods.network import NetworkMethod
from federation.streams import Stream, generator, torch_generator
from strategies.cohorts import draw_cohort

Round = Callable[[int], object]


class PeerMissing(Exception):
    """A peer cannot be timed; the message says why."""


def torch_loop(e: Experiment, data: FederatedData) -> Round:
    """FedAvg as it is usually written: a module, an optimizer, one client after the other."""
    network = _module(e, tuple(data.train.x.shape[1:]), data.outputs).to(e.device)
    start = model_for(e, data.kind).init(torch_generator(e.seed, Stream.MODEL))
    leaves = (leaf.to(e.device) for leaf in start.values())
    model = dict(zip(network.state_dict(), leaves, strict=True))

    def run(server_round: int) -> dict[str, Tensor]:
        nonlocal model
        total, merged = 0, {name: torch.zeros_like(leaf) for name, leaf in model.items()}
        for client in draw_cohort(e.seed, server_round, e.num_clients, e.clients_per_round):
            rows = data.train.rows[client]
            rng = generator(e.seed, Stream.LOCAL_STEPS, server_round, client)
            network.load_state_dict(model)
            optimizer = torch.optim.SGD(network.parameters(), lr=e.of(NetworkMethod).settings.eta)
            for _ in range(e.local_steps):
                drawn = torch.from_numpy(rows[rng.integers(len(rows), size=e.batch_size)])
                x, y = data.train.take(drawn.to(e.device))
                optimizer.zero_grad()
                torch.autograd.backward(functional.cross_entropy(network(x), y))
                optimizer.step()
            total += len(rows)
            for name, leaf in network.state_dict().items():
                merged[name] += len(rows) * leaf
        model = {name: leaf / total for name, leaf in merged.items()}
        return model

    return run


def fedjax_fedavg(e: Experiment, data: FederatedData) -> Round:
    """FedJAX's own FedAvg, compiled, on a Haiku network of the same shape.

    Raises:
        PeerMissing: FedJAX is not installed, or JAX without the device.
    """
    try:
        hk, jax, jnp = (import_module(name) for name in ("haiku", "jax", "jax.numpy"))
        # FedJAX 0.0.17, its last release, calls this by a name that JAX has dropped since.
        jax.__dict__["tree_map"] = jax.tree_util.tree_map
        fedjax = import_module("fedjax")
    except ImportError as error:
        raise PeerMissing(f"pip install -c constraints.txt -e '.[bench]' ({error})") from error

    if e.device != "cpu" and jax.default_backend() == "cpu":
        raise PeerMissing("JAX finds no GPU here, and a race against its CPU would say nothing")

    def forward(batch: Any) -> Any:
        x = batch["x"]
        if e.model == "cnn":
            for channels in (32, 64):
                x = jax.nn.relu(hk.Conv2D(channels, 5)(x))
                x = hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return hk.nets.MLP([*e.hidden_widths, data.outputs])(x.reshape(x.shape[0], -1))

    def loss(batch: Any, logits: Any) -> Any:
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), batch["y"][:, None], 1)[:, 0]

    def rows_of(client: int) -> dict[str, Any]:
        x, y = data.train.take(torch.from_numpy(data.train.rows[client]).to(e.device))
        x = x.movedim(1, -1) if e.model == "cnn" else x
        return {"x": x.cpu().numpy(), "y": y.cpu().numpy().astype(np.int32)}

    clients = {str(c).encode(): rows_of(c) for c in range(e.num_clients)}
    federated = fedjax.InMemoryFederatedData(clients)
    example = {"x": clients[b"0"]["x"][:1], "y": clients[b"0"]["y"][:1]}
    model = fedjax.create_model_from_haiku(
        hk.transform(forward), example, train_loss=loss, eval_metrics={}
    )
    method = fedjax.algorithms.fed_avg.federated_averaging(
        fedjax.model_grad(model),
        fedjax.optimizers.sgd(e.of(NetworkMethod).settings.eta),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=e.batch_size, num_epochs=None, num_steps=e.local_steps, seed=e.seed
        ),
    )
    state = method.init(model.init(jax.random.PRNGKey(e.seed)))

    def run(server_round: int) -> None:
        nonlocal state
        cohort = draw_cohort(e.seed, server_round, e.num_clients, e.clients_per_round)
        names = [str(client).encode() for client in cohort]
        asked = [
            (name, rows, jax.random.PRNGKey(client))
            for client, (name, rows) in zip(cohort, federated.get_clients(names), strict=True)
        ]
        state, _ = method.apply(state, asked)
        jax.block_until_ready(state.params)

    return run


PEERS: Final = {"torch loop": torch_loop, "FedJAX": fedjax_fedavg}


def _module(e: Experiment, shape: tuple[int, ...], classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    width = int(np.prod(shape))
    if e.model == "cnn":
        channels = shape[0]
        for out in (32, 64):
            layers += [nn.Conv2d(channels, out, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)]
            channels = out
        width = channels * (shape[1] // 4) * (shape[2] // 4)
    layers.append(nn.Flatten())
    for hidden in e.hidden_widths:
        layers += [nn.Linear(width, hidden), nn.ReLU()]
        width = hidden
    return nn.Sequential(*layers, nn.Linear(width, classes))
