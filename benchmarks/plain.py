"""Methods as they are usually written: a module, optimizers, one client and one batch at a time.

PyTorch is all that this needs, so that the environments of peers can run it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from benchmarks.networks import STEP_SIZE, loss
from benchmarks.pfllib_pairs import PAIRS

Batch = tuple[Tensor, Tensor]
Model = Mapping[str, Tensor]


def plain_round(
    network: nn.Module, model: Model, clients: Iterable[tuple[int, Callable[[], None]]]
) -> dict[str, Tensor]:
    """Returns the mean, weighted by rows, of the models that clients train from a common one.

    Args:
        network: The module that all train, one after the other.
        model: The common model.
        clients: Each one's number of rows, and its training, which changes the module.
    """
    total, merged = 0, {name: torch.zeros_like(leaf) for name, leaf in model.items()}
    for count, train in clients:
        network.load_state_dict(model)
        train()
        total += count
        for name, leaf in network.state_dict().items():
            merged[name] += count * leaf
    return {name: leaf / total for name, leaf in merged.items()}


def train(
    method: str,
    network: nn.Module,
    batches: Iterable[Batch],
    personal: nn.Module | None = None,
    eta: float = STEP_SIZE,
) -> None:
    """Trains one client's module, and Ditto's personal one, at the settings of ``pfllib_pairs``.

    Raises:
        ValueError: The method is another, or Ditto's personal module is missing.
    """
    ours = PAIRS[method].ours
    optimizer = torch.optim.SGD(network.parameters(), lr=eta)
    if method == "fedavg":
        for batch in batches:
            gradient(network, batch)
            optimizer.step()
    elif method == "per-fedavg":
        _per_fedavg(network, iter(batches), optimizer, ours["alpha"])
    elif method == "pfedme":
        inner = torch.optim.SGD(network.parameters(), lr=ours["alpha"])
        pfedme(network, batches, inner, ours["inner_steps"], ours["lambda_"], eta)
    elif method == "ditto" and personal is not None:
        _ditto(network, personal, batches, optimizer, ours["lambda_"])
    else:
        expected = "fedavg, per-fedavg, pfedme, or ditto with a personal module"
        raise ValueError(f"method must be {expected}, got {method!r}")


def _per_fedavg(
    network: nn.Module, batches: Iterator[Batch], outer: torch.optim.SGD, alpha: float
) -> None:
    """``w <- w - eta grad L2(w - alpha grad L1(w))``, without second derivatives."""
    inner = torch.optim.SGD(network.parameters(), lr=alpha)
    for first in batches:
        w = _copies(network)
        gradient(network, first)
        inner.step()
        gradient(network, next(batches))
        _set(network, w)
        outer.step()


def pfedme(
    network: nn.Module,
    batches: Iterable[Batch],
    inner: torch.optim.SGD,
    steps: int,
    lambda_: float,
    eta: float,
) -> None:
    """``w <- w - eta lambda (w - theta)``, where steps from w have led theta near a minimum."""
    for batch in batches:
        w = _copies(network)
        for _ in range(steps):
            gradient(network, batch, lambda_, w)
            inner.step()
        torch._foreach_lerp_(w, [leaf.detach() for leaf in network.parameters()], eta * lambda_)
        _set(network, w)


def _ditto(
    network: nn.Module,
    personal: nn.Module,
    batches: Iterable[Batch],
    optimizer: torch.optim.SGD,
    lambda_: float,
) -> None:
    """FedAvg, and ``v <- v - eta (grad L(v) + lambda (v - w))``, w as it was received."""
    w, (group,) = _copies(network), optimizer.param_groups
    second = torch.optim.SGD(personal.parameters(), lr=group["lr"])
    for batch in batches:
        gradient(network, batch)
        optimizer.step()
        gradient(personal, batch, lambda_, w)
        second.step()


def gradient(
    network: nn.Module, batch: Batch, lambda_: float = 0.0, near: Sequence[Tensor] = ()
) -> list[Tensor]:
    """Leaves a batch's gradient in the parameters, with that of ``lambda/2 |w - near|^2``."""
    network.zero_grad()
    x, y = batch
    torch.autograd.backward(loss(network(x), y))
    w = [leaf.detach() for leaf in network.parameters()]
    found = [leaf.grad for leaf in network.parameters() if leaf.grad is not None]
    if lambda_:
        torch._foreach_add_(found, torch._foreach_sub(w, [*near]), alpha=lambda_)
    return found


def _copies(network: nn.Module) -> list[Tensor]:
    return [leaf.detach().clone() for leaf in network.parameters()]


def _set(network: nn.Module, values: list[Tensor]) -> None:
    torch._foreach_copy_([leaf.detach() for leaf in network.parameters()], values)
