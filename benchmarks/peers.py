"""Other ways to run FedAvg on the same federation, each as a function of the round."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.fedjax_rounds import fedjax_rounds, import_jax
from federation.data.federated import FederatedData, model_for
from federation.experiment import Experiment
from federation.methods.network import NetworkMethod
from federation.streams import Stream, generator, torch_generator
from strategies.rounds import draw_cohort

Round = Callable[[int], dict[str, Tensor]]  # runs a round, and returns its model


class PeerMissing(Exception):
    """A peer cannot be timed; the message says why."""


def drawn_rows(e: Experiment, data: FederatedData, server_round: int, client: int) -> Tensor:
    """Returns the rows that a client trains on in a round, of shape (steps, batch size)."""
    rows = data.train.rows[client]
    rng = generator(e.seed, Stream.LOCAL_STEPS, server_round, client)
    drawn = rows[rng.integers(len(rows), size=e.local_steps * e.batch_size)]
    return torch.from_numpy(drawn).view(e.local_steps, e.batch_size)


def plain_loop(
    e: Experiment,
    data: FederatedData,
    network: nn.Module,
    loss: Callable[[Tensor, Tensor], Tensor] = functional.cross_entropy,
) -> Round:
    """FedAvg as it is usually written: a module, an optimizer, one client after the other.

    The module is changed. It starts with the weights of the experiment's network, in their order.
    """
    start = model_for(e, data.kind).init(torch_generator(e.seed, Stream.MODEL))
    leaves = (leaf.to(e.device) for leaf in start.values())
    model = dict(zip(network.to(e.device).state_dict(), leaves, strict=True))

    def run(server_round: int) -> dict[str, Tensor]:
        nonlocal model
        total, merged = 0, {name: torch.zeros_like(leaf) for name, leaf in model.items()}
        for client in draw_cohort(e.seed, server_round, e.num_clients, e.clients_per_round):
            network.load_state_dict(model)
            optimizer = torch.optim.SGD(network.parameters(), lr=e.of(NetworkMethod).settings.eta)
            for some in drawn_rows(e, data, server_round, client):
                x, y = data.train.take(some.to(e.device))
                optimizer.zero_grad()
                torch.autograd.backward(loss(network(x), y))
                optimizer.step()
            count = len(data.train.rows[client])
            total += count
            for name, leaf in network.state_dict().items():
                merged[name] += count * leaf
        model = {name: leaf / total for name, leaf in merged.items()}
        return model

    return run


def torch_loop(e: Experiment, data: FederatedData) -> Round:
    """The plain loop, on a module of the same layers."""
    return plain_loop(e, data, _module(e, tuple(data.train.x.shape[1:]), data.outputs))


def fedjax_fedavg(e: Experiment, data: FederatedData) -> Callable[[int], None]:
    """FedJAX's own FedAvg, compiled, on a Haiku network of the same shape.

    Raises:
        PeerMissing: FedJAX is not installed, or JAX without the device.
    """
    try:
        hk, jax, _, _ = import_jax()
    except ImportError as error:
        raise PeerMissing(f"pip install -c constraints.txt -e '.[bench]' ({error})") from error
    if e.device != "cpu" and jax.default_backend() == "cpu":
        raise PeerMissing("JAX finds no GPU here, and a race against its CPU would say nothing")

    def forward(x: Any) -> Any:
        if e.model == "cnn":
            for channels in (32, 64):
                x = jax.nn.relu(hk.Conv2D(channels, 5)(x))
                x = hk.max_pool(x, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return hk.nets.MLP([*e.hidden_widths, data.outputs])(x.reshape(x.shape[0], -1))

    def rows_of(client: int) -> dict[str, Any]:
        x, y = data.train.take(torch.from_numpy(data.train.rows[client]).to(e.device))
        x = x.movedim(1, -1) if e.model == "cnn" else x
        return {"x": x.cpu().numpy(), "y": y.cpu().numpy().astype(np.int32)}

    run = fedjax_rounds(
        forward,
        {str(client): rows_of(client) for client in range(e.num_clients)},
        eta=e.of(NetworkMethod).settings.eta,
        batch=e.batch_size,
        steps=e.local_steps,
        seed=e.seed,
    )

    def run_cohort(server_round: int) -> None:
        cohort = draw_cohort(e.seed, server_round, e.num_clients, e.clients_per_round)
        run([*map(str, cohort)])

    return run_cohort


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
