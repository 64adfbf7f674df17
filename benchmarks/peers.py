"""Other ways to run FedAvg on the same federation, each as a function of the round."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import plain
from benchmarks.fedjax_rounds import fedjax_rounds, haiku_layers, import_jax
from benchmarks.networks import layers
from engram.core.streams import Stream, generator, torch_generator
from engram.data.federated import FederatedData, model_for
from engram.settings.experiment import Experiment
from engram.settings.network import NetworkMethod
from engram.strategies.rounds import draw_cohort

Round = Callable[[int], dict[str, Tensor]]  # runs a round, and returns its model


class PeerMissing(Exception):
    """A peer cannot be timed; the message says why."""


def drawn_rows(
    e: Experiment, data: FederatedData, server_round: int, client: int, batches: int = 1
) -> Tensor:
    """Returns the rows that a client trains on in a round, batch by batch.

    The shape is (steps x batches of a step, batch size).
    """
    rows = data.train.rows[client]
    rng = generator(e.seed, Stream.LOCAL_STEPS, server_round, client)
    drawn = rows[rng.integers(len(rows), size=e.local_steps * batches * e.batch_size)]
    return torch.from_numpy(drawn).view(-1, e.batch_size)


def plain_loop(e: Experiment, data: FederatedData, network: nn.Module) -> Round:
    """FedAvg as it is usually written: a module, an optimizer, one client after the other.

    The module is changed. It starts with the weights of the experiment's network, in their order.
    """
    start = model_for(e, data.kind).init(torch_generator(e.seed, Stream.MODEL))
    leaves = (leaf.to(e.device) for leaf in start.values())
    model = dict(zip(network.to(e.device).state_dict(), leaves, strict=True))

    def train(server_round: int, client: int) -> None:
        drawn = drawn_rows(e, data, server_round, client)
        batches = (data.train.take(rows.to(e.device)) for rows in drawn)
        plain.train("fedavg", network, batches, eta=e.of(NetworkMethod).settings.eta)

    def run(server_round: int) -> dict[str, Tensor]:
        nonlocal model
        cohort = draw_cohort(e.seed, server_round, e.num_clients, e.clients_per_round)
        clients = (
            (len(data.train.rows[client]), partial(train, server_round, client))
            for client in cohort
        )
        model = plain.plain_round(network, model, clients)
        return model

    return run


def torch_loop(e: Experiment, data: FederatedData) -> Round:
    """The plain loop, on a module of the same layers."""
    shape = tuple(data.train.x.shape[1:])
    return plain_loop(e, data, layers(shape, _channels(e), [*e.hidden_widths, data.outputs]))


def fedjax_fedavg(e: Experiment, data: FederatedData) -> Callable[[int], None]:
    """FedJAX's own FedAvg, compiled, on a Haiku network of the same shape.

    Raises:
        PeerMissing: FedJAX is not installed, or JAX without the device.
    """
    try:
        _, jax, _, _ = import_jax()
    except ImportError as error:
        raise PeerMissing(f"pip install -c constraints.txt -e '.[bench]' ({error})") from error
    if e.device != "cpu" and jax.default_backend() == "cpu":
        raise PeerMissing("JAX finds no GPU here, and a race against its CPU would say nothing")

    def rows_of(client: int) -> dict[str, Any]:
        x, y = data.train.take(torch.from_numpy(data.train.rows[client]).to(e.device))
        x = x.movedim(1, -1) if e.model == "cnn" else x
        return {"x": x.cpu().numpy(), "y": y.cpu().numpy().astype(np.int32)}

    run = fedjax_rounds(
        haiku_layers(_channels(e), [*e.hidden_widths, data.outputs]),
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


def _channels(e: Experiment) -> tuple[int, ...]:
    return (32, 64) if e.model == "cnn" else ()
