"""A user's module as the network of a method: arrays by name, and losses as functions of them."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from engram.core.checks import must
from engram.core.derivatives import by_autograd
from engram.core.method import Network, Objective
from engram.core.types import Params
from engram.networks.base import Model, moved, network_of, with_personal
from engram.networks.functional import NORMS
from engram.settings.errors import Refused

Loss = Callable[[nn.Module, Any], Tensor]
"""``(net, batch) -> ()``: the loss of a batch, as a training loop computes it."""


class NetworkModule:
    """A module with arrays that are read, loaded and replaced by name.

    Its arrays are the parameters that require a gradient, and batch norm's running statistics, in
    float32. All else is constant, and stays where it is.

    Attributes:
        net: The module.
        leaves: Its arrays, as they stand in it.
        learned: Names of parameters.
        running: Names of running statistics.

    Raises:
        Refused: No parameter requires a gradient.
    """

    def __init__(self, net: nn.Module, running: Set[str] | None = None) -> None:
        self.net = net
        learned = {n: p for n, p in net.named_parameters() if p.requires_grad}
        if not learned:
            raise Refused(must("net", type(net).__name__, "a module with trained parameters"))
        norms = [n for n, m in net.named_modules() if isinstance(m, NORMS)]
        at = {f"{n}.{k}".lstrip(".") for n in norms for k in ("running_mean", "running_var")}
        at = at if running is None else {*running}
        statistics = {n: b for n, b in net.named_buffers() if n in at}
        self.learned, self.running = frozenset(learned), frozenset(statistics)
        self.leaves: Params = learned | statistics
        self._head = net.get_submodule([*learned][-1].rpartition(".")[0])
        self._holder = _Holder(net)

    def read(self, names: Iterable[str] | None = None) -> Params:
        """Returns copies of the arrays of these names; None: of all."""
        every = self.leaves if names is None else {n: self.leaves[n] for n in names}
        return {n: x.detach().float().clone() for n, x in every.items()}

    def load(self, params: Params) -> None:
        """Writes arrays into the module."""
        for name, leaf in params.items():
            self.leaves[name].detach().copy_(leaf)

    def network(self, personal: str, draw: Callable[[], Params] | None = None) -> Network:
        """Returns the network that methods are built for.

        Args:
            personal: Patterns of personal parameters, as of ``with_personal``.
            draw: Draws another start; None where shapes alone are read.

        Raises:
            ValueError: A pattern matches nothing, or nothing is left to share.
        """
        initial, running = self.read(), self.running
        model = Model(
            lambda _: initial, lambda w, x: self._call(w, lambda net: net(x)), None, 0, 0, 0,
            running=running, represent=self._represent, width=getattr(self._head, "in_features", 0),
        )  # fmt: skip
        model = with_personal(model, initial, personal=personal, running=False)
        network = network_of(model, initial, draw or (lambda: initial))
        return network if draw else network._replace(draws=lambda count: [initial] * count)

    @property
    def outputs(self) -> int:
        """Number of outputs of a linear last layer; 1 if it is another."""
        return getattr(self._head, "out_features", 1)

    def objective(self, loss: Loss) -> Objective:
        """Returns the objective of a loss, of batches ``(batch, None)``."""
        return by_autograd(lambda w, batch: self._call(w, lambda net: loss(net, batch[0])))

    def objective_by(self, criterion: Callable[[Tensor, Tensor], Tensor]) -> Objective:
        """Returns the objective of a criterion, of batches ``(inputs, targets)``."""

        def loss_of_rows(w: Params, batch: Any) -> Tensor:
            if not hasattr(batch, "weights"):
                return criterion(self._call(w, lambda net: net(batch[0])), batch[1])
            (inputs, targets), weights = batch
            outputs = self._call(w, lambda net: net(inputs)).split(1)
            rows = [criterion(*row) for row in zip(outputs, targets.split(1), strict=True)]
            return torch.stack(rows).matmul(weights)

        return by_autograd(loss_of_rows, lambda outputs, batch: criterion(outputs, batch[1]))

    def statistics(self, forward: Callable[[nn.Module, Any], Any]) -> Any:
        """Returns ``(params, inputs) -> running statistics``; None if there are none."""

        def after(w: Params, inputs: Any) -> Params:
            new = {n: w[n].detach().clone() for n in self.running}
            with torch.no_grad():
                self._call(w | new, lambda net: forward(net, inputs), copies=False)
            return new

        return after if self.running else None

    def call_with(self, w: Params, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Calls the module, in training or evaluation as it stands, with other arrays."""
        return self._call(w, lambda net: net.forward(*args, **dict(named)))

    @contextmanager
    def tapped(self, shift: Tensor | None) -> Iterator[list[Tensor]]:
        """Context that collects the last layer's inputs, and shifts them; see ``Served.shift``."""
        taken: list[Tensor] = []

        def hook(head: nn.Module, args: tuple[Any, ...]) -> Any:
            del head
            taken.append(args[0])
            return None if shift is None else (moved(args[0], shift), *args[1:])

        handle = self._head.register_forward_pre_hook(hook)
        try:
            yield taken
        finally:
            handle.remove()

    def _represent(self, w: Params, x: Any, _: Any, shift: Tensor | None, __: bool) -> Any:
        with self.tapped(shift) as taken:
            outputs = self._call(w, lambda net: net(x))
        return outputs, taken[0]

    def _call(self, w: Params, function: Callable[[nn.Module], Any], copies: bool = True) -> Any:
        if copies:  # batch norm writes into running statistics
            w = w | {n: w[n].detach().clone() for n in self.running}
        typed = {f"net.{n}": x.to(self.leaves[n].dtype) for n, x in w.items()}
        return functional_call(self._holder, typed, (function,))


class StandIn(nn.Module):
    """A network's arrays, by their names and in their order, without its functions."""

    def __init__(self, arrays: Params, running: Set[str]) -> None:
        super().__init__()
        for name, leaf in arrays.items():
            part: Any = self
            *outer, last = name.split(".")
            for key in outer:
                if not hasattr(part, key):
                    part.add_module(key, nn.Module())
                part = getattr(part, key)
            if name in running:
                part.register_buffer(last, leaf.clone())
                continue
            part.register_parameter(last, nn.Parameter(leaf.clone()))
            if last == "weight" and leaf.ndim == 2:  # as linear layers have it
                part.out_features, part.in_features = leaf.shape


class _Holder(nn.Module):
    """A module that is called with a function of another module."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, function: Callable[[nn.Module], Any]) -> Any:
        return function(self.net)
