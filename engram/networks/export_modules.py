"""Plain modules around networks: shifted, mixed, or with votes of rows."""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn

from engram.core.method import Neighbors
from engram.core.types import Params
from engram.networks.base import Inputs, Outputs, called, moved
from engram.networks.traced_module import leaves
from engram.scoring.metrics import Targets
from engram.scoring.mixtures import check_votes, mixture, with_votes

Mean = Literal["linear", "logistic", "poisson"]


class Shifted(nn.Module):
    """A network with a bias on, or a gate before, its last layer's input.

    ``bias`` has shape (width,), or (2, width) for a gate: see ``moved``.
    """

    def __init__(self, network: nn.Module, bias: Tensor) -> None:
        super().__init__()
        self.network = network
        self.bias = nn.Parameter(bias.detach().clone())

    def forward(self, *args: Any, **named: Any) -> Outputs:
        """Returns the network's outputs."""
        with _tapped(self.network, lambda z: moved(z, self.bias)):
            return called(self.network, named or args)


def shifted(network: nn.Module, bias: Tensor) -> nn.Module:
    """Returns a network with a bias on, or a gate before, its last layer's input.

    It is the network itself where its last layer is linear and has a bias of its own, which is
    changed: ``W (z + b) + c = W z + (W b + c)``. No parameters of a network take up a gate.
    ``bias`` is as for ``Shifted``.
    """
    layer = _last(network)
    if bias.ndim == 2 or not (isinstance(layer, nn.Linear) and layer.bias is not None):
        return Shifted(network, bias)
    with torch.no_grad():
        layer.bias.add_(layer.weight @ bias)
    return network


class Mixture(nn.Module):
    """A mixture of several networks' predictions.

    Weights have shape (len(networks),) and add up to 1.
    """

    weights: Tensor

    def __init__(self, networks: Sequence[nn.Module], weights: Tensor, targets: Targets) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.register_buffer("weights", weights.detach().clone())
        self._targets = targets

    def forward(self, *args: Any, **named: Any) -> Outputs:
        """Returns the mixture of the networks' outputs."""
        found = [called(network, named or args)[None] for network in self.networks]
        return mixture(self._targets, found, self.weights[None])[0]


class Recalling(nn.Module):
    """A network mixed with votes of a client's rows.

    Args:
        network: The network.
        votes: Of the rows.
        memory: The rows' representations, (n, width).
        targets: Their classes, (n,).

    Raises:
        ValueError: If a number of the votes is out of range.
    """

    memory: Tensor
    targets: Tensor

    def __init__(
        self, network: nn.Module, votes: Neighbors, memory: Tensor, targets: Tensor
    ) -> None:
        super().__init__()
        check_votes(votes)
        self.network, self._votes = network, votes
        self.register_buffer("votes", torch.tensor(votes, dtype=torch.float64))
        self.register_buffer("memory", memory.detach().clone())
        self.register_buffer("targets", targets.detach().clone())

    def forward(self, *args: Any, **named: Any) -> Outputs:
        """Returns the logarithms of the mixture's probabilities."""
        outputs, z = self.represent(named or args)
        counted = self.memory.new_ones(1, len(self.memory)) > 0
        rows = self.memory[None], self.targets[None], counted
        return with_votes(self._votes, outputs[None], z[None], *rows)[0]

    def represent(self, inputs: Inputs) -> tuple[Outputs, Tensor]:
        """Returns outputs (k, ...) and representations (k, width) of rows."""
        taken: list[Tensor] = []

        def take(z: Tensor) -> Tensor:
            taken.append(z)
            return z

        with _tapped(self.network, take):
            outputs = called(self.network, inputs)
        return outputs, taken[0]


@contextmanager
def _tapped(network: nn.Module, change: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Context that changes the input of a network's last layer with parameters."""
    handle = _last(network).register_forward_pre_hook(lambda _, args: (change(args[0]), *args[1:]))
    try:
        yield
    finally:
        handle.remove()


def _last(network: nn.Module) -> nn.Module:
    *_, (last, _) = leaves(network, ())
    return network.get_submodule(last.rpartition(".")[0])


class Exponential(nn.Module):
    """The exponential function."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``exp(x)``."""
        return x.exp()


class Survival(nn.Module):
    """The probability of no event until each of K times, by a log hazard ratio, shape (n, 1).

    ``hazard``, shape (K,), is the cumulative hazard at each, where the log hazard ratio is 0.
    """

    hazard: Tensor

    def __init__(self, hazard: Tensor) -> None:
        super().__init__()
        self.register_buffer("hazard", hazard.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``exp(-hazard exp(x))``, shape (n, K)."""
        return (-x.exp() * self.hazard).exp()


def layered(state: Params, mean: Mean = "linear") -> nn.Sequential:
    """Returns dense layers with ReLU in between, in evaluation.

    Args:
        state: Weights ``layer0.weight`` (out, in) and so on, in any order, and the layers' biases,
            if they have some, as ``layer0.bias`` (out,); or with a last ``Survival`` layer, of
            ``curve.hazard`` (K,).
        mean: What stands behind the last layer: the inverse of the link function of a generalized
            linear model.
    """
    layers: dict[str, nn.Module] = {}
    for number in range(sum(name.endswith(".weight") for name in state)):
        weight = state[f"layer{number}.weight"]
        layers |= {f"relu{number}": nn.ReLU()} if number else {}
        out, width = weight.shape
        biased = f"layer{number}.bias" in state
        with torch.device("meta"):  # its numbers come below
            layers[f"layer{number}"] = nn.Linear(width, out, bias=biased, dtype=weight.dtype)
    if mean != "linear":
        layers["mean"] = nn.Sigmoid() if mean == "logistic" else Exponential()
    if "curve.hazard" in state:
        layers["curve"] = Survival(state["curve.hazard"])
    module = nn.Sequential(OrderedDict(layers)).to_empty(device="cpu")
    module.load_state_dict(state)
    return module.eval()
