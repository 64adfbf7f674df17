"""Times steps of a Flower app's training loop: methods by hand, and by the block of Engram.

``python -m benchmarks.flower_block`` prints microseconds of a core. The network is that of Flower's
quickstart, widened to 100,806 parameters. Loops by hand take whole gradients, and add a method's
terms by ``torch._foreach_`` functions. They take turns with the block, step by step.
"""

import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Annotated, Final

import torch
import typer
from flwr.app import ArrayRecord, ConfigRecord, Context, RecordDict
from torch import nn

from benchmarks import plain
from benchmarks.harness import chosen, in_turns, numbers_table, start
from engram import strategies
from engram.cli.console import out
from engram.flower import client
from engram.wire.flower import HostGrid

METHODS: Final = ("FedAvg", "FedProx", "FedRep", "Ditto", "Scaffold", "PFedMe")
_ETA: Final = 0.01
_WARM_UP: Final = 10


def network() -> nn.Sequential:
    """Returns the network, always with the same weights."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)
    second = nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    dense = nn.Linear(400, 200), nn.ReLU(), nn.Linear(200, 84), nn.ReLU(), nn.Linear(84, 10)
    return nn.Sequential(*first, *second, *dense)


def batches(count: int) -> list[plain.Batch]:
    """Returns so many batches of 32 images of noise."""
    torch.manual_seed(1)
    return [(torch.randn(32, 3, 32, 32), torch.randint(10, (32,))) for _ in range(count)]


def by_hand(method: str, steps: Sequence[plain.Batch]) -> Iterator[list[nn.Parameter]]:
    """Takes a method's step with each batch; yields the model that is there."""
    net, own = network(), network()
    w, v = [*net.parameters()], [*own.parameters()]
    begun = [leaf.detach().clone() for leaf in w]
    correction, total = ([torch.zeros_like(leaf) for leaf in begun] for _ in range(2))
    optimizer, second = (torch.optim.SGD(leaves, lr=_ETA) for leaves in (w, v))
    for i, batch in enumerate(steps):
        if method == "PFedMe":
            plain.pfedme(net, [batch], optimizer, 5, 15.0, _ETA)
            yield w
            continue
        gradients = plain.gradient(net, batch, 0.01 if method == "FedProx" else 0.0, begun)
        if method == "FedRep":  # the head first
            for leaf in w[:-2] if i < 0.8 * len(steps) else w[-2:]:
                leaf.grad = None
        elif method == "Scaffold":
            torch._foreach_add_(total, gradients)
            torch._foreach_add_(gradients, correction)
        optimizer.step()
        if method == "Ditto":
            plain.gradient(own, batch, 1.0, begun)
            second.step()
        yield v if method == "Ditto" else w  # from which the next gradient is taken first


def in_block(method: str, steps: Sequence[plain.Batch]) -> Iterator[list[nn.Parameter]]:
    """Takes the same steps by FedAvg's loop in the block."""
    net, grid = network(), HostGrid(SimpleNamespace(get_node_ids=lambda: [1]))
    strategy = getattr(strategies, method)(net, min_train_nodes=1, min_available_nodes=1)
    (message,) = strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    w, node = [*net.parameters()], Context(1, 1, {}, RecordDict(), {})
    with client(message, node, net, steps=len(steps)) as session:
        optimizer = torch.optim.SGD(w, lr=_ETA)
        for batch in session.batches(steps):
            plain.gradient(net, batch)
            optimizer.step()
            if not session.again:
                yield w


def main(
    method: Annotated[str, typer.Option(help="some of the methods")] = ",".join(METHODS),
    steps: Annotated[int, typer.Option(min=1, help="timed steps of each loop")] = 400,
) -> None:
    """Prints a table."""
    torch.set_num_threads(1)
    table = numbers_table("microseconds a step", "by hand", "in the block", "more (%)")
    data = batches(steps + _WARM_UP)
    for name in chosen(method, METHODS):
        loops = {make: make(name, data) for make in (by_hand, in_block)}
        turns = {make: lambda _, loop=loop: next(loop) for make, loop in loops.items()}
        ms = in_turns(turns, steps, warm_up=_WARM_UP, clock=time.thread_time)
        own, ours = 1000 * ms[by_hand], 1000 * ms[in_block]
        table.add_row(name, f"{own:.0f}", f"{ours:.0f}", f"{100 * (ours / own - 1):.1f}")
    out.print(table)


if __name__ == "__main__":
    start(main)
